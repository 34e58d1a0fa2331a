"""Sends over a real connection: what is stored, what is answered, what is refused (E1, E6, D1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ternmq.wire.batch import pack_messages
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.properties import parse
from ternmq.wire.record import Sysflag, unpack_host
from ternmq.wire.requests import SendReply
from tests.broker.calls import Caller, serving, v1, v2

UNIQUE = "7F00000118B418B4AAC20F4400000001"
OWN = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as caller:
        yield caller


async def make_topic(broker: Caller, topic: str, **fields: Any) -> None:
    configs = TopicConfigs(topic_config_list=[TopicConfig(topic_name=topic, **fields)])
    assert (await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, encode(configs))).code == 0


async def test_a_message_is_stored_as_it_was_sent(broker: Caller) -> None:
    """E1, C1: and its sender's address with it."""
    reply = await broker.sent(
        "orders",
        b"body \x00\xff",
        queue_id=2,
        flag=7,
        born_time_ms=1_700_000_000_000,
        properties={"UNIQ_KEY": UNIQUE, "KEYS": "k1 k2", "城市": "杭州"},
    )

    [record] = await broker.records("orders", queue_id=2)
    assert (reply.queue_id, reply.queue_offset, reply.transaction_id) == (2, 0, UNIQUE)
    assert parse_offset_id(reply.message_id) == (*unpack_host(record.store_host), record.log_offset)
    assert (reply.region, reply.trace_on) == ("DefaultRegion", True)
    assert bytes(record.body) == b"body \x00\xff"
    assert (record.topic, record.queue_id, record.flag, record.born_time_ms) == ("orders", 2, 7, 1_700_000_000_000)
    assert parse(record.properties) == {"UNIQ_KEY": UNIQUE, "KEYS": "k1 k2", "城市": "杭州", **OWN}
    assert unpack_host(record.born_host) == ("127.0.0.1", int(broker.peer.local_address.rpartition(":")[2]))


@pytest.mark.parametrize("form", [0, BINARY])
async def test_all_forms_of_the_header_mean_the_same(broker: Caller, form: int) -> None:
    """B1, E1: codes 10 and 310, JSON and binary; the second send to a topic goes the short way."""
    properties = f"UNIQ_KEY\x01{UNIQUE}\x02"
    replies = []
    for code, header in (
        (RequestCode.SEND_MESSAGE, v1("orders", queue_id=1, properties=properties)),
        (RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=1, properties=properties)),
        (RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=1, properties=properties)),
    ):
        response = await broker.call(code, header, b"x", form=form)
        replies.append((response.code, response.read(SendReply)))

    assert [(0, 1, offset, UNIQUE, "DefaultRegion", True) for offset in range(3)] == [
        (code, reply.queue_id, reply.queue_offset, reply.transaction_id, reply.region, reply.trace_on)
        for code, reply in replies
    ]
    assert len({reply.message_id for _, reply in replies}) == 3


