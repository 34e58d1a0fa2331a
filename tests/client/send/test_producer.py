"""Producers against brokers that say what a test tells them: answers, retries, hooks, ends (E1–E6, E8).

What really arrives at a broker is in ``test_producer_end_to_end.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.send.hooks import SendContext, SendHook, SendMode
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import by_hash
from ternmq.errors import (
    CallTimeout,
    InvalidMessage,
    InvalidName,
    MessageIllegal,
    NameServersUnreachable,
    NetworkError,
    NotRunning,
    RouteMissing,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    SystemFailure,
    TernError,
    TooManyCalls,
)
from ternmq.message import Message, MessageQueue, SendReceipt, SendStatus
from ternmq.net.peer import Peer
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.compress import decompress
from ternmq.wire.header import Reply, Request
from ternmq.wire.properties import find, parse
from ternmq.wire.requests import SendReply
from tests.client.scripted import ScriptedBroker, ScriptedCluster, order, scripted_cluster


def two_brokers() -> tuple[ScriptedBroker, ScriptedBroker]:
    return ScriptedBroker("broker-a"), ScriptedBroker("broker-b")


@asynccontextmanager
async def producing(
    cluster: ScriptedCluster, config: ProducerConfig | None = None, *hooks: SendHook
) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers, config=config, hooks=hooks) as producer:
        yield producer


def stored(code: int = ResponseCode.SUCCESS) -> Reply:
    return Reply(code, header=SendReply(message_id="ID", queue_id=0, queue_offset=5))


# --- Answers (E1) ----------------------------------------------------------------------------------------------


async def test_a_receipt_says_what_the_broker_did() -> None:
    """E1, C10."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        receipt = await producer.send(order(1, tags="new", keys=("k1", "k2")))

        (header,) = cluster.broker.sends
        properties = parse(header.properties or "")
        assert (SendStatus.OK, 0) == (receipt.status, receipt.queue_offset)
        assert MessageQueue("orders", "broker-a", header.queue_id) == receipt.queue
        assert {"UNIQ_KEY": receipt.message_id, "TAGS": "new", "KEYS": "k1 k2"} == properties
        assert ("shop", [b"order 1"]) == (header.producer_group, cluster.broker.bodies)


@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
async def test_less_than_ok_is_told_and_not_retried(status: SendStatus) -> None:
    """E1, E4."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        for broker in cluster.brokers:
            broker.answers.append(stored(ResponseCode[status.value]))
        assert status is (await producer.send(order())).status
        assert 1 == sum(len(broker.sends) for broker in cluster.brokers)


async def test_less_than_ok_is_sent_elsewhere_if_so_wished() -> None:
    """E4: retryAnotherBrokerWhenNotStoreOK."""
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster, config) as producer:
        cluster.brokers[0].answers.extend([stored(ResponseCode.FLUSH_DISK_TIMEOUT)] * 8)
        receipts = [await producer.send(order(number)) for number in range(8)]
        assert {(SendStatus.OK, "broker-b")} == {(receipt.status, receipt.queue.broker_name) for receipt in receipts}
        assert cluster.brokers[0].sends


async def test_stored_everywhere_less_than_well_is_still_stored() -> None:
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        cluster.broker.answers.extend([stored(ResponseCode.FLUSH_DISK_TIMEOUT)] * 3)
        assert SendStatus.FLUSH_DISK_TIMEOUT is (await producer.send(order())).status
        assert 3 == len(cluster.broker.sends)


async def test_large_bodies_are_compressed_and_small_ones_not() -> None:
    """E1: from 4096 bytes on."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        for size in (4_095, 4_096):
            await producer.send(Message("orders", b"x" * size))
        small, large = cluster.broker.bodies
        flags = [header.sysflag for header in cluster.broker.sends]
        assert (b"x" * 4_095, [0, 0x301]) == (small, flags)
        assert b"x" * 4_096 == decompress(large, flags[1])


async def test_both_header_forms_are_spoken() -> None:
    """B1."""
    async with scripted_cluster() as cluster:
        client = ClientConfig(cluster.name_servers, serialization="ROCKETMQ")
        async with Producer("shop", client=client) as producer:
            await producer.send(Message("orders", b"x", properties={"城市": "杭州"}))
        (header,), (request,) = cluster.broker.sends, cluster.broker.requests
        assert (BINARY, "PYTHON") == (request.serial, request.language_name)
        assert "杭州" == find(header.properties or "", "城市")


async def test_a_namespace_is_on_the_wire_and_not_in_the_receipt() -> None:
    async with scripted_cluster(topics=["east%orders"]) as cluster:
        async with Producer("shop", client=ClientConfig(cluster.name_servers, namespace="east")) as producer:
            receipt = await producer.send(order(sharding_key="k"))
            queues = await producer.queues("orders")
        (header,) = cluster.broker.sends
        assert ("east%shop", "east%orders") == (header.producer_group, header.topic)
        assert "orders" == receipt.queue.topic
        assert receipt.queue in queues


