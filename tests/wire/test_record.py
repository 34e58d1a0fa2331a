"""Records: those of real stores, any that can be packed, and what is none."""

from __future__ import annotations

import hashlib
import json
import mmap
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ternmq.errors import CorruptRecord
from ternmq.wire import properties
from ternmq.wire.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Page,
    Record,
    Sysflag,
    pack_blank,
    pack_host,
    pack_record,
    peek_head,
    peek_properties,
    record_bytes,
    unpack_host,
    unpack_record,
    unpack_records,
)
from tests.recordings import DATA
from tests.wire.recorded import responses
from tests.wire.values import texts

STORES = ("rocketmq-4.9.4-clean", "rocketmq-4.9.4-crashed", "rocketmq-5.2.0-clean")


def size_of(record: Record) -> int:
    return record_bytes(
        body=len(record.body),
        topic=len(record.topic.encode()),
        properties=len(record.properties.encode()),
        born_host=len(record.born_host),
        store_host=len(record.store_host),
    )


def pack(record: Record, page: Page, at: int = 0) -> None:
    pack_record(
        page,
        at,
        size=size_of(record),
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        sysflag=record.sysflag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        store_time_ms=record.store_time_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body=record.body,
        topic=record.topic.encode(),
        properties=record.properties.encode(),
    )


def packed(record: Record) -> bytes:
    page = bytearray(size_of(record))
    pack(record, page)
    return bytes(page)


int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record that can be: size, magic, CRC and host bits are what its parts make them."""
    born_host, store_host = draw(hosts), draw(hosts)
    topic = draw(texts | st.text("t", min_size=128, max_size=255))
    body = draw(st.binary(max_size=300))
    sysflag = draw(int32s) & ~0x30
    sysflag |= Sysflag.BORN_V6 if len(born_host) == 20 else 0
    sysflag |= Sysflag.STORE_V6 if len(store_host) == 20 else 0
    record = Record(
        size=0,
        magic=MAGIC_V1 if len(topic.encode()) <= 127 else MAGIC_V2,
        body_crc=crc32(body) & 0x7FFFFFFF,
        queue_id=draw(int32s),
        flag=draw(int32s),
        queue_offset=draw(int64s),
        log_offset=draw(int64s),
        sysflag=sysflag,
        born_time_ms=draw(int64s),
        born_host=born_host,
        store_time_ms=draw(int64s),
        store_host=store_host,
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
        body=memoryview(body),
        topic=topic,
        properties=draw(texts),
    )
    return replace(record, size=size_of(record))


SAMPLE = Record(
    size=0,
    magic=MAGIC_V1,
    body_crc=crc32(b"hello") & 0x7FFFFFFF,
    queue_id=3,
    flag=7,
    queue_offset=11,
    log_offset=4096,
    sysflag=0,
    born_time_ms=1700000000000,
    born_host=pack_host("10.0.0.1", 5000),
    store_time_ms=1700000000005,
    store_host=pack_host("10.0.0.2", 10911),
    reconsume_times=2,
    prepared_transaction_offset=0,
    body=memoryview(b"hello"),
    topic="orders",
    properties="TAGS\x01a\x02",
)
SAMPLE = replace(SAMPLE, size=size_of(SAMPLE))


# --- Real stores ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a store that RocketMQ wrote."""
    name: str = request.param
    directory = tmp_path_factory.mktemp(name)
    with tarfile.open(DATA / "stores" / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / name


def walk(store: Path) -> Iterator[tuple[bytes, int]]:
    """Where each record of a store begins: the segment's bytes, and the place in them."""
    for segment in sorted((store / "commitlog").iterdir()):
        data = segment.read_bytes()
        at = 0
        while at < len(data) - 8:
            size, magic = peek_head(data, at)
            if magic not in (MAGIC_V1, MAGIC_V2):
                break
            yield data, at
            at += size


def test_the_records_of_a_real_store_are_read(store: Path) -> None:
    """C1, C11"""
    lines = store.with_name(f"{store.name}.records.jsonl").read_bytes().splitlines()
    expected = list(map(json.loads, lines))
    actual = [describe(unpack_record(data, at)) for data, at in walk(store)]
    assert expected == actual


def describe(record: Record) -> dict[str, Any]:
    return {
        "log_offset": record.log_offset,
        "size": record.size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "sysflag": record.sysflag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "born_ms": record.born_time_ms,
        "store_ms": record.store_time_ms,
        "body_bytes": len(record.body),
        "body_sha1": hashlib.sha1(record.body).hexdigest(),
        "crc_ok": True,
        "properties": properties.parse(record.properties),
    }


def test_the_records_of_a_real_store_are_packed_to_the_same_bytes(store: Path) -> None:
    """C1, C11"""
    for data, at in walk(store):
        record = unpack_record(data, at)
        assert data[at : at + record.size] == packed(record)


def test_the_records_of_recorded_pulls_are_read() -> None:
    """F3, F9, L1"""
    count = 0
    for frame in responses():
        if frame.asked in (11, 12, 361, 200050) and frame.code == 0:
            records = unpack_records(frame.body)
            assert frame.body == b"".join(map(packed, records))
            count += len(records)
    assert count > 50


# --- Any record -----------------------------------------------------------------------------------------------


@given(records())
def test_any_record_round_trips(record: Record) -> None:
    """C1"""
    assert record == unpack_record(packed(record))


@given(records(), st.binary(max_size=20), st.binary(max_size=20))
def test_properties_are_found_without_the_rest(record: Record, before: bytes, after: bytes) -> None:
    """K2: for hosts of both families and both versions."""
    page = memoryview(before + packed(record) + after)
    assert record.properties == peek_properties(page, len(before), size_of(record))


@given(records(), st.data())
def test_properties_of_a_damaged_record_are_some_or_none(record: Record, data: st.DataObject) -> None:
    """K2: what a filter looks at must not stop a queue."""
    page = bytearray(packed(record))
    page[data.draw(st.integers(0, len(page) - 1))] ^= data.draw(st.integers(1, 255))
    peek_properties(memoryview(page), 0, data.draw(st.integers(0, len(page))))


@given(st.lists(records(), max_size=4))
def test_records_stand_back_to_back_in_a_pull(batch: list[Record]) -> None:
    """F3"""
    assert batch == unpack_records(b"".join(map(packed, batch)))


@given(records(), st.binary(max_size=20))
def test_bytes_after_a_record_are_not_looked_at(record: Record, trailing: bytes) -> None:
    """C1"""
    assert record == unpack_record(packed(record) + trailing)
    assert record == unpack_record(trailing + packed(record), len(trailing))


def test_a_record_cut_anywhere_is_corrupt() -> None:
    """C8"""
    data = packed(SAMPLE)
    assert SAMPLE == unpack_record(data)
    for length in range(len(data)):
        with pytest.raises(CorruptRecord):
            unpack_record(data[:length])
        with pytest.raises(CorruptRecord):
            unpack_record(data, end=length)


def test_a_changed_byte_gives_a_record_or_a_corrupt_one() -> None:
    """C8: every byte, every bit."""
    data = packed(SAMPLE)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with suppress(CorruptRecord):
                unpack_record(changed)


@given(st.binary(max_size=300))
def test_garbage_is_a_corrupt_record(data: bytes) -> None:
    """C8"""
    with pytest.raises(CorruptRecord):
        unpack_record(data)
    if data:
        with pytest.raises(CorruptRecord):
            unpack_records(data)


@given(records(), st.data())
def test_a_damaged_record_is_read_or_refused(record: Record, data: st.DataObject) -> None:
    """C8"""
    changed = bytearray(packed(record))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecord):
        unpack_record(changed)