async def test_properties_of_4_9_that_do_not_end_with_a_separator_are_completed(broker: Caller) -> None:
    """E1: on the careful way and on the short one."""
    for _ in range(2):
        await broker.sent("orders", b"x", properties=f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01A")
    await broker.sent("orders", b"x", properties=f"TAGS\x01A\x02UNIQ_KEY\x01{UNIQUE}")

    for record in await broker.records("orders"):
        assert parse(record.properties) == {"UNIQ_KEY": UNIQUE, "TAGS": "A", **OWN}


async def test_a_message_without_a_unique_key_gets_one(broker: Caller) -> None:
    """E1, C10: a name that only ends like it does not count."""
    await broker.sent("orders", b"x", properties={"UNIQ_KEY": UNIQUE})
    replies = [
        await broker.sent("orders", b"x"),
        await broker.sent("orders", b"x", properties={"MY_UNIQ_KEY": "mine", "n": "1"}),
        await broker.sent("orders", b"x", properties="UNIQ_KEY\x01\x02"),
    ]

    records = await broker.records("orders", 1)
    keys = [parse(record.properties)["UNIQ_KEY"] for record in records]
    assert keys == [reply.transaction_id for reply in replies]
    assert len({UNIQUE, *keys}) == 4
    assert parse(records[1].properties)["MY_UNIQ_KEY"] == "mine"


async def test_a_unique_key_that_json_must_escape_comes_back_unharmed(broker: Caller) -> None:
    """E1"""
    for key in ('a"b\\c', "тест", "x" * 200):
        reply = await broker.sent("orders", b"x", properties={"UNIQ_KEY": key})
        assert reply.transaction_id == key


async def test_marks_of_another_delivery_are_taken_off(broker: Caller) -> None:
    """E1: a consumer that sends on what it got, as Java's does when it cannot send back."""
    properties = {"POP_CK": "1 2 3", "__RMQ.TRANSIENT.X": "1", "CLUSTER": "other", "TRACE_ON": "false", "mine": "1"}

    for _ in range(2):
        await broker.sent("orders", b"x", properties={"UNIQ_KEY": UNIQUE, **properties})

    for record in await broker.records("orders"):
        assert parse(record.properties) == {"UNIQ_KEY": UNIQUE, "mine": "1", **OWN}
        assert record.properties.count("CLUSTER") == 1


async def test_a_queue_id_below_0_lets_the_broker_choose(broker: Caller) -> None:
    """E1"""
    chosen = {(await broker.sent("orders", b"x", queue_id=-1)).queue_id for _ in range(100)}

    assert chosen == {0, 1, 2, 3}


async def test_a_queue_that_does_not_exist_is_refused(broker: Caller) -> None:
    """E1"""
    await broker.sent("orders", b"x")

    response = await broker.send("orders", b"x", queue_id=4)

    assert response.code == ResponseCode.INVALID_PARAMETER
    assert response.remark is not None
    assert "queueId[4] is illegal, orders has 4 queues" in response.remark


async def test_queues_that_may_only_be_read_take_what_is_on_its_way(broker: Caller) -> None:
    """D1: while a topic shrinks."""
    await make_topic(broker, "orders", read_queue_nums=4, write_queue_nums=2)

    assert (await broker.sent("orders", b"x", queue_id=3)).queue_id == 3
    assert {(await broker.sent("orders", b"x", queue_id=-1)).queue_id for _ in range(50)} == {0, 1}


async def test_a_change_of_a_topic_counts_at_once(broker: Caller) -> None:
    """D1: also for those who send the short way already."""
    for _ in range(2):
        await broker.sent("orders", b"x", properties={"UNIQ_KEY": UNIQUE})

    await make_topic(broker, "orders", read_queue_nums=4, write_queue_nums=4, perm=4)

    response = await broker.send("orders", b"x", properties={"UNIQ_KEY": UNIQUE})
    assert response.code == ResponseCode.NO_PERMISSION
    assert response.remark is not None
    assert "give it write permission" in response.remark


async def test_a_topic_with_many_tags_marks_its_records(broker: Caller) -> None:
    """D1, C1"""
    await make_topic(broker, "orders", topic_filter_type="MULTI_TAG")

    for _ in range(2):
        await broker.sent("orders", b"x", sysflag=Sysflag.COMPRESSED, properties={"UNIQ_KEY": UNIQUE})

    for record in await broker.records("orders"):
        assert record.sysflag == Sysflag.COMPRESSED | Sysflag.MULTI_TAGS


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_topics_of_the_system_cannot_be_sent_to(broker: Caller, topic: str) -> None:
    """D1"""
    single = await broker.send(topic, b"x")
    batch = await broker.send_batch(topic, [(b"x", {})])

    assert (single.code, batch.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)


async def test_an_unknown_topic_is_refused_without_auto_creation(tmp_path: Path) -> None:
    """D1"""
    async with serving(tmp_path, auto_create_topic_enable=False) as broker:
        response = await broker.send("orders", b"x")

    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert response.remark is not None
    assert response.remark.startswith("topic[orders] not exist, apply first please!")


async def test_a_bad_topic_name_is_refused(broker: Caller) -> None:
    """D1, E2"""
    response = await broker.send("no blanks please", b"x")

    assert response.code == ResponseCode.INVALID_PARAMETER


async def test_a_read_only_broker_still_takes_what_is_on_its_way_unless_it_is_ordered(tmp_path: Path) -> None:
    """D1: senders learn the permission from their route, within 30 s."""
    async with serving(tmp_path, broker_permission=4) as broker:
        await make_topic(broker, "ordered", order=True)

        assert (await broker.send("orders", b"x")).code == 0
        assert (await broker.send("ordered", b"x")).code == ResponseCode.NO_PERMISSION


async def test_what_no_record_can_hold_is_illegal(tmp_path: Path) -> None:
    """C1, E1: and says what to do."""
    async with serving(tmp_path, store={"max_message_size": 1000}) as broker:
        body = await broker.send("orders", b"x" * 1001)
        properties = await broker.send("orders", b"x", properties={"p": "x" * 33_000})
        batch = await broker.send_batch("orders", [(b"1", {}), (b"x" * 1001, {})])

        assert [ResponseCode.MESSAGE_ILLEGAL] * 3 == [body.code, properties.code, batch.code]
        assert body.remark is not None
        assert "raise maxMessageSize" in body.remark
        assert await broker.records("orders") == []


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_batch_whose_ids_fit_no_reply_is_illegal_and_not_stored(tmp_path: Path, *, is_plain: bool) -> None:
    """E6, B5: its sender was told of an error when all was stored, and sent it again."""
    sizes = {"max_message_size": 16 << 20, "mapped_file_size_commit_log": 32 << 20}
    properties = {"UNIQ_KEY": "A"} if is_plain else {}
    async with serving(tmp_path, store=sizes) as broker:
        refused = await broker.send_batch("orders", [(b"", properties)] * 33_000)
        assert ResponseCode.MESSAGE_ILLEGAL == refused.code
        assert refused.remark is not None
        assert "at most 29789 can be answered together; send fewer at once" in refused.remark
        assert await broker.records("orders") == []

        sent = await broker.send_batch("orders", [(b"", properties)] * 29_789)
        assert (0, 29_789) == (sent.code, sent.read(SendReply).message_id.count(",") + 1)


async def test_a_message_with_a_delay_level_waits_elsewhere(broker: Caller) -> None:
    """I1: the answer names the queue that it was sent to, as RocketMQ's does. (The first send is not the short way.)"""
    replies = [
        await broker.sent("orders", b"x", queue_id=2, properties={"UNIQ_KEY": UNIQUE, "DELAY": level})
        for level in ("3", "3", "0", "-1", "much")
    ]

    assert [2] * 5 == [reply.queue_id for reply in replies]
    assert [0, 1, 0, 1, 2] == [reply.queue_offset for reply in replies]
    assert ["0", "-1", "much"] == [
        parse(record.properties)["DELAY"] for record in await broker.records("orders", queue_id=2)
    ]


async def test_a_batch_is_not_delayed(broker: Caller) -> None:
    """E6, I1: clients refuse to make one."""
    await broker.send_batch("orders", [(b"0", {"DELAY": "3"}), (b"1", {})])

    assert await broker.bodies("orders") == [b"0", b"1"]


async def test_a_one_way_send_is_stored_and_not_answered(broker: Caller) -> None:
    """B2, E1"""
    for number in range(3):
        header = v2("orders", queue_id=0, properties=f"UNIQ_KEY\x01{UNIQUE}\x02")
        broker.peer.call_oneway(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)

    # The pull comes behind the sends on the same connection, and its answer is the only one.
    assert await broker.bodies("orders") == [b"0", b"1", b"2"]


async def test_pipelined_sends_keep_their_order(broker: Caller) -> None:
    """B2, C2: one queue, one connection, no waiting in between."""
    calls = [
        broker.peer.start_call(
            RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0, properties={"UNIQ_KEY": f"{n:032X}"}), b"%d" % n
        )
        for n in range(1000)
    ]
    replies = [response.read(SendReply) for response in await asyncio.gather(*calls)]

    assert list(range(1000)) == [reply.queue_offset for reply in replies]
    stored: list[bytes] = []
    while len(stored) < 1000:
        stored += await broker.bodies("orders", queue_offset=len(stored))
    assert stored == [b"%d" % n for n in range(1000)]


