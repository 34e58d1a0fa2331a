"""Queue locks of a member, against a broker that says what it is told to (F2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume import locks, rebalance, source
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import Listener
from ternmq.client.consume.locks import HeldLocks
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.orderly import Orderly
from ternmq.client.consume.push import PushConsumer
from ternmq.env import Env
from ternmq.errors import refused
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply
from ternmq.wire.requests import OffsetReply
from tests.client.consumer_script import ConsumerScript, pulled, record
from tests.client.listening import eventually
from tests.manual_clock import ManualClock

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
LOAD, STORE, PULL = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(3)]


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript().running() as script:
        yield script


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def instance(script: ConsumerScript, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    async with ClientInstance(ClientConfig(script.address), env=Env(clock=clock)) as instance:
        await instance.routes.of("orders")
        yield instance


async def test_a_lock_is_trusted_for_half_a_minute_from_when_it_was_asked_for(
    script: ConsumerScript, instance: ClientInstance, clock: ManualClock
) -> None:
    """F2: and a broker gives it for a whole one."""
    lost: list[MessageQueue] = []
    held = HeldLocks(instance, "billing", on_lost=lost.append)
    script.locked = {1}
    assert [True, False] == [await held.lock(queue) for queue in QUEUES[:2]]
    assert [True, False, False] == [held.is_held(queue) for queue in QUEUES]
    clock.advance(29)
    assert held.is_held(QUEUES[0])
    clock.advance(1)
    assert not held.is_held(QUEUES[0])
    assert await held.renew()
    assert held.is_held(QUEUES[0])
    assert [] == lost


async def test_a_broker_that_does_not_answer_is_no_loss(
    script: ConsumerScript, instance: ClientInstance, clock: ManualClock
) -> None:
    """F2: it is asked again soon; until then the lock is not trusted."""
    lost: list[MessageQueue] = []
    held = HeldLocks(instance, "billing", on_lost=lost.append)
    await held.lock(QUEUES[0])
    script.say(LOCK, refused(ResponseCode.SYSTEM_BUSY, "later"))
    clock.advance(40)
    assert not await held.renew()
    assert not held.is_held(QUEUES[0])
    assert await held.renew()
    assert held.is_held(QUEUES[0])
    assert [] == lost


@pytest.mark.parametrize("why", ["it is another's", "it may have been another's"])
async def test_a_lock_that_may_have_been_another_s_is_lost(
    script: ConsumerScript, instance: ClientInstance, clock: ManualClock, why: str
) -> None:
    """F2: after a minute without renewal the broker may have given it away and got it back."""
    lost: list[MessageQueue] = []
    held = HeldLocks(instance, "billing", on_lost=lost.append)
    for queue in QUEUES[:2]:
        await held.lock(queue)
    if why == "it is another's":
        script.locked = {1}
        assert await held.renew()
        assert ([QUEUES[1]], {QUEUES[0]}) == (lost, held.queues)
    else:
        clock.advance(60)
        assert await held.renew()
        assert (QUEUES[:2], set()) == (sorted(lost), held.queues)
    assert not held.is_held(QUEUES[1])


async def test_all_locks_of_a_broker_are_renewed_and_given_back_in_one_call(
    script: ConsumerScript, instance: ClientInstance
) -> None:
    """F2."""
    held = HeldLocks(instance, "billing", on_lost=lambda _: None)
    for queue in QUEUES:
        await held.lock(queue)
    await held.renew()
    await held.unlock(QUEUES)
    await held.unlock(QUEUES)  # not ours any more: no broker is told
    assert [LOCK] * 4 + [UNLOCK] == [code for code, _ in script.asked if code in (LOCK, UNLOCK)]


async def test_giving_back_may_fail(script: ConsumerScript, instance: ClientInstance) -> None:
    """F2: then the lock runs out by itself."""
    held = HeldLocks(instance, "billing", on_lost=lambda _: None)
    await held.lock(QUEUES[0])
    script.say(UNLOCK, refused(ResponseCode.SYSTEM_ERROR, "no"))
    await held.unlock(QUEUES)
    assert set() == held.queues


async def test_a_broker_whose_connection_broke_is_asked_before_its_locks_are_trusted_again(
    script: ConsumerScript, instance: ClientInstance
) -> None:
    """F2: it may have been started anew, and given them to others."""
    lost: list[MessageQueue] = []
    held = HeldLocks(instance, "billing", on_lost=lost.append)
    await held.lock(QUEUES[0])
    await held.lock(QUEUES[1])
    held.doubt("broker-b")
    assert held.is_held(QUEUES[0])
    held.doubt("broker-a")
    assert not held.is_held(QUEUES[0])
    script.locked = {1}
    renewing = asyncio.create_task(held.run())  # at once, not in 20 s
    await script.wait_for(LOCK, 3)
    await eventually(lambda: held.is_held(QUEUES[0]))
    renewing.cancel()
    assert [QUEUES[1]] == lost


# --- A member with locks ------------------------------------------------------------------------------------------


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.offsets.append(message.queue_offset)


def consumer_of(script: ConsumerScript, listener: Listener | None = None) -> PushConsumer:
    config = PushConfig(start=StartPosition.FIRST, orderly=True)
    consumer = PushConsumer("billing", listener or Seen(), name_servers=script.address, config=config)
    consumer.subscribe("orders")
    return consumer


def codes(script: ConsumerScript) -> list[int]:
    return [code for code, _ in script.asked if code in (LOCK, UNLOCK, LOAD, STORE, PULL)]


async def test_a_queue_is_locked_first_and_unlocked_last(script: ConsumerScript) -> None:
    """F2: the stored progress is read under the lock, and written under it."""
    async with consumer_of(script):
        await script.wait_for(PULL)
    assert [LOCK, LOAD, PULL, STORE, UNLOCK] == codes(script)


async def test_a_queue_that_another_member_has_is_asked_for_again(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2, G1: every second; nothing of it is read meanwhile."""
    monkeypatch.setattr(rebalance, "RETRY_S", 0.001)
    monkeypatch.setattr(rebalance, "GAP_S", 0.001)
    script.locked = {0}
    async with consumer_of(script) as consumer:
        await script.wait_for(LOCK, 5)
        assert {LOCK} == {*codes(script)}
        script.locked = set()
        await consumer.ready()
        assert [0] == [queue.queue_id for queue in consumer.queues]