def damaged(at: int, value: bytes) -> bytes:
    data = packed(SAMPLE)
    return data[:at] + value + data[at + len(value) :]


BODY_AT = 84
TOPIC_AT = BODY_AT + 4 + 5
PROPERTIES_AT = TOPIC_AT + 1 + 6


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (damaged(0, (2**30).to_bytes(4, "big")), "claims 1073741824 bytes where"),
        (damaged(0, b"\xff\xff\xff\xff"), "claims -1 bytes where"),
        (damaged(0, (RECORD_BYTES_MIN - 1).to_bytes(4, "big")), "claims 90 bytes where"),
        (damaged(4, b"\0\0\0\0"), r"no record \(magic 0x00000000\)"),
        (damaged(4, MAGIC_BLANK.to_bytes(4, "big", signed=True)), "the end of a segment"),
        (damaged(8, b"\1"), "does not match its CRC"),
        (damaged(BODY_AT + 4, b"j"), "does not match its CRC"),
        (damaged(BODY_AT, b"\xff"), "do not add up to its size"),
        (damaged(BODY_AT, b"\0\0\1\0"), "do not add up to its size"),
        (damaged(TOPIC_AT, b"\x80"), "do not add up to its size"),
        (damaged(TOPIC_AT, b"\x07"), "do not add up to its size"),
        (damaged(TOPIC_AT + 1, b"\xff"), "topic of the record at 0 is not UTF-8"),
        (damaged(PROPERTIES_AT, b"\xff"), "do not add up to its size"),
        (damaged(39, b"\x30"), "do not add up|too short for its IPv6 hosts"),
    ],
)
def test_a_corrupt_record_says_what_is_wrong(data: bytes, complaint: str) -> None:
    """C8"""
    with pytest.raises(CorruptRecord, match=complaint):
        unpack_record(data)


