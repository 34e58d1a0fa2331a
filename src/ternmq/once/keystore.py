"""The states of a key, what may become of them, and what a store of keys must do (S1). Pure, but for the protocol.

::

            claim                 finish
    (none) ──────► running ─────────────────► done ──► (none), after ``keep_ms``
              ▲      │  │ fail
              │      │  └──────► failed ──► (none), after ``keep_ms``
              ├──────┘              │
              │ lease over          │
              └─────────────────────┘

Each claim has a token of its own. ``renew``, ``finish`` and ``fail`` need it: an owner whose lease ended, and whose key
was claimed by another consumer, changes nothing any more. One whose lease ended while no other consumer came still
owns the key.

Times are those of the store, one clock for all consumers. It may jump. Forward: leases end early, and tokens fence the
owners off; done keys expire early. Back: a lease that ends later than a whole lease from now was given before the jump,
and is cut to one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from ternmq.errors import ConfigError, InvalidKey

T = TypeVar("T")

#: Characters of a key, as the application gives it; of a scope; and of both with the topic between them.
KEY_LENGTH: Final = 255
SCOPE_LENGTH: Final = 255
NAME_LENGTH: Final = 700
TOKEN_LENGTH: Final = 32
#: How long the key of an owner that died stays in a store after its lease if no consumer claims it.
ABANDONED_MS: Final = 24 * 3_600_000


class State(enum.IntEnum):
    """Of a key. The numbers are stored."""

    RUNNING = 0
    DONE = 1
    FAILED = 2


@dataclass(slots=True, frozen=True)
class KeyEntry:
    """What a store keeps of a key. Times are in ms since 1970."""

    state: State
    #: Of the claim that it is in, or was.
    token: str
    #: The end of the lease; of a key that is done or failed: when it is forgotten.
    until_ms: int
    #: How long the lease is.
    lease_ms: int
    #: How often it was claimed.
    attempts: int
    #: When it came into this state.
    since_ms: int

    def is_over(self, now_ms: int) -> bool:
        """Whether a store may forget it."""
        return self.until_ms + (ABANDONED_MS if self.state is State.RUNNING else 0) <= now_ms


class Verdict(enum.Enum):
    """What a claim has found."""

    OURS = "ours"
    DONE = "done"
    BUSY = "busy"


@dataclass(slots=True, frozen=True)
class Claim:
    """The answer to a claim. ``wait_ms`` is what is left of the other owner's lease, if the key is busy."""

    verdict: Verdict
    wait_ms: int = 0


#: What is to be done with a key: gets its entry, if it has one, and the store's time; returns a result, and the entry
#: to store. The entry that it got, unchanged, means that nothing is stored. It may be called again for one change.
Decide = Callable[[KeyEntry | None, int], tuple[T, KeyEntry | None]]


def claim(token: str, lease_ms: int) -> Decide[Claim]:
    """Claim a key for ``lease_ms``."""

    def decide(entry: KeyEntry | None, now_ms: int) -> tuple[Claim, KeyEntry | None]:
        if entry is not None and entry.state is not State.FAILED and entry.until_ms > now_ms:
            if entry.state is State.DONE:
                return Claim(Verdict.DONE), entry
            if entry.until_ms > now_ms + entry.lease_ms:  # the clock was set back
                entry = replace(entry, until_ms=now_ms + entry.lease_ms)
            return Claim(Verdict.BUSY, entry.until_ms - now_ms), entry
        attempts = 1 if entry is None else entry.attempts + 1
        return Claim(Verdict.OURS), KeyEntry(State.RUNNING, token, now_ms + lease_ms, lease_ms, attempts, now_ms)

    return decide


def renew(token: str) -> Decide[bool]:
    """Begin the lease anew; returns whether the key is still ours."""

    def decide(entry: KeyEntry | None, now_ms: int) -> tuple[bool, KeyEntry | None]:
        if entry is None or not is_held(entry, token):
            return False, entry
        return True, replace(entry, until_ms=now_ms + entry.lease_ms)

    return decide


def settle(token: str, state: State, keep_ms: int) -> Decide[bool]:
    """The work is done, or has failed; returns whether the key was still ours."""

    def decide(entry: KeyEntry | None, now_ms: int) -> tuple[bool, KeyEntry | None]:
        if entry is None or not is_held(entry, token):
            return False, entry
        return True, replace(entry, state=state, until_ms=now_ms + keep_ms, since_ms=now_ms)

    return decide


def is_held(entry: KeyEntry, token: str) -> bool:
    return entry.state is State.RUNNING and entry.token == token


class KeyStore(Protocol):
    """Keys and their entries, shared by all consumers that use it. All methods raise ``KeyStoreFailed``."""

    #: For errors and logs.
    name: str

    async def change(self, key: str, decide: Decide[T]) -> T:
        """Let ``decide`` look at a key and change it, as one step for all consumers. The change is stored when this
        returns, as durably as the store can."""
        ...

    async def purge(self, count_max: int) -> int:
        """Forget up to this many keys whose time is over; returns how many. Stores that forget by themselves return
        0."""
        ...


def check_key(key: object) -> str:
    """The key of a message as text; several keys are joined by blanks. Raises ``InvalidKey``."""
    if isinstance(key, Sequence) and not isinstance(key, str | bytes) and all(isinstance(part, str) for part in key):
        key = " ".join(key)
    if key is None or key == "":
        raise InvalidKey("the message has no key; send it with keys=…, or give `once` another key function")
    if not isinstance(key, str):
        raise InvalidKey(f"invalid key of type {type(key).__name__}: expected a str, or a tuple of them")
    if len(key) > KEY_LENGTH:
        raise InvalidKey(f"invalid key {key[:40]!r}…: it has {len(key)} characters, {KEY_LENGTH} are allowed")
    if "\0" in key or any("\ud800" <= character <= "\udfff" for character in key):
        raise InvalidKey(f"invalid key {key!r}: it has characters that databases do not store")
    return key


def check_scope(scope: object) -> str:
    """Raises ``ConfigError`` for a scope that could be mixed up with others."""
    if not isinstance(scope, str) or not 0 < len(scope) <= SCOPE_LENGTH or ":" in scope or "\0" in scope:
        raise ConfigError(
            f"invalid scope {scope!r}: expected a text of 1 to {SCOPE_LENGTH} characters without ':', such as the name "
            "of the consumer group"
        )
    return scope


def full_name(scope: str, topic: str, key: str) -> str:
    """What stores know a key by: keys of several groups and topics are different ones."""
    return f"{scope}:{topic}:{key}"
