"""Invariants of a group without faults: each message is delivered once, without delay, within the limits.

The invariants of ``checkers`` always hold, but they are weak, because faults excuse much. A consumer that forgets all
progress whenever a queue moves violates none of them: all messages are delivered again, and none is lost. So the life
of a group is divided into *steady* times and *disturbances*. In steady times

- a message reaches a listener within a second of its acknowledgement (F8), and a failed one within a second of its
  delay (H1), never before that;
- a finished message is not delivered again (F7);
- a member has no more messages of a queue in progress than its limits allow (M2).

A disturbance allows late messages, and the repetition of messages that were finished while it lasted or in the
``back_s`` seconds before it, which is the progress that a crash may lose; never the repetition of messages that were
finished long before, or by a member that stopped cleanly.

Like the journal it is kept by the workload, in the loop's time. Each check raises ``Broken``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import RETRY_PREFIX
from ternmq.testing.checkers import Broken

#: Without faults, nothing takes longer; a lost wake-up costs 5 s.
LATE_S: Final = 1.0
#: A broker counts in whole milliseconds.
TICK_S: Final = 0.001

QueuePlace = tuple[MessageQueue, int]


@dataclass(slots=True, frozen=True)
class Promises:
    """What holds for one workload in steady times, depending on its listeners and settings."""

    #: How long a finished message may not count as progress, because a listener is still busy with an earlier one.
    held_back_s: float
    #: Listeners never make a message wait.
    prompt: bool
    #: Messages of one queue in progress in one member, and the maximum span of their offsets; None: no limit.
    count_max: int | None = None
    span_max: int | None = None


@dataclass(slots=True)
class _Excuse:
    """A time in which finished messages may be delivered again, except those finished by these members."""

    begin: float
    end: float = math.inf
    but_for: Collection[str] = ()


@dataclass(slots=True, frozen=True)
class _Failure:
    at: float
    times: int
    delay_s: float


class Deliveries:
    """All deliveries to one group, as seen by its listeners."""

    def __init__(self, promises: Promises, now: Callable[[], float]) -> None:
        self._promises = promises
        self._now = now
        #: Start of the current steady time; infinite in a disturbance.
        self.steady_since = math.inf
        #: The first time is a disturbance.
        self._excuses = [_Excuse(-math.inf)]
        #: By message: the earliest time of its delivery.
        self._not_before: dict[bytes, float] = {}
        self._due: dict[bytes, float] = {}
        self._seen: set[bytes] = set()
        #: When it was finished, and by which member.
        self._done: dict[QueuePlace, tuple[float, str]] = {}
        #: By message, since a retry has another place; and by place, for messages that are retried there.
        self._failures: dict[bytes, list[_Failure]] = defaultdict(list)
        self._failed: dict[QueuePlace, _Failure] = {}
        #: By member and queue: the offsets in progress, and since when.
        self._running: dict[tuple[str, MessageQueue], dict[int, float]] = defaultdict(dict)

    # --- Events of the cluster --------------------------------------------------------------------------------------

    def disturb(self, *, back_s: float, leaving: Collection[str] = ()) -> None:
        """A disturbance begins that may lose ``back_s`` seconds of progress; until ``settle`` messages may be late.

        Members that are ``leaving`` finish their work and store their progress, so theirs is not lost.
        """
        self._excuses[-1].end = min(self._excuses[-1].end, self._now())
        self._excuses.append(_Excuse(self._now() - back_s - self._promises.held_back_s, but_for=leaving))
        self.steady_since = math.inf

    def settle(self) -> None:
        """A steady time begins."""
        self._excuses[-1].end = min(self._excuses[-1].end, self._now())
        self.steady_since = self._now()

    # --- Events of messages -----------------------------------------------------------------------------------------

    def sent(self, key: bytes, *, not_before: float) -> None:
        """A message is about to be sent, identified by its body; listeners must not get it before ``not_before``."""
        self._not_before[key] = not_before

    def acknowledged(self, key: bytes) -> None:
        """A broker has stored it."""
        self._due[key] = max(self._now(), self._not_before[key])

    def begin(self, member: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """A listener is called with messages of ``queue``."""
        now, running = self._now(), self._running[member, queue]
        for message in messages:
            place = queue, message.queue_offset
            self._check_once(place)
            if message.reconsume_times or queue.topic.startswith(RETRY_PREFIX):
                self._check_retry(message, now)
            else:
                self._check_first(message, now)
            self._check_again(place, message)
            self._seen.add(message.body)
            running[message.queue_offset] = now
        self._check_limits(member, queue, running)

    def end(self, member: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """The listener has ended, successfully or not."""
        for message in messages:
            self._running[member, queue].pop(message.queue_offset, None)

    def done(self, member: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """They must not be delivered again."""
        for message in messages:
            self._done.setdefault((queue, message.queue_offset), (self._now(), member))

    def failed(self, queue: MessageQueue, messages: Sequence[ReceivedMessage], *, delay_s: float) -> None:
        """They must be delivered again after a delay."""
        for message in messages:
            failure = _Failure(self._now(), message.reconsume_times, delay_s)
            self._failures[message.body].append(failure)
            self._failed[queue, message.queue_offset] = failure

    def died(self, member: str) -> None:
        """All its calls have ended."""
        for name, queue in list(self._running):
            if name == member:
                del self._running[name, queue]

    # --- Invariants -------------------------------------------------------------------------------------------------

    def _check_once(self, place: QueuePlace) -> None:
        if place in self._done:
            at, member = self._done[place]
            if not any(excuse.begin <= at <= excuse.end and member not in excuse.but_for for excuse in self._excuses):
                raise Broken(f"{place[0]} redelivers {place[1]}, which {member} finished {self._now() - at:.1f} s ago")

    def _check_first(self, message: ReceivedMessage, now: float) -> None:
        key = message.body
        if now < self._not_before[key] - TICK_S:
            raise Broken(f"{key!r} was delivered {self._not_before[key] - now:.3f} s early")
        if key not in self._seen:
            self._check_late(key, self._due.get(key, now), now)

    def _check_retry(self, message: ReceivedMessage, now: float) -> None:
        key, times = message.body, message.reconsume_times
        failures = [failure for failure in self._failures[key] if failure.times == times - 1]
        if not failures:
            raise Broken(f"{key!r} is delivered as retry {times}, but has not failed as such")
        # Messages of a disturbance are retried in other ways, with other delays.
        if min(failure.at for failure in failures) >= self.steady_since:
            due = min(failure.at + failure.delay_s for failure in failures)
            if now < due - TICK_S:
                raise Broken(f"{key!r} was delivered {due - now:.3f} s early as retry {times}")
            if len(failures) == 1:
                self._check_late(key, due, now)

    def _check_late(self, key: bytes, due: float, now: float) -> None:
        if self._promises.prompt and self.steady_since <= due < now - LATE_S:
            raise Broken(f"{key!r} was delivered {now - due:.3f} s late, without faults")

    def _check_again(self, place: QueuePlace, message: ReceivedMessage) -> None:
        """A message that is retried in place has the right count."""
        failure = self._failed.get(place)
        if failure is not None and failure.at >= self.steady_since and message.reconsume_times != failure.times + 1:
            raise Broken(f"{place[0]} redelivers {place[1]} after failure {failure.times + 1}, but its count is wrong")

    def _check_limits(self, member: str, queue: MessageQueue, running: dict[int, float]) -> None:
        # Earlier calls may belong to a queue that was lost and assigned again.
        if not running or min(running.values()) < self.steady_since:
            return
        count_max, span_max = self._promises.count_max, self._promises.span_max
        if count_max is not None and len(running) > count_max:
            raise Broken(f"{member} has {len(running)} messages of {queue} in progress; the limit is {count_max}")
        if span_max is not None and max(running) - min(running) > span_max:
            raise Broken(f"{member} works on {min(running)} and {max(running)} of {queue}; the span is {span_max}")
