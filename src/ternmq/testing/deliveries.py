"""What a group owes its application when nothing is wrong: each message once, at once, and no more than it can take.

The promises of ``checkers`` hold always; they are weak, as a storm excuses much. A consumer that forgets all progress
whenever a queue changes hands breaks none of them: everything comes again, and nothing is lost. So the life of a group
is divided into *steady* times and *disturbances*. In steady times

- a message reaches a listener within a second of its acknowledgement (F8) and a failed one within a second of its
  delay (H1), never before that;
- nothing that is done comes again (F7);
- no more messages of a queue are under way in a member than its limits allow (M2).

A disturbance is an excuse for being late, and for repeating what was done while it lasted or in the ``back_s`` seconds
before it, which is what a crash may take of the progress; never for repeating what was done long before, or by a member
that left in good order.

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

#: When all is well, nothing takes longer; a lost wake-up costs 5 s.
LATE_S: Final = 1.0
#: A broker counts in whole milliseconds.
TICK_S: Final = 0.001

Place = tuple[MessageQueue, int]


@dataclass(slots=True, frozen=True)
class Promises:
    """What one workload may rely on in steady times, by the nature of its listeners and settings."""

    #: How long what is done may be no progress, as a listener is still busy with something before it.
    held_back_s: float
    #: Listeners never keep a message waiting.
    prompt: bool
    #: Messages of one queue under way in one member, and how far apart their offsets may be; None: as many as come.
    count_max: int | None = None
    span_max: int | None = None


@dataclass(slots=True)
class _Excuse:
    """From when to when what was done may come again, but for what these members did."""

    begin: float
    end: float = math.inf
    but_for: Collection[str] = ()


@dataclass(slots=True, frozen=True)
class _Failure:
    at: float
    times: int
    delay_s: float


class Deliveries:
    """All deliveries to one group, as its listeners see them."""

    def __init__(self, promises: Promises, now: Callable[[], float]) -> None:
        self._promises = promises
        self._now = now
        #: Since when nothing is wrong; infinite in a disturbance.
        self.steady_since = math.inf
        #: The life begins with a disturbance.
        self._excuses = [_Excuse(-math.inf)]
        #: By message: not before, and not long after.
        self._not_before: dict[bytes, float] = {}
        self._due: dict[bytes, float] = {}
        self._seen: set[bytes] = set()
        #: When, and by which member.
        self._done: dict[Place, tuple[float, str]] = {}
        #: By message, as a retry has another place, and by place, for what is tried again there.
        self._failures: dict[bytes, list[_Failure]] = defaultdict(list)
        self._failed: dict[Place, _Failure] = {}
        #: By member and queue, the offsets that are under way, and since when.
        self._running: dict[tuple[str, MessageQueue], dict[int, float]] = defaultdict(dict)

    # --- What happens to the cluster --------------------------------------------------------------------------------

    def disturb(self, *, back_s: float, leaving: Collection[str] = ()) -> None:
        """Something happens that may take ``back_s`` seconds of progress; being late is no wonder until ``settle``.

        Members that are ``leaving`` end what they do and store their progress, so theirs is not taken.
        """
        self._excuses[-1].end = min(self._excuses[-1].end, self._now())
        self._excuses.append(_Excuse(self._now() - back_s - self._promises.held_back_s, but_for=leaving))
        self.steady_since = math.inf

    def settle(self) -> None:
        """All is well from now on."""
        self._excuses[-1].end = min(self._excuses[-1].end, self._now())
        self.steady_since = self._now()

    # --- What happens to messages -----------------------------------------------------------------------------------

    def sent(self, key: bytes, *, not_before: float) -> None:
        """A message is about to be sent, known by its body; listeners shall see it at ``not_before``."""
        self._not_before[key] = not_before

    def acknowledged(self, key: bytes) -> None:
        """A broker has it."""
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
        """The listener is done with them, well or not."""
        for message in messages:
            self._running[member, queue].pop(message.queue_offset, None)

    def done(self, member: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """They need not come again."""
        for message in messages:
            self._done.setdefault((queue, message.queue_offset), (self._now(), member))

    def failed(self, queue: MessageQueue, messages: Sequence[ReceivedMessage], *, delay_s: float) -> None:
        """They shall come again after a delay."""
        for message in messages:
            failure = _Failure(self._now(), message.reconsume_times, delay_s)
            self._failures[message.body].append(failure)
            self._failed[queue, message.queue_offset] = failure

    def died(self, member: str) -> None:
        """Whatever it worked on, it does no more."""
        for name, queue in list(self._running):
            if name == member:
                del self._running[name, queue]

    # --- What must hold ---------------------------------------------------------------------------------------------

    def _check_once(self, place: Place) -> None:
        if place in self._done:
            at, member = self._done[place]
            if not any(excuse.begin <= at <= excuse.end and member not in excuse.but_for for excuse in self._excuses):
                raise Broken(f"{place[0]} brings {place[1]} again, which {member} did {self._now() - at:.1f} s ago")

    def _check_first(self, message: ReceivedMessage, now: float) -> None:
        key = message.body
        if now < self._not_before[key] - TICK_S:
            raise Broken(f"{key!r} came {self._not_before[key] - now:.3f} s early")
        if key not in self._seen:
            self._check_late(key, self._due.get(key, now), now)

    def _check_retry(self, message: ReceivedMessage, now: float) -> None:
        key, times = message.body, message.reconsume_times
        failures = [failure for failure in self._failures[key] if failure.times == times - 1]
        if not failures:
            raise Broken(f"{key!r} comes as retry {times}, but did not fail as such")
        # Those of a storm come again by other ways, which have other delays.
        if min(failure.at for failure in failures) >= self.steady_since:
            due = min(failure.at + failure.delay_s for failure in failures)
            if now < due - TICK_S:
                raise Broken(f"{key!r} came {due - now:.3f} s early as retry {times}")
            if len(failures) == 1:
                self._check_late(key, due, now)

    def _check_late(self, key: bytes, due: float, now: float) -> None:
        if self._promises.prompt and self.steady_since <= due < now - LATE_S:
            raise Broken(f"{key!r} came {now - due:.3f} s late, though all was well")

    def _check_again(self, place: Place, message: ReceivedMessage) -> None:
        """What comes again in place knows how often it did."""
        failure = self._failed.get(place)
        if failure is not None and failure.at >= self.steady_since and message.reconsume_times != failure.times + 1:
            raise Broken(
                f"{place[0]} brings {place[1]} again after failure {failure.times + 1}, but it does not say so"
            )

    def _check_limits(self, member: str, queue: MessageQueue, running: dict[int, float]) -> None:
        # Calls that began before may belong to a queue that was lost and taken up anew.
        if not running or min(running.values()) < self.steady_since:
            return
        count_max, span_max = self._promises.count_max, self._promises.span_max
        if count_max is not None and len(running) > count_max:
            raise Broken(f"{member} has {len(running)} messages of {queue} under way, {count_max} are the most")
        if span_max is not None and max(running) - min(running) > span_max:
            raise Broken(f"{member} works on {min(running)} and {max(running)} of {queue}, {span_max} is the span")
