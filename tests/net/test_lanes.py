"""Lanes share one loop fairly and are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

from ternmq.net.lanes import SLICE_REQUESTS, LaneConfig, Lanes


class Log:
    """A worker that notes what it ran and refused, in order; ``cost_s`` of loop time passes with each request."""

    def __init__(self, clock: list[float], cost_s: float = 0.0) -> None:
        self.ran: list[Any] = []
        self.refused: list[tuple[Any, str]] = []
        self._clock = clock
        self._cost_s = cost_s

    def run(self, request: Any) -> None:
        self._clock[0] += self._cost_s
        self.ran.append(request)

    def refuse(self, request: Any, reason: str) -> None:
        self.refused.append((request, reason))


async def lanes_at(clock: list[float], *configs: LaneConfig) -> Lanes:
    lanes = Lanes(configs)
    lanes._loop = _ClockedLoop(asyncio.get_running_loop(), clock)  # type: ignore[assignment]  # time only
    return lanes


class _ClockedLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: list[float]) -> None:
        self.call_soon = loop.call_soon
        self._clock = clock

    def time(self) -> float:
        return self._clock[0]


async def test_jobs_of_one_lane_run_in_order_of_arrival() -> None:
    """B3"""
    log = Log([0.0])
    lanes = Lanes([LaneConfig("send")])

    for number in range(100):
        lanes.submit(lanes["send"], log, number, 0.0)
    lanes.run()

    assert list(range(100)) == log.ran


async def test_a_storm_on_one_lane_delays_another_by_one_slice_only() -> None:
    """B3: a send that arrives behind 1,000 pulls runs after the first slice of them."""
    clock = [0.0]
    log = Log(clock, cost_s=0.0001)
    lanes = await lanes_at(clock, LaneConfig("pull"), LaneConfig("send"))

    for _ in range(1000):
        lanes.submit(lanes["pull"], log, "pull", 0.0)
    lanes.submit(lanes["send"], log, "send", 0.0)
    lanes.run()

    assert log.ran.index("send") <= SLICE_REQUESTS


async def test_a_long_queue_leaves_the_loop_between_turns_and_goes_on_by_itself() -> None:
    """B3: sockets are served while work is piled up."""
    clock = [0.0]
    log = Log(clock, cost_s=0.001)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for number in range(200):
        lanes.submit(lanes["pull"], log, number, 0.0)
    lanes.run()
    after_one_turn = len(log.ran)
    while len(log.ran) < 200:
        await asyncio.sleep(0)

    assert after_one_turn == SLICE_REQUESTS
    assert list(range(200)) == log.ran


async def test_a_lane_back_from_idleness_does_not_spend_what_it_saved() -> None:
    """B3: else the lane that slept for an hour would hold all others for an hour."""
    clock = [0.0]
    log = Log(clock, cost_s=0.0001)
    lanes = await lanes_at(clock, LaneConfig("busy"), LaneConfig("idle"))
    for _ in range(500):
        lanes.submit(lanes["busy"], log, "busy", 0.0)
    lanes.run()
    while len(log.ran) < 500:
        await asyncio.sleep(0)
    log.ran.clear()

    for _ in range(SLICE_REQUESTS * 4):
        lanes.submit(lanes["busy"], log, "busy", 0.0)
        lanes.submit(lanes["idle"], log, "idle", 0.0)
    lanes.run()
    while len(log.ran) < SLICE_REQUESTS * 8:
        await asyncio.sleep(0)

    half = log.ran[: SLICE_REQUESTS * 4]
    assert half.count("busy") == half.count("idle") == SLICE_REQUESTS * 2


async def test_a_full_lane_refuses_with_overload() -> None:
    """M1: bounded work queues."""
    log = Log([0.0])
    lanes = Lanes([LaneConfig("send", capacity=3)])

    for number in range(5):
        lanes.submit(lanes["send"], log, number, 0.0)
    lanes.run()

    assert [0, 1, 2] == log.ran
    assert [3, 4] == [name for name, _ in log.refused]
    assert all(reason.startswith("[OVERLOAD]") for _, reason in log.refused)
    assert lanes["send"].refused_full == 2


async def test_a_request_that_waited_too_long_is_refused_instead_of_done() -> None:
    """M1: waiting in the send queue for more than 200 ms."""
    clock = [10.0]
    log = Log(clock)
    lanes = await lanes_at(clock, LaneConfig("send", wait_max_ms=200))

    lanes.submit(lanes["send"], log, "late", 9.7)
    lanes.submit(lanes["send"], log, "fresh", 9.9)
    lanes.run()

    assert ["fresh"] == log.ran
    [(name, reason)] = log.refused
    assert name == "late"
    assert reason.startswith("[TIMEOUT_CLEAN_QUEUE]")
    assert "300ms" in reason
