"""The validator of RocketMQ's plain ACL (N1): who calls, and may it.

A request passes the first of these that lets it:

1. The address is on the global white list.
2. The key is known, and the address is on the white list of its account.
3. The signature is right, and the account has the permissions that the request's rule asks for (``auth.accounts``).

Where this is stricter than RocketMQ (docs/decisions/0025):

- Requests that change what others use need an admin (``net.gate``), and so do those that list names of all topics and
  groups, or settings.
- A request that only asks about a topic or group needs a permission on it, whichever.
- An unknown key and a wrong signature get the same answer. Denials name what the request named, and nothing else:
  they do not tell whether a topic exists.
"""

from __future__ import annotations

from typing import Any, Final

from ternmq.auth.accounts import PASSED_MAX, AccessRules, Account
from ternmq.auth.audit import shown
from ternmq.auth.signed import SignedCallers
from ternmq.env import Clock
from ternmq.errors import NoPermission
from ternmq.net.gate import Action, CallingPeer, Need, Rule, is_send
from ternmq.wire.auth import ACCESS_KEY, Secret
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Request

#: Name topics, groups and machines of others, or settings.
LISTS: Final = frozenset(
    {
        Code.GET_ALL_CONSUMER_FILTER,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_ALL_PRODUCER_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_CONSUME_STATS,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.GET_UNIT_TOPIC_LIST,
        Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_BROKER_STATUS,
        Code.GET_DELETED_TOPICS,
        Code.GET_QUEUE_NUMBERS,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_NAMESRV_CONFIG,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_TIMER_METRICS,
        Code.GET_TOPICS_BY_CLUSTER,
    }
)
#: The same, for requests that name no topic.
_LISTS_OF_ALL: Final = frozenset({Code.GET_DELAYED_STATS})
#: Names in requests that are remembered are not longer.
_NAME_LENGTH_MAX: Final = 512


def is_list(code: int, fields: Fields, rule: Rule) -> bool:
    """Whether the answer to a request names topics, groups or machines of others, or settings."""
    return code in LISTS or (code in _LISTS_OF_ALL and not fields.get(rule.topic or ""))


class PlainAcl:
    """A validator for a ``Gate``. ``rules`` may be replaced at any time; the next request goes by the new ones."""

    audits: Final = True

    def __init__(self, rules: AccessRules, clock: Clock) -> None:
        self.rules = rules
        self._callers = SignedCallers(clock)

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, /) -> None:
        rules, callers, ip = self.rules, self._callers, caller.remote_ip
        if rules.is_white(ip):
            caller.access = None
            callers.note_change(caller, request, fields, rule, key="")
            return
        key = fields.get(ACCESS_KEY, "")
        account = rules.accounts.get(key)
        if account is not None and account.is_white(ip):
            caller.access = None
            callers.note_change(caller, request, fields, rule, key=key)
            return
        callers.check(caller, request, fields, account.secret if account is not None else None, key=key)
        assert account is not None
        caller.access, caller.proved = account, key
        if not account.may_do_all:
            self._check_permission(caller, request, fields, rule, account)
        if rule.action is Action.ADMIN:
            callers.note_change(caller, request, fields, rule, key=key)

    def secret_of(self, key: str, /) -> Secret | None:
        account = self.rules.accounts.get(key)
        return account.secret if account is not None else None

    def trusts(self, caller: CallingPeer, secret: Secret, topic: str, /) -> bool:
        """Sends of an account that has proved itself on this connection, to a topic that it has sent to before."""
        rules = self.rules
        account = rules.accounts.get(caller.proved)
        if account is None or account.secret is not secret:
            return False
        if rules.is_white(caller.remote_ip) or account.is_white(caller.remote_ip):
            return False  # it is let in for another reason, and may do more
        if not account.may_do_all and topic not in account.passed:
            return False
        caller.access = account
        return True

    # --- May it ------------------------------------------------------------------------------------------------

    def _check_permission(
        self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, account: Account
    ) -> None:
        names = rule.asked_for(fields)
        what = (request.code, *names) if names is not None else None
        if what is not None and what in account.passed:
            return
        if (rule.action is Action.ADMIN or is_list(request.code, fields, rule)) and not account.is_admin:
            reason = "this request needs an account with admin: true"
            raise self._denied(caller, request, "admin", account, reason)
        for need in rule.needs(fields, request.body):
            if not account.allows(need):
                raise self._denied(caller, request, "permission", account, lacks(need))
        if what is not None:
            if any(isinstance(name, str) and len(name) > _NAME_LENGTH_MAX for name in what):
                # No such topic can be: names of megabytes are not kept.
                return
            if len(account.passed) >= PASSED_MAX:
                account.passed.clear()
            account.passed.add(what)
            topic = what[1]
            if topic and is_send(request.code, rule):
                account.passed.add(topic)  # which tells all that it needs

    def _denied(
        self, caller: CallingPeer, request: Request[Any], kind: str, account: Account, reason: str
    ) -> NoPermission:
        return self._callers.denied(caller, request, kind, account.access_key, reason, is_known=True)


def lacks(need: Need) -> str:
    """What to tell a caller that lacks a permission."""
    action, (kind, name) = need
    wanted = "PUB or SUB" if action is Action.ANY else action.value
    return f"no permission for {kind.value}:{shown(name)}; ask the administrator for {wanted} on it"
