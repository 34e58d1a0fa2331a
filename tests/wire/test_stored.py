"""From records to messages."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire import properties, stored
from ternmq.wire.compress import compress
from ternmq.wire.record import Record, Sysflag, pack_host, pack_record, record_bytes, unpack_records
from ternmq.wire.stored import StoredMessage, read_answer, read_stored
from tests.messages import to_message
from tests.wire.recorded import responses
from tests.wire.test_record import SAMPLE


def test_a_record_becomes_a_message() -> None:
    """C10, F3"""
    record = replace(SAMPLE, properties="UNIQ_KEY\x01ABC\x02TAGS\x01a\x02KEYS\x01k1 k2\x02")
    message = to_message(record, "broker-a")
    assert (
        ReceivedMessage(
            topic="orders",
            body=b"hello",
            properties={"UNIQ_KEY": "ABC", "TAGS": "a", "KEYS": "k1 k2"},
            broker_name="broker-a",
            queue_id=3,
            queue_offset=11,
            log_offset=4096,
            message_id="ABC",
            offset_id="0A00000200002A9F0000000000001000",
            born_time_ms=1700000000000,
            born_host="10.0.0.1:5000",
            store_time_ms=1700000000005,
            store_host="10.0.0.2:10911",
            reconsume_times=2,
            flag=7,
            sysflag=0,
            store_bytes=record.size,
        )
        == message
    )
    assert ("a", ("k1", "k2"), MessageQueue("orders", "broker-a", 3)) == (message.tags, message.keys, message.queue)


def test_a_message_without_unique_id_is_named_by_its_place() -> None:
    """C10"""
    message = to_message(SAMPLE, "b")
    assert message.offset_id == message.message_id


def test_a_compressed_body_is_decompressed_and_says_so_no_more() -> None:
    """E1"""
    body, bits = compress(b"hello " * 100)
    message = to_message(replace(SAMPLE, body=memoryview(body), sysflag=bits | Sysflag.PREPARED), "b")
    assert (b"hello " * 100, Sysflag.ZLIB | Sysflag.PREPARED) == (message.body, message.sysflag)


def test_a_body_that_cannot_be_decompressed_stays_as_it_is_and_says_why() -> None:
    """Issue 13, point 9."""
    body, bits = compress(b"hello " * 100)
    message = to_message(replace(SAMPLE, body=memoryview(body), sysflag=bits), "b", bytes_max=10)
    assert (body, bits) == (message.body, message.sysflag)
    assert "the zlib body is larger than the 10 bytes allowed" == message.body_error
    cut = to_message(replace(SAMPLE, body=memoryview(body)[:-5], sysflag=bits), "b")
    assert "the zlib body is cut short" == cut.body_error
    unknown = to_message(replace(SAMPLE, sysflag=0x401), "b")
    assert "the body is compressed in an unknown way (sysflag 0x401)" == unknown.body_error


def test_a_damaged_record_stays_damaged_through_its_copies() -> None:
    """Issue 13, point 9: sent back as a whole, it would be a sound record."""
    damaged = to_message(replace(SAMPLE, error="the body does not match its CRC"), "b")
    text = properties.join(damaged.properties)
    copy = to_message(replace(SAMPLE, properties=text), "b")
    assert "the body does not match its CRC" == damaged.body_error == copy.body_error


def test_an_ipv6_host_has_brackets() -> None:
    """C10"""
    message = to_message(replace(SAMPLE, store_host=pack_host("fd00::2", 10911)), "b")
    assert ("[fd00::2]:10911", 56) == (message.store_host, len(message.offset_id))


def test_the_records_of_recorded_pulls_become_messages() -> None:
    """V2"""
    records: list[Record] = [
        record
        for frame in responses()
        if frame.asked in (11, 361, 200050) and frame.code == 0
        for record in unpack_records(frame.body)
    ]
    for record in records:
        message = to_message(record, "broker-a")
        assert message.properties["UNIQ_KEY"] == message.message_id
        assert message.store_host in ("127.0.0.1:30876", "127.0.0.1:40876")
    # Among them is one whose body Java compressed.
    assert any(record.sysflag & Sysflag.COMPRESSED for record in records)


def test_usual_records_are_read_as_their_slow_form_says() -> None:
    """E1, C1: all recorded answers, those of other forms included."""
    read = 0
    for frame in responses():
        if frame.asked in (11, 361, 200050) and frame.code == 0:
            expected = [StoredMessage.of(record, "broker-a", 1, 2) for record in unpack_records(frame.body)]
            fast = read_stored(frame.body, StoredMessage, "broker-a", 1, 2)
            assert fast is not None
            assert expected == fast[0] == read_answer(frame.body, StoredMessage, "broker-a", 1, 2)[0]
            read += len(expected)
    assert read > 10


@given(data=st.data())
def test_a_damaged_answer_is_never_read_as_an_intact_one(data: st.DataObject) -> None:
    """C8, F1: whatever byte is changed or cut, the fast way agrees with the slow one, or leaves it to it."""
    answer = bytearray(b"".join(_packed(number) for number in range(3)))
    for _ in range(data.draw(st.integers(0, 3))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(answer[: data.draw(st.integers(0, len(answer)))])
    fast = read_stored(cut, StoredMessage, "b")
    try:
        records = unpack_records(cut)
    except CorruptRecord:
        assert fast is None
    else:
        if fast is not None:
            assert [StoredMessage.of(record, "b") for record in records] == fast[0]


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
@given(data=st.data())
def test_the_kernel_reads_what_python_reads(data: st.DataObject) -> None:
    """C1, C8, F1: the same values from the same bytes, damaged or not; only Python reads the reason of a damage."""
    texts = (b"UNIQ_KEY\x01ID\x02", b"", b"TERN_BODY_ERROR\x01cut\x02", b"TAGS\x01\xff\x02")
    answer = bytearray(b"".join(_packed(n, properties=data.draw(st.sampled_from(texts))) for n in range(3)))
    for _ in range(data.draw(st.integers(0, 3))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(answer[: data.draw(st.one_of(st.just(len(answer)), st.integers(0, len(answer))))])
    read = native.read_rows(cut)
    if read is None:
        assert b"TERN_BODY_ERROR\x01" in cut or stored._read_rows(cut) is None
    else:
        assert stored._read_rows(cut) == read
        with mock.patch.object(stored, "HAS_NATIVE", False):
            pure = read_stored(cut, StoredMessage, "b", 1, 2)
        assert pure == read_stored(cut, StoredMessage, "b", 1, 2)


@pytest.mark.parametrize("has_native", [False, HAS_NATIVE])
def test_the_reason_of_a_damage_goes_with_its_message_alone(has_native: bool) -> None:
    """Issue 13, point 9: and not with its neighbours in the answer."""
    answer = _packed(1) + _packed(2, properties=b"TERN_BODY_ERROR\x01cut\x02") + _packed(3)
    with mock.patch.object(stored, "HAS_NATIVE", has_native):
        read = read_stored(answer, StoredMessage, "b")
    assert read is not None
    assert ["", "cut", ""] == [message.body_error for message in read[0]]


def test_properties_are_found_and_set_without_reading_all() -> None:
    """C1: before they are read and after."""
    read = read_stored(_packed(1, properties=b"TAGS\x01a\x02KEYS\x01k1 k2"), StoredMessage, "b")
    assert read is not None
    ((message,), _) = read
    message.add_property("TAGS", "b")
    message.add_property("POP_CK", "x")
    assert ("b", ("k1", "k2"), "x", None) == (
        message.tags,
        message.keys,
        message.property_of("POP_CK"),
        message.property_of("KEY"),
    )
    assert {"TAGS": "b", "KEYS": "k1 k2", "POP_CK": "x"} == message.properties
    message.add_property("TAGS", "c")
    assert ("c", "c") == (message.tags, message.properties["TAGS"])


def _packed(number: int, *, properties: bytes = b"UNIQ_KEY\x01ID\x02") -> bytes:
    body, topic = b"body" * number, b"orders"
    size = record_bytes(body=len(body), topic=6, properties=len(properties), born_host=8, store_host=8)
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=1,
        flag=2,
        queue_offset=number,
        log_offset=1000 * number,
        sysflag=0,
        born_time_ms=3,
        born_host=pack_host("10.0.0.1", 1),
        store_time_ms=4,
        store_host=pack_host("10.0.0.2", 2),
        reconsume_times=5,
        prepared_transaction_offset=6,
        body=body,
        topic=topic,
        properties=properties,
    )
    return bytes(page)