# --- Before the network (E2) -----------------------------------------------------------------------------------


async def test_a_wrong_message_never_reaches_the_network() -> None:
    """E2."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        with pytest.raises(InvalidName):
            await producer.send(Message("no blanks", b"x"))
        with pytest.raises(InvalidMessage):
            producer.send_nowait(Message("orders", b""))
        with pytest.raises(InvalidMessage):
            await producer.send_oneway(Message("SELF_TEST_TOPIC", b"x"))
        with pytest.raises(InvalidMessage):
            await producer.send_batch([])
        with pytest.raises(InvalidMessage, match="a lone surrogate"):
            await producer.send(order(tags="\ud800"))
        with pytest.raises(InvalidMessage, match="a lone surrogate"):
            await producer.send_batch([order(keys="\ud800")])
        assert [] == cluster.questions


def test_a_wrong_group_is_refused_at_once() -> None:
    """E2."""
    with pytest.raises(InvalidName, match="the group name 'my shop' has characters"):
        Producer("my shop", name_servers="127.0.0.1:9876")


async def test_a_closed_producer_says_so() -> None:
    producer = Producer("shop", name_servers="127.0.0.1:1")
    with pytest.raises(NotRunning, match="send inside `async with Producer"):
        await producer.send(order())
    async with producer:
        pass
    with pytest.raises(NotRunning):
        producer.send_nowait(order())


# --- Nowhere to go ---------------------------------------------------------------------------------------------


async def test_without_name_servers_the_error_names_them() -> None:
    """A6."""
    async with Producer("shop", name_servers="127.0.0.1:1;127.0.0.1:2") as producer:
        with pytest.raises(NameServersUnreachable, match="check the addresses"):
            await producer.send(order())
        with pytest.raises(NameServersUnreachable):
            await producer.send_nowait(order())
        with pytest.raises(NameServersUnreachable):
            await producer.send_oneway(order())


async def test_an_unknown_topic_is_sent_to_a_broker_that_creates_it() -> None:
    """D1: through TBW102, with four queues."""
    async with scripted_cluster(ScriptedBroker("broker-a", write_queues=8, perm=7), topics=["TBW102"]) as cluster:
        async with producing(cluster) as producer:
            for _ in range(8):
                await producer.send(order())
        headers = cluster.broker.sends
        assert {0, 1, 2, 3} == {header.queue_id for header in headers}
        assert {("orders", "TBW102", 4)} == {
            (header.topic, header.default_topic, header.default_topic_queue_nums) for header in headers
        }


async def test_an_unknown_topic_that_is_not_created_is_a_clear_error() -> None:
    """A4."""
    async with scripted_cluster(topics=[]) as cluster, producing(cluster) as producer:
        with pytest.raises(RouteMissing, match="tern topic create orders"):
            await producer.send(order())


async def test_a_topic_without_a_queue_to_write_to_is_a_clear_error() -> None:
    """D1."""
    async with scripted_cluster(ScriptedBroker("broker-a", perm=4)) as cluster, producing(cluster) as producer:
        with pytest.raises(RouteMissing, match="no permission to write"):
            await producer.send(order())
        cluster.broker.perm = 6
        assert SendStatus.OK is (await producer.send(order())).status


# --- Retries (E3, E4) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [SystemFailure("x"), ServiceNotAvailable("disk full")])
async def test_a_failed_send_goes_to_another_broker_with_the_same_id(failure: Exception) -> None:
    """E3, E4."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        first, second = cluster.brokers
        first.answers.extend([failure] * 8)
        receipts = [await producer.send(order(number)) for number in range(8)]

        assert {"broker-b"} == {receipt.queue.broker_name for receipt in receipts}
        failed = {find(header.properties or "", "UNIQ_KEY") for header in first.sends}
        assert failed
        assert failed <= {receipt.message_id for receipt in receipts}
        assert 8 == len(second.sends)


async def test_a_broker_that_is_down_costs_one_attempt() -> None:
    """E4."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        cluster.brokers[0].address = "127.0.0.1:1"
        receipts = [await producer.send(order(number)) for number in range(8)]
        assert {"broker-b"} == {receipt.queue.broker_name for receipt in receipts}


async def test_three_attempts_are_all() -> None:
    """E4: two retries."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        for broker in cluster.brokers:
            broker.answers.extend([SystemFailure("out of order")] * 9)
        with pytest.raises(SendFailed, match=r"3 attempts .* out of order.*see `tern topic route orders`") as caught:
            await producer.send(order())
        assert 3 == len(caught.value.attempts)
        assert [SystemFailure] * 3 == [type(attempt) for attempt in caught.value.attempts]


