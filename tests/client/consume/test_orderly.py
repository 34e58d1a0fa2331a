"""Orderly push consumers on a real cluster (F2)."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ternmq.client.config import DEFAULT_INSTANCE, ClientConfig
from ternmq.client.consume.config import FlowLimits, PushConfig
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult, Listener
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.env import Env
from ternmq.errors import ConfigError
from ternmq.message import Message, MessageQueue, ReceivedMessage
from ternmq.wire.bodies.clients import MessageModel
from tests.client.listening import Collector, eventually, numbered, pull_sources
from tests.manual_clock import ManualClock

ORDERLY = PushConfig(start=StartPosition.FIRST, orderly=True, orderly_retry_ms=10)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


def consumer_of(
    cluster: EmbeddedCluster, listener: Listener, config: PushConfig = ORDERLY, env: Env | None = None, name: str = ""
) -> PushConsumer:
    client = ClientConfig(cluster.name_servers, instance_name=name or DEFAULT_INSTANCE)
    consumer = PushConsumer("billing", listener, client=client, config=config, env=env)
    consumer.subscribe("orders")
    return consumer


async def fill(producer: Producer, count: int, *, queues: int = 4, first: int = 0) -> list[MessageQueue]:
    """``count`` messages in each of the first queues, one after the other."""
    chosen = sorted(await producer.queues("orders"))[:queues]
    for queue in chosen:
        await producer.send_batch([Message("orders", body.encode()) for body in numbered(count, first)], queue=queue)
    return chosen


class Watch:
    """A listener of any number of members that notes what would break the order of a queue."""

    def __init__(self, *, work_s: float = 0.0, fail_each: int = 0) -> None:
        self.done: dict[int, int] = defaultdict(int)
        self.broken: list[str] = []
        self.calls = 0
        self._work_s = work_s
        self._fail_each = fail_each
        self._running: set[int] = set()

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult:
        queue_id, queue_offset = message.queue_id, message.queue_offset
        self.calls += 1
        if queue_id in self._running:
            self.broken.append(f"{queue_id}: {queue_offset} begun while another call runs")
        if queue_offset > self.done[queue_id]:
            self.broken.append(f"{queue_id}: {queue_offset} begun when {self.done[queue_id]} was not done")
        self._running.add(queue_id)
        await asyncio.sleep(self._work_s)
        self._running.discard(queue_id)
        if self._fail_each and self.calls % self._fail_each == 0:
            return ConsumeResult.RETRY
        self.done[queue_id] = max(self.done[queue_id], queue_offset + 1)
        return ConsumeResult.SUCCESS


async def test_each_queue_is_consumed_in_order_whatever_fails(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2: and all queues side by side."""
    watch = Watch(fail_each=7)
    await fill(producer, 50)
    async with consumer_of(cluster, watch, replace(ORDERLY, threads=2)):
        await eventually(lambda: sum(watch.done.values()) == 200)
    assert [] == watch.broken


