"""Lanes share one loop fairly and are bounded."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.env import UsedTime, WorkClock
from ternmq.net.lanes import AHEAD_S, SLICE_REQUESTS, SLOW_REQUESTS, TURN_S, LaneConfig, Lanes
from ternmq.net.latency import FIRST_S
from ternmq.net.mailboxes import PAST_KEY_LENGTH_MAX
from ternmq.wire.header import Request


class Log:
    """Notes what it ran and refused, in order, and writes; ``cost_s`` of loop time passes with each request."""

    def __init__(self, clock: list[float], cost_s: float = 0.0) -> None:
        self.ran: list[Any] = []
        self.refused: list[tuple[Any, str]] = []
        self.flushed = 0
        self._clock = clock
        self._cost_s = cost_s

    def run(self, request: Any) -> None:
        self._clock[0] += self._cost_s
        self.ran.append(request)

    def flush(self) -> None:
        self.flushed += 1

    def refuse(self, request: Any, reason: str) -> None:
        self.refused.append((request, reason))


async def lanes_at(clock: list[float], *configs: LaneConfig) -> Lanes:
    return Lanes(configs, WorkClock(lambda: clock[0], lambda: clock[0]))


async def test_jobs_of_one_lane_run_in_order_of_arrival() -> None:
    """B3"""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("send"))

    for number in range(100):
        lanes.submit(lanes["send"], log, number, 0.0)
    lanes.run()

    assert list(range(100)) == log.ran


def accounts(lanes: Lanes) -> dict[str, float]:
    """All that lanes have noted of what was done."""
    noted: dict[str, float] = {"level": lanes._level}
    for name, lane in lanes.by_name.items():
        noted |= {
            f"{name} used": lane.used,
            f"{name} waits": lane.waits.sum_s,
            f"{name} longest": lane.waits.max_s,
            f"{name} late": lane.refused_late,
            f"{name} queued": lane.requests,
            f"{name} bytes": lane.queued_bytes,
            f"{name} has keys": lane.has_keys,
            f"{name} plain": lane.plain.used,
            f"{name} level": lane._level,
        }
        noted |= {f"{name} waits {number}": count for number, count in enumerate(lane.waits.counts)}
        noted |= {
            f"{name} spent {key} {part}": each for key, spent in lane.spent.items() for part, each in enumerate(spent)
        }
        noted |= {f"{name} past {key}": used for key, used in lane._past.items()}
    return noted


@given(
    reads=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["send", "pull"]),
                    st.sampled_from([None, "a", "b", "l" * (PAST_KEY_LENGTH_MAX + 1)]),
                    st.sampled_from([TURN_S / 100, TURN_S / 3, TURN_S * 2]),
                ),
                min_size=1,
                max_size=3,
            )
            | st.integers(2, SLICE_REQUESTS + 3).map(lambda count: [("pull", "a", TURN_S / 100)] * count),
            # How old it is when it is handled, and whether the turn of the loop is over then.
            st.sampled_from([0.0, 0.0, FIRST_S / 2, FIRST_S * 2, 0.3]),
            st.booleans(),
        ),
        max_size=12,
    )
)
@example([([("send", "l" * (PAST_KEY_LENGTH_MAX + 1), TURN_S * 2)] * 2, 0.0, True)])
def test_a_job_that_comes_alone_is_carried_out_and_counted_as_if_it_had_been_queued(
    reads: list[tuple[list[tuple[str, str | None, float]], float, bool]],
) -> None:
    """B3, R4: in the same order, and with the same claims of lanes and groups afterwards."""

    class Asked(NamedTuple):
        number: int
        cost_s: float
        frame_bytes: int = 10

    class Costly(Log):
        def run(self, request: Any) -> None:
            self._cost_s = request.cost_s
            super().run(request)

    async def carry_out() -> None:
        logs, both = [], []
        for _ in range(2):
            clock = [1.0]
            logs.append((clock, Costly(clock)))
            both.append(await lanes_at(clock, LaneConfig("send", wait_max_ms=200), LaneConfig("pull")))
        for number, (jobs, waited_s, is_last) in enumerate(reads):
            for (clock, log), lanes, may_be_alone in zip(logs, both, (True, False), strict=True):
                arrived, clock[0] = clock[0], clock[0] + waited_s
                # A peer looks whether they are all of one lane and group.
                [(name, key, _), *_] = jobs
                requests = [Asked(number, cost_s) for _, _, cost_s in jobs]
                is_same = {job[:2] for job in jobs} == {(name, key)}
                if not (
                    may_be_alone and is_same and lanes.run_alone(lanes[name], log, requests, arrived, key, size=10)
                ):
                    for (name, key, _), request in zip(jobs, requests, strict=True):
                        lanes.submit(lanes[name], log, request, arrived, request.frame_bytes, key)
                    lanes.run()
            if is_last:
                await asyncio.sleep(0)
            [(clock, log), (other_clock, other_log)] = logs
            assert (other_clock, other_log.ran, other_log.refused) == (clock, log.ran, log.refused)
            assert accounts(both[1]) == pytest.approx(accounts(both[0]))

    asyncio.run(carry_out())


async def test_what_a_job_alone_gives_back_is_carried_out_as_well() -> None:
    """B3: the rest of a run becomes jobs of their own, which wait for their turn."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S * 2)
    lanes = await lanes_at(clock, LaneConfig("send"))

    class Run(Log):
        def run(self, request: Any) -> None:
            super().run(request)
            assert lanes.is_over()
            lanes.give_back(lanes["send"], log, [Request(10, number) for number in (1, 2)])

    run = Run(clock, cost_s=TURN_S * 2)
    assert lanes.run_alone(lanes["send"], run, ["run"], 0.0, run_count=3)
    assert not lanes.run_alone(lanes["send"], log, ["behind it"], 0.0)
    lanes.submit(lanes["send"], log, Request(10, 3), clock[0])
    lanes.run()
    await asyncio.sleep(0.05)

    assert ["run"] == run.ran
    assert [1, 2, 3] == [request.opaque for request in log.ran]
    assert (0, 2) == (lanes["send"].requests, lanes["send"].given_back)


