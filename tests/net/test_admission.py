"""More sends than a broker can take: what is accepted, how long it waits, and what is refused (M1)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.net.admission import OWED_S_MAX, SERVING_S_MAX, SHARE, WAITING_MIN, AdmissionRule, Debt
from ternmq.net.lanes import UNREAD_S_MAX, LaneConfig, Lanes
from ternmq.wire.header import Request
from tests.net.overload_model import CONNECTIONS, WAIT_MS, Costs, Model

WAIT_S = WAIT_MS / 1000
#: Of one connection, in the kernel's buffer.
BUFFER = 200
#: Of overload.
SECONDS = 1.0
#: Without a kernel (sends cost much, refusals a tenth), with kernels (refusals cost a quarter), and both with a
#: twentieth of a CPU, as in a container with a limit.
COSTS = {
    "python": Costs(),
    "kernels": Costs(serve_s=4e-6, read_s=0.5e-6, refuse_s=1e-6, refuse_late_s=1e-6),
    "python, 5 % of a CPU": Costs(run_s=0.001, stop_s=0.019),
    "kernels, 5 % of a CPU": Costs(
        serve_s=4e-6, read_s=0.5e-6, refuse_s=1e-6, refuse_late_s=1e-6, run_s=0.001, stop_s=0.019
    ),
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("load", [4, 10])
async def test_a_broker_with_too_much_to_do_does_most_of_what_it_can_and_soon(name: str, load: int) -> None:
    """M1: goodput, bounded waiting, bounded memory, and an answer for each request."""
    costs = COSTS[name]
    model = Model(costs, buffer=BUFFER)
    # It begins with nothing known: requests fill the lane until the rate is known, and some become late.
    await model.offer(costs.rate * load, 0.5)
    before = model.result
    model.restart()

    result = await model.offer(costs.rate * load, SECONDS)

    assert result.accepted > 0.75 * costs.rate * SECONDS
    assert result.lane_wait_max_s <= WAIT_S + costs.stop_s + 0.01
    # What waits in the kernel comes on top, in the buffers of all connections.
    assert result.quantile_s(0.99) <= WAIT_S + CONNECTIONS * BUFFER / costs.rate
    assert result.waiting_max <= 2 * costs.rate * WAIT_S + WAITING_MIN
    for part in (before, result):
        left = part.arrived - part.accepted - part.refused - part.late - part.withheld
        assert abs(left) <= CONNECTIONS * BUFFER, "in the kernel's buffers at the beginning or the end"


async def test_with_the_rule_before_nearly_all_is_refused_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """M1: the model shows what was wrong. A lane took requests up to its capacity, each turn read all that there was,
    and a refusal cost as much as decoding and answering a request does."""
    monkeypatch.setattr(Lanes, "_has_limits", lambda _self: False)
    monkeypatch.setattr(AdmissionRule, "look", lambda *_args, **_named: None)
    costs = Costs(read_s=5e-6, refuse_late_s=10e-6, run_s=0.001, stop_s=0.019)
    model = Model(costs, buffer=BUFFER, old=True)

    result = await model.offer(costs.rate * 4, 4.0)

    assert result.accepted < 0.5 * costs.rate * 4.0
    assert result.late > result.accepted


async def test_a_burst_that_can_be_served_in_time_is_not_refused() -> None:
    """M1: neither at first nor after an overload that is over."""
    costs = COSTS["python"]
    model = Model(costs, buffer=10_000)
    await model.offer(costs.rate * 4, 1.0)
    await model.offer(costs.rate * 0.1, 1.0)
    model.restart()

    # A thousand at once take 22 ms.
    result = await model.offer(1_000 / 0.0001, 0.0001)

    assert (0, 0, 0) == (result.refused, result.late, result.withheld)
    assert result.arrived == result.accepted


async def test_nor_is_a_burst_that_comes_long_after_an_overload() -> None:
    """M1: though no request came in between that could have shown that it is over."""
    costs = COSTS["python, 5 % of a CPU"]
    model = Model(costs, buffer=BUFFER)
    await model.offer(costs.rate * 4, 1.0)
    assert model.limit < 600
    await model.idle(3600.0)
    model.restart()

    model.burst(600)
    await model.idle(0.0)

    # This broker cannot serve them all in time, but at their arrival it does not know that any more.
    assert (0, 600) == (model.result.refused, model.result.accepted + model.result.late)


async def test_a_few_requests_of_groups_do_not_turn_the_rule_off() -> None:
    """M1: messages that consumers send back come among sends."""
    costs = COSTS["python, 5 % of a CPU"]
    model = Model(costs, buffer=BUFFER, keyed_every=100)
    await model.offer(costs.rate * 4, 0.5)
    model.restart()

    result = await model.offer(costs.rate * 4, SECONDS)

    assert result.accepted > 0.75 * costs.rate * SECONDS


async def test_a_connection_that_brings_too_much_is_read_again_however_busy_the_loop_is() -> None:
    """M1: there may be heartbeats and answers behind what it brought."""
    costs = Costs(turn_s=0.0008)
    model = Model(costs, buffer=BUFFER)

    result = await model.offer(costs.rate * 4, SECONDS)

    assert 0 < result.held_max_s < UNREAD_S_MAX + CONNECTIONS * (SERVING_S_MAX + 2 * costs.turn_s) + 0.01


async def test_requests_that_come_back_are_served_once() -> None:
    """M1: a run that a turn has no time for is taken twice, which is no higher rate."""
    lanes = Lanes([LaneConfig("send", wait_max_ms=WAIT_MS)])
    lane, served = lanes["send"], []

    class GivesBack:
        def run(self, request: Request[None]) -> None:
            if request.opaque:
                lanes.give_back(lane, self, [Request(310, 0), Request(310, 0)])
            else:
                served.append(request)

        def refuse(self, _request: Request[None], _reason: str) -> None:
            raise AssertionError

        def flush(self) -> None:
            """Nothing is written."""

    lanes.submit(lane, GivesBack(), Request(310, 1), asyncio.get_running_loop().time())
    lanes.run()
    while lane.count:
        await asyncio.sleep(0)

    assert (2, 2) == (len(served), lane.given_back)
    assert 1 == sum(lane.waits.counts) - lane.given_back


async def test_a_load_that_the_broker_can_take_is_never_refused() -> None:
    """M1"""
    costs = COSTS["python"]

    result = await Model(costs).offer(costs.rate * 0.8, 2.0)

    assert (0, 0, 0) == (result.refused, result.late, result.withheld)


def test_as_many_may_wait_as_are_served_in_half_of_the_time() -> None:
    """M1: Little's law."""
    admission = AdmissionRule()
    assert admission.look(1.0, done=0, wait_max_s=0.2) is None
    assert admission.look(1.01, done=100, wait_max_s=0.2) is None, "not measured for long enough"

    assert 1_000 == admission.look(1.0625, done=625, wait_max_s=0.2)
    assert 600 == admission.look(1.3125, done=1125, wait_max_s=0.2), "the mean with the rate before"


