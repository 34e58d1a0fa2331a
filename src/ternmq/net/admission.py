"""How many requests may wait on a lane, and how long the loop serves before it reads again, under overload (M1). Pure.

A lane with a limit of waiting time must not fill up to its capacity. If more comes than can be served, all that wait
are late when their turn comes: the broker reads, queues and refuses requests, and serves none. Little's law says how
many may wait: as many as are served in the time that they may wait. ``AdmissionRule`` measures how many are served
while requests wait all the time, and a request that finds so many before it is refused at its arrival, for little
(``wire.refusal``). Half of the waiting time is aimed at: the rate varies, and what becomes late was read in vain. A
lane that becomes empty though requests were refused at arrival, and none because it was late, has taken too few. It
takes twice as many next time: otherwise a low limit would cause the low rate that it follows from.

Neither must the loop spend its time with reading and refusing. What arrives is not bounded, and a refusal costs a
quarter of a send that is handled in a run, most of it in the kernel. So the loop serves for ``SHARE`` times as long as
it did other work, whatever that was, in CPU time (``Debt``). A connection that brought more than the lane takes is not
read until that is done, and then one after the other; all others are read in each turn of the loop. If refusing all
that comes takes more than its part of the time, the buffers of the kernel fill up, and TCP slows the senders down.

The rate is forgotten when nothing waits, and nothing was refused for as long as a request may wait: a broker that was
slow for a moment must not refuse a burst later.
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
SERVING_S_MAX: Final = 0.002
#: No more is owed: what was done before requests began to wait does not count.
OWED_S_MAX: Final = 0.1


class AdmissionRule:
    """Of one lane: how many requests may wait on it. All methods are plain calls."""

    __slots__ = ("_done", "_late", "_rate", "_refused", "_refused_at", "_since")

    def __init__(self) -> None:
        #: Since when requests wait, or since the rate was last measured, and how many were served until then. None:
        #: nothing waits.
        self._since: float | None = None
        self._done = 0
        #: Requests a second; 0: not known yet.
        self._rate = 0.0
        #: How many were refused at arrival when nothing waited, and when it was seen last that there were more; and how
        #: many because they were late.
        self._refused = self._late = 0
        self._refused_at = 0.0

    def look(self, now: float, *, done: int, wait_max_s: float) -> int | None:
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

    def rest(self, now: float, limit: int, *, refused: int, late: int, wait_max_s: float) -> int | None:
        """Nothing waits any more, and ``limit`` could wait. So far ``refused`` requests were refused at arrival, and
        ``late`` because they were late: how many may wait from now on. None: as many as at first."""
        self._since = None
        is_late, self._late = late > self._late, late
        if refused > self._refused:
            self._refused, self._refused_at = refused, now
            if not is_late:
                self._rate = 0.0
                return 2 * limit
        if now - self._refused_at < wait_max_s:
            return limit
        self._rate = 0.0
        return None


class Debt:
    """The CPU time for which the loop must serve, because it did other work. All methods are plain calls."""

    __slots__ = ("_owed_s", "_served_at")

    def __init__(self) -> None:
        self._owed_s = 0.0
        self._served_at = 0.0

    def begin(self, used_s: float) -> float:
        """The loop begins to serve when its thread has used ``used_s``; until when it must."""
        self._owed_s = min(self._owed_s + (used_s - self._served_at) * SHARE, OWED_S_MAX)
        self._served_at = used_s
        return used_s + min(self._owed_s, SERVING_S_MAX)

    def end(self, used_s: float) -> None:
        """It has served."""
        self._owed_s = max(0.0, self._owed_s - (used_s - self._served_at))
        self._served_at = used_s

    @property
    def is_paid(self) -> bool:
        return not self._owed_s

    def forget(self) -> None:
        """All lanes take what comes."""
        self._owed_s = 0.0