async def test_a_storm_on_one_lane_delays_another_by_one_slice_only() -> None:
    """B3: a send that arrives behind 1,000 pulls runs after the first slice of them."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S / 100)
    lanes = await lanes_at(clock, LaneConfig("pull"), LaneConfig("send"))

    for _ in range(1000):
        lanes.submit(lanes["pull"], log, "pull", 0.0)
    lanes.submit(lanes["send"], log, "send", 0.0)
    lanes.run()

    assert log.ran.index("send") <= SLICE_REQUESTS


async def test_slow_requests_end_a_slice_with_the_turn() -> None:
    """Issue 13, 4: 32 pulls with filters of 10 ms each would keep a send waiting for 320 ms."""
    clock = [0.0]
    log = Log(clock, cost_s=0.01)
    lanes = await lanes_at(clock, LaneConfig("pull"), LaneConfig("send"))

    for _ in range(100):
        lanes.submit(lanes["pull"], log, "pull", 0.0)
    lanes.submit(lanes["send"], log, "send", 0.0)
    lanes.run()

    assert [*["pull"] * SLOW_REQUESTS, "send"] == log.ran


async def test_a_long_queue_leaves_the_loop_between_turns_and_goes_on_by_itself() -> None:
    """B3: sockets are served while work is piled up."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S / 5)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for number in range(200):
        lanes.submit(lanes["pull"], log, number, 0.0)
    lanes.run()
    after_one_turn = len(log.ran)
    while len(log.ran) < 200:
        await asyncio.sleep(0)

    assert after_one_turn == 2 * SLOW_REQUESTS
    assert list(range(200)) == log.ran