def test_a_lane_that_runs_out_of_work_while_it_refuses_takes_twice_as_many() -> None:
    """M1: a low limit must not cause the low rate that it follows from."""
    admission = AdmissionRule()

    assert 200 == admission.rest(1.0, 100, refused=5, late=0, wait_max_s=0.2)
    assert 200 == admission.rest(1.1, 200, refused=5, late=0, wait_max_s=0.2), "nothing was refused since"
    assert 200 == admission.rest(1.15, 200, refused=9, late=3, wait_max_s=0.2), "too many waited"
    assert admission.rest(1.4, 200, refused=9, late=3, wait_max_s=0.2) is None, "the overload is over"


def test_the_loop_serves_longer_than_it_reads() -> None:
    """M1: in CPU time, a part of it in each turn, until it is paid."""
    debt = Debt()
    debt.end(10.0)
    assert debt.is_paid

    assert 10.001 + SERVING_S_MAX == pytest.approx(debt.begin(10.001))
    debt.end(10.001 + SERVING_S_MAX)
    assert not debt.is_paid
    left_s = SHARE * 0.001 - SERVING_S_MAX
    assert left_s == pytest.approx(debt.begin(10.001 + SERVING_S_MAX) - 10.001 - SERVING_S_MAX)
    debt.end(10.1)
    assert debt.is_paid

    debt.begin(1000.0)
    debt.end(1000.0 + OWED_S_MAX)
    assert debt.is_paid, "what was done in an hour before is not owed"