async def test_some_answers_are_final() -> None:
    """E4: no other broker would take it either."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        for broker in cluster.brokers:
            broker.answers.append(MessageIllegal("too large"))
        with pytest.raises(MessageIllegal):
            await producer.send(order())
        assert 1 == sum(len(broker.sends) for broker in cluster.brokers)


# --- Busy brokers (E4) -----------------------------------------------------------------------------------------

BUSY = SystemBusy("[OVERLOAD]system busy")


async def test_a_message_that_a_busy_broker_refuses_goes_to_another_one() -> None:
    """E4: at once, as that one is not busy."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        first, second = cluster.brokers
        first.answers.append(BUSY)
        second.answers.append(BUSY)
        assert SendStatus.OK is (await producer.send(order())).status
        assert 3 == len(first.sends) + len(second.sends)


@pytest.mark.parametrize("config", [ProducerConfig(), ProducerConfig(auto_batch=True)])
async def test_a_producer_slows_down_when_its_only_broker_is_busy(config: ProducerConfig) -> None:
    """E4: 256 in flight, of which many are refused again and again; none fails, and few are on their way at a time."""
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        cluster.broker.answers.extend([BUSY] * 300 if not config.auto_batch else [BUSY] * 5)
        receipts = await asyncio.gather(*(producer.send(order(number), timeout_ms=60_000) for number in range(256)))
        assert 256 == len({receipt.message_id for receipt in receipts})
        assert not cluster.broker.answers


async def test_a_message_with_a_fixed_queue_waits_for_its_busy_broker() -> None:
    """E4, E5: a refused message was not stored, so it may go again, to its own queue."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        first = (await producer.queues("orders"))[0]
        broker = next(each for each in cluster.brokers if each.name == first.broker_name)
        broker.answers.extend([BUSY] * 3)
        assert first == (await producer.send(order(), queue=first)).queue
        assert 4 == sum(len(each.sends) for each in cluster.brokers)


async def test_a_broker_that_stays_busy_is_the_reason_of_the_failure() -> None:
    """E1, E4: within the time limit, for what waits for its turn, too; only one may be on its way by then."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        await producer.send(order())
        cluster.broker.answers.extend([BUSY] * 10_000)
        failures = await asyncio.gather(
            *(producer.send(order(number), timeout_ms=1_000) for number in range(9)), return_exceptions=True
        )
        assert {SystemBusy} <= set(map(type, failures)) <= {SystemBusy, CallTimeout}


async def test_a_send_that_is_given_up_while_the_broker_is_busy_is_not_sent_again() -> None:
    """E1: its caller does not want it any more."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.broker.answers.append(BUSY)
        given_up = asyncio.create_task(producer.send(order(1)))
        await cluster.bell.until(lambda: len(cluster.broker.sends) == 1)
        given_up.cancel()
        await asyncio.wait([given_up])
        await producer.send(order(2))
        assert given_up.cancelled()
        assert 2 == len(cluster.broker.sends)


async def test_a_send_that_is_given_up_makes_room_for_the_next_one() -> None:
    """E4: at a broker that was busy, where one may be on its way."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.broker.answers.extend([BUSY, None])
        given_up = asyncio.create_task(producer.send(order(1), timeout_ms=60_000))
        await cluster.bell.until(lambda: len(cluster.broker.sends) == 2)
        waiting = asyncio.create_task(producer.send(order(2), timeout_ms=60_000))
        await asyncio.sleep(0)
        given_up.cancel()
        assert SendStatus.OK is (await waiting).status


async def test_other_topics_do_not_wait_for_one_that_is_refused() -> None:
    """E4, M1: a quota is of one topic."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.topics.add("bills")
        cluster.broker.answers.extend([BUSY, None])
        refused = asyncio.create_task(producer.send(order(1), timeout_ms=60_000))
        await cluster.bell.until(lambda: len(cluster.broker.sends) == 2)
        # Nothing of the first topic may go now; what has no answer is one too many.
        assert SendStatus.OK is (await producer.send(Message("bills", b"x"), timeout_ms=60_000)).status
        refused.cancel()


async def test_sends_that_wait_for_a_busy_broker_end_with_the_producer() -> None:
    """E1: also if they are many."""
    async with scripted_cluster() as cluster:
        async with producing(cluster) as producer:
            await producer.send(order())
            cluster.broker.answers.extend([BUSY] * 100_000)
            sends = [asyncio.create_task(producer.send(order(number), timeout_ms=600_000)) for number in range(1_500)]
            await cluster.bell.until(lambda: len(cluster.broker.sends) > 1)
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(each, TernError) for each in ended), set(map(type, ended))


async def test_a_retry_does_not_wait_for_a_silent_name_server() -> None:
    """A6, E4: the broker is there, only its connection was lost."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        await producer.send(order())
        cluster.is_silent = True
        sends = len(cluster.broker.sends)

        def lose(peer: Peer, _request: Request[Any]) -> None:
            if len(cluster.broker.sends) == sends + 1:
                peer.close()

        cluster.broker.on_send = lose
        assert SendStatus.OK is (await producer.send(order(), timeout_ms=60_000)).status