async def test_a_lane_that_comes_back_when_no_other_has_work_does_not_spend_what_it_saved() -> None:
    """B3: the busy lane is empty for a moment; still the other one starts level with it."""
    clock = [0.0]
    log = Log(clock, cost_s=0.0001)
    lanes = await lanes_at(clock, LaneConfig("busy"), LaneConfig("idle"))
    for _ in range(500):
        lanes.submit(lanes["busy"], log, "busy", 0.0)
        lanes.run()
        await asyncio.sleep(0)
    log.ran.clear()

    for name in ("idle", "busy"):
        for _ in range(SLICE_REQUESTS * 8):
            lanes.submit(lanes[name], log, name, 0.0)
    lanes.run()
    while len(log.ran) < SLICE_REQUESTS * 16:
        await asyncio.sleep(0)

    assert log.ran.index("busy") <= 2 * SLICE_REQUESTS


async def test_reads_of_many_connections_share_the_time_of_a_turn() -> None:
    """R4: requests of a storm that come one by one, each on its own connection, were all run as they were read. What is
    read when the time is over waits."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S / 4)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for _ in range(100):
        lanes.submit(lanes["pull"], log, "storm", clock[0], key="storm")
        lanes.run()

    assert len(log.ran) <= 2 * SLOW_REQUESTS


async def piled_up(clock: list[float], storm: Log) -> Lanes:
    """Lanes that have more pulls of one group to do than this turn has time for, each on a connection of its own."""
    lanes = await lanes_at(clock, LaneConfig("send"), LaneConfig("pull"))
    for _ in range(100):
        lanes.submit(lanes["pull"], storm, "storm", clock[0], key="storm")
        lanes.run()
    return lanes


async def test_a_group_that_had_nothing_of_a_turn_goes_ahead_when_its_time_is_over() -> None:
    """R4: it waited for the next turn with its send, for another with its pull, and for a third with the reply."""
    clock = [0.0]
    storm, small = Log(clock, cost_s=TURN_S / 4), Log(clock)
    lanes = await piled_up(clock, storm)
    done = len(storm.ran)

    lanes.submit(lanes["send"], small, "send", clock[0])
    lanes.run()
    lanes.submit(lanes["pull"], small, "pull", clock[0], key="small")
    lanes.run()

    assert (["send", "pull"], done) == (small.ran, len(storm.ran)), "at once, and no more of the storm"
    assert 2 == small.flushed, "and its replies do not wait for those of the storm"
    assert 0 == storm.flushed


async def test_a_held_request_that_is_woken_goes_ahead_with_the_send_that_wakes_it() -> None:
    """R4: in the same turn, not in the next one."""
    clock = [0.0]
    storm, small = Log(clock, cost_s=TURN_S / 4), Log(clock)
    lanes = await piled_up(clock, storm)

    def wake() -> None:
        if "send" in small.ran and "held" not in small.ran:
            lanes.submit(lanes["pull"], small, "held", clock[0], key="small")
            lanes.run()

    lanes.wake_held = wake
    lanes.submit(lanes["send"], small, "send", clock[0])
    lanes.run()

    assert ["send", "held"] == small.ran


async def test_a_held_request_that_was_woken_before_the_storm_goes_ahead_as_well() -> None:
    """R4: the send came first in its turn, when nothing was piled up; then came the storm."""
    clock = [0.0]
    storm, small = Log(clock, cost_s=TURN_S / 4), Log(clock)
    lanes = await lanes_at(clock, LaneConfig("send"), LaneConfig("pull"))
    woken = ["held"]

    def wake() -> None:
        if woken:
            lanes.submit(lanes["pull"], small, woken.pop(), clock[0], key="small")

    lanes.wake_held = wake
    lanes.submit(lanes["send"], small, "send", clock[0])
    lanes.run()
    assert ["send"] == small.ran, "what it woke comes with the next turn, with all that came meanwhile"
    for _ in range(100):
        lanes.submit(lanes["pull"], storm, "storm", clock[0], key="storm")
        lanes.run()

    assert ["send", "held"] == small.ran


async def test_what_a_send_wakes_has_what_is_left_of_its_turn() -> None:
    """F8: another turn of the loop would begin after it, for nothing."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S / 4)
    lanes = await lanes_at(clock, LaneConfig("send"), LaneConfig("pull"))

    def wake() -> None:
        if log.ran == ["send"] * 3:
            assert lanes.run_alone(lanes["pull"], log, ("held",), clock[0], "small")

    lanes.wake_held = wake
    for _ in range(3):
        assert lanes.run_alone(lanes["send"], log, ("send",), clock[0])
    assert ["send"] * 3 == log.ran, "it comes behind all that was read"
    await asyncio.sleep(0)

    assert ["send"] * 3 + ["held"] == log.ran
    assert lanes._turn_end is None


