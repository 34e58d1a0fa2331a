"""Lanes: classes of work that share one loop without starving each other (B3, M1, R4).

Each request code belongs to a lane (send, pull, client, admin, …). What one read brought is queued on its lanes and run
at once, on the loop, as plain calls; when work piles up, the lane that has used the least time goes first, in slices,
and the loop reads its sockets between turns. So a storm of pulls delays sends by one slice, not by the storm.

All reads of one turn of the loop share its time. Work that came on many connections, a request each, piles up as work
that came on one does: when the time is over, what is read later is only queued, and has its place by the time used.

Where work piles up, time used is CPU time, and time that the loop waited for pages of a mapped file (``UsedTime``). By
the clock on the wall, a small group would be charged for the moments in which the loop lost the processor to another
program in the midst of its request: with milliseconds, for which others then go first.

**Nothing waits.** Then what a read brought is carried out at once, if it is one job, or requests of one group and topic
(``run_alone``): they would be next in any case. They are counted as if they had been queued, and what a slice or the
turn has no time for is queued. What this wakes, a held pull, is served when all reads of the turn are done, in what is
left of its time.

**Going ahead.** A small group beside a storm must not wait for a turn with its send, for another with its pull and for
a third with the reply. What is read when the time is over is served at once if its group had nothing of this turn, and
is next in its lane by the time used; so is a held pull that this wakes (``wake_held``), and the replies are written
then, not when the storm's are. Such work has a bound of its own in each turn, and is charged as any other.

The same holds within a lane: requests may have a key, their group, and the key that has used the least time goes first
(R4, ``net.mailboxes``). A group of a thousand consumers, or one with slow filters, delays others by one slice. The
topics of a group take turns: requests for a huge one delay those for a small one by one slice.

A lane is bounded, by number and by bytes. A request that finds it full is refused with SYSTEM_BUSY, unless another
group has more requests waiting: then the newest of those is refused instead. A request that waited longer than the lane
allows is refused as well (RocketMQ's ``BrokerFastFailure``): its sender has given up or will soon, and working on it
would only delay the others. So that this is rare, a lane in which most requests have no group takes no more of them,
while some wait, than it can serve in time; and the loop does not read more than it serves (``net.admission``).

No request can stop others: an error of a worker is logged here, and the next request has its turn.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from ternmq.env import WorkClock, work_clock
from ternmq.kernels import HAS_NATIVE, native
from ternmq.net.admission import AdmissionRule, Debt
from ternmq.net.latency import FIRST_S, Latency
from ternmq.net.mailboxes import PAST_KEY_LENGTH_MAX, Mailbox, Mailboxes
from ternmq.wire.header import Request

log = logging.getLogger(__name__)

#: A lane keeps the loop for at most this long before others are asked; long enough to make the asking cheap.
SLICE_REQUESTS: Final = 32
#: Most requests take microseconds. A few that take long end the slice when the turn is over. Those with a key, pulls of
#: 100 µs each, look at the clock each time.
SLOW_REQUESTS: Final = 4
#: After this long the loop reads its sockets and writes replies, whatever is still queued. With a hundred connections
#: that takes longer than the work; a message of a small group waits for the rest of one such turn.
TURN_S: Final = 0.00025
#: So much longer a turn takes at most for those that go ahead.
AHEAD_S: Final = 0.0005
#: A connection is not read for longer than this, and its turn among others of its kind. Heartbeats and answers may be
#: behind what it brought.
UNREAD_S_MAX: Final = 0.1
#: The remark of a reply to a request that finds its lane full.
FULL: Final = "[OVERLOAD]system busy, start flow control for a while"


class Worker(Protocol):
    """What does the work on a request: a ``Peer``."""

    def run(self, request: Any, /) -> None:
        """Carry a request out."""
        ...

    def refuse(self, request: Any, reason: str, /) -> None:
        """Answer SYSTEM_BUSY with a reason."""
        ...

    def flush(self) -> None:
        """Write what was answered now, not when the turn of the loop ends."""
        ...


@dataclasses.dataclass(slots=True, frozen=True)
class LaneConfig:
    """Bounds of one lane. RocketMQ calls them ``…ThreadPoolQueueCapacity`` and ``waitTimeMillsIn…Queue``."""

    name: str
    capacity: int = 10_000
    #: 0: never given up.
    wait_max_ms: int = 0
    #: Of all requests that wait; a single one may be larger.
    bytes_max: int = 128 * 1024 * 1024


class Lane(Mailboxes):
    """One class of work: its jobs, its bounds and what became of them."""

    __slots__ = (
        "admission",
        "config",
        "given_back",
        "in_runs",
        "limit",
        "queued_bytes",
        "refused_full",
        "refused_late",
        "used",
        "waits",
    )

    def __init__(self, config: LaneConfig) -> None:
        super().__init__()
        self.config = config
        #: Requests that may wait now.
        self.limit = config.capacity
        self.admission = AdmissionRule()
        #: Requests that wait in runs, but for one of each: a run is one job.
        self.in_runs = 0
        #: Requests that were taken and came back: they are taken twice.
        self.given_back = 0
        self.queued_bytes = 0
        #: Seconds of work done, in a currency that all lanes share: a lane that comes back from idleness starts level
        #: with the others instead of spending what it saved.
        self.used = 0.0
        self.refused_full = 0
        self.refused_late = 0
        #: From the arrival of a request until its turn. What was done before it in the turn is part of it.
        self.waits = Latency()

    @property
    def requests(self) -> int:
        """How many wait, those of runs included."""
        return len(self.jobs) + self.keyed + self.in_runs

    @property
    def is_limited(self) -> bool:
        """Whether more came than could be served in time, or comes than the lane has room for."""
        capacity = self.config.capacity
        return self.limit < capacity or 2 * self.requests > capacity

    def set_limit(self, now: float) -> None:
        """Requests wait: let no more wait than are served in time. Groups have their turn by the time used, so how long
        one waits does not follow from how many do; a few with a group among others make no difference."""
        config = self.config
        if config.wait_max_ms and self.keyed <= len(self.jobs) + self.in_runs:
            done = sum(self.waits.counts) - self.refused_late - self.given_back
            limit = self.admission.look(now, done=done, wait_max_s=config.wait_max_ms / 1000)
            if limit is not None:
                self.limit = min(limit, config.capacity)

    def rest_limit(self, now: float) -> None:
        """Nothing waits: what comes next may be a burst."""
        wait_max_s, capacity = self.config.wait_max_ms / 1000, self.config.capacity
        limit = self.admission.rest(
            now, self.limit, refused=self.refused_full, late=self.refused_late, wait_max_s=wait_max_s
        )
        self.limit = capacity if limit is None else min(limit, capacity)

    def room(self, now: float) -> int:
        """How many requests more may wait. A limit of an overload that is over since does not count any more."""
        if self.limit < self.config.capacity and not self.count:
            self.rest_limit(now)
        return self.limit - self.requests

    def head_wait_ms(self, now: float) -> int:
        """How long the oldest job has waited."""
        oldest = self.oldest()
        return 0 if oldest is None else int((now - oldest) * 1000)


class Lanes:
    """The scheduler. All methods belong to the loop's thread."""

    def __init__(self, configs: Iterable[LaneConfig], clock: WorkClock | None = None) -> None:
        """Without a ``clock``, that of the running loop."""
        self.by_name = {config.name: Lane(config) for config in configs}
        self._active: list[Lane] = []
        self._loop = asyncio.get_running_loop()
        self._time, self._cpu_time = clock or work_clock()
        #: The clock of ``submit``.
        self.time = self._time
        #: What the time used is counted with. The clock of the CPU is a system call: requests that are worked off as
        #: they come, which is to say that nothing waits, are not charged so exactly.
        self._charging = self._time
        #: Requests are being carried out; those that they queue are seen by who does.
        self._is_inside = False
        #: Work is left, and the next turn is about to come.
        self._is_piled = False
        #: When the work of this turn of the loop must end, while there is one.
        self._turn_end: float | None = None
        #: Groups that were served in it, on any lane, and mailboxes of jobs without a group.
        self._served: set[str | Mailbox] = set()
        #: Seconds of this turn that those took who went ahead.
        self._ahead_s = 0.0
        #: Lanes whose last job was done in it; some of their jobs had keys.
        self._emptied: list[Lane] = []
        #: The time used of the lane that was last served, before it was.
        self._level = 0.0
        #: What the loop must serve before it reads again, and until which CPU time, while a lane is limited.
        self._debt = Debt()
        #: What reads the connections on that brought more than their lane takes, in the order of their reads.
        self._unread: deque[tuple[float, Callable[[], None]]] = deque()
        self._serve_until = 0.0
        #: Jobs that the last call of ``_run_jobs`` took out of their mailbox, and their bytes.
        self._done = 0
        self._done_bytes = 0
        #: Puts requests that were held, and can be answered now, back on their lanes, if they are few. It may be called
        #: at any time; without it they come in the next turn.
        self.wake_held: Callable[[], None] = _nothing

    def __getitem__(self, name: str) -> Lane:
        return self.by_name[name]

    def apply(self, configs: Iterable[LaneConfig]) -> None:
        """Set new bounds; requests that wait stay."""
        for config in configs:
            lane = self.by_name[config.name]
            lane.config = config
            lane.limit = config.capacity

    def submit(
        self,
        lane: Lane,
        worker: Worker,
        request: Any,
        arrived: float,
        size: int = 0,
        key: str | None = None,
        topic: str | None = None,
    ) -> None:
        """Queue a request of ``size`` bytes; ``run`` must follow once all requests of a read are queued. Without a
        ``key``, the ``topic`` does not matter."""
        jobs = lane.jobs
        if not jobs and not lane.keyed:
            # Level with the one that was served last before that is charged: it is next, and not behind it.
            lane.used = max(lane.used, self._level)
            self._active.append(lane)
            if lane.limit < lane.config.capacity:
                lane.rest_limit(arrived)
        elif (
            len(jobs) + lane.keyed + lane.in_runs >= lane.limit or lane.queued_bytes + size > lane.config.bytes_max
        ) and not self._has_room(lane, size, key):
            lane.refused_full += 1
            worker.refuse(request, FULL)
            return
        lane.queued_bytes += size
        if key is not None:
            lane.add(key, (worker, request, arrived, size), topic)
            return
        if lane.keyed and not jobs:
            lane.level_plain()
        jobs.append((worker, request, arrived, size))

    def run_alone(
        self,
        lane: Lane,
        worker: Worker,
        requests: Sequence[Any],
        arrived: float,
        key: str | None = None,
        topic: str | None = None,
        *,
        size: int = 0,
        run_count: int = 1,
    ) -> bool:
        """Carry out all that a read brought, if nothing else waits on any lane: one job, of ``run_count`` requests, or
        requests of one group and topic, of ``size`` bytes. It does what ``submit`` and ``run`` would do, less the
        queueing; what a slice or the turn has no time for is queued here. False if they must wait for their turn:
        nothing was done."""
        if self._active or self._is_inside or self._is_piled:
            return False
        time, turn_end, config = self._time, self._turn_end, lane.config
        now = time()
        if turn_end is not None and now > turn_end:
            return False
        waited_s = now - arrived
        count = len(requests)
        if (
            lane.limit < config.capacity
            or (config.wait_max_ms and waited_s * 1000 > config.wait_max_ms)
            or (count > 1 and (count > config.capacity or size > config.bytes_max))
            # What such a key has used is not remembered for those that are left.
            or (key is not None and count > 1 and len(key) > PAST_KEY_LENGTH_MAX)
        ):
            return False
        if turn_end is None:
            turn_end = self._turn_end = now + TURN_S
            self._loop.call_soon(self._end_turn)
        charging = self._charging
        self._level = lane.used = max(lane.used, self._level)
        self._served.add(lane.plain if key is None else key)
        # As in ``_run_jobs``.
        looks = SLOW_REQUESTS if key is None and run_count == 1 else 1
        done = 0
        began = charging()
        self._is_inside = True
        try:
            for request in requests:
                done += 1
                try:
                    worker.run(request)
                except Exception:
                    _log_failure(config.name)
                if done in (count, SLICE_REQUESTS) or (not done % looks and time() > turn_end):
                    break
        finally:
            used = charging() - began
            lane.used += used
            if key is not None:
                lane.served_alone(key, used)
                self._emptied.append(lane)
            if waited_s < FIRST_S:
                lane.waits.counts[0] += done * run_count
                lane.waits.sum_s += waited_s * done * run_count
            else:
                lane.waits.add(waited_s, done * run_count)
            for request in requests[done:] if done < count else ():
                self.submit(lane, worker, request, arrived, request.frame_bytes, key, topic)
            self._is_inside = False
            if self._active:
                # These, or what was given back.
                self.run()
        return True

    def is_over(self) -> bool:
        """Whether the time of this turn is over: a job of many requests gives the rest back."""
        return self._turn_end is not None and self._time() > self._turn_end

    def give_back(self, lane: Lane, worker: Worker, requests: Sequence[Request[Any]]) -> None:
        """Make jobs of what is left of the one that is being carried out, before all others without a key."""
        now = self._time()
        if not lane.count and lane not in self._active:
            self._active.append(lane)
        lane.given_back += len(requests)
        for request in reversed(requests):
            lane.queued_bytes += request.frame_bytes
            lane.jobs.appendleft((worker, request, now, request.frame_bytes))

    def _has_room(self, lane: Lane, size: int, key: str | None) -> bool:
        """Make room in a full lane, at the cost of the group that has the most requests, or bytes, in it."""
        config = lane.config
        while lane.requests >= lane.limit or lane.queued_bytes + size > config.bytes_max:
            if lane.requests >= lane.limit:
                victim = lane.victim(key)
            else:
                victim = lane.heaviest(key, size, lane.queued_bytes - lane.keyed_bytes)
            if victim is None:
                return False
            worker, request, _, victim_size = lane.take(victim)
            lane.queued_bytes -= victim_size
            count = _count(request)
            lane.in_runs -= count - 1
            lane.refused_full += count
            try:
                worker.refuse(request, FULL)
            except Exception:
                log.exception("a request on lane %s could not be refused; other requests continue", config.name)
        return True

    def run(self) -> None:
        """Work until nothing is queued or the turn is over; the rest continues in the next turn of the loop."""
        if self._is_inside:
            return
        self._is_inside = True
        try:
            if not self._is_piled:
                self._begin_turn()
                while self._serve_until and self._has_limits() and self._cpu_time() < self._serve_until:
                    # Reading would bring more that is refused.
                    self._turn_end = self._time() + TURN_S
                    self._begin_turn()
            elif self._turn_end is not None:
                self._go_ahead()
        finally:
            # Whatever happened, the lanes continue.
            self._is_inside = False
            if self._active and not self._is_piled:
                self._is_piled = True
                self._charging = self._cpu_time
                self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_piled = False
        lanes, now = self._active.copy(), self._time()
        for lane in lanes:
            lane.set_limit(now)
        self._serve_until = self._debt.begin(self._cpu_time())
        self.run()
        self._serve_until = 0.0
        self._debt.end(self._cpu_time())
        now = self._time()
        for lane in lanes:
            if not lane.count:
                lane.rest_limit(now)
        if not self._has_limits():
            self._debt.forget()
        self._read_on()

    def read_later(self, read_on: Callable[[], None]) -> None:
        """A connection brought more than its lane takes: call this when the loop has served long enough to read it, or
        when it has waited for ``UNREAD_S_MAX`` and has its turn."""
        self._unread.append((self._time(), read_on))
        if not self._is_piled and len(self._unread) == 1:
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read one connection more if the loop has served long enough for it, or if there is nothing to serve."""
        unread = self._unread
        if unread and (not self._active or self._debt.is_paid or self._time() - unread[0][0] > UNREAD_S_MAX):
            _, read_on = unread.popleft()
            read_on()
        if unread and not self._is_piled:
            self._loop.call_soon(self._read_on)

    def _has_limits(self) -> bool:
        return any(lane.is_limited for lane in self._active)

    def _begin_turn(self) -> None:
        now, turn_end = self._time(), self._turn_end
        if turn_end is None:
            turn_end = self._turn_end = now + TURN_S
            self._loop.call_soon(self._end_turn)
        active = self._active
        while active and now <= turn_end:
            lane = active[0] if len(active) == 1 else min(active, key=_used)
            now = self._serve(lane, now, turn_end)
            if active:
                self.wake_held()
        if active:
            self._go_ahead()

    def _go_ahead(self) -> None:
        """The time of the turn is over: serve those that had nothing of it. Only their own time is counted: what is
        read last, behind the requests of a storm, has the same chance."""
        # Perhaps by a send of this turn, when nothing was piled up yet.
        self.wake_held()
        lane = self._without_turn()
        if lane is None:
            return
        now = began = self._time()
        end = began + AHEAD_S - self._ahead_s
        while lane is not None and now < end:
            now = self._serve(lane, now, end, is_ahead=True)
            self.wake_held()
            lane = self._without_turn()
        self._ahead_s += now - began

    def _without_turn(self) -> Lane | None:
        """Of the lanes in which the group that is next had nothing of this turn, the one that has used the least time.
        Not just the lane that is next: a storm has two, one for its pulls and one for its acks, and while one of them
        works, the other is."""
        return min([lane for lane in self._active if not self._had_turn(lane.next())], key=_used, default=None)

    def _had_turn(self, box: Mailbox) -> bool:
        return (box.key or box) in self._served

    def _serve(self, lane: Lane, started: float, turn_end: float, *, is_ahead: bool = False) -> float:
        """A slice of a lane; returns the time after it."""
        self._level = lane.used
        charging = self._charging
        used = charging()
        if lane.keyed:
            self._run_keys(lane, started, turn_end, is_ahead=is_ahead)
        else:
            self._run_jobs(lane, lane.plain, SLOW_REQUESTS if is_ahead else SLICE_REQUESTS, started, turn_end)
        if not lane.jobs and not lane.keyed:
            self._active.remove(lane)
            if lane.has_keys:
                self._emptied.append(lane)
        lane.used += charging() - used
        return self._time()

    def _end_turn(self) -> None:
        if not self._active:
            # All that was read is stored. What waits for it belongs to this turn, and does not need another one.
            self.wake_held()
        self._turn_end = None
        self._served.clear()
        self._ahead_s = 0.0
        if not self._is_piled:
            self._charging = self._time
        # Not as soon as a lane is empty: what comes on the next connection belongs to the same storm.
        for lane in self._emptied:
            if lane.has_keys and not lane.keyed and not lane.jobs:
                lane.rest()
        self._emptied.clear()

    def _run_keys(self, lane: Lane, now: float, turn_end: float, *, is_ahead: bool) -> None:
        """A slice of a lane: the mailboxes that have used the least time, one after the other."""
        time, charging, left = self._time, self._charging, SLICE_REQUESTS
        while left > 0 and lane.keyed and now <= turn_end and not (is_ahead and self._had_turn(lane.next())):
            box, before = lane.choose(), charging()
            try:
                self._run_jobs(lane, box, SLOW_REQUESTS if is_ahead else left, now, turn_end)
            finally:
                left -= self._done
                used = charging() - before
                now = time()
                if box is lane.plain:
                    box.used += used
                else:
                    lane.done(box, self._done, self._done_bytes)
                    lane.put_back(box, used)

    def _run_jobs(self, lane: Lane, box: Mailbox, count_max: int, now: float, turn_end: float) -> None:
        time, jobs = self._time, box.jobs
        wait_max_ms = lane.config.wait_max_ms
        late = now - wait_max_ms / 1000 if wait_max_ms else -1.0
        looks = SLOW_REQUESTS if box is lane.plain and not lane.in_runs else 1
        self._served.add(box.key or box)
        # Of a mailbox with few jobs beside others that wait: their answers do not wait for those of the others.
        is_small = len(jobs) <= SLOW_REQUESTS and (len(jobs) < lane.count or len(self._active) > 1)
        workers = [job[0] for job in jobs] if is_small else ()
        number = done_bytes = soon = 0
        waits, waited = lane.waits, 0.0
        # After this a request has come so lately that it belongs to the first bucket: nearly all do.
        lately = now - FIRST_S
        try:
            for number in range(1, min(len(jobs), count_max) + 1):
                worker, request, arrived, size = jobs.popleft()
                lane.queued_bytes -= size
                done_bytes += size
                requests = _count(request)
                lane.in_runs -= requests - 1
                if arrived > lately:
                    soon += requests
                    waited += (now - arrived) * requests
                else:
                    waits.add(now - arrived, requests)
                try:
                    if arrived < late:
                        lane.refused_late += requests
                        waited_ms = int((now - arrived) * 1000)
                        reason = (
                            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                            f"period in queue: {waited_ms}ms, size of queue: {lane.requests}"
                        )
                        worker.refuse(request, reason)
                    else:
                        worker.run(request)
                except Exception:
                    _log_failure(lane.config.name)
                if not number % looks and time() > turn_end:
                    break
            for worker in workers:
                worker.flush()
        finally:
            waits.counts[0] += soon
            waits.sum_s += waited
            self._done = number
            self._done_bytes = done_bytes


def _log_failure(lane: str) -> None:
    log.exception("a request on lane %s failed without an answer; other requests continue", lane)


def _nothing() -> None:
    """No request is held."""


def _used(lane: Lane) -> float:
    return lane.used


def _count(request: Any) -> int:
    """How many requests a job has: one, or those of a run (``net.runs``)."""
    return request.count if HAS_NATIVE and isinstance(request, native.Sends) else 1
