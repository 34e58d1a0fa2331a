"""Lanes: classes of work that share one loop without starving each other (B3, M1).

Each request code belongs to a lane (send, pull, client, admin, …). What one read brought is queued on its lanes and run
at once, on the loop, as plain calls; when work piles up, the lane that has used the least time goes first, in slices,
and the loop looks after its sockets between turns. So a storm of pulls delays sends by one slice, not by the storm.

A lane is bounded, by number and by bytes: a request that finds it full is refused with SYSTEM_BUSY, and so is one that
waited longer than the lane allows (RocketMQ's ``BrokerFastFailure``): its sender has given up or will soon, and working
on it would only make the others late too.

No request can stop others: what a worker lets through is logged here, and the next request has its turn.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

#: A lane keeps the loop for at most this long before others are asked; long enough to make the asking cheap.
SLICE_REQUESTS: Final = 32
#: Most requests take microseconds. A few that take long (pulls with SQL filters) end the slice when the turn is over.
SLOW_REQUESTS: Final = 4
#: After this long the loop reads its sockets and writes replies, whatever is still queued.
TURN_S: Final = 0.005


class Worker(Protocol):
    """What does the work on a request: a ``Peer``."""

    def run(self, request: Any, /) -> None:
        """Carry a request out."""
        ...

    def refuse(self, request: Any, reason: str, /) -> None:
        """Answer SYSTEM_BUSY with a reason."""
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


class Lane:
    __slots__ = ("config", "jobs", "queued_bytes", "refused_full", "refused_late", "used")

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        #: Worker, request, when it arrived, and its bytes. A plain tuple: one is made for each request.
        self.jobs: deque[tuple[Worker, Any, float, int]] = deque()
        self.queued_bytes = 0
        #: Seconds of work done, in a currency that all lanes share: a lane that comes back from idleness starts level
        #: with the others instead of spending what it saved.
        self.used = 0.0
        self.refused_full = 0
        self.refused_late = 0

    def head_wait_ms(self, now: float) -> int:
        """How long the oldest job has waited."""
        return int((now - self.jobs[0][2]) * 1000) if self.jobs else 0


class Lanes:
    """The scheduler. All methods belong to the loop's thread."""

    def __init__(self, configs: Iterable[LaneConfig]) -> None:
        self.by_name = {config.name: Lane(config) for config in configs}
        self._active: list[Lane] = []
        self._loop = asyncio.get_running_loop()
        self._running = False

    def __getitem__(self, name: str) -> Lane:
        return self.by_name[name]

    def submit(self, lane: Lane, worker: Worker, request: Any, arrived: float, size: int = 0) -> None:
        """Queue a request of ``size`` bytes; ``run`` must follow once all requests of a read are queued."""
        jobs = lane.jobs
        if not jobs:
            if self._active:
                lane.used = max(lane.used, min(other.used for other in self._active))
            self._active.append(lane)
        elif len(jobs) >= lane.config.capacity or lane.queued_bytes + size > lane.config.bytes_max:
            lane.refused_full += 1
            worker.refuse(request, "[OVERLOAD]system busy, start flow control for a while")
            return
        lane.queued_bytes += size
        jobs.append((worker, request, arrived, size))

    def run(self) -> None:
        """Work until nothing is queued or the turn is over; the rest goes on in the next turn of the loop."""
        if self._running:
            return
        self._running = True
        active = self._active
        try:
            self._run_turn()
        finally:
            # Whatever happened, the lanes go on.
            if active:
                self._loop.call_soon(self._next_turn)
            else:
                self._running = False

    def _run_turn(self) -> None:
        time = self._loop.time
        now = time()
        turn_end = now + TURN_S
        active = self._active
        while active:
            lane = active[0] if len(active) == 1 else min(active, key=_used)
            jobs = lane.jobs
            wait_max_ms = lane.config.wait_max_ms
            late = now - wait_max_ms / 1000 if wait_max_ms else -1.0
            for number in range(1, min(len(jobs), SLICE_REQUESTS) + 1):
                worker, request, arrived, size = jobs.popleft()
                lane.queued_bytes -= size
                try:
                    if arrived < late:
                        lane.refused_late += 1
                        waited_ms = int((now - arrived) * 1000)
                        reason = (
                            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                            f"period in queue: {waited_ms}ms, size of queue: {len(jobs)}"
                        )
                        worker.refuse(request, reason)
                    else:
                        worker.run(request)
                except Exception:
                    log.exception(
                        "a request on lane %s failed without an answer; other requests continue", lane.config.name
                    )
                if not number % SLOW_REQUESTS and time() > turn_end:
                    break
            if not jobs:
                active.remove(lane)
            started, now = now, time()
            lane.used += now - started
            if now > turn_end:
                return

    def _next_turn(self) -> None:
        self._running = False
        self.run()


def _used(lane: Lane) -> float:
    return lane.used
