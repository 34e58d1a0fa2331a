"""What a consumer does when its listener raises ``Outage``: it pauses, and tries again by itself (F1, H1, S1).

A message that fails burns one of its retries, and after the last one becomes a dead letter. That is right for a message
that can never succeed, and wrong while a database is down: every message would fail. So an outage is no failure:

    No call begins, nothing is fetched, and no message loses a retry. After a back-off *one* call is tried. If it raises
    ``Outage`` again, the back-off doubles, up to a bound; any other end, also another error, ends the outage.

``Outages`` is the state, and decides; the outlets (``concurrent``, ``orderly``) hold the messages. ``breaker`` makes
outages out of errors that repeat.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar, cast

from ternmq.client.consume.listener import is_async
from ternmq.errors import ConfigError, Outage

log = logging.getLogger(__name__)

#: How often an outlet in an outage looks after the messages that it holds.
CARE_S: Final = 1.0
_DOUBLINGS_MAX: Final = 30

ListenerT = TypeVar("ListenerT", bound=Callable[..., Any])


class Outages:
    """The outage of one consumer. All methods belong to the loop's thread; ``is_on`` may be read in any."""

    def __init__(self, group: str, *, first_ms: int, max_ms: int) -> None:
        """``first_ms`` is the first back-off, ``max_ms`` the longest."""
        self._group = group
        self._first_ms = first_ms
        self._max_ms = max_ms
        #: Trials in a row that ended with an outage, and the first one.
        self._failures = 0
        self.is_on = False
        #: Whether the one call after a back-off runs.
        self.is_trying = False
        #: Until when no call is tried, by the time that ``down`` was told.
        self.until = 0.0
        #: Set while messages may be fetched.
        self.flowing = asyncio.Event()
        self.flowing.set()

    def down(self, reason: BaseException, *, now: float, is_trial: bool) -> float | None:
        """A call has ended with an outage; returns after how many seconds to try again.

        None: it is one of several that were running when the outage began, and changes nothing.
        """
        if self.is_on and not is_trial:
            return None
        pause_ms = min(self._first_ms << min(self._failures, _DOUBLINGS_MAX), self._max_ms)
        if not self._failures:
            log.warning(
                "group %s pauses because of an outage: %s; trying again after %d ms, then less and less often",
                self._group,
                reason,
                pause_ms,
            )
        self._failures += 1
        self.is_on, self.is_trying = True, False
        self.until = now + pause_ms / 1000
        self.flowing.clear()
        return pause_ms / 1000

    def over(self, *, worked: bool) -> None:
        """Calls may begin again: a trial ``worked``, or nothing is left to try with. Then the next outage goes on with
        the back-off of this one."""
        if worked:
            log.info("the outage of group %s is over after %d attempts", self._group, self._failures)
            self._failures = 0
        self.is_on = self.is_trying = False
        self.flowing.set()


def breaker(failures: int, on: type[Exception] | tuple[type[Exception], ...]) -> Callable[[ListenerT], ListenerT]:
    """A decorator for listeners: ``failures`` errors in a row of the types ``on`` are an ``Outage``.

    ::

        @breaker(3, on=OperationalError)
        def on_order(message): ...

    The first of them are ordinary failures, which cost their messages a retry each. The next ones are outages until a
    call ends without such an error. Raises ``ConfigError`` for fewer than 1 failure, and for what is no ``Exception``.
    """
    if not isinstance(failures, int) or isinstance(failures, bool) or failures < 1:
        raise ConfigError(f"invalid failures {failures!r} of the breaker: expected a number from 1")
    types = on if isinstance(on, tuple) else (on,)
    if not types or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in types):
        raise ConfigError(f"invalid types {on!r} of the breaker: expected classes of exceptions")

    def decorate(listener: ListenerT) -> ListenerT:
        counted = _FailureCount(failures)

        def failed(error: Exception) -> None:
            if counted.is_too_many():
                raise Outage(f"{failures} failures in a row, the last one: {error}") from error
            raise error

        if is_async(listener):

            @functools.wraps(listener)
            async def call_async(*args: Any) -> Any:
                try:
                    result = await listener(*args)
                except types as error:
                    failed(error)
                counted.reset()
                return result

            return cast("ListenerT", call_async)

        @functools.wraps(listener)
        def call(*args: Any) -> Any:
            try:
                result = listener(*args)
            except types as error:
                failed(error)
            counted.reset()
            return result

        return cast("ListenerT", call)

    return decorate


class _FailureCount:
    """Failures in a row, of calls in many threads."""

    __slots__ = ("_count", "_lock", "_max")

    def __init__(self, count_max: int) -> None:
        self._max = count_max
        self._count = 0
        self._lock = Lock()

    def is_too_many(self) -> bool:
        with self._lock:
            self._count = min(self._count + 1, self._max)
            return self._count == self._max

    def reset(self) -> None:
        self._count = 0