async def test_a_plain_function_gets_them_in_order_in_threads(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2: two queues at the same time, each in order."""
    together = threading.Barrier(2)
    seen: dict[int, list[int]] = {0: [], 1: []}

    def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            together.wait(20)
        seen[message.queue_id].append(message.queue_offset)
        assert threading.current_thread() is not threading.main_thread()

    await fill(producer, 20, queues=2)
    async with consumer_of(cluster, listener):
        await eventually(lambda: sum(map(len, seen.values())) == 40)
    assert {0: [*range(20)], 1: [*range(20)]} == seen


async def test_a_message_that_fails_is_tried_again_in_place(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2: RETRY and an exception mean the same; what comes behind waits, and nothing goes to the retry topic."""
    tries: list[tuple[str, int]] = []

    async def listener(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        tries.append((message.body.decode(), message.reconsume_times))
        context.retry_ms = 1  # as little as there may be: 10
        if message.queue_offset == 1 and message.reconsume_times == 0:
            raise ValueError("no")
        return ConsumeResult.RETRY if message.reconsume_times < 2 else ConsumeResult.SUCCESS

    await fill(producer, 2, queues=1)
    async with consumer_of(cluster, listener, replace(ORDERLY, orderly_retry_ms=60_000)):
        await eventually(lambda: len(tries) == 6)
    assert [(body, times) for body in numbered(2) for times in range(3)] == tries


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_listener_that_ends_its_task_or_thread_has_only_failed(
    cluster: EmbeddedCluster, producer: Producer, kind: str
) -> None:
    """F2: by a cancellation, which some libraries leave behind, or a SystemExit."""
    tries: list[tuple[str, int]] = []

    async def listener(message: ReceivedMessage) -> None:
        tries.append((message.body.decode(), message.reconsume_times))
        if message.queue_offset == 1 and not message.reconsume_times:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    def plain(message: ReceivedMessage) -> None:
        tries.append((message.body.decode(), message.reconsume_times))
        if message.queue_offset == 1 and message.reconsume_times < 2:
            raise (SystemExit, asyncio.CancelledError)[message.reconsume_times]

    await fill(producer, 3, queues=1)
    config = replace(ORDERLY, threads=1, orderly_retry_ms=10)
    async with consumer_of(cluster, listener if kind == "async" else plain, config):
        await eventually(lambda: len(tries) == (4 if kind == "async" else 5))
    first, second, third = numbered(3)
    again = [(second, 1)] if kind == "async" else [(second, 1), (second, 2)]
    assert [(first, 0), (second, 0), *again, (third, 0)] == tries


async def test_a_call_for_which_there_was_no_thread_is_made_once(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: pools keep it, and would make it beside the one that is made again."""
    failures, start = 1, threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        nonlocal failures
        if thread.name.startswith("consume-") and failures:
            failures -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    seen: list[str] = []
    await fill(producer, 3, queues=1)
    monkeypatch.setattr(threading.Thread, "start", scarce)
    config = replace(ORDERLY, orderly_retry_ms=10)
    async with consumer_of(cluster, lambda message: seen.append(message.body.decode()), config):
        await eventually(lambda: len(seen) >= 3)
    assert (0, numbered(3)) == (failures, seen)


async def test_after_the_last_attempt_a_message_is_a_dead_letter_and_the_next_has_its_turn(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F2, H1; a listener may also say at once that there is no hope."""
    tries: list[tuple[str, int]] = []

    async def listener(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        tries.append((message.body.decode(), message.reconsume_times))
        if message.queue_offset == 1:
            context.delay_level = -1
        return ConsumeResult.RETRY if message.queue_offset < 2 else ConsumeResult.SUCCESS

    (queue,) = await fill(producer, 3, queues=1)
    async with consumer_of(cluster, listener, replace(ORDERLY, max_reconsume_times=2)):
        await eventually(lambda: len(tries) == 5)
    assert [("order-0", 0), ("order-0", 1), ("order-0", 2), ("order-1", 0), ("order-2", 0)] == tries
    async with PullConsumer("audit", name_servers=cluster.name_servers) as audit:
        (dead,) = await audit.queues("%DLQ%billing")
        assert [b"order-0", b"order-1"] == [message.body for message in (await audit.pull(dead, 0)).messages]
    async with PullConsumer("billing", name_servers=cluster.name_servers) as pull:
        assert 3 == await pull.committed(queue)


async def test_a_dead_letter_that_no_broker_takes_stays_first(
    cluster: EmbeddedCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2, H1: nothing overtakes it, nothing is lost."""
    tries: list[int] = []
    refusals = [False, False, True]

    async def bury(_settling: object, _message: ReceivedMessage) -> bool:
        return refusals.pop(0)

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        tries.append(message.queue_offset)
        return ConsumeResult.RETRY if message.queue_offset == 0 else ConsumeResult.SUCCESS

    monkeypatch.setattr("ternmq.client.consume.settle.Settling.bury", bury)
    await fill(producer, 2, queues=1)
    async with consumer_of(cluster, listener, replace(ORDERLY, max_reconsume_times=0)):
        await eventually(lambda: len(tries) == 4)
    assert [0, 0, 0, 1] == tries


async def test_a_batch_listener_may_do_a_part(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2: the rest of the list comes again at once in place, with what is behind it."""
    calls: list[list[str]] = []

    async def listener(messages: Sequence[ReceivedMessage], context: ConsumeContext) -> None:
        calls.append([message.body.decode() for message in messages])
        if len(calls) == 1:
            context.done_count = 3

    await fill(producer, 8, queues=1)
    async with consumer_of(cluster, listener, replace(ORDERLY, batch_max=4)):
        await eventually(lambda: sum(map(len, calls)) == 9)
    assert [numbered(4), numbered(4, 3), numbered(1, 7)] == calls


class Ledger:
    """A listener that commits or rolls back several messages of one queue at once."""

    def __init__(self, *results: ConsumeResult | Exception) -> None:
        self._results = deque(results)
        self.seen: list[int] = []

    async def __call__(self, message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        self.seen.append(message.queue_offset)
        result = self._results.popleft() if self._results else ConsumeResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        context.auto_commit = False
        return result


async def committed(cluster: EmbeddedCluster, queue: MessageQueue) -> int | None:
    async with PullConsumer("billing", name_servers=cluster.name_servers) as puller:
        return await puller.committed(queue)


@pytest.mark.parametrize("how", ["async", "threads"])
async def test_what_was_taken_since_the_last_commit_comes_again_after_a_rollback(
    cluster: EmbeddedCluster, producer: Producer, how: str
) -> None:
    """F2: in its order, and neither more nor less often tried."""
    success, commit, rollback = ConsumeResult.SUCCESS, ConsumeResult.COMMIT, ConsumeResult.ROLLBACK
    ledger = Ledger(success, commit, success, rollback, success, success, success, commit)
    (queue,) = await fill(producer, 5, queues=1)
    times: list[int] = []

    def plain(message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
        times.append(message.reconsume_times)
        return asyncio.run(ledger(message, context))

    async with consumer_of(cluster, ledger if how == "async" else plain):
        await eventually(lambda: len(ledger.seen) == 7)
    assert [0, 1, 2, 3, 2, 3, 4] == ledger.seen
    assert {0} >= set(times)
    # The second commit would have come with a sixth message.
    assert 2 == await committed(cluster, queue)


async def test_what_was_not_committed_comes_again_to_the_next_owner(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F2: and a commit counts for all that was taken before it."""
    (queue,) = await fill(producer, 4, queues=1)
    first = Ledger(ConsumeResult.SUCCESS, ConsumeResult.COMMIT)
    async with consumer_of(cluster, first):
        await eventually(lambda: len(first.seen) == 4)
    assert 2 == await committed(cluster, queue)
    second = Ledger(ConsumeResult.SUCCESS, ConsumeResult.COMMIT)
    async with consumer_of(cluster, second):
        await eventually(lambda: len(second.seen) == 2)
    assert [2, 3] == second.seen
    assert 4 == await committed(cluster, queue)


async def test_a_failure_commits_nothing_and_a_dead_letter_only_itself(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F2: a listener may raise before it could say that it decides itself."""
    (queue,) = await fill(producer, 4, queues=1)
    ledger = Ledger(ConsumeResult.SUCCESS, RuntimeError("no"), RuntimeError("never"), ConsumeResult.ROLLBACK)
    async with consumer_of(cluster, ledger, replace(ORDERLY, max_reconsume_times=1)):
        await eventually(lambda: len(ledger.seen) == 7)
    # 1 is a dead letter after two attempts; what was taken before it is rolled back with 2.
    assert [0, 1, 1, 2, 0, 2, 3] == ledger.seen
    assert 0 == (await committed(cluster, queue) or 0)


async def test_who_never_commits_gets_no_more_than_may_be_under_way_and_is_told(
    cluster: EmbeddedCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """F2, M2."""
    await fill(producer, 9, queues=1)
    ledger = Ledger()
    config = replace(ORDERLY, limits=FlowLimits(count=4), pull_count_max=2)
    async with consumer_of(cluster, ledger, config):
        await eventually(lambda: "until it commits" in caplog.text)
        assert [0, 1, 2, 3] == ledger.seen


async def test_members_come_and_go_and_every_queue_keeps_its_order(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F2, G1: with calls that run while queues change hands, and some that fail."""
    watch = Watch(work_s=0.005, fail_each=11)
    await fill(producer, 60)
    async with asyncio.timeout(60), consumer_of(cluster, watch) as staying:
        for part in (60, 120):
            async with consumer_of(cluster, watch) as joining:
                await eventually(lambda joining=joining: len(joining.queues) == 2)  # type: ignore[misc]
                assert 4 == len({*staying.queues, *joining.queues} - {*retries(staying), *retries(joining)})
                await fill(producer, 60, first=part)
        await eventually(lambda: sum(watch.done.values()) == 720)
    assert [] == watch.broken


def retries(consumer: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in consumer.queues if queue.topic != "orders"]


async def test_a_queue_changes_hands_after_the_running_call(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2, G1: its next owner waits for the lock, and begins behind the call."""
    began, go = asyncio.Event(), asyncio.Event()
    old, new = Collector(), Collector()

    async def slow(message: ReceivedMessage) -> None:
        began.set()
        await go.wait()
        await old(message)

    queues = await fill(producer, 3)
    async with consumer_of(cluster, slow) as leaving:
        await began.wait()
        async with consumer_of(cluster, new) as joining:
            await eventually(lambda: len(leaving.queues) < 5)
            lost = [queue for queue in queues if queue not in leaving.queues]
            assert 2 == len(lost)
            go.set()
            await eventually(lambda: {*lost} <= {*joining.queues})
            await new.wait(4)
    # One call of each queue was under way, and counts.
    assert sorted(numbered(2, 1) * 2) == sorted(new.seen[:4])
    assert {queue.queue_id for queue in lost} == {message.queue_id for message in new.messages[:4]}


async def test_stopping_finishes_the_running_call_stores_the_progress_and_gives_the_locks_back(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """F2, F7: so the next member goes on at once, and repeats nothing."""
    began, go = asyncio.Event(), asyncio.Event()
    seen, more = Collector(), Collector()

    async def listener(message: ReceivedMessage) -> None:
        began.set()
        await go.wait()
        await seen(message)

    (queue,) = await fill(producer, 3, queues=1)
    async with consumer_of(cluster, listener):
        await began.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
    assert numbered(1) == seen.seen
    async with consumer_of(cluster, more) as next_member:
        await more.wait(2)
        assert queue in next_member.queues
    assert numbered(2, 1) == more.seen


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_call_that_never_ends_keeps_its_lock(cluster: EmbeddedCluster, producer: Producer, kind: str) -> None:
    """F2: its message must not be begun elsewhere while it still runs; in a minute the lock runs out."""
    began, hang, end = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def in_a_task(_: ReceivedMessage) -> None:
        began.set()
        await hang.wait()

    def in_a_thread(_: ReceivedMessage) -> None:
        loop.call_soon_threadsafe(began.set)
        end.wait(20)

    (queue,) = await fill(producer, 1, queues=1)
    config = replace(ORDERLY, stop_timeout_ms=10)
    async with consumer_of(cluster, in_a_task if kind == "async" else in_a_thread, config, name="one"):
        await began.wait()
    more = Collector()
    async with consumer_of(cluster, more, name="two") as next_member:
        await eventually(lambda: len(next_member.queues) == 4)  # three, and that of the retry topic
        assert queue not in next_member.queues
    end.set()


async def test_a_reset_queue_waits_for_the_running_call(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2, F10: whose result counts no more."""
    began, go = asyncio.Event(), asyncio.Event()
    events: list[str] = []

    async def listener(message: ReceivedMessage) -> None:
        events.append(f"begin {message.queue_offset}")
        if not began.is_set():
            began.set()
            await go.wait()
        events.append(f"end {message.queue_offset}")

    (queue,) = await fill(producer, 4, queues=1)
    async with consumer_of(cluster, listener) as consumer:
        await began.wait()
        assert consumer._consumer is not None
        consumer._consumer.reset({queue: 2})
        (source,) = [source for source in pull_sources(consumer) if source.queue == queue]
        await eventually(lambda: len(source.held) == 2)
        assert ["begin 0"] == events
        go.set()
        await eventually(lambda: len(events) == 6)
    assert ["begin 0", "end 0", "begin 2", "end 2", "begin 3", "end 3"] == events
    async with PullConsumer("billing", name_servers=cluster.name_servers) as pull:
        assert 4 == await pull.committed(queue)


async def test_a_line_has_its_turn_for_a_minute_and_then_the_next(
    cluster: EmbeddedCluster, producer: Producer, tmp_path: Path
) -> None:
    """F2: one worker, two queues that always have more; in broadcasting, where there are no locks to run out."""
    clock = ManualClock()
    seen: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(message.queue_id)
        clock.advance(25)

    await fill(producer, 6, queues=2)
    config = replace(ORDERLY, threads=1, model=MessageModel.BROADCASTING, offsets_directory=tmp_path)
    consumer = consumer_of(cluster, listener, config, Env(clock=clock))
    consumer.suspend()
    async with consumer:
        consumer.resume()
        await eventually(lambda: len(seen) == 12)
    first, second = seen[0], 1 - seen[0]
    assert [first] * 3 + [second] * 3 + [first] * 3 + [second] * 3 == seen


async def test_without_a_trusted_lock_nothing_is_begun(cluster: EmbeddedCluster, producer: Producer) -> None:
    """F2: half a minute without the broker's word, then silence until it is heard again."""
    clock = ManualClock()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        if message.queue_offset == 0:
            clock.advance(30)

    (queue,) = await fill(producer, 3, queues=1)
    async with consumer_of(cluster, listener, env=Env(clock=clock)) as consumer:
        await seen.wait(1)
        member = consumer._consumer
        assert member is not None
        assert member.locks is not None
        assert not member.locks.is_held(queue)
        await asyncio.sleep(0.2)  # it looks again every 0.1 s
        assert numbered(1) == seen.seen
        assert await member.locks.renew()
        assert numbered(3) == await seen.bodies(3)


async def test_a_listener_that_takes_long_is_reported_and_its_queue_waits(
    cluster: EmbeddedCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """F2, M2: nothing of it can be sent back without breaking the order."""
    began, go = asyncio.Event(), asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        began.set()
        await go.wait()
        await seen(message)

    await fill(producer, 2, queues=1)
    async with consumer_of(cluster, listener, replace(ORDERLY, consume_timeout_ms=20)):
        await began.wait()
        await eventually(lambda: "is slow; the queue waits for it" in caplog.text)
        go.set()
        await seen.wait(2)
    assert 1 == caplog.text.count("is slow; the queue waits")
    assert [0, 0] == [message.reconsume_times for message in seen.messages]


async def test_only_a_listener_can_keep_the_order(cluster: EmbeddedCluster) -> None:
    """F2."""
    async with PushConsumer("billing", name_servers=cluster.name_servers, orderly=True) as consumer:
        with pytest.raises(ConfigError, match="is orderly and cannot be iterated"):
            aiter(consumer)
