"""Transactions over the wire: halves, their ends, checks, and what is never shown (J1, J2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ternmq import names
from ternmq.broker.broker import Broker
from ternmq.message import Outcome
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER, Action, CallingPeer, Gate, Need, Resource, ResourceKind, Rule
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.tasks import Tasks
from ternmq.wire import properties as props
from ternmq.wire.bodies.clients import Heartbeat, ProducerData
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.transactions import OpenTransactions
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Fields, Request, Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import FIXED_V4_BYTES, Sysflag, repacked, unpack_record
from ternmq.wire.requests import (
    CheckTransaction,
    ConsumeDirectly,
    EndTransaction,
    PeekMessage,
    QueryMessage,
    SendReply,
    ViewMessage,
)
from ternmq.wire.requests_admin import ListTransactions, ResumeCheck
from tests.broker.calls import Caller, dialled, pull, serving, settings, small_store, v2
from tests.broker.popping import pop

HALF = {"TRAN_MSG": "true", "PGROUP": "shop"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


async def half(broker: Caller, body: bytes = b"paid", key: str = "K1", **changes: Any) -> SendReply:
    fields = {"sysflag": Sysflag.PREPARED, "producer_group": "shop", **changes}
    return await broker.sent("orders", body, properties={"UNIQ_KEY": key, **HALF}, **fields)


def ending(sent: SendReply, outcome: int, **changes: Any) -> EndTransaction:
    _, _, log_offset = parse_offset_id(sent.message_id)
    fields: dict[str, Any] = {
        "producer_group": "shop",
        "queue_offset": sent.queue_offset,
        "log_offset": log_offset,
        "decision": outcome,
        "message_id": sent.transaction_id or "",
        "transaction_id": sent.transaction_id,
    }
    return EndTransaction(**(fields | changes))


async def end(broker: Caller, sent: SendReply, outcome: int, **changes: Any) -> Response:
    return await broker.call(RequestCode.END_TRANSACTION, ending(sent, outcome, **changes))


async def test_a_half_is_answered_with_its_own_offsets_and_the_queue_it_was_sent_to(broker: Caller) -> None:
    """J1: Java's clients keep both for the end of the transaction."""
    await broker.sent("orders", b"other")
    sent = [await half(broker, key=f"K{number}", queue_id=2) for number in range(2)]

    assert [(2, 0, "K0"), (2, 1, "K1")] == [(one.queue_id, one.queue_offset, one.transaction_id) for one in sent]
    assert [] == await broker.records("orders", queue_id=2)


async def test_the_property_decides_not_the_sysflag(broker: Caller) -> None:
    """J1: as in RocketMQ. A message that its consumer sends again after a failure is not part of a transaction."""
    await half(broker, sysflag=0, key="K1")
    await broker.sent("orders", b"plain", properties={"UNIQ_KEY": "K2", "TRAN_MSG": "false"})
    await broker.sent(
        "orders", b"again", properties={"UNIQ_KEY": "K3", "DELAY": "0", **HALF}, reconsume_times=1, sysflag=4
    )
    assert [b"plain", b"again"] == await broker.bodies("orders")


async def test_commit_rollback_and_unknown(broker: Caller) -> None:
    """J1: unknown is taken, and changes nothing."""
    paid, failed, waiting = [await half(broker, body, key=body.decode()) for body in (b"paid", b"failed", b"waiting")]

    responses = [
        await end(broker, paid, Outcome.COMMIT),
        await end(broker, failed, Outcome.ROLLBACK),
        await end(broker, waiting, Outcome.UNKNOWN),
    ]

    assert [0, 0, 0] == [response.code for response in responses]
    assert [b"paid"] == await broker.bodies("orders")
    assert 1 == (await listed(broker)).open_count


async def test_an_end_is_answered_although_many_messages_have_its_unique_key(broker: Caller) -> None:
    """J1: the answer waits for a search of several turns; what comes meanwhile on the same connection does not."""
    sent = await half(broker, key="ONE")
    assert 0 == (await end(broker, sent, Outcome.COMMIT)).code
    many = [broker.send("orders", b"other", properties={"UNIQ_KEY": "ONE"}) for _ in range(300)]
    assert {0} == {response.code for response in await asyncio.gather(*many)}
    again, meanwhile, other = await asyncio.gather(
        end(broker, sent, Outcome.COMMIT),
        broker.send("orders", b"meanwhile"),
        end(broker, sent, Outcome.ROLLBACK),
    )
    assert (0, 0) == (again.code, meanwhile.code)
    assert "was committed before" in (other.remark or "")
    assert 1 == (await broker.bodies("orders")).count(b"paid")


