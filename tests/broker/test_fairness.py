"""Requests of consumers are scheduled by group, whatever the way of consuming (R4).

No clock is looked at, only the order of answers: requests of a storm and, behind them, one of a small group arrive in
the same read, or on many connections in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from ternmq.broker.flow import PULL, SEND
from ternmq.broker.handlers.ack import key_of_batch
from ternmq.net import lanes
from ternmq.net.lanes import SLICE_REQUESTS, Lane, Lanes
from ternmq.net.mailboxes import Mailbox
from ternmq.wire.bodies.clients import BatchAck, BatchAcks
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.requests import PopMessage, PullMessage, PullSysflag
from ternmq.wire.requests_share import SharePull
from tests.broker.calls import FAR_MS, Caller, dialled, pull, serving

#: No more than one read brings.
STORM: Final = 4 * SLICE_REQUESTS


def pulls(group: str, number: int) -> tuple[RequestCode, Any]:
    return RequestCode.PULL_MESSAGE, pull("orders", consumer_group=group, queue_offset=number % 5)


def pops(group: str, number: int) -> tuple[RequestCode, Any]:
    del number
    fields: dict[str, Any] = {"queue_id": ALL_QUEUES, "count_max": 1, "invisible_ms": 60_000}
    return RequestCode.POP_MESSAGE, PopMessage(consumer_group=group, topic="orders", **fields)


def shares(group: str, number: int) -> tuple[RequestCode, Any]:
    return RequestCode.SHARE_PULL, SharePull(
        consumer_group=group, topic="orders", consumer=f"worker-{number}", count_max=1
    )


@pytest.mark.parametrize("way", [pulls, pops, shares])
async def test_a_storm_of_one_group_delays_another_by_a_slice(way: Any, tmp_path: Path) -> None:
    """R4: the request of the small group came last, and is answered among the first."""
    async with serving(tmp_path) as broker:
        for number in range(20):
            await broker.sent("orders", b"%d" % number)
        answered: list[str] = []
        await asyncio.gather(
            *(_ask(broker, "storm", way("storm", number), answered) for number in range(STORM)),
            _ask(broker, "small", way("small", 0), answered),
        )
        assert answered.index("small") <= 2 * SLICE_REQUESTS


@pytest.mark.parametrize("way", [pulls, pops, shares])
async def test_a_storm_for_one_topic_delays_another_topic_of_the_same_group_by_a_slice(
    way: Any, tmp_path: Path
) -> None:
    """R4: the request for the urgent topic came last, and is answered among the first."""
    async with serving(tmp_path) as broker:
        for number in range(20):
            await broker.sent("orders", b"%d" % number)
        await broker.sent("urgent", b"first")
        answered: list[str] = []
        code, header = way("group", 0)
        await asyncio.gather(
            *(_ask(broker, "huge", way("group", number), answered) for number in range(STORM)),
            _ask(broker, "urgent", (code, msgspec.structs.replace(header, topic="urgent")), answered),
        )
        assert answered.index("urgent") <= 2 * SLICE_REQUESTS


async def test_batches_of_acks_are_charged_to_their_group(tmp_path: Path) -> None:
    """R4: they had the part of a group of their own, with all requests without a group, and went ahead of others."""
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"first")
        ack = BatchAck(
            consumer_group="storm",
            topic="orders",
            start_offset=0,
            queue_id=0,
            revive_queue_id=0,
            pop_time_ms=1,
            invisible_ms=60_000,
            bits="AQ==",
        )
        body = encode(BatchAcks(broker_name="broker-a", acks=[ack]))
        await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, body, timeout_ms=60_000)
        info = await broker.call(RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=60_000)
    assert b"pullTimeMs_storm" in bytes(info.body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"brokerName":"a","acks":[{"c":"one","t":"orders","so":0}]}', ("one", "orders")),
        (b'{"acks": [{"b": "AQ==", "c" : "one", "t": "orders"}, {"c": "two"}]}', ("one", "orders")),
        (b'{"acks":[{"t":"orders"}]}', (None, "orders")),
        (b'{"acks":[{"c":"a\\"b","t":1}]}', (None, None)),
        (b'{"acks":[{"c":"' + b"x" * 2_000 + b'"}]}', (None, None)),
        (b'{"acks":[{"c":"\xff"}]}', ("\ufffd", None)),
        (b"", (None, None)),
    ],
)
def test_the_group_of_a_batch_of_acks_is_found_in_its_first_bytes(
    body: bytes, expected: tuple[str | None, str | None]
) -> None:
    """R4, B5: it comes from outside, and is not checked before the request has its turn."""
    assert expected == key_of_batch(memoryview(body))


@pytest.mark.parametrize("way", [pulls, pops, shares])
async def test_a_storm_on_many_connections_delays_another_group_by_a_turn(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: a request on each of many connections. They were all carried out as they were read, whatever their group had
    used: the small group, read last, was answered last."""
    # The time of a turn is over as soon as one read was worked off: how fast the machine is does not matter.
    monkeypatch.setattr(lanes, "TURN_S", 0.0)
    async with serving(tmp_path) as broker, AsyncExitStack() as stack:
        for number in range(20):
            await broker.sent("orders", b"%d" % number)
        address = broker.peer.address
        callers = [await stack.enter_async_context(dialled(address)) for _ in range(STORM + 1)]
        answered: list[str] = []
        *storm, small = callers
        await asyncio.gather(
            *(_ask(caller, "storm", way("storm", number), answered) for number, caller in enumerate(storm)),
            _ask(small, "small", way("small", 0), answered),
        )
        assert answered.index("small") <= SLICE_REQUESTS


