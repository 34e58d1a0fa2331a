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

from ternmq.auth.accounts import MEMORY_MAX, AccessRules, Account
from ternmq.auth.audit import Audit, shown
from ternmq.auth.guesses import Guesses
from ternmq.env import Clock
from ternmq.errors import NoPermission
from ternmq.net.gate import Action, CallingPeer, Need, Rule
from ternmq.wire.auth import ACCESS_KEY, SIGNATURE, Secret
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Request

#: Name topics, groups and machines of others, or settings.
LISTS: Final = frozenset(
    {
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_ALL_PRODUCER_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_CONSUME_STATS,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_NAMESRV_CONFIG,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_TIMER_METRICS,
        Code.GET_TOPICS_BY_CLUSTER,
    }
)
#: The same, for requests that name no topic.
_LISTS_OF_ALL: Final = frozenset({Code.GET_DELAYED_STATS})
#: Admin requests by which brokers stay registered. They change nothing that an administrator decided, and are many.
_REGISTRATIONS: Final = frozenset(
    {Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION, Code.BROKER_HEARTBEAT}
)
#: Names in requests that are remembered are not longer.
_NAME_LENGTH_MAX: Final = 512
#: An account that no key leads to, so that an unknown key takes as long as a known one.
_NO_SECRET: Final = Secret("no account has this secret")


class PlainAcl:
    """A validator for a ``Gate``. ``rules`` may be replaced at any time; the next request goes by the new ones."""

    def __init__(self, rules: AccessRules, clock: Clock) -> None:
        self.rules = rules
        self._audit = Audit(clock)
        self._guesses = Guesses(clock)

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, /) -> None:
        rules, ip = self.rules, caller.remote_ip
        if rules.is_white(ip):
            caller.access = None
            self._note_change(caller, request, fields, rule, "")
            return
        key = fields.get(ACCESS_KEY, "")
        account = rules.accounts.get(key)
        if account is not None and account.white.text and account.white.matches(ip):
            caller.access = None
            self._note_change(caller, request, fields, rule, key)
            return
        account = self._proved(caller, request, fields, account, key)
        caller.access, caller.proved = account, key
        if not account.may_do_all:
            self._check_permission(caller, request, fields, rule, account)
        if rule.action is Action.ADMIN:
            self._note_change(caller, request, fields, rule, key)

    # --- Who ---------------------------------------------------------------------------------------------------

    def _proved(
        self, caller: CallingPeer, request: Request[Any], fields: Fields, account: Account | None, key: str
    ) -> Account:
        """The account, if the request is signed with its secret."""
        if not key or SIGNATURE not in fields:
            raise self._denied(
                caller,
                request,
                "unsigned",
                key,
                "the request is not signed; give the client an access key and a secret key",
            )
        if caller.proved != key and not self._guesses.may_try(caller.remote_ip, key):
            raise self._denied(
                caller,
                request,
                "guessing",
                key,
                "too many wrong signatures came from this address; check the secret key, and try again in a minute",
            )
        secret = account.secret if account is not None else _NO_SECRET
        if not secret.has_signed(fields, request.body) or account is None:
            self._guesses.failed(caller.remote_ip, key)
            raise self._denied(
                caller,
                request,
                "signature" if account is not None else "unknown key",
                key,
                "the access key or the signature is not valid; check the access key and the secret key of the client",
            )
        return account

    # --- May it ------------------------------------------------------------------------------------------------

    def _check_permission(
        self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, account: Account
    ) -> None:
        what: tuple[object, ...] | None = None
        if rule.in_body is None:
            # Sends and pulls ask for the same all the time.
            what = (
                request.code,
                fields.get(rule.topic) if rule.topic else None,
                fields.get(rule.group) if rule.group else None,
                fields.get(rule.cluster) if rule.cluster else None,
            )
            if what in account.passed:
                return
        is_list = request.code in LISTS or (request.code in _LISTS_OF_ALL and not fields.get(rule.topic or ""))
        if (rule.action is Action.ADMIN or is_list) and not account.is_admin:
            reason = "this request needs an account with admin: true"
            raise self._denied(caller, request, "admin", account.access_key, reason)
        for need in rule.needs(fields, request.body):
            if not account.allows(need):
                raise self._denied(caller, request, "permission", account.access_key, lacks(need))
        if what is not None:
            if any(isinstance(name, str) and len(name) > _NAME_LENGTH_MAX for name in what):
                # No such topic can be: names of megabytes are not kept.
                return
            if len(account.passed) >= MEMORY_MAX:
                account.passed.clear()
            account.passed.add(what)

    # --- What is told ------------------------------------------------------------------------------------------

    def _note_change(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, key: str) -> None:
        if rule.action is Action.ADMIN and request.code not in _REGISTRATIONS:
            resources = ", ".join(f"{kind.value}:{shown(name)}" for _, (kind, name) in rule.needs(fields, request.body))
            self._audit.changed(key=key, address=caller.address, code=request.code, resources=resources)

    def _denied(self, caller: CallingPeer, request: Request[Any], kind: str, key: str, reason: str) -> NoPermission:
        self._audit.denied(
            kind=kind,
            key=key,
            is_known=key in self.rules.accounts,
            ip=caller.remote_ip,
            address=caller.address,
            code=request.code,
            reason=reason,
        )
        return NoPermission(reason)


def lacks(need: Need) -> str:
    """What to tell a caller that lacks a permission."""
    action, (kind, name) = need
    wanted = "PUB or SUB" if action is Action.ANY else action.value
    return f"no permission for {kind.value}:{shown(name)}; ask the administrator for {wanted} on it"