async def test_a_one_way_end_counts(broker: Caller) -> None:
    """J1: as Java's and Go's clients send it."""
    paid = await half(broker)
    broker.peer.call_oneway(RequestCode.END_TRANSACTION, ending(paid, Outcome.COMMIT))
    assert [b"paid"] == [bytes(record.body) for record in await broker.arrived("orders", 1)]


async def test_a_commit_wakes_who_waits_for_messages(broker: Caller) -> None:
    """J1, F5"""
    paid = await half(broker)
    waiting = asyncio.ensure_future(broker.arrived("orders", 1))
    await end(broker, paid, Outcome.COMMIT)
    assert [b"paid"] == [bytes(record.body) for record in await waiting]


async def test_ends_that_cannot_be_are_refused_with_a_sentence(broker: Caller) -> None:
    """J1, bad input: nothing is lost by them."""
    paid = await half(broker)
    plain = await broker.sent("orders", b"plain")
    _, _, plain_offset = parse_offset_id(plain.message_id)
    for changes, code, words in (
        ({"decision": 4}, ResponseCode.INVALID_PARAMETER, "expected 8"),
        ({"producer_group": "thieves"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"queue_offset": 7}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
        ({"log_offset": 7}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"log_offset": -7}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"log_offset": 2**62}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"log_offset": plain_offset}, ResponseCode.SYSTEM_ERROR, "there is no half message"),
        ({"transaction_id": "K9"}, ResponseCode.SYSTEM_ERROR, "The transaction id wrong"),
    ):
        response = await end(broker, paid, Outcome.COMMIT, **changes)
        assert (code, True) == (response.code, words in (response.remark or "")), changes
    assert 0 == (await end(broker, paid, Outcome.COMMIT)).code
    refused = await end(broker, paid, Outcome.ROLLBACK)
    assert "was committed before" in (refused.remark or "")
    assert [b"plain", b"paid"] == await broker.bodies("orders")


