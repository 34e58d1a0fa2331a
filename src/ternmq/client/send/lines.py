"""The lines of a client: at most one for each broker, on which threads send by themselves (``net.line``, E1).

A line is opened when threads have sent ``LONE_SENDS`` messages to a broker over the loop, one after the other: a
program that sends a few has no second connection. A thread of its own opens it, so that no send waits for that. It is
closed when it was not used for a while, when the loop's connection to this broker is lost, with the client, and after
any error. Then threads send over the loop, until another one is opened.

Who may do what: a line has a lock, and who has it uses, opens and closes the line's connection. A thread takes it
without waiting: while another one has it, the loop is as good, and gathers what many threads send. The client's loop,
which must not wait, marks a line as ended, and the last one that lets go of the lock closes it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

from ternmq.errors import TernError
from ternmq.net.line import HAS_LINES, CallLine

log = logging.getLogger(__name__)

#: Sends over the loop to one broker before it gets a line.
LONE_SENDS: Final = 32
#: The same after an attempt to open one has failed, or none of its calls was answered.
_LONE_SENDS_AFTER_FAILURE: Final = 1_000
#: A line that was not used for so long is closed: firewalls forget idle connections without a word, brokers close them.
IDLE_S: Final = 30.0


class SendLine:
    """The line to one address, open or not."""

    __slots__ = ("_is_ended", "_left", "_lock", "_used_at", "address", "connection")

    def __init__(self, address: str) -> None:
        self.address = address
        #: While it is open.
        self.connection: CallLine | None = None
        #: When it was last taken.
        self._used_at = 0.0
        #: Sends over the loop until it is opened. Several threads may count at once, and lose a count.
        self._left = LONE_SENDS
        self._is_ended = False
        self._lock = threading.Lock()

    def take(self, now: float) -> CallLine | None:
        """Its connection, which the calling thread has until ``give_back``; None if there is none, another thread has
        it, or it is of no use any more."""
        if self.connection is None or not self._lock.acquire(blocking=False):
            return None
        is_sound = False
        try:
            # Another thread may have closed it in between.
            connection = self.connection
            if connection is not None and not self._is_idle(now) and connection.is_quiet():
                self._used_at = now
                is_sound = True
                return connection
            return None
        finally:
            # Also if the thread is interrupted.
            if not is_sound:
                self.give_back(is_sound=False)

    def _is_idle(self, now: float) -> bool:
        return now - self._used_at > IDLE_S

    def give_back(self, *, is_sound: bool) -> None:
        """The thread that has taken it needs it no more; if it is not sound, it is closed."""
        if not is_sound:
            self._close()
        self._lock.release()
        if self._is_ended:
            self._close_if_free()

    def count(self) -> bool:
        """Another message was not sent on this line; whether it should be opened. Then the calling thread has it."""
        self._left -= 1
        if self._left > 0 or self._is_ended or not self._lock.acquire(blocking=False):
            return False
        if self.connection is None:
            return True
        self.give_back(is_sound=True)
        return False

    def opened(self, connection: CallLine | None, now: float) -> None:
        """The end of an attempt to open it, if with a connection, a good one. Any thread may have it now."""
        self._left = LONE_SENDS if connection is not None else _LONE_SENDS_AFTER_FAILURE
        self._used_at = now
        self.connection = connection
        self.give_back(is_sound=True)

    def end_if_idle(self, now: float) -> None:
        """Close it if it was not used for a while."""
        if self.connection is not None and self._is_idle(now) and self._lock.acquire(blocking=False):
            # Another thread may have used it in between, if so, it is not idle.
            self.give_back(is_sound=not self._is_idle(now))

    def end(self, *, at_once: bool) -> None:
        """It is used no more. If a call is on its way, it may go on to its end, or gets an error ``at_once``."""
        self._is_ended = True
        connection = self.connection
        if at_once and connection is not None:
            connection.shut()
        self._close_if_free()

    def _close_if_free(self) -> None:
        # The mark is set before this, and looked at after each release: one of the two sees the other.
        if self._lock.acquire(blocking=False):
            self._close()
            self._lock.release()

    def _close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._left = LONE_SENDS if connection.has_answered else _LONE_SENDS_AFTER_FAILURE
            connection.close()


class SendLines:
    """The lines of one client by address."""

    def __init__(self, dial: Callable[[str], socket.socket], now: Callable[[], float]) -> None:
        """``dial`` connects to an address, blocking; ``now`` is a monotonic clock."""
        self._dial = dial
        self._now = now
        # Changed by threads and the loop: each change is one call of a dict.
        self._lines: dict[str, SendLine] = {}
        self._is_closed = not HAS_LINES

    # In any thread.

    def to(self, address: str) -> SendLine:
        """The line to an address to which the loop has a connection."""
        line = self._lines.get(address)
        return line if line is not None else self._lines.setdefault(address, SendLine(address))

    def open_when_due(self, line: SendLine) -> None:
        """A thread sends a message over the loop, as the only one that sends now."""
        if self._is_closed or not line.count():
            return
        try:
            threading.Thread(target=self._open, args=(line,), name=f"ternmq-{line.address}", daemon=True).start()
        except RuntimeError:
            # The machine gives no more threads.
            line.opened(None, self._now())

    def _open(self, line: SendLine) -> None:
        """In a thread of its own, which has the line."""
        connection = None
        try:
            connection = CallLine(line.address, self._dial(line.address), self._now)
        except TernError as error:
            log.info("cannot open another connection to %s; its loop sends on: %s", line.address, error)
        finally:
            line.opened(connection, self._now())

    # On the loop.

    def tidy(self) -> None:
        """Close those that were not used for a while."""
        now = self._now()
        for line in list(self._lines.values()):
            line.end_if_idle(now)

    def drop(self, address: str) -> None:
        """The loop has no connection to this address any more. A call on the line may go on."""
        line = self._lines.pop(address, None)
        if line is not None:
            line.end(at_once=False)

    def close(self) -> None:
        """The client ends, and with it the calls that are on their way."""
        self._is_closed = True
        while self._lines:
            self._lines.popitem()[1].end(at_once=True)