@pytest.mark.parametrize("way", [pulls, pops, shares])
async def test_a_message_of_a_small_group_passes_a_storm_in_one_turn(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: its send waited for a turn of the storm, the held pull that it wakes for another, and the reply for a
    third."""
    # A turn has time for one request of the storm. What goes ahead has as much as it needs, on the slowest machine.
    monkeypatch.setattr(lanes, "TURN_S", 0.0)
    monkeypatch.setattr(lanes, "AHEAD_S", 60.0)
    turn, turns = 0, dict[tuple[str, str | None], int]()
    run_jobs, end_turn = Lanes._run_jobs, Lanes._end_turn

    def noted(self: Lanes, lane: Lane, box: Mailbox, *args: Any) -> None:
        turns[lane.config.name, box.key] = turn
        run_jobs(self, lane, box, *args)

    def counted(self: Lanes) -> None:
        nonlocal turn
        turn += 1
        end_turn(self)

    async with serving(tmp_path) as broker, AsyncExitStack() as stack:
        for number in range(20):
            await broker.sent("orders", b"%d" % number)
        await broker.sent("urgent", b"first")
        address = broker.peer.address
        *storm, producer, consumer = [await stack.enter_async_context(dialled(address)) for _ in range(STORM + 2)]
        code, header = way("small", 0)
        await consumer.call(code, msgspec.structs.replace(header, topic="urgent"))
        held = consumer.peer.start_call(code, _waiting_for("urgent", header))
        # In the same mailbox, behind it: when this is answered, that one waits.
        await consumer.call(*way("small", 0))

        async def rage(caller: Caller, number: int) -> None:
            while not held.done():
                await caller.call(*way("storm", number), timeout_ms=FAR_MS)

        raging = [asyncio.ensure_future(rage(caller, number)) for number, caller in enumerate(storm)]
        # Each of them has been answered: now all have asked again, and one is served in a turn.
        await asyncio.gather(*(caller.call(*way("storm", 0), timeout_ms=FAR_MS) for caller in storm))
        monkeypatch.setattr(Lanes, "_run_jobs", noted)
        monkeypatch.setattr(Lanes, "_end_turn", counted)
        await producer.sent("urgent", b"second")
        await held
        await asyncio.gather(*raging)
    assert turns[SEND, None] == turns[PULL, "small"]


def _waiting_for(topic: str, header: Any) -> Any:
    """A request for a topic whose only message the group was given already: it waits for the next one."""
    if isinstance(header, PullMessage):
        sysflag = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND
        return msgspec.structs.replace(header, topic=topic, queue_offset=1, sysflag=sysflag, suspend_timeout_ms=FAR_MS)
    if isinstance(header, SharePull):
        # The other one holds the first message, and would get it again.
        header = msgspec.structs.replace(header, consumer="worker-1")
    return msgspec.structs.replace(header, topic=topic, poll_ms=FAR_MS)


async def _ask(broker: Caller, group: str, request: tuple[RequestCode, Any], answered: list[str]) -> None:
    await broker.call(*request, timeout_ms=60_000)
    answered.append(group)
