"""A broker's loop in virtual time, with more sends than it can serve: real lanes, modelled sockets and costs (M1)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ternmq.env import WorkClock
from ternmq.net.lanes import FULL, LaneConfig, Lanes

CONNECTIONS = 4
WAIT_MS = 200


@dataclass(slots=True)
class Costs:
    """Seconds of CPU time, and what the broker gets of it."""

    serve_s: float = 20e-6
    #: To decode and queue a send that is accepted.
    read_s: float = 2e-6
    #: To refuse one at its arrival, and one that has waited.
    refuse_s: float = 2e-6
    refuse_late_s: float = 8e-6
    #: Of each turn of the loop.
    turn_s: float = 20e-6
    #: The broker runs so long, and then stands still so long.
    run_s: float = 0.001
    stop_s: float = 0.0

    @property
    def rate(self) -> float:
        """Sends a second that it can take."""
        share = self.run_s / (self.run_s + self.stop_s)
        return share / (self.serve_s + self.read_s)


@dataclass(slots=True)
class Result:
    accepted: int = 0
    refused: int = 0
    late: int = 0
    withheld: int = 0
    arrived: int = 0
    waiting_max: int = 0
    #: Of accepted requests, in the lane.
    lane_wait_max_s: float = 0.0
    #: From the arrival in the kernel's buffer on.
    waits: list[float] = field(default_factory=list)
    #: Of connections, until they are read again.
    held_max_s: float = 0.0

    def quantile_s(self, part: float) -> float:
        return sorted(self.waits)[int(part * (len(self.waits) - 1))]


class Model:
    """``buffer`` requests of each connection can wait in the kernel; what comes then is held back by the client. One in
    ``keyed_every`` requests has a group."""

    def __init__(
        self, costs: Costs, *, buffer: int = 2_000, chunk: int = 600, old: bool = False, keyed_every: int = 0
    ) -> None:
        self._keyed_every = keyed_every
        self.costs = costs
        self.result = Result()
        self._buffer, self._chunk, self._is_old = buffer, chunk, old
        self._cpu_s = 0.0
        self._idle_s = 0.0
        self._sockets: list[deque[float]] = [deque() for _ in range(CONNECTIONS)]
        self._held: set[int] = set()
        self._lanes = Lanes([LaneConfig("send", wait_max_ms=WAIT_MS)], WorkClock(self.now, lambda: self._cpu_s))
        self._lane = self._lanes["send"]

    @property
    def limit(self) -> int:
        """How many may wait."""
        return self._lane.limit

    def now(self) -> float:
        costs = self.costs
        return 1.0 + self._cpu_s + int(self._cpu_s / costs.run_s) * costs.stop_s + self._idle_s

    # --- lanes.Worker ------------------------------------------------------------------------------------------

    def run(self, request: tuple[float, float]) -> None:
        arrived, read_at = request
        self.result.lane_wait_max_s = max(self.result.lane_wait_max_s, self.now() - read_at)
        self._cpu_s += self.costs.serve_s
        self.result.accepted += 1
        self.result.waits.append(self.now() - arrived)

    def refuse(self, _request: Any, reason: str) -> None:
        self._cpu_s += self.costs.refuse_late_s
        if reason == FULL:
            self.result.refused += 1
        else:
            self.result.late += 1

    def flush(self) -> None:
        """Nothing is written."""

    # -----------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Count from now on."""
        self.result = Result()

    async def idle(self, seconds: float) -> None:
        """What waits in the kernel is lost, what is left is done, and nothing comes for so long."""
        for socket in self._sockets:
            socket.clear()
        while self._lane.count or self._held:
            await asyncio.sleep(0)
        self._idle_s += seconds

    def burst(self, count: int) -> None:
        """So many come at once, on one connection."""
        self.result.arrived += count
        self._sockets[0].extend([self.now()] * count)
        self._read(0)

    async def offer(self, rate: float, seconds: float) -> Result:
        """So many sends a second come for so long."""
        begin, due, result, lane = self.now(), 0, self.result, self._lane
        while (now := self.now()) < begin + seconds:
            while due < (now - begin) * rate:
                result.arrived += 1
                socket = self._sockets[due % CONNECTIONS]
                if len(socket) < self._buffer:
                    socket.append(begin + due / rate)
                else:
                    result.withheld += 1
                due += 1
            self._cpu_s += self.costs.turn_s
            for number in range(CONNECTIONS):
                if number not in self._held:
                    self._read(number)
            result.waiting_max = max(result.waiting_max, lane.requests)
            # The rest of a turn of the loop.
            await asyncio.sleep(0)
            if not lane.count and not any(self._sockets):
                self._idle_s += 1 / rate
        while lane.count:
            await asyncio.sleep(0)
        return result

    def _read(self, connection: int) -> None:
        socket = self._sockets[connection]
        lanes, lane, costs, result = self._lanes, self._lane, self.costs, self.result
        # Before, a turn read as much as there was.
        count = len(socket) if self._is_old else min(len(socket), self._chunk)
        if not count:
            return
        read_at = self.now()
        room = max(0, lane.room(read_at)) if not self._is_old else count
        for number in range(count):
            arrived = socket.popleft()
            if number < room:
                self._cpu_s += costs.read_s
                has_key = self._keyed_every and not number % self._keyed_every
                lanes.submit(lane, self, (arrived, read_at), read_at, key="group" if has_key else None)
            else:
                self._cpu_s += costs.refuse_s
                lane.refused_full += 1
                result.refused += 1
        if count > room and not self._is_old:
            self._held.add(connection)

            def read_on() -> None:
                self._held.remove(connection)
                result.held_max_s = max(result.held_max_s, self.now() - read_at)

            lanes.read_later(read_on)
        lanes.run()