async def test_all_attempts_share_one_time_out() -> None:
    """E1, E4."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        for broker in cluster.brokers:
            broker.answers.extend([None] * 9)
        with pytest.raises(CallTimeout, match="did not answer SEND_MESSAGE_V2"):
            await producer.send(order(), timeout_ms=30)
        assert 1 == sum(len(broker.sends) for broker in cluster.brokers)


async def test_a_slow_broker_is_avoided_if_so_wished() -> None:
    """E3: sendLatencyFaultEnable."""
    config = ProducerConfig(send_latency_fault_enable=True)
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster, config) as producer:
        first, second = cluster.brokers
        first.answers.append(SystemFailure("once"))
        for _ in range(20):
            await producer.send(order())
        assert (1, 20) == (len(first.sends), len(second.sends))


async def test_a_failure_makes_the_client_ask_for_routes_again() -> None:
    """A4: a broker that is gone leaves the routes before their 30 s are over."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(retries=0)) as producer:
        cluster.broker.address = "127.0.0.1:1"
        with pytest.raises(NetworkError):
            await producer.send(order())
        await cluster.bell.until(lambda: cluster.questions == ["orders", "orders"])


async def test_one_invalid_message_of_an_automatic_batch_fails_alone() -> None:
    """E6: one that no text can be made of."""
    config = ProducerConfig(auto_batch=True)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        await producer.send(order())
        results = await asyncio.gather(
            producer.send(order(1)),
            producer.send(Message("orders", b"x", tags="\ud800")),
            producer.send(order(2)),
            return_exceptions=True,
        )
    assert [SendReceipt, InvalidMessage, SendReceipt] == [type(each) for each in results]


# --- Ordered sends (E5) ----------------------------------------------------------------------------------------


async def test_one_key_goes_to_one_queue() -> None:
    """E5."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        receipts = [await producer.send(order(number, sharding_key="order-17")) for number in range(6)]
        receipts += [await producer.send_nowait(order(number, sharding_key="order-17")) for number in range(6)]
        receipts.append(await producer.send(order(), selector=by_hash("order-17")))
        await producer.send_oneway(order(99, sharding_key="order-17"))
        # Java: |"order-17".hashCode()| mod 8 is 5.
        assert {MessageQueue("orders", "broker-b", 1)} == {receipt.queue for receipt in receipts}
        await cluster.bell.until(lambda: len(cluster.brokers[1].sends) == 14)
        assert [] == cluster.brokers[0].sends


async def test_a_queue_can_be_named() -> None:
    """E5."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        queues = await producer.queues("orders")
        assert [("broker-a", 0), ("broker-b", 3)] == [(queue.broker_name, queue.queue_id) for queue in queues[::7]]
        assert queues == [(await producer.send(order(), queue=queue)).queue for queue in queues]
        batch = await producer.send_batch([order(1), order(2)], queue=queues[5])
        assert [queues[5], queues[5]] == [receipt.queue for receipt in batch]


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("chosen", [None, 3])
async def test_a_selector_that_returns_no_queue_is_an_error_of_its_send(chosen: Any, auto_batch: bool) -> None:
    """E5, E6: not of others, and no send to any queue."""
    config = ProducerConfig(auto_batch=auto_batch)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        await producer.send(order())
        ends = await asyncio.gather(
            producer.send(order(1), selector=lambda _, __: chosen), producer.send(order(2)), return_exceptions=True
        )
        assert [TypeError, SendReceipt] == [type(end) for end in ends]
        assert f"the selector returned {chosen}: expected one of the queues that it was given" == str(ends[0])
        assert 2 == len(cluster.broker.sends)


async def test_an_ordered_send_is_not_retried() -> None:
    """E5: another queue would break the order."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        for broker in cluster.brokers:
            broker.answers.append(SystemFailure("x"))
        with pytest.raises(SystemFailure):
            await producer.send(order(sharding_key="order-17"))
        assert 1 == sum(len(broker.sends) for broker in cluster.brokers)


# --- Without waiting (E1, E4) ----------------------------------------------------------------------------------


async def test_sends_without_waiting_share_the_connection() -> None:
    """E1."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        receipts = await asyncio.gather(*(producer.send_nowait(order(number)) for number in range(100)))
        assert 100 == len({receipt.message_id for receipt in receipts})
        assert set(range(100)) == {receipt.queue_offset for receipt in receipts}
        assert 1 == len(cluster.broker.peers)


async def test_leaving_the_block_waits_for_what_is_on_its_way() -> None:
    """E1."""
    async with scripted_cluster() as cluster:
        async with producing(cluster) as producer:
            sent = [producer.send_nowait(order(number)) for number in range(10)]
        assert all(future.done() and not future.exception() for future in sent)


async def test_a_callback_hears_of_the_receipt() -> None:
    """E1."""
    ids: list[str] = []
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        sent = producer.send_nowait(order())
        sent.add_done_callback(lambda future: ids.append(future.result().message_id))
        receipt = await sent
        await asyncio.sleep(0)
        assert [receipt.message_id] == ids