async def test_a_lock_is_given_back_when_the_start_cannot_be_found(script: ConsumerScript) -> None:
    """F2, F6: the member that gets the queue in the next round needs it."""
    script.say(LOAD, refused(ResponseCode.SYSTEM_ERROR, "no"))
    async with consumer_of(script):
        await script.wait_for(UNLOCK)
        assert [LOCK, LOAD, UNLOCK] == codes(script)[:3]


async def test_a_lock_that_is_not_trusted_when_the_start_is_found_is_given_back(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: or it would be renewed for ever, by one that does not read the queue. Found in simulation."""
    monkeypatch.setattr(HeldLocks, "is_held", lambda *_: False)
    async with consumer_of(script) as consumer:
        await script.wait_for(UNLOCK)
        assert [LOCK, LOAD, UNLOCK] == codes(script)[:3]
        assert [] == consumer.queues


async def test_a_queue_whose_lock_is_lost_is_taken_up_anew(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: what was in flight counts no more, and the progress is what brokers say."""
    monkeypatch.setattr(locks, "RENEW_S", 0.01)
    monkeypatch.setattr(rebalance, "RETRY_S", 0.01)
    script.say(LOAD, Reply(header=OffsetReply(queue_offset=5)), Reply(header=OffsetReply(queue_offset=9)))
    script.say(PULL, pulled(ResponseCode.SUCCESS, 7, record(5), record(6)))
    began, go = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        began.set()
        await go.wait()

    async with consumer_of(script, listener) as consumer:
        await began.wait()
        script.locked = {0}
        await eventually(lambda: not consumer.queues)
        script.say(PULL, pulled(ResponseCode.SUCCESS, 10, record(9)))
        script.locked = set()
        await eventually(lambda: bool(consumer.queues))
        await script.wait_for(PULL, 3)
        assert [5] == seen  # the call from before the loss still runs
        go.set()
        await eventually(lambda: len(seen) == 2)
    assert [5, 9] == seen
    assert {9, 10} >= {header.commit_offset for header in script.headers(STORE)}


async def test_a_queue_that_is_let_go_keeps_its_lock_while_a_call_runs(script: ConsumerScript) -> None:
    """F2, G1: and comes back to us only after that."""
    script.say(PULL, pulled(ResponseCode.SUCCESS, 7, record(5), record(6)))
    began, go = asyncio.Event(), asyncio.Event()

    async def listener(_: ReceivedMessage) -> None:
        began.set()
        await go.wait()

    async with consumer_of(script, listener) as consumer:
        await began.wait()
        script.members = ["0.0.0.0@another"]
        await script.tell_members_changed("billing")
        await eventually(lambda: not consumer.queues)
        script.members = []
        await script.tell_members_changed("billing")
        asked = len(script.headers(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await script.wait_for(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 1)
        assert UNLOCK not in codes(script)
        assert [] == consumer.queues
        go.set()
        await eventually(lambda: bool(consumer.queues))
        assert [6] == [header.commit_offset for header in script.headers(STORE)]
        assert [STORE, UNLOCK, LOCK, LOAD] == codes(script)[codes(script).index(STORE) :][:4]


async def test_after_a_broken_connection_the_lock_is_asked_for_before_the_next_call(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2."""
    monkeypatch.setattr(source, "ERROR_PAUSE_S", 0.01)
    monkeypatch.setattr(locks, "TIMEOUT_MS", 200)
    monkeypatch.setattr(locks, "AGAIN_S", 0.01)
    script.say(PULL, pulled(ResponseCode.SUCCESS, 7, record(5), record(6)))
    began, go = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        began.set()
        await go.wait()

    async with consumer_of(script, listener) as consumer:
        await began.wait()
        await script.wait_for(PULL, 2)
        script.say(LOCK, None)  # not answered
        assert script.server is not None
        for peer in list(script.server.peers):
            peer.abort()
        await script.wait_for(LOCK, 2)
        go.set()
        member = consumer._consumer
        assert member is not None
        assert member.locks is not None
        await eventually(lambda: not isinstance(member.outlet, Orderly) or not member.outlet.is_calling(QUEUES[0]))
        assert [5] == seen
        await eventually(lambda: [5, 6] == seen)
        assert 3 == len(script.headers(LOCK))


async def test_locks_are_renewed_while_the_consumer_runs(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2."""
    monkeypatch.setattr(locks, "RENEW_S", 0.01)
    async with consumer_of(script):
        await script.wait_for(LOCK, 5)
    assert 1 == len(script.headers(LOAD))


async def test_in_broadcasting_there_are_no_locks(script: ConsumerScript, tmp_path: Path) -> None:
    """F2, F5."""
    config = PushConfig(orderly=True, offsets_directory=tmp_path, model=MessageModel.BROADCASTING)
    consumer = PushConsumer("billing", Seen(), name_servers=script.address, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await script.wait_for(PULL)
    assert LOCK not in codes(script)