async def test_a_group_goes_ahead_beside_a_storm_that_pulls_and_confirms() -> None:
    """R4: the storm's other lane had used less time, so it was next, and the small group waited for a turn of it."""
    clock = [0.0]
    storm, small = Log(clock, cost_s=TURN_S / 4), Log(clock)
    lanes = await piled_up(clock, storm)
    for _ in range(100):
        lanes.submit(lanes["send"], storm, "ack", clock[0], key="storm")
    lanes.run()
    await asyncio.sleep(0)
    lanes["send"].used = 0.0

    done = len(storm.ran)
    lanes.submit(lanes["pull"], small, "pull", clock[0], key="small")
    lanes.run()

    assert (["pull"], done) == (small.ran, len(storm.ran)), "and no acks of a group whose pulls had this turn"


async def test_a_group_does_not_pay_for_time_in_which_the_loop_lost_the_processor() -> None:
    """R4: it was charged with the time on the wall, and the storm went first until it had used as much."""
    wall, cpu = [0.0], [0.0]
    lanes = Lanes([LaneConfig("pull")], WorkClock(lambda: wall[0], lambda: cpu[0]))
    ran: list[str] = []

    class Group(Log):
        def __init__(self, name: str, *, lost_s: float = 0.0) -> None:
            super().__init__(wall)
            self._name, self._lost_s = name, lost_s

        def run(self, request: Any) -> None:
            del request
            ran.append(self._name)
            cpu[0] += TURN_S / 4
            wall[0] += TURN_S / 4 + self._lost_s

    storm, small = Group("storm"), Group("small", lost_s=100 * TURN_S)
    for _ in range(100):
        lanes.submit(lanes["pull"], storm, "pull", 0.0, key="storm")
    lanes.run()
    for _ in range(3):
        lanes.submit(lanes["pull"], small, "pull", 0.0, key="small")
        await asyncio.sleep(0)

    assert 3 == ran.count("small")


async def test_a_group_pays_for_time_in_which_the_loop_waited_for_its_pages() -> None:
    """R4: charged by CPU time alone, a group whose records are not in memory would stop all others for as long as it
    has requests."""
    wall, cpu, faults = [0.0], [0.0], [0]
    used = UsedTime(lambda: wall[0], lambda: cpu[0], lambda: faults[0])
    lanes = Lanes([LaneConfig("pull")], WorkClock(lambda: wall[0], used))
    ran: list[str] = []

    class Group(Log):
        def __init__(self, name: str, *, pages: int = 0) -> None:
            super().__init__(wall)
            self._name, self._pages = name, pages

        def run(self, request: Any) -> None:
            del request
            ran.append(self._name)
            cpu[0] += TURN_S / 4
            wall[0] += TURN_S / 4 + self._pages * 0.01
            faults[0] += self._pages

    cold, warm = Group("cold", pages=1), Group("warm")
    for _ in range(200):
        lanes.submit(lanes["pull"], cold, "pull", 0.0, key="cold")
        lanes.submit(lanes["pull"], warm, "pull", 0.0, key="warm")
    lanes.run()
    while len(ran) < 200:
        await asyncio.sleep(0)

    # A request of the cold group takes 160 times as long.
    assert ran.count("cold") <= 8


