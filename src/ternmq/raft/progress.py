"""How far one follower is, as its leader knows, and what is under way to it (P3).

A follower is *probed* until both logs are known to be equal up to some entry: empty appends, one answer at a time.
Then entries *stream* to it, without waiting for answers, as far as the window allows. One that needs entries which the
leader has deleted needs a *copy*, and hears heartbeats only until its log has come back into reach.

Nothing is sent again by a timer. Each append, the empty heartbeat too, names the entry before it: a follower that lost
something refuses the next one, and the leader probes again.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from ternmq.raft.group import RaftCoreConfig
from ternmq.raft.messages import NO_INDEX

#: How long a follower that takes nothing gets no entries: as long as one with a full disk drops them unread.
HELD_MS: Final = 1_000
#: How often it may refuse without having taken anything: messages get lost.
REFUSALS_MAX: Final = 4


class Pace(Enum):
    PROBE = "probe"
    STREAM = "stream"
    COPY = "copy"


class Progress:
    """One follower in one term of its leader."""

    __slots__ = (
        "_heartbeat_ms",
        "_refusals",
        "_refused_ms",
        "_taken",
        "_window",
        "_window_bytes",
        "_window_count_max",
        "_window_slack_bytes",
        "commit_sent",
        "goal",
        "heard_ms",
        "held_until_ms",
        "is_filled",
        "match",
        "next_index",
        "pace",
        "sent_ms",
    )

    def __init__(self, config: RaftCoreConfig, next_index: int) -> None:
        self.pace = Pace.PROBE
        #: Equal to the leader's log, and where it counts, up to here.
        self.match = NO_INDEX
        #: What was committed in the leader's own term when it first answered: with that, it has all that was committed
        #: before.
        self.goal: int | None = None
        self.is_filled = False
        #: The next entry to send.
        self.next_index = next_index
        #: When the last append was sent; None: never.
        self.sent_ms: int | None = None
        #: When the newest append that it has answered was sent.
        self.heard_ms: int | None = None
        #: The commit index of the last append.
        self.commit_sent = NO_INDEX
        #: No entries are sent before this time: it did not take what was sent before.
        self.held_until_ms = 0
        #: What it has taken, also if that does not count yet, and how often it has refused to go on since.
        self._taken = NO_INDEX
        self._refusals = 0
        self._refused_ms = 0
        self._heartbeat_ms = config.heartbeat_ms
        #: (last index, bytes) of each append that is not answered.
        self._window: deque[tuple[int, int]] = deque()
        self._window_bytes = 0
        self._window_count_max = config.window_count
        self._window_slack_bytes = config.window_bytes - config.append_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more append may be sent. A window that is not empty waits until a whole append fits: the rest of
        one would be cut into ever smaller pieces."""
        if self.pace is not Pace.STREAM:
            return False
        return not self._window or (
            len(self._window) < self._window_count_max and self._window_bytes <= self._window_slack_bytes
        )

    @property
    def under_way_bytes(self) -> int:
        return self._window_bytes

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Entries up to ``last_index`` are under way."""
        self.next_index = last_index + 1
        self._window.append((last_index, size_bytes))
        self._window_bytes += size_bytes

    def stored(self, index: int) -> bool:
        """The follower has everything up to ``index`` where it counts. Returns whether that is news."""
        window = self._window
        while window and window[0][0] <= index:
            self._window_bytes -= window.popleft()[1]
        self.is_filled = self.is_filled or (self.goal is not None and index >= self.goal)
        if index <= self.match:
            return False
        self.match = index
        return True

    def lost(self, index: int) -> None:
        """The follower has nothing behind ``index`` any more."""
        self.match, self.goal, self.is_filled = index, None, False
        self._taken = min(self._taken, index)

    def took(self, index: int) -> None:
        """It has all up to ``index``, perhaps not where it counts."""
        if index > self._taken:
            self._taken, self._refusals = index, 0

    def refused(self, now_ms: int) -> None:
        """It did not take what was streamed. If it takes nothing again and again, its disk may be full: the same
        entries would go over the network with each heartbeat."""
        if now_ms - self._refused_ms >= self._heartbeat_ms:
            # Once for all that was under way: one message that is overtaken is the reason of many refusals.
            self._refused_ms = now_ms
            self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            self.held_until_ms = now_ms + HELD_MS

    def probe(self, next_index: int) -> None:
        self._forget(Pace.PROBE, next_index)

    def stream(self, next_index: int) -> None:
        self._forget(Pace.STREAM, next_index)

    def copy(self) -> None:
        self._forget(Pace.COPY, self.next_index)

    def _forget(self, pace: Pace, next_index: int) -> None:
        self.pace = pace
        self.next_index = next_index
        self._window.clear()
        self._window_bytes = 0
