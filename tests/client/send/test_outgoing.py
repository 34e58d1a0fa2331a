"""Messages made ready for the wire, and answers made receipts (E1, E6, C10)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from ternmq.client.send import outgoing as outgoing_module
from ternmq.client.send.outgoing import (
    Outgoing,
    SendHeads,
    pack_batch,
    prepare,
    prepare_batch,
    prepare_plain,
    shrink,
    split_receipt,
)
from ternmq.client.send.validate import check_message
from ternmq.errors import InvalidMessage, NoPermission, TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import RESERVED_PROPERTIES, Message, MessageQueue, SendReceipt, SendStatus
from ternmq.wire.batch import unpack_messages
from ternmq.wire.codes import BINARY, JSON, RequestCode, ResponseCode
from ternmq.wire.compress import decompress
from ternmq.wire.frame import FrameDecoder, encode_request, frame
from ternmq.wire.header import Response
from ternmq.wire.ids import UniqueIds
from ternmq.wire.properties import parse
from ternmq.wire.record import Sysflag
from tests.manual_clock import ManualClock


def answer(code: int = 0, **fields: str) -> Response:
    return Response(code, 1, "because", fields, memoryview(b""))


def test_all_that_a_message_says_of_itself_becomes_properties() -> None:
    """E1."""
    message = Message(
        "orders",
        b"x",
        tags="新",
        keys=("k1", "k2"),
        properties={"colour": "red", "empty": ""},
        delay_level=3,
        sharding_key="order-1",
        wait_store_ok=False,
    )
    assert {
        "UNIQ_KEY": "ID",
        "colour": "red",
        "TAGS": "新",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "order-1",
        "DELAY": "3",
        "WAIT": "false",
    } == parse(prepare(message, message_id="ID").properties)


def test_a_plain_message_carries_its_id_alone() -> None:
    assert {"UNIQ_KEY": "ID"} == parse(prepare(Message("orders", b"x"), message_id="ID").properties)


def test_a_namespace_is_on_the_topic_and_in_the_properties() -> None:
    outgoing = prepare(Message("orders", b"x"), message_id="ID", namespace="shop")
    assert ("shop%orders", "shop") == (outgoing.topic, parse(outgoing.properties)["INSTANCE_ID"])


def test_the_system_may_set_what_applications_may_not() -> None:
    """H1: a consumer's message on its way to the retry topic."""
    outgoing = prepare(
        Message("%RETRY%g", b"x"),
        message_id="ID",
        system={"RETRY_TOPIC": "orders"},
        reconsume_times=2,
        max_reconsume_times=16,
    )
    header = outgoing.header(group="g", queue_id=0, born_time_ms=1, default_topic_queue_nums=4, unit_mode=False)
    assert ("orders", 2, 16) == (
        parse(outgoing.properties)["RETRY_TOPIC"],
        header.reconsume_times,
        header.max_reconsume_times,
    )


def test_a_header_says_where_and_when() -> None:
    """E1."""
    outgoing = prepare(Message("orders", b"x", flag=7), message_id="ID")
    header = outgoing.header(group="shop", queue_id=3, born_time_ms=99, default_topic_queue_nums=4, unit_mode=True)
    assert {
        "a": "shop",
        "b": "orders",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "99",
        "h": "7",
        "i": "UNIQ_KEY\x01ID\x02",
        "j": "0",
        "k": "true",
        "m": "false",
    } == header.to_fields()
    assert RequestCode.SEND_MESSAGE_V2 == outgoing.code


class _Stopped:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("form", [JSON, BINARY])
@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize(
    "outgoing",
    [
        prepare(
            Message("orders", b"x", flag=7, tags='a"b\\c', properties={"城市": "杭州", "%d": "%b %%"}), message_id="ID"
        ),
        prepare(Message("%RETRY%100%d", b"x"), message_id="ID", sysflag=1, reconsume_times=3),
        prepare(Message("%RETRY%g", b"x"), message_id="ID", reconsume_times=3, max_reconsume_times=16),
        prepare_batch([Message("orders", b"1"), Message("orders", b"2")], message_ids=["ID1", "ID2"], namespace="shop"),
    ],
)
def test_a_prepared_header_is_the_one_that_the_general_way_makes(outgoing: Outgoing, oneway: bool, form: int) -> None:
    """B1, E1: the same fields in the same envelope, whatever the texts hold."""
    clock = _Stopped()
    heads = SendHeads("shop%g", clock=clock, form=form, default_topic_queue_nums=8, unit_mode=True)
    header = outgoing.header(
        group="shop%g", queue_id=3, born_time_ms=clock.now_ms(), default_topic_queue_nums=8, unit_mode=True
    )
    for opaque in (1, 2_000_000_011):
        general = encode_request(outgoing.code, header, b"body", opaque=opaque, oneway=oneway, form=form)
        prepared = frame(heads.encode(outgoing, 3, opaque=opaque, oneway=oneway), form, b"body")
        assert FrameDecoder().feed(b"".join(general)) == FrameDecoder().feed(b"".join(prepared))