async def test_what_goes_ahead_is_bounded_in_each_turn() -> None:
    """R4: a thousand small groups do not keep the loop from its sockets, and one of them has no second chance."""
    clock = [0.0]
    storm, small = Log(clock, cost_s=TURN_S / 4), Log(clock, cost_s=AHEAD_S / 10)
    lanes = await piled_up(clock, storm)

    for number in range(3 * SLOW_REQUESTS):
        lanes.submit(lanes["pull"], small, number, clock[0], key="small")
        lanes.run()
    assert 1 == len(small.ran), "the next ones wait, as the storm does"

    for number in range(1_000):
        lanes.submit(lanes["pull"], small, number, clock[0], key=f"group-{number}")
        lanes.run()
    assert len(small.ran) <= 13
    while len(storm.ran) + len(small.ran) < 1_100 + 3 * SLOW_REQUESTS:
        await asyncio.sleep(0)


async def test_each_turn_of_the_loop_has_time_of_its_own() -> None:
    """A turn that is over does not shorten the next: a request that comes alone is run at once."""
    clock = [0.0]
    log = Log(clock, cost_s=2 * TURN_S)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for number in range(3):
        lanes.submit(lanes["pull"], log, number, clock[0])
        lanes.run()
        assert number + 1 == len(log.ran)
        await asyncio.sleep(0)


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
    # A slice may end with the turn, so one of them may be ahead, but by less than a slice.
    assert abs(half.count("busy") - half.count("idle")) < SLICE_REQUESTS


async def test_a_full_lane_refuses_with_overload() -> None:
    """M1: bounded work queues."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("send", capacity=3))

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


async def test_a_full_lane_refuses_by_bytes_as_well() -> None:
    """Issue 13, point 6: 10,000 queued sends must not keep 10,000 bodies of megabytes."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("send", bytes_max=1000))

    for number, size in enumerate((2000, 1, 400, 500)):
        lanes.submit(lanes["send"], log, number, 0.0, size)
    queued_bytes = lanes["send"].queued_bytes
    lanes.run()
    lanes.submit(lanes["send"], log, "next", 0.0, 900)
    lanes.run()

    assert 2000 == queued_bytes
    assert [0, "next"] == log.ran
    assert [1, 2, 3] == [name for name, _ in log.refused]
    assert 0 == lanes["send"].queued_bytes


class Broken(Log):
    """A worker that can neither run nor refuse anything."""

    def run(self, request: Any) -> None:
        raise ZeroDivisionError("a bug")

    def flush(self) -> None:
        pass

    def refuse(self, request: Any, reason: str) -> None:
        raise ZeroDivisionError("another bug")