async def test_after_a_network_failure_the_same_broker_is_tried_again() -> None:
    """E4: twice."""
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster) as producer:
        failures = 2

        def hang_up(peer: Peer, _: object) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                peer.abort()

        for broker in cluster.brokers:
            broker.on_send = hang_up
        receipt = await producer.send_nowait(order())
        used = {broker.name: len(broker.sends) for broker in cluster.brokers}
        assert {receipt.queue.broker_name: 3} == {name: count for name, count in used.items() if count}


async def test_an_answer_ends_a_send_without_waiting() -> None:
    """E4: only network failures are retried."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.broker.answers.append(SystemFailure("out of order"))
        with pytest.raises(SystemFailure, match="out of order"):
            await producer.send_nowait(order())
        assert 1 == len(cluster.broker.sends)


async def test_a_broker_that_is_down_fails_a_send_without_waiting() -> None:
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.broker.address = "127.0.0.1:1"
        with pytest.raises(NetworkError, match=r"cannot connect to 127\.0\.0\.1:1"):
            await producer.send_nowait(order())


async def test_a_send_without_waiting_has_a_time_out() -> None:
    """E1."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        # With the route known, and a connection: on a busy machine 30 ms are not enough to find them.
        await producer.send(order())
        cluster.broker.answers.append(None)
        with pytest.raises(CallTimeout, match="within 30 ms; the message may be stored"):
            await producer.send_nowait(order(), timeout_ms=30)


async def test_a_send_that_is_cancelled_leaves_the_producer_in_order() -> None:
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        cluster.broker.answers.extend([None, None])
        waiting = producer.send_nowait(order())
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(producer.send(order()))
            await cluster.bell.until(lambda: len(cluster.broker.sends) == 2)
            task.cancel()
        waiting.cancel()
        assert SendStatus.OK is (await producer.send(order())).status


async def test_a_message_that_is_cancelled_before_it_left_is_not_sent() -> None:
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        producer.send_nowait(order(1)).cancel()
        await producer.send(order(2))
        await producer.send(order(3))
        assert [b"order 2", b"order 3"] == cluster.broker.bodies


async def test_what_is_on_its_way_is_bounded() -> None:
    """B2: the sender learns that it is too fast instead of filling memory."""
    config = ProducerConfig(async_bytes_max=100)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        first = producer.send_nowait(Message("orders", b"x" * 60))
        with pytest.raises(TooManyCalls, match="await some of their futures first"):
            producer.send_nowait(Message("orders", b"x" * 60))
        await first
        await producer.send_nowait(Message("orders", b"x" * 60))


async def test_automatic_batches_bound_what_is_sent_without_waiting_and_nothing_else() -> None:
    """B2, E6: ``send_nowait`` raises at once, as without batches; who awaits a send is held back by that."""
    config = ProducerConfig(auto_batch=True, async_bytes_max=1_000, auto_batch_total_bytes=2_000)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"x" * 100)) for _ in range(100)))
        first = producer.send_nowait(Message("orders", b"x" * 600))
        with pytest.raises(TooManyCalls, match="await some of their futures first"):
            producer.send_nowait(Message("orders", b"x" * 600))
        await first
        await producer.send_nowait(Message("orders", b"x" * 600))


async def test_a_one_way_send_asks_for_no_answer() -> None:
    """E1."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        await producer.send_oneway(order())
        await cluster.bell.until(lambda: cluster.broker.requests)
        assert cluster.broker.requests[0].oneway


async def test_sends_to_a_broker_that_does_not_read_time_out() -> None:
    """Issue 13, point 2: with the broker stopped, the fifth send of 1 MiB hung whatever its time-out said."""
    config = ProducerConfig(send_timeout_ms=20, retries=0, compress_from_bytes=2 * 1024 * 1024)
    large = Message("orders", bytes(1024 * 1024))
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        await producer.send(order(), timeout_ms=60_000)
        for peer in cluster.broker.peers:
            assert peer._transport is not None
            peer._transport.pause_reading()
        async with asyncio.timeout(60):
            for _ in range(10):
                with pytest.raises(CallTimeout):
                    await producer.send(large)
                with pytest.raises(CallTimeout):
                    await producer.send_nowait(large)
            with pytest.raises(CallTimeout, match="did not read earlier data"):
                await producer.send_oneway(large)
        for peer in cluster.broker.peers:
            assert peer._transport is not None
            peer._transport.resume_reading()


def noting(made: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, of whose calls ``made`` hears."""

    def call(*args: Any, **settings: Any) -> Any:
        made.append(name)
        return function(*args, **settings)

    return call


