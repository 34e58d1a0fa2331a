"""Admission: what a request needs, and whether its caller has it (N1).

Each route has a ``Rule``: the action, and where the request names its topics, groups and clusters. ``Peer.run`` calls
its ``Gate`` first, also before it reports a field of the wrong type: a caller that is not admitted gets no further
information. A gate is a list of validators; the first one that objects raises ``NoPermission``, which is sent as the
reply. A server without a gate admits every request, at no cost.

A signature covers all ext fields and the body, also fields that the typed header does not have. So on connections with
a gate, requests arrive with the map of all their fields. The gate passes it to the validators, and builds the typed
header from the same map: the handler sees exactly what was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.names import RETRY_PREFIX, is_retry_topic, pop_retry_topic_v2, popped_topic
from ternmq.wire.auth import ACCESS_KEY, Secret
from ternmq.wire.codes import JSON
from ternmq.wire.header import NO_BODY, Fields, Request, decode_untyped, give_header
from ternmq.wire.shapes import TOPIC_FIELDS, Admitted, SignedSend


class Action(Enum):
    """What a request does, in the terms of RocketMQ's access control."""

    #: Any caller whose identity is verified.
    ANY = "ANY"
    #: Sends to a topic.
    PUB = "PUB"
    #: Reads from a topic, or acts as a member of a group.
    SUB = "SUB"
    #: Changes what other clients use: topics, groups, settings, progress of other clients.
    ADMIN = "ADMIN"


class ResourceKind(Enum):
    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Resource(NamedTuple):
    kind: ResourceKind
    name: str


class Need(NamedTuple):
    """A permission that a request must have."""

    action: Action
    resource: Resource


@dataclass(slots=True, frozen=True)
class Rule:
    """What requests of one code need. ``topic``, ``group`` and ``cluster`` are names of ext fields on the wire."""

    action: Action
    topic: str | None = None
    group: str | None = None
    cluster: str | None = None
    #: Finds resources in other ext fields.
    in_fields: Callable[[Fields], Iterable[Resource]] | None = None
    #: Finds resources in the body; raises ``RemoteProtocolError`` if it cannot.
    in_body: Callable[[memoryview], Iterable[Resource]] | None = None
    #: Names where a popped message lies, and reads nothing: its retry topic is that of its group and topic, although a
    #: group may have the same name.
    is_of_popped: bool = False

    def asked_for(self, fields: Fields) -> tuple[str | None, str | None, str | None] | None:
        """Topic, group and cluster that a request names, if these are all that tell what it needs; else None. Sends and
        pulls ask for the same all the time: validators remember it."""
        if self.in_body is not None or self.in_fields is not None:
            return None
        name = fields.get
        return (
            name(self.topic) if self.topic else None,
            name(self.group) if self.group else None,
            name(self.cluster) if self.cluster else None,
        )

    def needs(self, fields: Fields, body: memoryview) -> list[Need]:
        """The permissions that a request needs, by its ext fields and body.

        A resource that the request does not name is not needed: if the handler requires it, the typed header does,
        too. Raises ``RemoteProtocolError`` for a body that cannot be read.
        """
        group = fields.get(self.group) if self.group else None
        resources = [Resource(ResourceKind.GROUP, group)] if group else []
        for kind, name in ((ResourceKind.TOPIC, self.topic), (ResourceKind.CLUSTER, self.cluster)):
            value = fields.get(name) if name else None
            if value:
                resources.append(Resource(kind, value))
        if self.in_fields is not None:
            resources += self.in_fields(fields)
        if self.in_body is not None:
            resources += self.in_body(body)
        groups = [resource.name for resource in resources if resource.kind is ResourceKind.GROUP]
        return list(dict.fromkeys(need for resource in resources for need in self._needs_of(resource, groups)))

    def _needs_of(self, resource: Resource, groups: list[str]) -> list[Need]:
        """The permissions for one resource. Retry topics belong to their group: its members send to and read from them.

        For a send to a retry topic RocketMQ takes the group from the header, where its clients write the name of an
        internal producer, so consumers cannot send their retries there. Here the group is taken from the topic's name.

        ``%RETRY%a_b`` is the retry topic of group ``a_b``, and also of what group ``a`` popped from topic ``b``. Only
        the broker knows which, so both are needed to read it.
        """
        if resource.kind is not ResourceKind.TOPIC or not is_retry_topic(resource.name):
            return [Need(self.action, resource)]
        action = Action.SUB if self.action is Action.PUB else self.action
        of_group = Need(action, Resource(ResourceKind.GROUP, resource.name.removeprefix(RETRY_PREFIX)))
        for group in groups:
            # For messages that were popped; the group itself is needed anyway.
            popped = popped_topic(group, resource.name)
            if popped != resource.name:
                of_popped = Need(action, Resource(ResourceKind.TOPIC, popped))
                is_clear = self.is_of_popped or resource.name == pop_retry_topic_v2(group, popped)
                return [of_popped] if is_clear else [of_popped, of_group]
        return [of_group]


#: A rule for requests without a topic, group or cluster that change nothing.
ANY_CALLER: Final = Rule(Action.ANY)


class Rights(Protocol):
    """What the account of a caller may do."""

    def allows(self, need: Need, /) -> bool: ...


class CallingPeer(Protocol):
    """The part of a ``Peer`` that validators may use."""

    #: ``ip:port``.
    address: str
    #: Of the request that was admitted last; None: all is allowed. Handlers look at it before they first wait.
    access: Rights | None
    #: The last access key that this connection has proved to have; empty for none.
    proved: str

    @property
    def remote_ip(self) -> str: ...

    @property
    def certificate(self) -> Mapping[str, object]:
        """Of the client, as ``ssl.SSLSocket.getpeercert`` gives it; empty if it has shown none, or none was asked for.
        One that is here was checked."""
        ...