def test_a_corrupt_record_tells_the_log_offset_that_it_claims() -> None:
    """C8"""
    with pytest.raises(CorruptRecord) as caught:
        unpack_record(damaged(BODY_AT + 4, b"j"))
    assert 4096 == caught.value.log_offset


def test_the_crc_is_checked_on_demand() -> None:
    """C8"""
    assert b"jello" == bytes(unpack_record(damaged(BODY_AT + 4, b"j"), check_crc=False).body)


def test_properties_that_are_no_utf_8_do_not_end_the_log() -> None:
    """C8: batches are stored as their sender packed them."""
    assert "\ufffdAGS\x01a\x02" == unpack_record(damaged(PROPERTIES_AT + 2, b"\xff")).properties


def test_a_body_is_a_view_of_the_page() -> None:
    """A reader that keeps it makes a copy."""
    page = bytearray(packed(SAMPLE))
    body = unpack_record(page).body
    page[BODY_AT + 4] = ord("j")
    assert b"jello" == bytes(body)


def test_a_record_is_packed_into_a_mapped_page() -> None:
    """C1"""
    with mmap.mmap(-1, 4096) as page:
        pack(SAMPLE, page, 100)
        assert packed(SAMPLE) == page[100 : 100 + SAMPLE.size]
        assert (SAMPLE.size, MAGIC_V1) == peek_head(page, 100)
        view = memoryview(page)
        pack(SAMPLE, view, 1000)
        assert packed(SAMPLE) == bytes(view[1000 : 1000 + SAMPLE.size])
        view.release()


def test_the_host_bits_follow_the_hosts_not_the_sender() -> None:
    """C1: a sender that claims IPv6 cannot make an unreadable record."""
    record = unpack_record(packed(replace(SAMPLE, sysflag=Sysflag.BORN_V6 | Sysflag.STORE_V6 | Sysflag.COMPRESSED)))
    assert Sysflag.COMPRESSED == record.sysflag
    born_host = pack_host("fd00::2", 5000)
    record = unpack_record(packed(replace(SAMPLE, born_host=born_host)))
    assert (Sysflag.BORN_V6, born_host) == (record.sysflag, record.born_host)


@pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2)])
def test_a_long_topic_makes_a_record_of_version_2(length: int, magic: int) -> None:
    """C1, H1: %RETRY% topics may have 255 bytes."""
    record = replace(SAMPLE, topic="t" * length)
    found = unpack_record(packed(record))
    assert (magic, record.topic, size_of(record)) == (found.magic, found.topic, found.size)


def test_an_empty_record_has_91_bytes() -> None:
    """C1"""
    record = replace(SAMPLE, body=memoryview(b""), topic="", properties="")
    assert 91 == RECORD_BYTES_MIN == size_of(record)
    assert (91, 0) == (unpack_record(packed(record)).size, unpack_record(packed(record)).body_crc)


def test_the_rest_of_a_segment_is_marked_blank() -> None:
    """C1"""
    page = bytearray(64)
    pack_blank(page, 16, 48)
    assert (48, MAGIC_BLANK) == peek_head(page, 16)


# --- Hosts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ip", "port", "expected"),
    [
        ("127.0.0.1", 10911, "7f00000100002a9f"),
        ("fd00::2", 5, "fd000000000000000000000000000002" + "00000005"),
        ("::1", 65535, "00000000000000000000000000000001" + "0000ffff"),
    ],
)
def test_hosts_round_trip(ip: str, port: int, expected: str) -> None:
    """C1"""
    assert expected == pack_host(ip, port).hex()
    assert (ip, port) == unpack_host(pack_host(ip, port))


def test_an_ipv4_address_inside_ipv6_is_stored_as_ipv4() -> None:
    """V1: clients that know IPv4 alone can read the record."""
    assert pack_host("10.1.2.3", 9) == pack_host("::ffff:10.1.2.3", 9)


def test_the_zone_of_an_address_is_left_out() -> None:
    assert pack_host("fe80::1", 9) == pack_host("fe80::1%eth0", 9)


@pytest.mark.parametrize("text", ["localhost", "10.1", "10.0.0.1 x", ""])
def test_what_is_no_numeric_address_is_refused(text: str) -> None:
    with pytest.raises(OSError, match="illegal IP address"):
        pack_host(text, 9)