async def test_a_send_on_an_open_connection_makes_no_task_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 14: one send machine by callbacks, for sends that are awaited and those that are not."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        await producer.send(order())
        made: list[str] = []
        loop = asyncio.get_running_loop()
        for name in ("create_task", "call_at", "call_later"):
            monkeypatch.setattr(loop, name, noting(made, name, getattr(loop, name)))
        for number in range(100):
            await producer.send(order(number))
            await producer.send_nowait(order(number))
            await producer.send_oneway(order(number))
        monkeypatch.undo()
        # Some belong to heartbeats and to asking for routes.
        assert len(made) < 50


async def test_a_failure_without_waiting_makes_the_client_ask_for_routes_again() -> None:
    """A4, issue 14: as one of an awaited send does."""
    async with scripted_cluster() as cluster:
        client = ClientConfig(cluster.name_servers, poll_name_server_interval_ms=3_600_000)
        async with Producer("shop", client=client) as producer:
            cluster.broker.address = "127.0.0.1:1"
            with pytest.raises(NetworkError):
                await producer.send_nowait(order())
            await cluster.bell.until(lambda: cluster.questions == ["orders", "orders"])


async def test_a_send_that_waits_for_a_route_ends_with_its_producer() -> None:
    """Issue 14: whatever a send waits for, its caller is told that the client is closed."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    silent = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    async with asyncio.TaskGroup() as tasks:
        async with Producer("shop", name_servers=f"{host}:{port}") as producer:
            waiting = tasks.create_task(_error_of(producer.send(order(), timeout_ms=60_000)))
            writer = await accepted.get()
        # The task group would wait for it until its time is over.
        assert isinstance(await waiting, NotRunning)
    writer.close()
    silent.close()


async def _error_of(send: Awaitable[object]) -> BaseException | None:
    try:
        await send
    except TernError as error:
        return error
    return None


# --- Batches (E6) ----------------------------------------------------------------------------------------------


async def test_a_batch_is_one_request() -> None:
    """E6."""
    async with scripted_cluster() as cluster, producing(cluster) as producer:
        receipts = await producer.send_batch([order(number) for number in range(3)])
        (header,), (request,) = cluster.broker.sends, cluster.broker.requests
        assert (RequestCode.SEND_BATCH_MESSAGE, True) == (request.code, header.batch)
        assert (3, 3) == (len({each.message_id for each in receipts}), len({each.offset_id for each in receipts}))
        assert [0, 1, 2] == [receipt.queue_offset for receipt in receipts]


async def test_a_batch_that_is_too_large_is_refused_before_the_network() -> None:
    """E6."""
    config = ProducerConfig(body_bytes_max=1_000)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        with pytest.raises(InvalidMessage, match="split_batch"):
            await producer.send_batch([Message("orders", b"x" * 300)] * 4)
        assert [] == cluster.broker.sends


async def test_messages_gather_into_batches_by_themselves() -> None:
    """E6: each sender gets the receipt of its own message."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        receipts = await asyncio.gather(*(producer.send(order(number)) for number in range(10)))
        (request,) = cluster.broker.requests
        assert RequestCode.SEND_BATCH_MESSAGE == request.code
        assert list(range(10)) == [receipt.queue_offset for receipt in receipts]
        assert {32} == {len(receipt.message_id) for receipt in receipts}
        assert 10 == len({receipt.message_id for receipt in receipts})


async def test_a_lonely_message_goes_as_a_plain_one() -> None:
    """E6: at once."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        await producer.send(order())
        assert [RequestCode.SEND_MESSAGE_V2] == [request.code for request in cluster.broker.requests]


async def test_gathered_messages_keep_to_their_queues() -> None:
    """E5, E6."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        await producer.queues("orders")
        sent = [producer.send_nowait(order(number, sharding_key=f"key {number % 2}")) for number in range(8)]
        queues = [(await receipt).queue for receipt in sent]
        assert [queues[0], queues[1]] * 4 == queues
        assert 2 == len(cluster.broker.requests)