class DenialLog(Protocol):
    def __call__(self, caller: CallingPeer, code: int, reason: str, /) -> None: ...


class Validator(Protocol):
    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, /) -> None:
        """Return if a request is allowed; raise ``NoPermission`` with the reason and the cure if not.

        ``fields`` are all ext fields as they arrived, and ``request.body`` is the whole body; ``request.header`` is not
        checked yet. ``rule.needs`` returns the needed permissions. Runs on the loop before each request, so it must not
        block.
        """
        ...


_RECORD: Final = Rule(Action.SUB, topic="topic", group="group", is_of_popped=True)


def check_record(access: Rights | None, topic: str, group: str = "") -> None:
    """Check that the caller of a request may read a record of a topic, as a member of a group if it is one.

    For requests that find records by their place in the log: which topic that is, only the record tells. Raises
    ``NoPermission`` with a sentence that does not name it.
    """
    if access is None:
        return
    if not all(map(access.allows, _RECORD.needs({"topic": topic, "group": group}, NO_BODY))):
        raise NoPermission("no permission for the topic of this message; ask the administrator for SUB on it")


def may_know_group(access: Rights | None, group: str) -> bool:
    """Whether a caller may be told that there is a group."""
    return access is None or access.allows(Need(Action.ANY, Resource(ResourceKind.GROUP, group)))


_SEND: Final = Rule(Action.PUB, topic="topic")


def may_send(access: Rights | None, topic: str) -> bool:
    """Whether a caller may send to a topic that its request does not name, or names for something else."""
    return access is None or all(map(access.allows, _SEND.needs({"topic": topic}, NO_BODY)))


def check_send(access: Rights | None, topic: str) -> None:
    """Raise ``NoPermission``, with a sentence that does not name the topic, unless ``may_send``."""
    if not may_send(access, topic):
        raise NoPermission("no permission for the topic of this message; ask the administrator for PUB on it")


@runtime_checkable
class QuickValidator(Protocol):
    """A validator that also has a short way for sends, to a topic that it has allowed before. The decoder has checked
    their signatures by then (``wire.shapes``)."""

    def secret_of(self, key: str, /) -> Secret | None:
        """What requests with an access key must be signed by now; None: the key is unknown."""
        ...

    def trusts(self, caller: CallingPeer, secret: Secret, topic: str, /) -> bool:
        """Whether sends to a topic, signed by ``secret``, are allowed for sure; if not, the validator is asked as any
        other. The secret counts only if it is that of ``caller.proved``, still."""
        ...


#: Rules of sends that may go the short way: they need their topic, and nothing else.
_SENDS: Final = {code: Rule(Action.PUB, topic=name) for code, name in TOPIC_FIELDS.items()}


def is_send(code: int, rule: Rule) -> bool:
    """Whether requests of a code with this rule may go the short way."""
    return _SENDS.get(code) == rule


class Gate:
    """``Gate([validator, …])``: admits requests that all validators allow.

    A validator that stands alone can have a short way for sends (``QuickValidator``). Sends on it stay together in runs
    (``net.runs``): then it is asked once for each topic of a run.
    """

    def __init__(self, validators: Iterable[Validator], *, audit: DenialLog | None = None) -> None:
        """``audit`` is told of denials, except those of validators that have an attribute ``audits``: they tell of
        their own."""
        self._validators = tuple(validators)
        self._audit = audit
        quick = self._validators[0] if len(self._validators) == 1 else None
        self._quick = quick if isinstance(quick, QuickValidator) else None
        self._trusts = self._quick.trusts if self._quick is not None else None

    @property
    def is_quick(self) -> bool:
        """Whether sends can have a short way."""
        return self._trusts is not None

    def note_denial(self, caller: CallingPeer, code: int, reason: str) -> None:
        """A caller was refused, for the audit log: by a validator, or by a port that wants a proof (``net.proof``)."""
        if self._audit is not None:
            self._audit(caller, code, reason)

    def trusts_run(self, caller: CallingPeer, secret: Secret, topics: Iterable[str]) -> bool:
        """Whether all sends of a run, signed by ``secret``, would be admitted on the short way now. If not, each must
        be asked for by ``admit``."""
        trusts = self._trusts
        return trusts is not None and all(trusts(caller, secret, topic) for topic in topics)

    def admit(self, caller: CallingPeer, request: Request[Any], rule: Rule) -> Admitted | None:
        """Return if a request may be handled; its header is then built from the checked fields. The result says what
        to expect from now on, if anything (``FrameDecoder.learn``).

        Raises ``NoPermission``, or any error of a validator: the request must not be handled then, either.
        """
        header = request.header
        if type(header) is SignedSend:
            # Made only after a request of the same code, so with the same rule, was admitted on this connection.
            if self._trusts is not None and self._trusts(caller, header.secret, header.topic):
                return None
            header = request.header = decode_untyped(header.raw, JSON).header
        fields: Fields = header or {}
        try:
            for validate in self._validators:
                try:
                    validate(caller, request, fields, rule)
                except Exception as error:
                    if isinstance(error, RemoteProtocolError) or not getattr(validate, "audits", False):
                        self.note_denial(caller, request.code, str(error))
                    raise
        except RemoteProtocolError:
            raise NoPermission(
                "this request is refused: the topics and groups in its body cannot be read; check that the "
                "client and its version are supported"
            ) from None
        give_header(request, fields)
        if self._quick is None or not is_send(request.code, rule):
            return None
        key = fields.get(ACCESS_KEY, "")
        secret = self._quick.secret_of(key) if key and key == caller.proved else None
        return Admitted(fields, secret) if secret is not None else None
