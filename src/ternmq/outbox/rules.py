"""What becomes of a message after an attempt to send it; pure (J3).

Three kinds of failure:

- *outage*: no broker could be reached, or the brokers are busy. The message waits, and never dies of it: an outage of a
  day must not bury a day's messages.
- *refusal*: a broker answered, and does not take the message (no permission, too large, …). Each one counts, and the
  message is dead after ``refusals_max``.
- *hopeless*: the message cannot be sent by any producer (an invalid row). It is dead at once.

In all cases the wait before the next attempt doubles, up to a bound.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from ternmq.errors import (
    InvalidMessage,
    InvalidName,
    NetworkError,
    NotRunning,
    RouteMissing,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    TernError,
    TooManyCalls,
)
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.entry import ERROR_LENGTH, Row

#: The columns of attempts and refusals hold no more.
TIMES_MAX: Final = 2**31 - 1

_OUTAGES: Final = (NetworkError, SystemBusy, ServiceNotAvailable, TooManyCalls, NotRunning, RouteMissing)


class Failure(enum.Enum):
    OUTAGE = enum.auto()
    REFUSAL = enum.auto()
    HOPELESS = enum.auto()


@dataclass(slots=True, frozen=True)
class FailedAttempt:
    """What is stored of a failed attempt."""

    row_id: int
    is_dead: bool
    #: When the next attempt may begin.
    due_ms: int
    attempts: int
    refusals: int
    error: str


def failure_of(error: Exception) -> Failure:
    """The kind of a failure. What we do not know counts as a refusal: it ends, but not at once."""
    if isinstance(error, InvalidMessage | InvalidName | TypeError):
        return Failure.HOPELESS
    if isinstance(error, SendFailed):
        return Failure.OUTAGE if all(isinstance(one, _OUTAGES) for one in error.attempts) else Failure.REFUSAL
    return Failure.OUTAGE if isinstance(error, _OUTAGES) else Failure.REFUSAL


def judge(row: Row, error: Exception, *, now_ms: int, config: OutboxConfig) -> FailedAttempt:
    """What becomes of ``row`` after ``error``."""
    kind = failure_of(error)
    attempts = min(row.attempts + 1, TIMES_MAX)
    refusals = min(row.refusals + (kind is not Failure.OUTAGE), TIMES_MAX)
    return FailedAttempt(
        row.id,
        is_dead=kind is Failure.HOPELESS or refusals >= config.refusals_max,
        due_ms=now_ms + backoff_ms(attempts, config),
        attempts=attempts,
        refusals=refusals,
        error=reason_of(error),
    )


def backoff_ms(attempts: int, config: OutboxConfig) -> int:
    """How long to wait after so many failed attempts."""
    # The exponent is bounded, too: an outage may last for thousands of attempts.
    return min(config.backoff_ms << min(attempts - 1, 30), config.backoff_max_ms)


def reason_of(error: BaseException) -> str:
    """The sentence of an error, as a database can store it."""
    text = str(error) if isinstance(error, TernError) else f"{type(error).__name__}: {error}"
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:ERROR_LENGTH]