@pytest.mark.parametrize("kind", [Sysflag.ZLIB, Sysflag.LZ4, Sysflag.ZSTD])
def test_a_compressed_body_says_how(kind: int) -> None:
    """E1."""
    outgoing = prepare(Message("orders", b"x" * 5_000), message_id="ID")
    shrink(outgoing, kind=kind, level=5)
    assert (True, kind | Sysflag.COMPRESSED) == (len(outgoing.body) < 100, outgoing.sysflag)
    assert b"x" * 5_000 == decompress(outgoing.body, outgoing.sysflag)


def test_a_body_that_does_not_compress_stays_as_it_is() -> None:
    """E1: or one of just 4 MiB would be too large for the broker."""
    body = random.Random(1).randbytes(5_000)
    outgoing = prepare(Message("orders", body), message_id="ID")
    shrink(outgoing, kind=Sysflag.ZLIB, level=5)
    assert (body, 0) == (outgoing.body, outgoing.sysflag)


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    """V2: Java's reader takes no others, and its consumer would drop the message without a word."""
    outgoing = prepare(Message("orders", b"x" * 300_000), message_id="ID")
    shrink(outgoing, kind=Sysflag.LZ4, level=5)
    assert outgoing.body[4] & 0x20  # FLG, bit 5: block independence


def test_zlib_is_what_java_reads() -> None:
    outgoing = prepare(Message("orders", b"x" * 5_000), message_id="ID")
    shrink(outgoing, kind=Sysflag.ZLIB, level=5)
    assert b"x" * 5_000 == zlib.decompress(outgoing.body)


def test_each_message_of_a_batch_keeps_its_own() -> None:
    """E6."""
    messages = [Message("orders", b"1", tags="a", flag=1), Message("orders", b"2" * 5_000, keys="k")]
    outgoing = prepare_batch(messages, message_ids=["ID1", "ID2"])
    first, second = unpack_messages(bytes(outgoing.body))
    assert (1, b"1", {"UNIQ_KEY": "ID1", "TAGS": "a"}) == (*first[:2], parse(first[2].decode()))
    # Batches are never compressed.
    assert (0, b"2" * 5_000, {"UNIQ_KEY": "ID2", "KEYS": "k"}) == (*second[:2], parse(second[2].decode()))
    assert ("ID1,ID2", "", 0) == (outgoing.message_id, outgoing.properties, outgoing.sysflag)
    assert RequestCode.SEND_BATCH_MESSAGE == outgoing.code


def test_a_batch_that_need_not_wait_says_so_as_a_whole() -> None:
    """C6."""
    outgoing = prepare_batch([Message("orders", b"1", wait_store_ok=False)], message_ids=["ID1"])
    assert {"WAIT": "false"} == parse(outgoing.properties)


def test_a_property_that_would_read_as_another_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="cannot be stored"):
        prepare(Message("orders", b"x", tags="a\x02KEYS\x01b"), message_id="ID")


# --- Answers ---------------------------------------------------------------------------------------------------


def sent(message_id: str = "ID") -> Outgoing:
    return prepare(Message("orders", b"x"), message_id=message_id, namespace="shop")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, SendStatus.OK),
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_four_answers_mean_stored(code: int, status: SendStatus) -> None:
    """E1."""
    response = answer(code, msgId="OFFSET", queueId="3", queueOffset="42", transactionId="T", MSG_REGION="R")
    assert SendReceipt(
        status, "ID", "OFFSET", MessageQueue("orders", "broker-a", 3), 42, transaction_id="T", region="R"
    ) == sent().receipt(response, MessageQueue("orders", "broker-a", 0))


def test_any_other_answer_is_the_error_of_its_code() -> None:
    with pytest.raises(NoPermission, match="broker-a refused the message to 'shop%orders': because") as caught:
        sent().receipt(answer(ResponseCode.NO_PERMISSION), MessageQueue("orders", "broker-a", 0))
    assert (16, "broker-a") == (caught.value.code, caught.value.broker)


def test_a_batchs_receipt_has_one_for_each_message() -> None:
    """E6: each message keeps its own offset and id."""
    whole = SendReceipt(SendStatus.OK, "A,B,C", "X,Y,Z", MessageQueue("orders", "a", 1), 10)
    assert [("A", "X", 10), ("B", "Y", 11), ("C", "Z", 12)] == [
        (each.message_id, each.offset_id, each.queue_offset) for each in split_receipt(whole)
    ]