async def test_each_message_of_a_batch_is_a_record_of_its_own(broker: Caller) -> None:
    """E6"""
    await broker.sent("orders", b"before")
    messages = [(b"%d" % n, {"UNIQ_KEY": f"KEY{n}", "TAGS": "T"}) for n in range(5)]

    response = await broker.send_batch("orders", messages, properties={"UNIQ_KEY": "BATCH", "WAIT": "true"})

    reply = response.read(SendReply)
    records = await broker.records("orders", 1)
    assert (reply.queue_id, reply.queue_offset, reply.transaction_id) == (0, 1, "BATCH")
    assert [b"0", b"1", b"2", b"3", b"4"] == [bytes(record.body) for record in records]
    assert [1, 2, 3, 4, 5] == [record.queue_offset for record in records]
    assert [parse_offset_id(text)[2] for text in reply.message_id.split(",")] == [
        record.log_offset for record in records
    ]
    assert [parse(record.properties) for record in records] == [properties | OWN for _, properties in messages]


async def test_marks_of_another_delivery_are_taken_off_in_a_batch_too(broker: Caller) -> None:
    """E6"""
    messages = [(b"1", {"UNIQ_KEY": "A", "POP_CK": "1 2"}), (b"CLUSTER\x01", {"UNIQ_KEY": "B", "CLUSTER": "other"})]

    await broker.send_batch("orders", messages)

    stored = [parse(record.properties) for record in await broker.records("orders")]
    assert stored == [{"UNIQ_KEY": "A", **OWN}, {"UNIQ_KEY": "B", **OWN}]


