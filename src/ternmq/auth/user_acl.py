"""The validator of users and policies (N1): RocketMQ 5.3's access control on the gate of each server.

Which verb a request needs is RocketMQ's table where that has one. It differs where the code allows too much or asks for
too much (docs/decisions/0026): a question about one topic or group needs any permission on it, and lists of all topics,
groups and settings need Get or List on the cluster.
"""

from __future__ import annotations

from typing import Any, Final

from ternmq.auth.accounts import holds_all_topics, is_free
from ternmq.auth.audit import shown
from ternmq.auth.plain import LISTS, is_list
from ternmq.auth.policies import Verb
from ternmq.auth.signed import SignedCallers
from ternmq.auth.users import User, UserRules
from ternmq.env import Clock
from ternmq.names import DEAD_LETTER_PREFIX
from ternmq.net.gate import Action, CallingPeer, Need, Resource, ResourceKind, Rule, is_send
from ternmq.wire.auth import ACCESS_KEY, Secret
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Request

_ANY_VERB: Final = frozenset(Verb) - {Verb.ALL}
_VERBS: Final = {
    Action.PUB: frozenset({Verb.PUB}),
    Action.SUB: frozenset({Verb.SUB}),
    Action.ANY: _ANY_VERB,
    Action.ADMIN: frozenset({Verb.UPDATE}),
}
_READS: Final = frozenset({Verb.GET, Verb.LIST})
#: Verbs of single codes, instead of those of their action.
_VERBS_OF_CODES: Final[dict[int, frozenset[Verb]]] = {
    Code.UPDATE_AND_CREATE_TOPIC: frozenset({Verb.CREATE}),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: frozenset({Verb.CREATE}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: frozenset({Verb.CREATE}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: frozenset({Verb.CREATE}),
    Code.DELETE_TOPIC_IN_BROKER: frozenset({Verb.DELETE}),
    Code.DELETE_TOPIC_IN_GROUP: frozenset({Verb.DELETE}),
    Code.DELETE_SUBSCRIPTIONGROUP: frozenset({Verb.DELETE}),
    Code.QUERY_MESSAGE: frozenset({Verb.SUB, Verb.GET}),
    Code.VIEW_MESSAGE_BY_ID: frozenset({Verb.SUB, Verb.GET}),
    Code.QUERY_CONSUMER_OFFSET: frozenset({Verb.SUB, Verb.GET}),
    Code.UPDATE_CONSUMER_OFFSET: frozenset({Verb.SUB, Verb.UPDATE}),
    Code.GET_CONSUMER_LIST_BY_GROUP: frozenset({Verb.SUB, Verb.GET}),
    **dict.fromkeys(LISTS, _READS),
}
#: What must be a super user's, whatever policies say: a user that may change users may do everything, and one that
#: follows the log reads all messages.
_SUPER_ONLY: Final = frozenset(
    {
        Code.FOLLOW_LOG,
        Code.AUTH_CREATE_USER,
        Code.AUTH_UPDATE_USER,
        Code.AUTH_DELETE_USER,
        Code.AUTH_GET_USER,
        Code.AUTH_LIST_USER,
        Code.AUTH_CREATE_ACL,
        Code.AUTH_UPDATE_ACL,
        Code.AUTH_DELETE_ACL,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
    }
)
#: About a megabyte for each user.
_PASSED_MAX: Final = 1_000
_NAME_LENGTH_MAX: Final = 512


class UserAccess:
    """What a user may do from one address (``net.gate.Rights``), by the rules of the time when it is asked: a
    connection keeps it for longer than one request."""

    __slots__ = ("_acl", "_ip", "_name")

    def __init__(self, acl: UserAcl, name: str, ip: str) -> None:
        self._acl = acl
        self._name = name
        self._ip = ip

    def is_of(self, acl: UserAcl, name: str) -> bool:
        """Whether this is what a validator gives a user, on the connection that has it."""
        return self._acl is acl and self._name == name

    def allows(self, need: Need, /) -> bool:
        user = self._acl.rules.users.get(self._name)
        if user is None or not user.is_enabled:
            return False
        return user.is_super or is_free(need) or self.allows_verbs(user, need.resource, _VERBS[need.action])

    def allows_verbs(self, user: User, resource: Resource, verbs: frozenset[Verb]) -> bool:
        policies, (kind, name) = user.policies, resource
        is_topic = kind is ResourceKind.TOPIC
        if policies.allow(resource, verbs, self._ip, by_name=is_topic and holds_all_topics(name)):
            return True
        # The members of a group may read its dead letters, unless an entry about dead letters says otherwise.
        group = name.removeprefix(DEAD_LETTER_PREFIX)
        return (
            is_topic
            and group != name
            and Verb.SUB in verbs
            and not policies.name(DEAD_LETTER_PREFIX, resource, Verb.SUB, self._ip)
            and policies.allow(Resource(ResourceKind.GROUP, group), frozenset({Verb.SUB}), self._ip)
        )


class UserAcl:
    """A validator for a ``Gate``. ``rules`` may be replaced at any time; the next request goes by the new ones."""

    audits: Final = True

    def __init__(self, rules: UserRules, clock: Clock, *, authorizes: bool, cluster: str) -> None:
        """Without ``authorizes``, every user may do what does not need an administrator."""
        self.rules = rules
        self._authorizes = authorizes
        self._cluster = Resource(ResourceKind.CLUSTER, cluster)
        self._callers = SignedCallers(clock)

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, /) -> None:
        key = fields.get(ACCESS_KEY, "")
        user = self.rules.users.get(key)
        # A disabled user gets the answer of an unknown one.
        secret = user.secret if user is not None and user.is_enabled else None
        self._callers.check(caller, request, fields, secret, key=key)
        assert user is not None
        caller.proved = key
        if user.is_super:
            caller.access = None
        elif self._authorizes:
            access = caller.access = UserAccess(self, key, caller.remote_ip)
            self._check(caller, request, fields, rule, user, access)
        else:
            caller.access = None
            if rule.action is Action.ADMIN:
                raise self._denied(caller, request, user, "this request needs a super user")
        if rule.action is Action.ADMIN:
            self._callers.note_change(caller, request, fields, rule, key=key)

    def secret_of(self, key: str, /) -> Secret | None:
        user = self.rules.users.get(key)
        return user.secret if user is not None and user.is_enabled else None

    def trusts(self, caller: CallingPeer, secret: Secret, topic: str, /) -> bool:
        """Sends of a user that has proved itself on this connection, to a topic that it has sent to before."""
        key = caller.proved
        user = self.rules.users.get(key)
        if user is None or not user.is_enabled or user.secret is not secret:
            return False
        if user.is_super or not self._authorizes:
            caller.access = None
            return True
        if (caller.remote_ip, topic) not in user.passed:
            return False
        if not (isinstance(caller.access, UserAccess) and caller.access.is_of(self, key)):
            caller.access = UserAccess(self, key, caller.remote_ip)
        return True

    def _check(
        self,
        caller: CallingPeer,
        request: Request[Any],
        fields: Fields,
        rule: Rule,
        user: User,
        access: UserAccess,
    ) -> None:
        names = rule.asked_for(fields)
        what = (request.code, caller.remote_ip, *names) if names is not None else None
        if what is not None and what in user.passed:
            return
        if request.code in _SUPER_ONLY:
            raise self._denied(caller, request, user, "this request needs a super user")
        verbs = _VERBS_OF_CODES.get(request.code)
        needs = rule.needs(fields, request.body)
        if not needs and (rule.action is Action.ADMIN or is_list(request.code, fields, rule)):
            needs = [Need(rule.action, self._cluster)]
            verbs = verbs or (_READS if rule.action is Action.ANY else None)
        for need in needs:
            resource, wanted = need.resource, verbs or _VERBS[need.action]
            if not is_free(need) and not access.allows_verbs(user, resource, wanted):
                named = "any action" if wanted is _ANY_VERB else " or ".join(sorted(verb.value for verb in wanted))
                raise self._denied(
                    caller,
                    request,
                    user,
                    f"no permission for {resource.kind.value}:{shown(resource.name)}; ask the administrator for "
                    f"{named} on it",
                )
        if what is not None and not any(isinstance(one, str) and len(one) > _NAME_LENGTH_MAX for one in what):
            if len(user.passed) >= _PASSED_MAX:
                user.passed.clear()
            user.passed.add(what)
            topic = fields.get(rule.topic or "")
            if topic and is_send(request.code, rule):
                user.passed.add((caller.remote_ip, topic))

    def _denied(self, caller: CallingPeer, request: Request[Any], user: User, reason: str) -> Exception:
        return self._callers.denied(caller, request, "permission", user.name, reason, is_known=True)
