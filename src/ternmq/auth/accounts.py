"""Accounts and what they may do (N1): the rules of RocketMQ's plain ACL, as values.

A permission is DENY, PUB, SUB or both. An account has one for each topic and group that it names, and defaults for all
others. An ``admin`` may do all, unless it names topics or groups: then its permissions apply as for any account,
except to requests that only an admin may make. The defaults are DENY.

Retries belong to their group (``net.gate``). So do dead letters here: the members of a group may read them, unless an
entry for the topic says otherwise. Topics where the broker keeps messages of all topics (delayed ones, halves, replies)
need an entry: the default does not reach them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag
from typing import Final

from ternmq.auth.addresses import NO_ADDRESS, AddressPattern
from ternmq.errors import ConfigError
from ternmq.names import AUTO_CREATE_TOPIC, CHECK_MAX_TOPIC, DEAD_LETTER_PREFIX, TRACE_TOPIC, is_internal_topic
from ternmq.net.gate import Action, Need, ResourceKind
from ternmq.wire.auth import KEY_LENGTH_MIN, Secret

_KEY_LENGTH_MAX: Final = 1024
#: Requests of one account that passed and are remembered, and topics: about a megabyte, as long names are not.
PASSED_MAX: Final = 1_000
#: Addresses that are remembered for white lists.
_ASKED_MAX: Final = 10_000
#: Topics of which every account may know that they exist: clients ask for their routes by themselves.
_KNOWN_TOPICS: Final = frozenset({AUTO_CREATE_TOPIC, TRACE_TOPIC})
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"


class Permission(Flag):
    DENY = 0
    PUB = 1
    SUB = 2

    @classmethod
    def parse(cls, text: str | None) -> Permission:
        """As RocketMQ reads it: what is absent or unknown denies."""
        return _PERMISSIONS.get((text or "").replace(" ", "").upper(), cls.DENY)

    def __str__(self) -> str:
        return "|".join(one.name for one in (Permission.PUB, Permission.SUB) if one in self and one.name) or "DENY"


_PERMISSIONS: Final = {
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


@dataclass(slots=True, frozen=True, eq=False)
class Account:
    """One account. Raises ``ConfigError`` for keys that are too short. ``repr`` does not show the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    white: AddressPattern = NO_ADDRESS
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)
    secret: Secret = field(init=False, repr=False)
    #: An admin that lists no topics and no groups.
    may_do_all: bool = field(init=False, repr=False)
    #: What was allowed before, by what the validator makes of a request, and topics that were sent to; it may forget
    #: all at any time.
    passed: set[object] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        for what, value in (("accessKey", self.access_key), ("secretKey", self.secret_key)):
            if not KEY_LENGTH_MIN <= len(value) <= _KEY_LENGTH_MAX:
                whose = f" of {self.access_key!r}" if what == "secretKey" else f" {value[:40]!r}"
                raise ConfigError(f"invalid {what}{whose}: expected {KEY_LENGTH_MIN} to {_KEY_LENGTH_MAX} characters")
        object.__setattr__(self, "secret", Secret(self.secret_key))
        object.__setattr__(self, "may_do_all", self.is_admin and not self.topics and not self.groups)

    def is_white(self, ip: str) -> bool:
        """Whether requests with this key from an address need no signature."""
        return bool(self.white.text) and self.white.matches(ip)

    def allows(self, need: Need) -> bool:
        """Whether the account has a permission that a request needs."""
        if self.may_do_all:
            return True
        action, (kind, name) = need
        if action is Action.ADMIN:
            return self.is_admin
        if kind is ResourceKind.CLUSTER:
            return action is Action.ANY
        if kind is ResourceKind.GROUP:
            return _suffices(self.groups.get(name, self.default_group), action)
        return is_free(need) or _suffices(self._topic_permission(name), action)

    def _topic_permission(self, topic: str) -> Permission:
        permission = self.topics.get(topic)
        if permission is not None:
            return permission
        if holds_all_topics(topic):
            return Permission.DENY
        permission = self.default_topic
        if topic.startswith(DEAD_LETTER_PREFIX):
            group = topic.removeprefix(DEAD_LETTER_PREFIX)
            permission |= self.groups.get(group, self.default_group) & Permission.SUB
        return permission


def is_free(need: Need) -> bool:
    """Whether every account has a permission: to write traces, and to know of topics that clients ask for by
    themselves."""
    action, (kind, name) = need
    if kind is not ResourceKind.TOPIC:
        return False
    if name == TRACE_TOPIC and action is Action.PUB:
        return True
    return action is Action.ANY and (name in _KNOWN_TOPICS or name.endswith(_REPLY_SUFFIX))


def holds_all_topics(topic: str) -> bool:
    """Whether messages of all topics are kept there, or replies to them, also of those that an account is denied:
    defaults do not reach it."""
    return is_internal_topic(topic) or topic == CHECK_MAX_TOPIC or topic.endswith(_REPLY_SUFFIX)


def _suffices(permission: Permission, action: Action) -> bool:
    match action:
        case Action.PUB:
            return Permission.PUB in permission
        case Action.SUB:
            return Permission.SUB in permission
        case Action.ANY:
            return permission is not Permission.DENY
        case Action.ADMIN:
            return False


class AccessRules:
    """All accounts and white lists of a server at one time. A change makes new ones."""

    def __init__(self, accounts: Iterable[Account] = (), white: Iterable[AddressPattern] = ()) -> None:
        #: Of two accounts with one key the first counts.
        self.accounts: dict[str, Account] = {}
        for account in accounts:
            self.accounts.setdefault(account.access_key, account)
        self._white = tuple(white)
        self._asked: dict[str, bool] = {}

    def is_white(self, ip: str) -> bool:
        """Whether requests from an address need no account at all."""
        if not self._white:
            return False
        known = self._asked.get(ip)
        if known is None:
            if len(self._asked) >= _ASKED_MAX:
                self._asked.clear()
            known = self._asked[ip] = any(pattern.matches(ip) for pattern in self._white)
        return known
