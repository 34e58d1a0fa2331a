"""Users and what they may do (N1): access control of RocketMQ 5.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import UNREADABLE, BrokerRefused, NetworkError, RemoteProtocolError, RequestNotSupported
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.users import AclBody, PolicyBody, PolicyEntryBody, UserBody
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Header
from ternmq.wire.requests_admin import AclSubject, DeletePolicy, ListPolicies, ListUsers, UserName

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class UserInfo:
    """A user of one broker.

    Args:
        broker: Name of the broker.
        name: The name, which clients give as access key.
        is_super: Whether it may do everything.
        is_enabled: Whether its requests are accepted at all.
    """

    broker: str
    name: str
    is_super: bool
    is_enabled: bool


@dataclass(slots=True, frozen=True)
class PolicyInfo:
    """One entry of a user's policies.

    Args:
        broker: Name of the broker.
        user: The user.
        resource: ``Topic:orders``, ``Group:billing``, ``Cluster:…``, with ``*`` at the end for a prefix, or ``*``.
        actions: ``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List`` or ``All``.
        decision: ``Allow`` or ``Deny``.
        sources: Addresses and networks from which it applies; empty: all.
        is_default: Whether it applies only where no other entry does.
    """

    broker: str
    user: str
    resource: str
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...]
    is_default: bool


class UserAdmin:
    """Users and their policies: ``admin.users``. Each change is made on every broker of the cluster.

    If a broker refuses it or cannot be reached, the others are changed all the same, and the error is raised then:
    repeat the change when that broker is back.
    """

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin) -> None:
        self._instance = instance
        self._brokers = brokers

    async def all(self, text: str = "") -> list[UserInfo]:
        """The users of all brokers whose name contains ``text``."""
        found: list[UserInfo] = []
        for broker in await self._brokers.all():
            header = ListUsers(filter=text or None)
            users = _decoded(await self._ask(broker, RequestCode.AUTH_LIST_USER, header), list[UserBody])
            found += [
                UserInfo(broker.name, user.username or "", user.user_type == "Super", user.user_status != "disable")
                for user in users or ()
            ]
        return found

    async def create(self, name: str, password: str, *, is_super: bool = False) -> None:
        """Create a user with a ``name`` and a ``password``; one that ``is_super`` may do everything.

        Raises ``InvalidParameter`` if it exists on a broker.
        """
        body = UserBody(username=name, password=password, user_type=_type(is_super))
        await self._on_all(RequestCode.AUTH_CREATE_USER, UserName(username=name), encode(body))

    async def update(
        self, name: str, *, password: str = "", is_super: bool | None = None, is_enabled: bool | None = None
    ) -> None:
        """Change the user ``name``: its ``password``, whether it ``is_super`` or ``is_enabled``. None changes nothing.

        Raises ``InvalidParameter`` for an unknown user, or the last super user.
        """
        body = UserBody(
            username=name,
            password=password or None,
            user_type=None if is_super is None else _type(is_super),
            user_status=None if is_enabled is None else "enable" if is_enabled else "disable",
        )
        await self._on_all(RequestCode.AUTH_UPDATE_USER, UserName(username=name), encode(body))

    async def delete(self, name: str) -> None:
        """Delete the user ``name`` and its policies.

        Raises ``InvalidParameter`` for an unknown user, or the last super user.
        """
        await self._on_all(RequestCode.AUTH_DELETE_USER, UserName(username=name))

    async def policies(self, user: str = "", resource: str = "") -> list[PolicyInfo]:
        """The entries of all users whose name contains ``user``, for resources that contain ``resource``."""
        found: list[PolicyInfo] = []
        for broker in await self._brokers.all():
            header = ListPolicies(subject_filter=user or None, resource_filter=resource or None)
            acls = _decoded(await self._ask(broker, RequestCode.AUTH_LIST_ACL, header), list[AclBody])
            found += [
                PolicyInfo(
                    broker.name,
                    (acl.subject or "").partition(":")[2],
                    entry.resource or "",
                    tuple(entry.actions or ()),
                    entry.decision or "",
                    tuple(entry.source_ips or ()),
                    policy.policy_type == "Default",
                )
                for acl in acls or ()
                for policy in acl.policies or ()
                for entry in policy.entries or ()
            ]
        return found

    async def decide(
        self,
        user: str,
        resource: str,
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        sources: Sequence[str] = (),
        is_default: bool = False,
    ) -> None:
        """Allow or deny a ``user`` some ``actions`` on a ``resource``; replaces its entry for that resource.

        ``decision`` is ``Allow`` or ``Deny``, ``sources`` are the addresses and networks from which it applies, all
        without any. An entry that ``is_default`` applies only where no other entry does. Raises ``InvalidParameter``.

        ::

            await admin.users.decide("shop", "Topic:orders", ["Pub"])
            await admin.users.decide("billing", "Topic:pay*", ["Sub"], sources=["10.0.0.0/24"])
        """
        entry = PolicyEntryBody(
            resource=resource, actions=list(actions), source_ips=list(sources) or None, decision=decision
        )
        subject = f"User:{user}"
        body = AclBody(subject=subject, policies=[PolicyBody(policy_type=_kind(is_default), entries=[entry])])
        await self._on_all(RequestCode.AUTH_UPDATE_ACL, AclSubject(subject=subject), encode(body))

    async def revoke(self, user: str, resource: str = "", *, is_default: bool = False) -> None:
        """Delete the entry of a ``user`` for a ``resource``, the one that ``is_default`` or the other one.

        Without a resource, all its entries are deleted. Raises ``InvalidParameter`` for an unknown user.
        """
        header = DeletePolicy(subject=f"User:{user}", policy_type=_kind(is_default), resource=resource or None)
        await self._on_all(RequestCode.AUTH_DELETE_ACL, header)

    async def _on_all(self, code: RequestCode, header: Header, body: bytes = b"") -> None:
        """Change all brokers, then raise the first error: what is repeated reaches those that lack it."""
        failure: BrokerRefused | NetworkError | None = None
        for broker in await self._brokers.all():
            try:
                await self._ask(broker, code, header, body)
            except (BrokerRefused, NetworkError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _ask(self, broker: BrokerInfo, code: RequestCode, header: Header, body: bytes = b"") -> bytes:
        try:
            return bytes((await self._instance.ask(broker.address, code, header, body)).body)
        except RequestNotSupported as error:
            raise RequestNotSupported(
                f"{broker.name} has no users; set authenticationEnabled=true on it (TernMQ, or RocketMQ 5.3)",
                broker=broker.name,
            ) from error


def _type(is_super: bool) -> str:
    return "Super" if is_super else "Normal"


def _kind(is_default: bool) -> str:
    return "Default" if is_default else "Custom"


def _decoded(data: bytes, kind: type[T]) -> T | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"the broker's answer cannot be read: {error}") from None
