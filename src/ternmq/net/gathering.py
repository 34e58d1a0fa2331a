"""Gathering: a connection that brings much is read when there is enough, not as soon as there is something (B2).

Whatever a read brings, it costs a wake-up of the loop, a turn, a write, and a wake-up of the client: several times what
the few sends cost that it has from a client with many threads. So while much comes, the kernel wakes the loop only when
so many bytes have arrived (``SO_RCVLOWAT``), and each read, turn and write serves more requests.

``Flow`` decides how many bytes that are:

- at most what comes within ``WAIT_S``, so a request waits for about that long;
- at most a third of what one read brought lately. The client had as much under way at once, so it goes on while the
  loop works: one that waits for a few answers is never made to wait for more than it sends;
- nothing below ``BYTES_LEAST``: a client that sends little, or one request after the other, notices nothing.

A client may stop in the midst of it. So while connections are read like this, a timer looks every ``TICK_S`` whether
each was read since; one that was not is read as usual from then on. If bytes were waiting there, which is the only case
in which a request waits for one or two ticks, it is read as usual for some time.

Where the kernel cannot do this (not Linux, simulations), everything is read at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from array import array
from typing import Final, Protocol, runtime_checkable

#: What comes within this time is read together.
WAIT_S: Final = 0.0002
#: Of what one read brought lately, this part.
SHARE: Final = 3
BYTES_LEAST: Final = 1024
#: More than this at once saves little.
BYTES_MOST: Final = 16 * 1024
#: How long what comes is counted before a decision.
SPAN_S: Final = 0.01
#: A span that took so long had pauses: not much comes.
SPAN_S_MAX: Final = 0.03
#: How often it is looked whether a connection was read.
TICK_S: Final = 0.001
#: A connection whose bytes had to wait is read as usual for this long; twice as long each time, up to the second value.
REST_S: Final = 0.05
REST_S_MAX: Final = 2.0
#: What a read brought lately counts less with each span.
_FADING: Final = 0.95

_HAS_LOW_MARK: Final = sys.platform == "linux"

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import FIONREAD

    def bytes_ready(descriptor: int) -> int:
        """How many bytes wait to be read from a socket."""
        count = array("i", [0])
        ioctl(descriptor, FIONREAD, count)
        return count[0]

else:

    def bytes_ready(descriptor: int) -> int:
        """It is not asked for."""
        raise NotImplementedError(descriptor)


class Flow:
    """What one connection brings, and for how much of it the loop should wait. Pure: no loop, no clock."""

    __slots__ = ("_began", "_largest", "_rest_s", "_rests_until", "_total", "awaited_bytes", "due")

    def __init__(self) -> None:
        #: For how many bytes to wait; 0: for none.
        self.awaited_bytes = 0
        #: When to call ``look``: with the first read from then on.
        self.due = 0.0
        self._began = 0.0
        self._total = 0
        self._largest = 0.0
        self._rest_s = REST_S
        self._rests_until = 0.0

    def add(self, size: int) -> None:
        """A read brought so many bytes."""
        self._total += size
        if size > self._largest:
            self._largest = size

    def look(self, now: float) -> None:
        """A span is over: decide, and begin the next one."""
        took_s = now - self._began
        wanted = 0.0
        if 0 < took_s <= SPAN_S_MAX and now >= self._rests_until:
            wanted = min(self._total / took_s * WAIT_S, self._largest / SHARE, BYTES_MOST)
            if self.awaited_bytes:
                self._rest_s = max(REST_S, self._rest_s * _FADING)
        self.awaited_bytes = int(wanted) if wanted >= BYTES_LEAST else 0
        self._largest *= _FADING
        self._total = 0
        self._began, self.due = now, now + SPAN_S

    def pause(self) -> None:
        """Nothing comes: wait for nothing until more does."""
        self.awaited_bytes = 0

    def rest(self, now: float) -> None:
        """Less came than was waited for: wait for nothing, for some time."""
        self.awaited_bytes = 0
        self._rests_until = now + self._rest_s
        self._rest_s = min(2 * self._rest_s, REST_S_MAX)


class HasSocket(Protocol):
    """A connection: an ``asyncio.Transport``."""

    def get_extra_info(self, name: str) -> object: ...


@runtime_checkable
class LowMark(Protocol):
    """What can be told for how many bytes to wait: a socket."""

    def setsockopt(self, level: int, option: int, value: int, /) -> object: ...

    def fileno(self) -> int: ...


class Gathering:
    """One connection of a server. All methods belong to the loop's thread."""

    __slots__ = ("_flow", "_gatherings", "_low_mark", "_socket", "reads", "reads_seen")

    def __init__(self, gatherings: Gatherings, sock: LowMark) -> None:
        self._gatherings = gatherings
        self._socket = sock
        self._flow = Flow()
        self._low_mark = 1
        #: Reads so far, and when the timer last looked.
        self.reads = 0
        self.reads_seen = 0

    def read(self, size: int, now: float) -> None:
        """A read brought so many bytes. Hot."""
        flow = self._flow
        self.reads += 1
        flow.add(size)
        if now >= flow.due:
            flow.look(now)
            self._set(flow.awaited_bytes)

    def read_all(self, now: float) -> None:
        """It was not read for a while: read what there is, and what comes."""
        with contextlib.suppress(OSError):  # closed, but not told yet
            if bytes_ready(self._socket.fileno()):
                self._flow.rest(now)
        self._flow.pause()
        self._set(0)

    def close(self) -> None:
        """The connection is closed."""
        self._gatherings.forget(self)

    def _set(self, awaited_bytes: int) -> None:
        low_mark = awaited_bytes or 1
        before = self._low_mark
        # Small changes are not worth a system call.
        if low_mark == before or (awaited_bytes and before <= low_mark <= before * 1.25):
            return
        self._low_mark = low_mark
        with contextlib.suppress(OSError):  # closed, but not told yet
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_mark)
        if awaited_bytes:
            self._gatherings.watch(self)
        else:
            self._gatherings.forget(self)


class Gatherings:
    """The connections of one server. All methods belong to the loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Those for whose bytes the kernel waits.
        self._watched: dict[Gathering, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def of(self, connection: HasSocket) -> Gathering | None:
        """How a new connection is read; None where all is read at once."""
        sock = connection.get_extra_info("socket") if _HAS_LOW_MARK else None
        return Gathering(self, sock) if isinstance(sock, LowMark) else None

    def watch(self, gathering: Gathering) -> None:
        """Look whether this connection is read, until it is forgotten."""
        if gathering not in self._watched:
            self._watched[gathering] = None
            gathering.reads_seen = -1
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._look)

    def forget(self, gathering: Gathering) -> None:
        self._watched.pop(gathering, None)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for gathering in list(self._watched):
            if gathering.reads == gathering.reads_seen:
                gathering.read_all(now)
            gathering.reads_seen = gathering.reads
        if self._watched:
            self._timer = self._loop.call_later(TICK_S, self._look)