async def test_a_worker_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 1: one reply that could not be encoded stopped every lane for good."""
    clock = [10.0]
    log, broken = Log(clock), Broken(clock)
    lanes = await lanes_at(clock, LaneConfig("send", wait_max_ms=200), LaneConfig("pull"))

    lanes.submit(lanes["send"], broken, "late", 9.0)
    lanes.submit(lanes["send"], broken, "on time", 10.0)
    lanes.submit(lanes["send"], log, "of the same lane", 10.0)
    lanes.submit(lanes["pull"], log, "of another lane", 10.0)
    lanes.run()
    lanes.submit(lanes["send"], log, "later", 10.0)
    lanes.run()

    assert ["of the same lane", "of another lane", "later"] == log.ran
    assert 2 == sum("failed without an answer" in message for message in caplog.messages)


async def test_the_lanes_go_on_after_an_interrupt() -> None:
    """Issue 13, point 1: even what is not an ``Exception`` leaves the lanes in order."""

    class Interrupted(Log):
        def run(self, request: Any) -> None:
            raise KeyboardInterrupt

    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("send"))
    lanes.submit(lanes["send"], Interrupted([0.0]), "interrupted", 0.0)
    lanes.submit(lanes["send"], log, "next", 0.0)
    with pytest.raises(KeyboardInterrupt):
        lanes.run()
    while not log.ran:
        await asyncio.sleep(0)

    assert ["next"] == log.ran


async def test_an_interrupt_of_what_came_alone_loses_none_of_the_requests_behind_it() -> None:
    """Issue 13, point 1."""

    class Interrupted(Log):
        def run(self, request: Any) -> None:
            super().run(request)
            if request.opaque == 1:
                raise KeyboardInterrupt

    log = Interrupted([0.0])
    lanes = await lanes_at([0.0], LaneConfig("client"))
    with pytest.raises(KeyboardInterrupt):
        lanes.run_alone(lanes["client"], log, [Request(1, number) for number in range(4)], 0.0, "a")
    lanes.run()

    assert [0, 1, 2, 3] == [request.opaque for request in log.ran]
    assert (0, 0) == (lanes["client"].requests, lanes["client"].queued_bytes)
    assert 4 == sum(lanes["client"].waits.counts)


async def test_what_came_alone_had_its_turn_and_others_go_ahead() -> None:
    """R4: also requests without a group behind those of a group without a name."""
    clock = [0.0]
    log = Log(clock, cost_s=TURN_S / 10)
    lanes = await lanes_at(clock, LaneConfig("client"))
    lane = lanes["client"]

    def read(request: str, key: str | None) -> None:
        if not lanes.run_alone(lane, log, [request], clock[0], key):
            lanes.submit(lane, log, request, clock[0], 0, key)
            lanes.run()

    read("of no name", "")
    clock[0] += TURN_S
    read("of a group", "a")
    read("of the same group", "a")
    read("of no group", None)
    read("of no group, too", None)

    assert ["of no name", "of a group", "of no group"] == log.ran


async def test_what_came_alone_and_fails_does_not_stop_what_is_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """B5"""

    class Failing(Log):
        def run(self, request: Any) -> None:
            super().run(request)
            raise ValueError("broken")

    log = Failing([0.0])
    lanes = await lanes_at([0.0], LaneConfig("client"))

    assert lanes.run_alone(lanes["client"], log, ["one", "two"], 0.0, "a")

    assert ["one", "two"] == log.ran
    assert 2 == caplog.text.count("a request on lane client failed")


async def test_a_full_lane_or_one_with_too_few_bytes_is_not_passed_by() -> None:
    """M1: more than a lane takes at once is queued, and refused there."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("client", capacity=2, bytes_max=100))
    requests: list[Request[Any]] = [Request(1, number, frame_bytes=60) for number in range(3)]

    assert not lanes.run_alone(lanes["client"], log, requests, 0.0, "a", size=60)
    assert not lanes.run_alone(lanes["client"], log, requests[:2], 0.0, "a", size=120)
    assert lanes.run_alone(lanes["client"], log, requests[:2], 0.0, "a", size=100)
    # A single one may be larger.
    assert lanes.run_alone(lanes["client"], log, requests[2:], 0.0, "a", size=120)

    assert requests == log.ran


async def test_a_group_does_not_wait_behind_the_storm_of_another() -> None:
    """R4: two requests of a quiet group run after one slice of a thousand of another."""
    clock = [0.0]
    log = Log(clock, cost_s=0.0001)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for _ in range(1000):
        lanes.submit(lanes["pull"], log, "storm", 0.0, key="storm")
    for _ in range(2):
        lanes.submit(lanes["pull"], log, "quiet", 0.0, key="quiet")
    lanes.run()
    while len(log.ran) < 1002:
        await asyncio.sleep(0)

    assert 2 == log.ran[: SLICE_REQUESTS + 2].count("quiet")


async def test_an_urgent_topic_does_not_wait_behind_the_storm_of_another_topic_of_its_group() -> None:
    """R4: it runs after one slice of a thousand requests for the huge one."""
    clock = [0.0]
    log = Log(clock, cost_s=0.0001)
    lanes = await lanes_at(clock, LaneConfig("pull"))

    for _ in range(1000):
        lanes.submit(lanes["pull"], log, "huge", 0.0, key="group", topic="huge")
    lanes.submit(lanes["pull"], log, "urgent", 0.0, key="group", topic="urgent")
    lanes.run()
    while len(log.ran) < 1001:
        await asyncio.sleep(0)

    assert log.ran.index("urgent") <= SLICE_REQUESTS


