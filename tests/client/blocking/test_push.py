"""Consumers for programs without asyncio (F1, F3)."""

from __future__ import annotations

import queue
from collections.abc import Coroutine, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ternmq.client.blocking.loop_thread import LoopThread
from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.blocking.pull import SyncPullConsumer
from ternmq.client.blocking.push import SyncPushConsumer
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult
from ternmq.client.consume.offsets import StartPosition
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import NotRunning
from ternmq.message import Message, ReceivedMessage
from tests.no_delays import NO_DELAYS

FIRST = StartPosition.FIRST


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as cluster:
        yield cluster


def send(cluster: EmbeddedCluster, topic: str, count: int) -> list[str]:
    bodies = [f"{topic}-{number}" for number in range(count)]
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))
    return bodies


def test_a_listener_is_called_in_threads_while_the_program_waits(cluster: EmbeddedCluster) -> None:
    """F1: and may use blocking clients itself."""
    seen: queue.Queue[str] = queue.Queue()
    bodies = send(cluster, "listened", 20)
    with (
        SyncProducer("copies", name_servers=cluster.name_servers) as producer,
        SyncPushConsumer("billing", name_servers=cluster.name_servers, start=FIRST) as consumer,
    ):

        @consumer.listener
        def on_message(message: ReceivedMessage) -> None:
            producer.send(Message("copied", message.body))
            seen.put(message.body.decode())

        consumer.subscribe("listened")
        consumer.ready()
        assert 4 == sum(queue.topic == "listened" for queue in consumer.queues)
        assert sorted(bodies) == sorted(seen.get(timeout=20) for _ in bodies)


def test_an_orderly_listener_gets_each_queue_in_order(cluster: EmbeddedCluster) -> None:
    """F2: in threads; what failed is tried again before the next."""
    seen: queue.Queue[tuple[int, int, int]] = queue.Queue()

    class Steps:
        def __call__(self, message: ReceivedMessage, context: ConsumeContext) -> ConsumeResult:
            seen.put((message.queue_id, message.queue_offset, message.reconsume_times))
            context.retry_ms = 10
            return ConsumeResult.RETRY if message.reconsume_times == 0 else ConsumeResult.SUCCESS

    send(cluster, "ordered", 12)
    consumer = SyncPushConsumer("steps", Steps(), name_servers=cluster.name_servers, start=FIRST, orderly=True)
    consumer.subscribe("ordered")
    with consumer:
        got = [seen.get(timeout=20) for _ in range(24)]
        consumer.resize(2)
    for number in range(4):
        of_queue = [(offset, times) for queue_id, offset, times in got if queue_id == number]
        assert [(offset, times) for offset in range(3) for times in range(2)] == of_queue


def test_messages_are_done_when_the_next_is_asked_for(cluster: EmbeddedCluster) -> None:
    """F1, F7: the one that a loop was left with comes again."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        producer.send_batch([Message("iterated", str(number).encode()) for number in range(8)])
    rounds: list[list[int]] = []
    for _ in range(2):
        consumer = SyncPushConsumer("looping", name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("iterated")
        seen: list[int] = []
        with consumer:
            for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 4:
                    break
        rounds.append(seen)
    assert [[0, 1, 2, 3], [3, 4, 5, 6]] == rounds


def test_a_message_can_be_sent_back_from_a_loop(cluster: EmbeddedCluster) -> None:
    """H1."""
    send(cluster, "returned", 1)
    times = []
    consumer = SyncPushConsumer("returning", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("returned")
    with consumer:
        for message in consumer:
            times.append(message.reconsume_times)
            if message.reconsume_times:
                message.ack()
                break
            message.retry()
    assert [0, 1] == times


def test_queues_are_read_by_offset(cluster: EmbeddedCluster) -> None:
    """F3."""
    bodies = send(cluster, "pulled", 8)
    with SyncPullConsumer("audit", name_servers=cluster.name_servers) as consumer:
        seen = []
        for queue in consumer.queues("pulled"):
            result = consumer.pull(queue, consumer.min_offset(queue))
            seen += [message.body.decode() for message in result.messages]
            assert result.next_offset == consumer.max_offset(queue)
            assert None is consumer.committed(queue)
            consumer.commit(queue, result.next_offset)
            assert result.next_offset == consumer.committed(queue)
            assert 0 == consumer.offset_at(queue, 0)
    assert sorted(bodies) == sorted(seen)


def test_a_suspended_consumer_goes_on_when_it_may(cluster: EmbeddedCluster) -> None:
    """F10."""
    bodies = send(cluster, "suspended", 4)
    seen: queue.Queue[str] = queue.Queue()
    consumer = SyncPushConsumer(
        "resting", lambda message: seen.put(message.body.decode()), name_servers=cluster.name_servers, start=FIRST
    )
    consumer.subscribe("suspended")
    consumer.suspend()
    with consumer:
        consumer.resume()
        assert sorted(bodies) == sorted(seen.get(timeout=20) for _ in bodies)
        consumer.unsubscribe("suspended")
        consumer.ready()
        assert "suspended" not in {queue.topic for queue in consumer.queues}


def test_use_outside_the_block_is_refused() -> None:
    push = SyncPushConsumer("billing", name_servers="127.0.0.1:1")
    with pytest.raises(NotRunning, match="with` block"):
        iter(push)
    with pytest.raises(NotRunning, match="with` block"):
        push.ready()
    with pytest.raises(NotRunning, match="with` block"):
        SyncPullConsumer("audit", name_servers="127.0.0.1:1").queues("orders")


def test_what_an_interrupted_loop_did_not_get_is_not_done(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: although the loop goes on, as one does whose waiting is limited by a signal."""
    taken: list[Claimed] = []
    run = LoopThread.run

    def interrupted(thread: LoopThread, coroutine: Coroutine[Any, Any, Any]) -> Any:
        taken.append(run(thread, coroutine))
        raise KeyboardInterrupt

    consumer = SyncPushConsumer("interrupted", name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("interrupting")
    with consumer:
        messages = iter(consumer)
        with monkeypatch.context() as patch:
            patch.setattr(messages, "_thread", SimpleNamespace(run=partial(interrupted, messages._thread)))
            send(cluster, "interrupting", 1)
            with pytest.raises(KeyboardInterrupt):
                next(messages)
        send(cluster, "interrupting", 1)
        assert next(messages) is not taken[0]
        assert not taken[0].is_settled
