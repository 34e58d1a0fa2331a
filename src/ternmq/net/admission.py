"""How many requests may wait on a lane, and how long the loop serves before it reads again, under overload (M1). Pure.

A lane with a limit of waiting time must not fill up to its capacity. If more comes than can be served, all that wait
are late when their turn comes: the broker reads, queues and refuses requests, and serves none. Little's law says how
many may wait: as many as are served in the time that they may wait. ``Admission`` measures how many are served while
requests wait all the time, and a request that finds so many before it is refused at its arrival, for little
(``wire.refusal``). Half of the waiting time is aimed at: the rate varies, and what becomes late was read in vain.

Neither must the loop spend its time with reading and refusing. What arrives is not bounded, so the loop serves for
``SHARE`` times as long as it did other work since it served last (``serving_s``), whatever that work was. Connections
that bring too much are read once in a turn of the loop (``net.peer``). If refusing all that comes takes more than its
part of the time, the kernel's buffers fill up, and the senders wait: TCP slows them down.

The rate counts from the moment when requests begin to wait, and is forgotten when none does: a broker that was slow for
a moment must not refuse a burst later.
"""

from __future__ import annotations

from typing import Final

#: Part of the waiting time that a request is expected to wait at most.
TARGET: Final = 0.5
#: The rate is measured over this part of the waiting time: a broker that has a part of a CPU stands still in between.
WINDOW: Final = 0.25
#: So many may wait at the lowest rate. Below this a single slow request would decide.
WAITING_MIN: Final = 8

#: Four fifths of the time are for requests that were accepted.
SHARE: Final = 4.0
#: After this long the loop reads in any case. Others than senders wait for it: consumers, heartbeats.
SERVING_S_MAX: Final = 0.01


class Admission:
    """Of one lane: how many requests may wait on it. All methods are plain calls."""

    __slots__ = ("_done", "_rate", "_since")

    def __init__(self) -> None:
        #: When the rate was last measured, and how many requests were served until then; None: nothing waits.
        self._since: float | None = None
        self._done = 0
        #: Requests a second; 0: not known yet.
        self._rate = 0.0

    def look(self, now: float, done: int, wait_max_s: float) -> int | None:
        """Requests wait, and ``done`` of this lane were served so far: how many may wait from now on. None: as many as
        before. Called in each turn while the lane is not empty."""
        since = self._since
        if since is None:
            self._since, self._done = now, done
            return None
        passed_s = now - since
        if passed_s < wait_max_s * WINDOW:
            return None
        rate = (done - self._done) / passed_s
        self._rate = (self._rate + rate) / 2 if self._rate else rate
        self._since, self._done = now, done
        return max(WAITING_MIN, int(self._rate * wait_max_s * TARGET))

    def forget(self) -> None:
        """Nothing waits any more."""
        self._since = None
        self._rate = 0.0


def serving_s(other_s: float, least_s: float) -> float:
    """How long the loop serves, after ``other_s`` of other work, while a lane is near its limit."""
    return max(least_s, min(other_s * SHARE, SERVING_S_MAX))