async def test_delayed_messages_do_not_gather() -> None:
    """E6."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        await asyncio.gather(*(producer.send(order(number, delay_level=1)) for number in range(2)))
        assert [RequestCode.SEND_MESSAGE_V2] * 2 == [request.code for request in cluster.broker.requests]


async def test_what_has_gathered_leaves_with_the_producer() -> None:
    """E6."""
    config = ProducerConfig(auto_batch=True, auto_batch_wait_ms=60_000)
    async with scripted_cluster() as cluster:
        async with producing(cluster, config) as producer:
            sent = [producer.send_nowait(order(number)) for number in range(3)]
        assert [0, 1, 2] == [future.result().queue_offset for future in sent]


async def test_a_refused_batch_is_an_error_for_each_of_its_senders() -> None:
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        cluster.broker.answers.extend([SystemFailure("out of order")] * 3)
        errors = await asyncio.gather(*(producer.send(order(number)) for number in range(3)), return_exceptions=True)
        assert [SendFailed] * 3 == [type(error) for error in errors]


async def test_a_gathered_message_is_tried_on_another_broker_too() -> None:
    """E4, E6: as if it had been sent alone."""
    config = ProducerConfig(auto_batch=True)
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster, config) as producer:
        for broker in cluster.brokers:
            broker.answers.append(SystemFailure("out of order"))
        receipts = await asyncio.gather(*(producer.send(order(number)) for number in range(3)))
        assert 1 == len({receipt.queue for receipt in receipts})


async def test_an_illegal_message_does_not_take_others_with_it() -> None:
    """E6: the batch is refused, and each of its messages goes alone."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:

        def refuse(_: Peer, request: Request[Any]) -> None:
            if b"bad" in bytes(request.body):
                raise MessageIllegal("one is bad")

        cluster.broker.on_send = refuse
        ends = await asyncio.gather(
            *(producer.send(Message("orders", body)) for body in (b"1", b"bad", b"3")), return_exceptions=True
        )
        assert [SendReceipt, MessageIllegal, SendReceipt] == [type(end) for end in ends]
        codes = [RequestCode.SEND_BATCH_MESSAGE, *[RequestCode.SEND_MESSAGE_V2] * 3]
        assert codes == [request.code for request in cluster.broker.requests]


async def test_messages_that_go_alone_after_their_batch_have_what_is_left_of_its_time() -> None:
    """E1, E6: a broker that stays silent then keeps no sender for longer than it asked for."""
    config = ProducerConfig(auto_batch=True, send_timeout_ms=300, retries=0)
    async with scripted_cluster() as cluster, producing(cluster, config) as producer:
        await producer.send(order(), timeout_ms=60_000)
        cluster.broker.answers.append(MessageIllegal("one is bad"))
        cluster.broker.answers.extend([None] * 20)
        ends = await asyncio.gather(*(producer.send(order(number)) for number in range(20)), return_exceptions=True)
        assert {CallTimeout} == {type(end) for end in ends}
        assert 3 == len(cluster.broker.sends)