async def test_batches_of_4_9_whose_properties_do_not_end_with_a_separator_are_completed(broker: Caller) -> None:
    """E6"""
    body = pack_messages([(0, b"1", "TAGS\x01T\x02UNIQ_KEY\x01A"), (0, b"2", "UNIQ_KEY\x01B\x02TAGS\x01T")])

    await broker.call(RequestCode.SEND_BATCH_MESSAGE, v2("orders", queue_id=0, batch=True), body)

    stored = [parse(record.properties) for record in await broker.records("orders")]
    assert stored == [{"UNIQ_KEY": key, "TAGS": "T", **OWN} for key in "AB"]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UNIQ_KEY\x01A", "UNIQ_KEY\x01A\x02"),
        ("UNIQ_KEY\x01A\x02K", "UNIQ_KEY\x01A\x02K\x02"),
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01", "UNIQ_KEY\x01A\x02UNIQ_KEY\x01\x02"),
        ("UNIQ_KEY\x01A\x02K\x01é", "UNIQ_KEY\x01A\x02K\x01é\x02"),
        ("UNIQ_KEY\x01A\x02K\x01??", "UNIQ_KEY\x01A\x02K\x01\ufffd\ufffd\x02"),
        ("UNIQ_KEY\x01", None),
        ("MY_UNIQ_KEY\x01A", None),
    ],
)
async def test_open_endings_are_the_same_with_kernels_and_without(
    broker: Caller, monkeypatch: pytest.MonkeyPatch, text: str, expected: str | None, is_compiled: bool
) -> None:
    """E6: None: the message gets a key. Question marks stand for bytes that are no text."""
    if not is_compiled:
        # One that is always in doubt.
        monkeypatch.setattr("ternmq.store.log.batch.native", SimpleNamespace(expand_batch=lambda *_, **__: None))
    body = pack_messages([(0, b"1", "UNIQ_KEY\x01B\x02"), (0, b"2", text)]).replace(b"??", b"\xff\xfe")

    reply = await broker.call(RequestCode.SEND_BATCH_MESSAGE, v2("orders", queue_id=0, batch=True), body)

    assert 0 == reply.code
    _, record = await broker.records("orders")
    own = "".join(f"{name}\x01{value}\x02" for name, value in OWN.items())
    if expected is None:
        assert 32 == len(parse(record.properties)["UNIQ_KEY"])
    else:
        assert expected + own == record.properties


async def test_messages_of_a_batch_without_a_unique_key_get_one_each(broker: Caller) -> None:
    """E6, C10"""
    assert (await broker.send_batch("orders", [(b"1", {}), (b"2", {"TAGS": "T"})])).code == 0

    keys = {parse(record.properties)["UNIQ_KEY"] for record in await broker.records("orders")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("topic", "body"), [("%RETRY%g", None), ("orders", b""), ("orders", b"garbage"), ("orders", b"\x7f" * 64)]
)
async def test_a_batch_that_cannot_be_one_is_illegal(broker: Caller, topic: str, body: bytes | None) -> None:
    """E6, B5"""
    if body is None:
        response = await broker.send_batch(topic, [(b"x", {})])
    else:
        response = await broker.call(RequestCode.SEND_BATCH_MESSAGE, v2(topic, queue_id=0, batch=True), body)

    assert response.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_half_message_in_a_batch_refuses_the_batch(broker: Caller) -> None:
    """E6, J1"""
    response = await broker.send_batch("orders", [(b"1", {}), (b"2", {"TRAN_MSG": "true"})])

    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert await broker.records("orders") == []


async def test_a_topic_that_is_to_have_batch_queues_takes_nothing(broker: Caller) -> None:
    """C11: RocketMQ 5 made it, and would not start on a directory where it has queues of the common kind."""
    await make_topic(broker, "batches", attributes={"queue.type": "BatchCQ"})

    response = await broker.send("batches", b"x")

    assert ResponseCode.MESSAGE_ILLEGAL == response.code
    assert "topic 'batches' has batch queues of RocketMQ 5" in (response.remark or "")
    assert "use another topic" in (response.remark or "")