@pytest.mark.parametrize("names_first", [False, True])
async def test_a_body_that_looks_like_a_half_ends_no_transaction(broker: Caller, names_first: bool) -> None:
    """J1, bad input: a sender can compute where the log will have its body, and name that place as a half of its own
    group with the queue offset of another transaction."""
    paid = await half(broker)
    await broker.sent("orders", b"last")
    [last] = await broker.records("orders")
    body_at = last.log_offset + last.size + FIXED_V4_BYTES
    place = {"REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "FORGED", "TRAN_MSG": "true", "PGROUP": "thieves"}
    queue_offset = paid.queue_offset
    if names_first:
        place["TRAN_PREPARED_QUEUE_OFFSET"] = str(paid.queue_offset)
        queue_offset += 7
    topic, properties = names.HALF_TOPIC.encode(), props.join(place).encode()
    forged = repacked(
        msgspec.structs.replace(last, log_offset=body_at, queue_offset=queue_offset, body=memoryview(b"stolen")),
        topic=topic,
        properties=properties,
    )
    await broker.sent("orders", bytes(forged))
    assert forged == (await broker.records("orders"))[1].body

    for outcome in (Outcome.COMMIT, Outcome.ROLLBACK):
        response = await broker.call(
            RequestCode.END_TRANSACTION,
            ending(
                paid,
                outcome,
                producer_group="thieves",
                log_offset=body_at,
                queue_offset=queue_offset,
                transaction_id=None,
            ),
        )
        assert f"there is no half message at {body_at}" in (response.remark or "")

    assert 1 == (await listed(broker)).open_count
    assert 0 == (await end(broker, paid, Outcome.COMMIT)).code
    assert [b"last", bytes(forged), b"paid"] == await broker.bodies("orders")


async def test_a_batch_and_a_reply_cannot_be_part_of_a_transaction(broker: Caller) -> None:
    """J1, E6, E7"""
    batch = await broker.send_batch("orders", [(b"1", {"UNIQ_KEY": "A"}), (b"2", {"UNIQ_KEY": "B", **HALF})])
    reply = await broker.call(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        v2("DefaultCluster_REPLY_TOPIC", queue_id=0, sysflag=4, properties={"UNIQ_KEY": "A", **HALF}),
        b"x",
    )
    assert [ResponseCode.MESSAGE_ILLEGAL] * 2 == [batch.code, reply.code]
    assert "cannot be part of a transaction" in (batch.remark or "")


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"])
async def test_a_transaction_with_a_delivery_time_is_refused(broker: Caller, name: str) -> None:
    """J1, I2"""
    response = await broker.send("orders", b"x", properties={"UNIQ_KEY": "A", name: "5", **HALF}, sysflag=4)
    assert ResponseCode.MESSAGE_ILLEGAL == response.code
    assert "cannot have a delivery time" in (response.remark or "")
    assert 0 == (await listed(broker)).open_count


async def test_a_broker_can_refuse_transactions(tmp_path: Path) -> None:
    """J1: rejectTransactionMessage"""
    async with serving(tmp_path, reject_transaction_message=True) as broker:
        response = await broker.send("orders", b"x", properties={"UNIQ_KEY": "A", **HALF})
        assert ResponseCode.NO_PERMISSION == response.code
        await broker.sent("orders", b"plain")


async def test_too_many_open_transactions_are_refused(tmp_path: Path) -> None:
    """J1, bounds"""
    async with serving(tmp_path, max_open_transactions=2) as broker:
        first = await half(broker, key="A")
        await half(broker, key="B")
        await end(broker, first, Outcome.UNKNOWN)
        assert 2 == (await listed(broker)).open_count
        response = await broker.send("orders", b"x", properties={"UNIQ_KEY": "C", **HALF})
        assert ResponseCode.SYSTEM_BUSY == response.code
        await end(broker, first, Outcome.COMMIT)
        await half(broker, key="D")


async def test_a_half_is_seen_in_no_way(broker: Caller) -> None:
    """J1: pull (also of tools), pop, peek, by key, by id, consumed directly, sent back. Committed, it is seen."""
    sent = await half(broker, key="K1")
    _, _, log_offset = parse_offset_id(sent.message_id)

    async def looks(topic: str, group: str) -> list[Response]:
        return [
            await broker.pull(topic, consumer_group=group),
            await broker.call(RequestCode.LITE_PULL_MESSAGE, pull(topic, consumer_group=group)),
            await broker.call(
                RequestCode.PEEK_MESSAGE,
                PeekMessage(consumer_group="readers", topic=topic, queue_id=0, count_max=32),
            ),
            await pop(broker, topic),
            await query(broker, topic, "K1"),
            await query(broker, topic, "K1", by_unique_id=True),
        ]

    for group in ("readers", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"):
        for topic in (names.HALF_TOPIC, "orders"):
            assert [b""] * 6 == [bytes(response.body) for response in await looks(topic, group)]
    viewed = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))
    direct = await broker.call(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeDirectly(consumer_group="readers", client_id="c", message_id=sent.message_id),
    )
    back = await broker.send_back("readers", log_offset)
    assert (b"", b"") == (bytes(viewed.body), bytes(direct.body))
    assert "can not find message by the offset" in (viewed.remark or "")
    assert "has no message" in (direct.remark or "")
    assert 0 != back.code

    await end(broker, sent, Outcome.COMMIT)
    found = [bytes(response.body) for response in (await looks("orders", "TOOLS_CONSUMER"))]
    assert all(b"paid" in body for body in found)
    # The half itself is still not shown.
    viewed = await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))
    assert b"" == bytes(viewed.body)


async def query(broker: Caller, topic: str, key: str, *, by_unique_id: bool = False) -> Response:
    header = QueryMessage(topic=topic, key=key, count_max=32, begin_ms=0, end_ms=2**53, by_unique_id=by_unique_id)
    return await broker.call(RequestCode.QUERY_MESSAGE, header)


async def listed(broker: Caller, **fields: Any) -> OpenTransactions:
    response = await broker.call(RequestCode.LIST_TRANSACTIONS, ListTransactions(**fields))
    assert response.code == 0, response.remark
    return decode(response.body, OpenTransactions)


