"""Users and their policies (N1): RocketMQ 5.3's access control, as values.

A user has a name, a password, a type (*super* or *normal*) and can be disabled. The password is the secret of its
signatures, so a client gives the name as access key and the password as secret key. Super users may do everything,
normal ones what their policies allow (``auth.policies``). A change makes a new ``UserRules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ternmq.auth.accounts import Account, Permission
from ternmq.auth.policies import NO_POLICIES, Decision, Policies, PolicyEntry, PolicyType, Verb
from ternmq.errors import ConfigError
from ternmq.wire.auth import Secret

NAME_LENGTH_MAX: Final = 64
PASSWORD_LENGTH_MAX: Final = 1_024
USERS_MAX: Final = 10_000


class UserType(Enum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(slots=True, frozen=True, eq=False)
class User:
    """Raises ``ConfigError`` for a name or password that cannot be used. ``repr`` does not show the password."""

    name: str
    password: str = field(repr=False)
    kind: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    policies: Policies = NO_POLICIES
    secret: Secret = field(init=False, repr=False)
    #: Requests that were allowed, by what the validator makes of them; it may forget all at any time.
    passed: set[object] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_LENGTH_MAX or not self.name.isprintable() or self.name != self.name.strip():
            raise ConfigError(
                f"invalid user name {self.name[:NAME_LENGTH_MAX]!r}: expected 1 to {NAME_LENGTH_MAX} printable "
                "characters, without blanks at the ends"
            )
        if not 0 < len(self.password) <= PASSWORD_LENGTH_MAX:
            raise ConfigError(f"invalid password of user {self.name!r}: expected 1 to {PASSWORD_LENGTH_MAX} characters")
        object.__setattr__(self, "secret", Secret(self.password))

    @property
    def is_super(self) -> bool:
        return self.kind is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE


@dataclass(slots=True, frozen=True)
class UserRules:
    """All users of a server at one time, by name."""

    users: Mapping[str, User] = field(default_factory=dict)

    def created(self, user: User) -> UserRules:
        """Raises ``ConfigError`` if there is such a user."""
        if user.name in self.users:
            raise ConfigError(f"the user {user.name!r} exists; update it, or delete it first")
        if len(self.users) >= USERS_MAX:
            raise ConfigError(f"there are {len(self.users)} users already: expected at most {USERS_MAX}")
        return UserRules({**self.users, user.name: user})

    def updated(
        self, name: str, *, password: str = "", kind: UserType | None = None, status: UserStatus | None = None
    ) -> UserRules:
        """With what is given changed. Raises ``ConfigError``."""
        user = self.get(name)
        changed = replace(
            user, password=password or user.password, kind=kind or user.kind, status=status or user.status
        )
        return self._checked({**self.users, name: changed})

    def deleted(self, name: str) -> UserRules:
        """Without a user and its policies. Raises ``ConfigError``."""
        self.get(name)
        return self._checked({other: user for other, user in self.users.items() if other != name})

    def with_policies(self, name: str, policies: Policies) -> UserRules:
        """Raises ``ConfigError``."""
        return UserRules({**self.users, name: replace(self.get(name), policies=policies)})

    def get(self, name: str) -> User:
        """Raises ``ConfigError`` if there is no such user."""
        user = self.users.get(name)
        if user is None:
            raise ConfigError(f"there is no user {name[:NAME_LENGTH_MAX]!r}; create it first")
        return user

    def _checked(self, users: dict[str, User]) -> UserRules:
        if not any(user.is_super and user.is_enabled for user in users.values()):
            raise ConfigError("this would leave no enabled super user, and users could not be changed any more")
        return UserRules(users)


def from_account(account: Account) -> User:
    """A user that may do what an account of the plain ACL may, as RocketMQ converts it.

    The addresses from which an account needs no signature have no counterpart: users always sign.
    """
    entries = [
        _entry(f"{kind}:{name}", permission)
        for kind, permissions in (("Topic", account.topics), ("Group", account.groups))
        for name, permission in permissions.items()
        # For an account, these are names that no topic has; an entry of a user would be a prefix.
        if "*" not in name
    ]
    defaults = [
        _entry(f"{kind}:*", permission)
        for kind, permission in (("Topic", account.default_topic), ("Group", account.default_group))
    ]
    policies = Policies({PolicyType.CUSTOM: tuple(entries), PolicyType.DEFAULT: tuple(defaults)})
    kind = UserType.SUPER if account.is_admin else UserType.NORMAL
    return User(account.access_key, account.secret_key, kind, policies=policies)


def _entry(resource: str, permission: Permission) -> PolicyEntry:
    if permission is Permission.DENY:
        return PolicyEntry.parse(resource, [Verb.ALL.value], (), Decision.DENY.value)
    verbs = []
    if Permission.PUB in permission:
        verbs.append(Verb.PUB.value)
    if Permission.SUB in permission:
        verbs.append(Verb.SUB.value)
    return PolicyEntry.parse(resource, verbs, (), Decision.ALLOW.value)