async def test_a_full_lane_keeps_the_requests_for_the_small_topic_of_a_group() -> None:
    """R4, M1: another group needs room."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("pull", capacity=4))
    lane = lanes["pull"]

    for number in range(3):
        lanes.submit(lane, log, f"huge {number}", 0.0, key="group", topic="huge")
    lanes.submit(lane, log, "urgent", 0.0, key="group", topic="urgent")
    lanes.submit(lane, log, "quiet", 0.0, key="quiet")
    lanes.run()

    assert ["huge 2"] == [name for name, _ in log.refused]
    assert {"huge 0", "huge 1", "urgent", "quiet"} == {*log.ran}
    assert 0 == lane.count


async def test_a_full_lane_refuses_the_group_that_fills_it() -> None:
    """R4, M1: the newest of the storm makes room; a lane of one group refuses what comes last, as before."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("pull", capacity=4, bytes_max=1000))
    lane = lanes["pull"]

    for number in range(6):
        lanes.submit(lane, log, f"storm {number}", 0.0, 10, key="storm")
    for number in range(3):
        lanes.submit(lane, log, f"quiet {number}", 0.0, 10, key="quiet")
    assert (4, 40, 5) == (lane.count, lane.queued_bytes, lane.refused_full)
    lanes.run()

    assert ["storm 4", "storm 5", "storm 3", "storm 2", "quiet 2"] == [name for name, _ in log.refused]
    assert {"storm 0", "storm 1", "quiet 0", "quiet 1"} == {*log.ran}
    assert (0, 0) == (lane.count, lane.queued_bytes)


async def test_a_lane_full_of_bytes_makes_room_for_a_group_with_few() -> None:
    """R4, M1"""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("pull", bytes_max=1000))
    lane = lanes["pull"]

    for number in range(10):
        lanes.submit(lane, log, f"storm {number}", 0.0, 100, key="storm")
    lanes.submit(lane, log, "quiet", 0.0, 250, key="quiet")

    assert ["storm 9", "storm 8", "storm 7"] == [name for name, _ in log.refused]
    assert (8, 950) == (lane.count, lane.queued_bytes)


async def test_a_lane_full_of_bytes_is_freed_by_the_group_that_has_them_not_by_the_one_with_many_requests() -> None:
    """R4, M1"""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("pull", bytes_max=1000))
    lane = lanes["pull"]

    for number in range(20):
        lanes.submit(lane, log, f"many {number}", 0.0, 1, key="many")
    for number in range(9):
        lanes.submit(lane, log, f"heavy {number}", 0.0, 100, key="heavy")
    lanes.submit(lane, log, "quiet", 0.0, 100, key="quiet")
    lanes.submit(lane, log, "heavy 9", 0.0, 100, key="heavy")
    assert ["heavy 8", "heavy 9"] == [name for name, _ in log.refused]
    lanes.run()

    assert 29 == len(log.ran)
    assert (0, 0, 0) == (lane.count, lane.queued_bytes, lane.keyed_bytes)


async def test_an_interrupt_loses_no_other_request_of_its_group() -> None:
    """Issue 13, point 1, R4: the mailbox that was being served is put back."""

    class Interrupted(Log):
        def run(self, request: Any) -> None:
            raise KeyboardInterrupt

    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("pull"))
    lanes.submit(lanes["pull"], Interrupted([0.0]), "interrupted", 0.0, key="group")
    lanes.submit(lanes["pull"], log, "next", 0.0, key="group")
    with pytest.raises(KeyboardInterrupt):
        lanes.run()
    while not log.ran:
        await asyncio.sleep(0)

    assert ["next"] == log.ran


async def test_new_bounds_count_from_now_on() -> None:
    """T2: settings that change are handed over anew."""
    log = Log([0.0])
    lanes = await lanes_at([0.0], LaneConfig("send", capacity=1))
    lanes.apply([LaneConfig("send", capacity=2)])

    for number in range(3):
        lanes.submit(lanes["send"], log, number, 0.0)

    assert [2] == [name for name, _ in log.refused]