async def test_tools_see_open_transactions_in_pages(broker: Caller) -> None:
    """J2: with group, age and number of checks, without bodies."""
    sent = [await half(broker, b"secret", key=f"K{number}") for number in range(5)]
    await end(broker, sent[1], Outcome.COMMIT)

    first = await listed(broker, count_max=2)
    second = await listed(broker, queue_offset=first.next_offset, count_max=2)

    assert ["K0", "K2"] == [one.transaction_id for one in first.transactions]
    assert (["K3", "K4"], -1) == ([one.transaction_id for one in second.transactions], second.next_offset)
    assert (4, "shop", "orders", 0) == (
        first.open_count,
        first.transactions[0].producer_group,
        first.transactions[0].topic,
        first.transactions[0].check_times,
    )


async def test_what_was_not_discarded_cannot_be_resumed(broker: Caller) -> None:
    """J2, bad input: 323 with a half, with nothing, with something else than an id."""
    sent = await half(broker)
    for message_id in (sent.message_id, "0" * 32, "", "x"):
        response = await broker.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheck(message_id=message_id))
        assert ResponseCode.SYSTEM_ERROR == response.code


@asynccontextmanager
async def producing(address: str, group: str) -> AsyncIterator[tuple[Caller, asyncio.Queue[Request[CheckTransaction]]]]:
    """A producer that keeps what it is asked."""
    asked: asyncio.Queue[Request[CheckTransaction]] = asyncio.Queue()

    def take(_peer: Peer, request: Request[CheckTransaction]) -> None:
        asked.put_nowait(request)

    async with Tasks() as tasks:
        routes: dict[int, Route] = {RequestCode.CHECK_TRANSACTION_STATE: Route(take, "client", ANY_CALLER)}
        peer = await connect(address, routes=routes, lanes=Lanes([LaneConfig("client")]), tasks=tasks)
        caller = Caller(peer)
        body = encode(Heartbeat(client_id=f"{group}@1", producer_data_set=[ProducerData(group_name=group)]))
        assert 0 == (await caller.call(RequestCode.HEART_BEAT, None, body)).code
        yield caller, asked
        peer.close()
        await peer.closed.wait()


async def test_a_broker_asks_a_producer_of_the_group_and_goes_on_asking_after_a_restart(tmp_path: Path) -> None:
    """J2: over real sockets and files, with short times; the check names the copy, under the message's own topic."""
    quick = settings(transaction_time_out=0, transaction_check_interval=100)
    async with Broker(quick, small_store(tmp_path)) as broker, producing(broker.address, "shop") as (producer, asked):
        sent = await half(producer)
        first = await asyncio.wait_for(asked.get(), 60)
        assert sent.transaction_id == first.fields.transaction_id
    async with (
        Broker(quick, small_store(tmp_path)) as broker,
        producing(broker.address, "other") as (_, never),
        producing(broker.address, "shop") as (producer, asked),
    ):
        request = await asyncio.wait_for(asked.get(), 60)
        record = unpack_record(bytes(request.body))
        assert ("orders", b"paid", "shop") == (
            record.topic,
            bytes(record.body),
            props.find(record.properties, "PGROUP"),
        )
        answer = EndTransaction(
            producer_group="shop",
            queue_offset=request.fields.queue_offset,
            log_offset=request.fields.log_offset,
            decision=Outcome.COMMIT,
            from_check=True,
            message_id=request.fields.message_id,
        )
        producer.peer.call_oneway(RequestCode.END_TRANSACTION, answer)
        assert [b"paid"] == [bytes(record.body) for record in await producer.arrived("orders", 1)]
        assert 0 == (await listed(producer)).open_count
        # Under the offsets of the first send, it was committed, too.
        assert 0 == (await end(producer, sent, Outcome.COMMIT)).code
        assert never.empty()
    assert 1 == len(await _bodies(tmp_path))


async def _bodies(path: Path) -> list[bytes]:
    async with serving(path) as broker:
        return await broker.bodies("orders")


