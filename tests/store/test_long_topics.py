"""Topics of more than 127 bytes, in records of version 2 (C1)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.errors import RecordRefused
from ternmq.store.read.reader import LogReader
from ternmq.store.store import Draft, MessageStore
from ternmq.wire.record import MAGIC_V1, MAGIC_V2, pack_host, unpack_record
from tests.store.small import draft, put_all, quiet_store, read_all, small_config

LENGTHS = [127, 128, 200, 254, 255]
V6 = pack_host("2001:db8::1", 10911)


def topic_of(length: int) -> str:
    return "%RETRY%".ljust(length, "g")


def drafts(topic: str) -> list[Draft]:
    """Small and large, from hosts of both families, with tag and key."""
    made = [draft(topic, number, b"%d" % number * 400 * number, TAGS="red", KEYS=f"k{number}") for number in range(4)]
    for each in made[2:]:
        each.born_host = V6
    return made


def check(store: MessageStore, topic: str) -> None:
    """All that was put is found, in every way."""
    for number, each in enumerate(drafts(topic)):
        single, batched = read_all(store, topic, number)
        for record in (single, batched):
            assert (topic, each.body, each.properties) == (record.topic, bytes(record.body), record.properties)
            assert (MAGIC_V1 if len(topic) <= 127 else MAGIC_V2) == record.magic
            assert each.born_host == record.born_host
            found = store.record_at(record.log_offset, record.size)
            assert found is not None
            assert topic == unpack_record(found).topic
        by_key = store.query(topic, f"k{number}", count_max=9, begin_ms=0, end_ms=1 << 62).buffers
        assert [single.log_offset, batched.log_offset] == [unpack_record(data).log_offset for data in by_key]


@pytest.mark.parametrize("length", LENGTHS)
def test_long_topics_are_served_in_every_way(length: int, tmp_path: Path) -> None:
    """C1, C2, C4, C8: put alone and together; read, searched, found again after a stop and after a crash."""
    topic = topic_of(length)
    config = small_config(tmp_path / "store")
    with quiet_store(config) as store:
        for each in drafts(topic):
            store.put(each)
            put_all(store, [each])
        check(store, topic)
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    with quiet_store(config) as store:
        check(store, topic)
    with quiet_store(small_config(tmp_path / "crashed")) as store:
        check(store, topic)
    assert [topic] * 8 == [record.topic for record in LogReader(tmp_path / "store")]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 255), min_size=1, max_size=8), together=st.booleans())
def test_records_of_both_versions_stand_in_one_log(
    lengths: list[int], together: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C1: whatever their order."""
    root = tmp_path_factory.mktemp("topics")
    with quiet_store(small_config(root)) as store:
        for length in lengths:
            if together:
                put_all(store, [draft("t" * length, 0, b"%d" % length)])
            else:
                store.put(draft("t" * length, 0, b"%d" % length))
    (root / "abort").touch()
    with quiet_store(small_config(root)) as store:
        assert lengths == [int(bytes(record.body)) for record in LogReader(root)]
        for length in lengths:
            assert length in [int(bytes(record.body)) for record in read_all(store, "t" * length, 0)]


def test_no_topic_has_more_than_255_bytes(tmp_path: Path) -> None:
    """C1: it names a directory. Bytes count, not characters."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft("é" * 127))
        for topic in ("t" * 256, "é" * 128):
            with pytest.raises(RecordRefused, match="a file name of 1 to 255 bytes"):
                store.put(draft(topic))
        assert [("é" * 127, 0)] == list(store.queues())


def test_without_version_2_long_topics_are_refused(tmp_path: Path) -> None:
    """C1: RocketMQ 4 would take such a record for the log's end. Nothing is stored, no queue is made."""
    config = small_config(tmp_path, auto_message_version_on_topic_len=False)
    sentence = "has 128 bytes, at most 127 are stored; use a shorter name, or set autoMessageVersionOnTopicLen=true"
    with quiet_store(config) as store:
        store.put(draft(topic_of(127)))
        written = store.written
        with pytest.raises(RecordRefused, match=sentence):
            store.put(draft(topic_of(128)))
        with pytest.raises(RecordRefused, match=sentence):
            put_all(store, [draft(topic_of(128))])
        assert (written, [(topic_of(127), 0)]) == (store.written, list(store.queues()))


def test_long_topics_stay_readable_when_version_2_is_turned_off(tmp_path: Path) -> None:
    """C1: only nothing is added to them."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft(topic_of(128), body=b"1"))
    with quiet_store(small_config(tmp_path, auto_message_version_on_topic_len=False)) as store:
        for _ in range(2):
            with pytest.raises(RecordRefused, match="has 128 bytes"):
                store.put(draft(topic_of(128)))
        with pytest.raises(RecordRefused, match="has 128 bytes"):
            put_all(store, [draft(topic_of(128))])
        store.put(draft())
        assert [b"1"] == [bytes(record.body) for record in read_all(store, topic_of(128), 0)]