def test_a_batch_stored_as_one_record_has_one_offset_id() -> None:
    whole = SendReceipt(SendStatus.OK, "A,B", "X", MessageQueue("orders", "a", 1), 10)
    assert ["X", "X"] == [each.offset_id for each in split_receipt(whole)]


# --- Batches by the kernel -------------------------------------------------------------------------------------

_texts = st.sampled_from(("", "a", "a b", "é", "𝄞", "a\x01", "\x02", "x||y", "\ud800", "k" * 20_000))
_odd_messages = st.builds(
    Message,
    topic=st.sampled_from(("orders", "orders", "orders", "bills", "%RETRY%g", "RMQ_SYS_TRACE_TOPIC", "no topic!")),
    body=st.sampled_from((b"x", b"body" * 100, b"", bytearray(b"x"), "text")),
    tags=_texts,
    keys=st.one_of(_texts, st.just(("a", "b")), st.just(())),
    properties=st.dictionaries(st.sampled_from(("a", "é", "", "KEYS", "b\x01", "UNIQ_KEY", "c")), _texts, max_size=3),
    flag=st.sampled_from((0, 7, -(2**31), 2**31)),
    delay_level=st.sampled_from((0, 0, 0, 3)),
    sharding_key=_texts,
    wait_store_ok=st.sampled_from((True, True, False)),
)
_plain_messages = st.builds(
    Message,
    topic=st.just("orders"),
    body=st.binary(min_size=1, max_size=50),
    tags=st.sampled_from(("", "new", "é")),
    keys=st.sampled_from(("", "k1", "k1 k2")),
    properties=st.dictionaries(st.sampled_from(("a", "é", "c")), st.sampled_from(("", "1", "𝄞")), max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
    sharding_key=st.sampled_from(("", "key")),
)


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@given(
    st.one_of(st.lists(_plain_messages, max_size=5), st.lists(st.one_of(_plain_messages, _odd_messages), max_size=3)),
    st.sampled_from(("", "space")),
    st.sampled_from((200, 100_000)),
)
def test_the_kernel_packs_what_python_packs(messages: list[Message], namespace: str, body_bytes_max: int) -> None:
    """E2, E6: the same bytes, or the same refusal."""

    def packed(has_native: bool) -> object:
        ids = UniqueIds("10.0.0.1", 1, salt=1, clock=ManualClock(1_700_000_000_000))
        with mock.patch.object(outgoing_module, "HAS_NATIVE", has_native):
            try:
                made = pack_batch(messages, ids, namespace=namespace, body_bytes_max=body_bytes_max)
            except (TernError, TypeError) as error:
                return type(error), str(error)
        ids_made = made.message_id.split(",")
        assert len(messages) == len(set(ids_made))
        # Ids that a refusal by the kernel used up are not given again.
        body = bytes(made.body)
        for message_id in ids_made:
            body = body.replace(message_id.encode(), b"ID")
        return body, made.topic, made.properties, made.code

    assert packed(False) == packed(True)


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@given(st.one_of(_plain_messages, _odd_messages), st.sampled_from(("", "space")), st.sampled_from((3, 100_000)))
def test_the_kernel_prepares_what_python_prepares(message: Message, namespace: str, body_bytes_max: int) -> None:
    """E2: the same, or it is left to Python. What Python refuses is always left to it, or refused in the same way."""

    def ids() -> UniqueIds:
        return UniqueIds("10.0.0.1", 1, salt=1, clock=ManualClock(1_700_000_000_000))

    def outcome(prepare_it: Callable[[], Outgoing | None]) -> object:
        try:
            return prepare_it()
        except (TernError, TypeError) as error:
            return type(error), str(error)

    def by_python() -> Outgoing:
        check_message(message, body_bytes_max=body_bytes_max)
        return prepare(message, message_id=ids().next(), namespace=namespace)

    made = outcome(lambda: prepare_plain(message, ids(), namespace=namespace, body_bytes_max=body_bytes_max))
    assert made is None or made == outcome(by_python)


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@given(_plain_messages)
def test_a_plain_message_is_prepared_by_the_kernel(message: Message) -> None:
    """E2: not by Python as a last resort."""
    ids = UniqueIds("10.0.0.1", 1, salt=1, clock=ManualClock(1_700_000_000_000))
    assert prepare_plain(message, ids) is not None


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@given(st.lists(_plain_messages, min_size=1, max_size=5))
def test_plain_messages_are_packed_by_the_kernel(messages: list[Message]) -> None:
    """E6: not by Python as a last resort."""
    made = native.pack_batch(
        messages, "P", 255, namespace="", body_bytes_max=10_000, reserved=RESERVED_PROPERTIES, astuple=astuple
    )
    assert made is not None
    body, joined = made
    message_ids = joined.split(",")
    assert [f"P{number:012X}" for number in range(255, 255 + len(messages))] == message_ids
    assert prepare_batch(messages, message_ids=message_ids).body == body
