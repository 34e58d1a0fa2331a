"""From records to messages."""

from __future__ import annotations

from dataclasses import replace

from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire import properties
from ternmq.wire.compress import compress
from ternmq.wire.record import Record, Sysflag, pack_host, unpack_records
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