async def test_a_transaction_is_ended_only_with_permission_for_the_topic_of_its_message(tmp_path: Path) -> None:
    """J1, N1: an account that may send to one topic must not decide what is sent to another, whichever it names."""

    class Payments:
        def allows(self, need: Need) -> bool:
            return need == Need(Action.PUB, Resource(ResourceKind.TOPIC, "payments"))

    account: list[Payments | None] = [None]

    def admit(caller: CallingPeer, _request: Request[Any], _fields: Fields, _rule: Rule) -> None:
        caller.access = account[0]

    async with (
        Broker(settings(), small_store(tmp_path), gate=Gate([admit])) as running,
        dialled(running.address) as broker,
    ):
        sent = await half(broker)
        account[0] = Payments()
        refused = [
            await end(broker, sent, outcome, topic=topic)
            for outcome in (Outcome.COMMIT, Outcome.ROLLBACK)
            for topic in ("payments", None)
        ]
        account[0] = None
        assert ResponseCode.SUCCESS == (await end(broker, sent, Outcome.COMMIT)).code
        assert [b"paid"] == await broker.bodies("orders")

    assert {ResponseCode.NO_PERMISSION} == {response.code for response in refused}


@pytest.mark.parametrize("sysflag", [Sysflag.PREPARED, Sysflag.COMMIT, Sysflag.ROLLBACK])
async def test_bits_of_a_transaction_without_its_property_do_not_count(broker: Caller, sysflag: int) -> None:
    """J1: a message that was acknowledged is in its queue, and is mistaken for the end of no transaction."""
    await broker.sent("orders", b"long way", sysflag=sysflag)
    await broker.sent("orders", b"short way", sysflag=sysflag, properties={"UNIQ_KEY": "K"})
    batch = await broker.send_batch("orders", [(b"in a batch", {"UNIQ_KEY": "B"})], sysflag=sysflag)
    records = await broker.records("orders")

    assert ResponseCode.SUCCESS == batch.code
    assert [b"long way", b"short way", b"in a batch"] == [bytes(record.body) for record in records]
    assert {0} == {record.sysflag & Sysflag.TRANSACTION_MASK for record in records}


@pytest.mark.parametrize("text", ["true", "TRUE", "True"])
async def test_batches_and_replies_are_no_part_of_a_transaction(broker: Caller, text: str) -> None:
    """J1: in any spelling that a send would take."""
    wanted = {"TRAN_MSG": text, "UNIQ_KEY": "K"}
    responses = [
        await broker.send_batch("orders", [(b"x", wanted)], sysflag=Sysflag.PREPARED),
        await broker.call(
            RequestCode.SEND_REPLY_MESSAGE_V2,
            v2("DefaultCluster_REPLY_TOPIC", queue_id=0, properties=wanted, sysflag=Sysflag.PREPARED),
            b"x",
        ),
    ]
    assert {ResponseCode.MESSAGE_ILLEGAL} == {response.code for response in responses}


async def test_a_producer_group_of_a_half_has_the_length_of_a_group(broker: Caller) -> None:
    """J2: it is kept in memory as long as the transaction is open."""
    responses = [
        await broker.send("orders", b"x", properties={**HALF, "PGROUP": "g" * 249}, sysflag=Sysflag.PREPARED),
        await broker.send("orders", b"x", properties={"TRAN_MSG": "true"}, producer_group="g" * 249, sysflag=4),
    ]
    assert {ResponseCode.MESSAGE_ILLEGAL} == {response.code for response in responses}
    assert "has 249 characters; use at most 248" in (responses[0].remark or "")


async def test_a_list_of_transactions_with_long_keys_comes_in_parts(broker: Caller) -> None:
    """J2: an answer is bounded in bytes, and says where to go on."""
    for number in range(80):
        await half(broker, key=f"{number:02}" + "k" * 16_000)
    keys: list[str] = []
    sizes: list[int] = []
    queue_offset = 0
    while queue_offset >= 0:
        response = await broker.call(
            RequestCode.LIST_TRANSACTIONS, ListTransactions(queue_offset=queue_offset, count_max=2**31 - 1)
        )
        listed = decode(response.body, OpenTransactions)
        queue_offset = listed.next_offset
        keys += [one.transaction_id[:2] for one in listed.transactions]
        sizes.append(len(response.body))

    assert [f"{number:02}" for number in range(80)] == keys
    assert len(sizes) == 2
    assert max(sizes) < 1_100_000