async def test_messages_of_one_queue_leave_a_closing_producer_in_their_order() -> None:
    """E5, E6: none of them is overtaken when a batch is refused, and each of its messages goes alone."""
    config = ProducerConfig(auto_batch=True, auto_batch_wait_ms=60_000)
    async with scripted_cluster() as cluster:
        async with producing(cluster, config) as producer:
            queue = (await producer.queues("orders"))[0]
            cluster.broker.answers.append(MessageIllegal("one is bad"))
            sent = [
                producer.send_nowait(order(number), queue=queue, timeout_ms=60_000 + number // 2) for number in range(6)
            ]
        assert [0, 1, 2, 3, 4, 5] == [future.result().queue_offset for future in sent]


@pytest.mark.parametrize("calls", [1, 2])
async def test_whatever_goes_wrong_with_an_automatic_batch_is_told_to_its_senders(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: nobody else would."""
    left = [InvalidMessage("one is bad"), *[ValueError("a defect")] * 3][2 - calls :]

    def fail(*_: Any) -> Any:
        raise left.pop(0)

    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        await producer.send(order())
        with monkeypatch.context() as patch:
            patch.setattr(producer._now_running().gatherer, "_send", fail)
            ends = await asyncio.gather(*(producer.send(order(number)) for number in range(2)), return_exceptions=True)
        assert {ValueError} == {type(end) for end in ends}
        assert SendStatus.OK is (await producer.send(order())).status


async def test_messages_gather_while_others_are_on_their_way() -> None:
    """E6: and go with the next answer; nothing waits for a time."""
    async with scripted_cluster() as cluster, producing(cluster, ProducerConfig(auto_batch=True)) as producer:
        await producer.send(order())

        async def sender(start: int) -> None:
            for number in range(start, start + 5):
                await producer.send(order(number))

        async with asyncio.TaskGroup() as tasks:
            for start in range(0, 500, 5):
                tasks.create_task(sender(start))
        assert len(cluster.broker.requests) <= 1 + 5 * 2


async def test_a_gathered_message_whose_sender_gave_up_is_not_sent() -> None:
    """E6: unless it was on its way already."""
    config = ProducerConfig(auto_batch=True, auto_batch_wait_ms=60_000)
    async with scripted_cluster() as cluster:
        async with producing(cluster, config) as producer:
            sent = [producer.send_nowait(order(number)) for number in range(3)]
            sent[1].cancel()
        assert [0, 1] == [sent[number].result().queue_offset for number in (0, 2)]


# --- Hooks (E8) ------------------------------------------------------------------------------------------------


class Recorder(SendHook):
    """Writes down what it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.contexts: list[SendContext] = []

    def check_forbidden(self, context: SendContext) -> None:
        self.seen.append("check")

    def before_send(self, context: SendContext) -> None:
        self.seen.append("before")
        self.contexts.append(context)

    def after_send(self, context: SendContext) -> None:
        self.seen.append("after")


async def test_hooks_see_every_attempt() -> None:
    """E8."""
    recorder = Recorder()
    async with scripted_cluster() as cluster, producing(cluster, None, recorder) as producer:
        cluster.broker.answers.append(SystemFailure("x"))
        receipt = await producer.send(order())
        assert ["check", "before", "after"] * 2 == recorder.seen
        failed, sent = recorder.contexts
        assert (True, None) == (isinstance(failed.error, SystemFailure), failed.receipt)
        assert (None, receipt, SendMode.SYNC) == (sent.error, sent.receipt, sent.mode)
        assert (cluster.broker.address, "shop") == (sent.broker_address, sent.group)


@pytest.mark.parametrize("mode", [SendMode.ASYNC, SendMode.ONEWAY])
async def test_hooks_see_sends_that_are_not_awaited(mode: SendMode) -> None:
    """E8."""
    recorder = Recorder()
    async with scripted_cluster() as cluster, producing(cluster, None, recorder) as producer:
        if mode is SendMode.ASYNC:
            await producer.send_nowait(order())
        else:
            await producer.send_oneway(order())
    assert (["check", "before", "after"], mode) == (recorder.seen, recorder.contexts[0].mode)


_caller: ContextVar[str] = ContextVar("caller", default="unknown")


class Tracer(SendHook):
    """Notes on whose behalf it is called."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_send(self, context: SendContext) -> None:
        self.seen.append(f"before for {_caller.get()}")

    def after_send(self, context: SendContext) -> None:
        self.seen.append(f"after for {_caller.get()}")


@pytest.mark.parametrize("mode", [SendMode.SYNC, SendMode.ASYNC, SendMode.ONEWAY])
async def test_hooks_see_the_context_variables_of_the_caller(mode: SendMode) -> None:
    """E8: what traces need, in the first attempt and in those after it."""
    tracer = Tracer()
    async with scripted_cluster() as cluster, producing(cluster, None, tracer) as producer:
        failures = 1 if mode is not SendMode.ONEWAY else 0

        def hang_up(peer: Peer, _: object) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                peer.abort()

        cluster.broker.on_send = hang_up
        _caller.set("the shop")
        if mode is SendMode.SYNC:
            await producer.send(order())
        elif mode is SendMode.ASYNC:
            await producer.send_nowait(order())
        else:
            await producer.send_oneway(order())
    attempts = 2 if mode is not SendMode.ONEWAY else 1
    assert ["before for the shop", "after for the shop"] * attempts == tracer.seen


async def test_hooks_see_attempts_that_found_no_connection() -> None:
    """E8: also of sends without waiting, each of their attempts."""
    recorder = Recorder()
    async with scripted_cluster() as cluster, producing(cluster, None, recorder) as producer:
        cluster.broker.address = "127.0.0.1:1"
        with pytest.raises(NetworkError):
            await producer.send_nowait(order())
    assert ["check", "before", "after"] * 3 == recorder.seen
    assert all(isinstance(context.error, NetworkError) for context in recorder.contexts)


class Guard(SendHook):
    def check_forbidden(self, context: SendContext) -> None:
        raise PermissionError("not on Sundays")


class NetworkGuard(SendHook):
    def __init__(self) -> None:
        self.asked = 0

    def check_forbidden(self, context: SendContext) -> None:
        self.asked += 1
        raise NetworkError("not over this network")


async def test_what_a_hook_forbids_is_not_tried_again() -> None:
    """E8: not even if its error looks like a failure of the network."""
    guard = NetworkGuard()
    async with scripted_cluster(*two_brokers()) as cluster, producing(cluster, None, guard) as producer:
        with pytest.raises(NetworkError, match="not over this network"):
            await producer.send(order())
        with pytest.raises(NetworkError, match="not over this network"):
            await producer.send_nowait(order())
    assert 2 == guard.asked


async def test_a_hook_can_forbid_a_send() -> None:
    """E8."""
    async with scripted_cluster() as cluster, producing(cluster, None, Guard()) as producer:
        with pytest.raises(PermissionError, match="not on Sundays"):
            await producer.send(order())
        with pytest.raises(PermissionError):
            await producer.send_nowait(order())
        with pytest.raises(PermissionError):
            await producer.send_oneway(order())
        assert [] == cluster.broker.sends


class Clumsy(SendHook):
    def before_send(self, context: SendContext) -> None:
        raise ZeroDivisionError

    def after_send(self, context: SendContext) -> None:
        raise ZeroDivisionError


async def test_a_hook_that_fails_does_not_stop_the_send(caplog: pytest.LogCaptureFixture) -> None:
    """E8."""
    recorder = Recorder()
    async with scripted_cluster() as cluster, producing(cluster, None, Clumsy(), recorder) as producer:
        assert SendStatus.OK is (await producer.send(order())).status
    assert ["check", "before", "after"] == recorder.seen
    assert ["the send hook Clumsy failed before a send", "the send hook Clumsy failed after a send"] == [
        record.message for record in caplog.records
    ]
