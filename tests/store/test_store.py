"""MessageStore as its users see it: put, get, life and death (C1–C8)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ternmq.errors import CorruptFile, NotRunning, RecordRefused, StoreError, StoreLocked
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.store import Draft, GetStatus, MessageStore, StoreConfig
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import encode_request
from ternmq.wire.ids import java_hash
from ternmq.wire.record import Sysflag, pack_host, unpack_record, unpack_records
from ternmq.wire.requests import SendMessageV2
from tests.manual_clock import ManualClock
from tests.store.small import (
    BORN,
    HOST,
    bodies,
    crash,
    draft,
    log_queues_index,
    put_all,
    quiet_store,
    read_all,
    small_config,
)


def test_a_message_is_read_back_as_it_was_put(tmp_path: Path) -> None:
    """C1, C2."""
    clock = ManualClock(1_700_000_000_123)
    with quiet_store(small_config(tmp_path), clock=clock) as store:
        message = draft("orders", 3, b"body", TAGS="fast", KEYS="a b", UNIQ_KEY="U")
        message.flag, message.reconsume_times, message.prepared_transaction_offset = 7, 2, 99
        placed = store.put(message)
        result = store.get("orders", 3, 0, count_max=32)

        (record,) = unpack_records(result.buffers[0])
        assert (GetStatus.FOUND, 1, 0, 1) == (result.status, result.next_offset, result.min_offset, result.max_offset)
        assert (b"body", "orders", 3, message.properties) == (
            bytes(record.body),
            record.topic,
            record.queue_id,
            record.properties,
        )
        assert (7, 2, 99, 0) == (
            record.flag,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.sysflag,
        )
        assert (HOST, BORN, 1_700_000_000_123) == (record.store_host, record.born_host, record.store_time_ms)
        assert (0, record.size, 0, 1_700_000_000_123) == placed


def test_hosts_of_both_kinds_are_stored(tmp_path: Path) -> None:
    """C1: IPv4 and IPv6."""
    host_v6 = pack_host("2001:db8::1", 10911)
    store = MessageStore.open(small_config(tmp_path), store_host=host_v6, clock=ManualClock(), threads=False)
    with store:
        store.put(Draft("orders", 0, b"1", "", 1, pack_host("2001:db8::2", 1)))
        store.put(Draft("orders", 0, b"2", "", 1, BORN))
        first, second = read_all(store, "orders", 0)

        assert (Sysflag.BORN_V6 | Sysflag.STORE_V6, Sysflag.STORE_V6) == (first.sysflag, second.sysflag)
        assert store.store_time("orders", 0, 0) == first.store_time_ms


def test_a_long_topic_makes_a_second_version_record(tmp_path: Path) -> None:
    """C1: %RETRY% and a long group exceed the signed byte of the first version."""
    topic = "%RETRY%" + "g" * 180
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft(topic, 0, b"1"))

        (record,) = read_all(store, topic, 0)
        assert (topic, b"1") == (record.topic, bytes(record.body))


def test_queue_offsets_count_per_queue(tmp_path: Path) -> None:
    """C2."""
    with quiet_store(small_config(tmp_path)) as store:
        places = [store.put(draft("orders", number % 3, b"%d" % number)).queue_offset for number in range(9)]

        assert [0, 0, 0, 1, 1, 1, 2, 2, 2] == places
        assert [b"1", b"4", b"7"] == bodies(store, "orders", 1)


def test_neighbours_in_the_log_come_as_one_view(tmp_path: Path) -> None:
    """F3: a pull of one queue's run is one buffer, and nothing is copied."""
    with quiet_store(small_config(tmp_path)) as store:
        for number in range(5):
            store.put(draft("orders", 0, b"%d" % number))
        store.put(draft("orders", 1))
        store.put(draft("orders", 0, b"5"))

        result = store.get("orders", 0, 0, count_max=32)

        assert (6, [5, 1]) == (result.count, [len(unpack_records(buffer)) for buffer in result.buffers])
        assert sum(map(len, result.buffers)) == result.body_bytes


def test_a_message_that_does_not_fit_goes_to_the_next_segment(tmp_path: Path) -> None:
    """C1: the filler's size is the space left, and its magic is BLANK."""
    with quiet_store(small_config(tmp_path)) as store:
        ends = [store.put(draft(body=b"x" * 1000)).end_offset for _ in range(5)]
        store.put(draft(body=b"y" * 1000))

        assert [b"x" * 1000] * 5 + [b"y" * 1000] == bodies(store)
    first = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    blank_at = ends[2]
    assert blank_at + 1000 + 91 > 4096 - 8
    assert first[blank_at : blank_at + 8] == (4096 - blank_at).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert 4096 == len(first)


def test_a_record_leaves_room_for_a_filler_or_rolls(tmp_path: Path) -> None:
    """C1: size + 8 must fit."""
    overhead = 91 + len("orders")
    for spare, rolls in ((8, False), (7, True)):
        with quiet_store(small_config(tmp_path / str(spare))) as store:
            store.put(draft(body=b"x" * (2000 - overhead)))
            placed = store.put(draft(body=b"y" * (2096 - overhead - spare)))

            assert (4096 if rolls else 2000) == placed.log_offset
            assert 2 == len(bodies(store))


def test_a_batch_stays_in_one_segment_with_consecutive_offsets(tmp_path: Path) -> None:
    """E6, C1."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft(body=b"x" * 3000))
        placed = put_all(store, [draft(body=b"%d" % number * 200) for number in range(5)])

        assert (4096, 1) == (placed.log_offsets[0], placed.queue_offset)
        records = unpack_records(b"".join(map(bytes, store.get("orders", 0, 1, count_max=32).buffers)))
        assert [1, 2, 3, 4, 5] == [record.queue_offset for record in records]
        assert placed.log_offsets == [record.log_offset for record in records]
        assert placed.end_offset == records[-1].log_offset + records[-1].size


@pytest.mark.parametrize("host", [HOST, pack_host("::1", 7)], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("topic", ["orders", "t" * 200], ids=["short topic", "long topic"])
def test_a_batch_leaves_the_bytes_that_single_puts_would(tmp_path: Path, host: bytes, topic: str) -> None:
    """E6, C1, C2, C4: log, queue and index."""
    drafts = [draft(topic, 2, b"body" * number, TAGS=f"tag{number % 3}", KEYS=f"a{number} b") for number in range(70)]
    for each in drafts:
        each.born_host = host
    for name in ("single", "together"):
        with quiet_store(small_config(tmp_path / name, mapped_file_size_commit_log=1 << 16)) as store:
            if name == "single":
                for each in drafts:
                    store.put(each)
            else:
                for at in range(0, len(drafts), 4):
                    put_all(store, drafts[at : at + 4])

    assert log_queues_index(tmp_path / "single") == log_queues_index(tmp_path / "together")


def test_a_batch_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    """E6: all or none."""
    with quiet_store(small_config(tmp_path, max_message_size=1000)) as store:
        with pytest.raises(RecordRefused, match="the body has 1001 bytes, at most 1000"):
            put_all(store, [draft(), draft(body=b"x" * 1001)])
        with pytest.raises(RecordRefused, match="send fewer at once"):
            put_all(store, [draft(body=b"x" * 999) for _ in range(5)])

        assert (0, []) == (store.written, bodies(store))


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (draft(body=b"x" * 1001), "the body has 1001 bytes, at most 1000 are stored"),
        (draft(long="x" * 32_800), "the properties have 32806 bytes, at most 32767"),
        (draft(long="x" * 5_000), "the message takes .* at most 4088 are stored"),
        (draft("a/../../b"), "use a topic that is a file name"),
        (draft(".."), "use a topic that is a file name"),
        (draft("orders", -1), "a queue id from 0 on"),
        (Draft("orders", 0, b"", "", 1, BORN, flag=1 << 31), "does not fit into a record"),
    ],
)
def test_what_no_record_can_hold_is_refused(message: Draft, sentence: str, tmp_path: Path) -> None:
    """C1: MESSAGE_ILLEGAL, with the limit."""
    with quiet_store(small_config(tmp_path, max_message_size=1000)) as store:
        store.put(draft(body=b"before"))
        with pytest.raises(RecordRefused, match=sentence):
            store.put(message)
        store.put(draft(body=b"after"))

        assert [b"before", b"after"] == bodies(store)


def test_half_a_surrogate_pair_is_stored_as_java_would(tmp_path: Path) -> None:
    """C1: JSON can carry what UTF-8 cannot; the tags code is that of what was stored."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft(TAGS="a\ud800"))
        assert 1 == store.get("orders", 0, 0, count_max=1, matches=lambda code: code == java_hash("a?")).count
        config = crash(store, tmp_path / "copy")
    with quiet_store(config) as store:
        assert 1 == store.get("orders", 0, 0, count_max=1, matches=lambda code: code == java_hash("a?")).count


def test_prepared_and_rolled_back_records_have_no_place_in_a_queue(tmp_path: Path) -> None:
    """C2, J1: and take no queue offset."""
    with quiet_store(small_config(tmp_path)) as store:
        for sysflag in (Sysflag.PREPARED, Sysflag.ROLLBACK, Sysflag.COMMIT, 0):
            message = draft(body=b"%d" % sysflag, UNIQ_KEY=f"U{sysflag}")
            message.sysflag = sysflag
            store.put(message)

        assert [b"8", b"0"] == bodies(store)
        found = [
            len(store.query("orders", f"U{sysflag}", count_max=9, begin_ms=0, end_ms=1 << 62).buffers)
            for sysflag in (Sysflag.PREPARED, Sysflag.ROLLBACK, Sysflag.COMMIT, 0)
        ]
        assert [1, 0, 1, 1] == found


def test_an_entry_of_the_schedule_topic_holds_its_delivery_time(tmp_path: Path) -> None:
    """C2, I1: in place of the tags code; a level beyond the last is the last."""
    seen: list[int] = []
    clock = ManualClock(1_000_000)
    with quiet_store(small_config(tmp_path, message_delay_level="1s 5s"), clock=clock) as store:
        for level in ("1", "2", "9", "x"):
            store.put(draft("SCHEDULE_TOPIC_XXXX", 0, TAGS="t", DELAY=level))

        def see(code: int) -> bool:
            seen.append(code)
            return False

        store.get("SCHEDULE_TOPIC_XXXX", 0, 0, count_max=9, matches=see)

    assert [1_001_000, 1_005_000, 1_005_000, java_hash("t")] == seen


def test_arrivals_are_told_in_order(tmp_path: Path) -> None:
    """C5: after dispatch, so that a consumer that is woken finds the message."""
    told: list[tuple[str, int, int, int, str | None, int]] = []

    def arrived(topic: str, queue_id: int, end: int, tags_code: int, properties: str | None) -> None:
        told.append((topic, queue_id, end, tags_code, properties, store.max_offset(topic, queue_id)))

    with quiet_store(small_config(tmp_path), on_arrival=arrived) as store:
        store.put(draft("a", 1))
        store.put(draft("a", 1, TAGS="t"))

    assert [("a", 1, 1, 0, "", 1), ("a", 1, 2, java_hash("t"), "TAGS\x01t\x02", 2)] == told


def test_arrivals_are_told_of_topics_that_are_listened_to_at_that_moment(tmp_path: Path) -> None:
    """F8, E1: one by one, and by runs; a topic may be listened to from any message on."""
    topics: set[str] = {"a"}
    told: list[tuple[object, ...]] = []
    with quiet_store(small_config(tmp_path), on_arrival=lambda *what: told.append(what[:3]), listened=topics) as store:
        for queue_id in range(2):
            for topic in ("a", "b"):
                store.put(draft(topic, queue_id))
        topics.add("b")
        store.put(draft("b", 1))
        topics.remove("a")
        store.put(draft("a", 1))
        assert [("a", 0, 1), ("a", 1, 1), ("b", 1, 2)] == told
        terms = store.run_terms(b"", []) if HAS_NATIVE else None
        if terms is None:
            return
        told.clear()
        data = b"".join(
            b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"body", opaque=1))
            for header in (
                SendMessageV2(topic=topic, queue_id=queue_id, producer_group="g", properties="UNIQ_KEY\x01k\x02")
                for topic, queue_id in (("a", 0), ("b", 0), ("b", 1), ("b", 0))
            )
        )
        sends = native.parse_sends(data, 0, 1 << 24)
        assert sends is not None
        form = native.ReplyForm([b"{", b",", b",", b',"', b'",', b"}"])
        placed = store.put_run(sends, 0, {"a": 9, "b": 9}, count_max=9, terms=terms, form=form, born_host=BORN)
        assert placed is not None
        assert [("a", 1), ("b", 3)] == [(queue.topic, count) for queue, count, _ in placed.counts]
    assert [("b", 0, 3), ("b", 1, 3)] == told


# --- Life -------------------------------------------------------------------------------------------------------


def test_a_closed_store_opens_with_all_it_had(tmp_path: Path) -> None:
    """C7, C8: and goes on counting."""
    config = small_config(tmp_path)
    for round_ in range(4):
        with quiet_store(config) as store:
            assert [b"%d" % number for number in range(round_ * 7)] == bodies(store)
            for number in range(round_ * 7, round_ * 7 + 7):
                assert number == store.put(draft(body=b"%d" % number)).queue_offset
        assert not (tmp_path / "abort").exists()
        assert b"lock" == (tmp_path / "lock").read_bytes()
        assert 4096 == (tmp_path / "checkpoint").stat().st_size


def test_an_open_store_shows_that_it_is(tmp_path: Path) -> None:
    """C7."""
    with quiet_store(small_config(tmp_path)):
        assert str(os.getpid()) == (tmp_path / "abort").read_text().split()[0]
    assert not (tmp_path / "abort").exists()


def test_a_second_store_on_the_directory_is_refused(tmp_path: Path) -> None:
    """C7: also in the same process, where fcntl would allow it."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
        with pytest.raises(StoreLocked, match="is in use by another process"):
            quiet_store(small_config(tmp_path))
        assert 1 == store.put(draft()).queue_offset
    with quiet_store(small_config(tmp_path)) as store:
        assert 2 == len(bodies(store))


def test_a_store_of_another_process_is_refused(tmp_path: Path) -> None:
    """C7: the lock is RocketMQ's, an fcntl lock on the first byte."""
    reader, writer = os.pipe()
    done_reader, done_writer = os.pipe()
    child = os.fork()
    if child == 0:
        quiet_store(small_config(tmp_path))
        os.write(writer, b"x")
        os.read(done_reader, 1)
        os._exit(0)
    os.read(reader, 1)
    try:
        with pytest.raises(StoreLocked):
            quiet_store(small_config(tmp_path))
    finally:
        os.write(done_writer, b"x")
        os.waitpid(child, 0)
        for descriptor in (reader, writer, done_reader, done_writer):
            os.close(descriptor)
    with quiet_store(small_config(tmp_path)) as store:
        assert 0 == store.written


def test_nothing_works_after_close(tmp_path: Path) -> None:
    """C7."""
    store = quiet_store(small_config(tmp_path))
    store.put(draft())
    view = store.record_at(0)
    store.close()
    store.close()
    with pytest.raises(NotRunning, match="closed"):
        store.put(draft())
    with pytest.raises(NotRunning):
        store.flush_now()
    assert view is not None
    assert b"hello" == bytes(unpack_record(view).body)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """C7: with the cure."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="storePathRootDir must be a directory"):
        quiet_store(small_config(tmp_path / "file"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mapped_file_size_commit_log": 8192}, "has 4096 bytes, but mappedFileSizeCommitLog is 8192; set"),
        ({"mapped_file_size_consume_queue": 200}, "has 100 bytes, but mappedFileSizeConsumeQueue is 200; set"),
        ({"max_index_num": 11}, "has 268 bytes, but maxHashSlotNum and maxIndexNum make 288; set"),
    ],
)
def test_files_of_another_size_are_refused_and_left_alone(
    changes: dict[str, int], sentence: str, tmp_path: Path
) -> None:
    """C11: the sizes of a directory are fixed when it is made."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(30):
            store.put(draft(body=b"x" * 500, KEYS="k"))
    (tmp_path / "abort").touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(CorruptFile, match=sentence):
        quiet_store(small_config(tmp_path, **changes))

    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with quiet_store(small_config(tmp_path)) as store:
        assert 30 == len(bodies(store))


def test_a_missing_or_foreign_segment_is_refused(tmp_path: Path) -> None:
    """C11: nothing is cut because a file is missing."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(20):
            store.put(draft(body=b"x" * 500))
    log = tmp_path / "commitlog"
    (log / "notes.txt").write_text("mine")
    with pytest.raises(CorruptFile, match=r"notes.txt is no segment.*move it out"):
        quiet_store(small_config(tmp_path))
    (log / "notes.txt").unlink()
    middle = sorted(log.iterdir())[1]
    saved = middle.read_bytes()
    middle.unlink()
    with pytest.raises(CorruptFile, match="does not follow the file before it; restore"):
        quiet_store(small_config(tmp_path))
    middle.write_bytes(saved)
    with quiet_store(small_config(tmp_path)) as store:
        assert 20 == len(bodies(store))


def test_a_deleted_topic_begins_again(tmp_path: Path) -> None:
    """D1: and stays deleted after a restart, with its new messages."""
    config = small_config(tmp_path)
    with quiet_store(config) as store:
        for number in range(12):
            store.put(draft("gone", 0, b"old %d" % number))
            store.put(draft("kept", 0, b"%d" % number))
        store.delete_topics(["gone"])
        assert (0, {("kept", 0)}) == (store.max_offset("gone", 0), set(store.queues()))
        assert 0 == store.put(draft("gone", 0, b"new")).queue_offset
        copy = crash(store, tmp_path / "copy")
    with quiet_store(config) as store:
        assert [b"new"] == bodies(store, "gone")
    with quiet_store(copy) as store:
        assert [b"new"] == bodies(store, "gone")
        assert 12 == len(bodies(store, "kept"))


async def test_the_threads_bring_their_news_to_the_loop(tmp_path: Path) -> None:
    """C6: with ``notify``, waiting for the disk is a future like any other."""
    loop = asyncio.get_running_loop()
    config = small_config(tmp_path, mapped_file_size_commit_log=1 << 20, flush_interval_commit_log=1)
    store = MessageStore.open(config, store_host=HOST, clock=ManualClock(), notify=loop.call_soon_threadsafe)
    try:
        for _ in range(3):
            end = store.put(draft(body=b"x" * 20_000)).end_offset
            assert await store.flushed.reached(end, 10_000)
    finally:
        store.close()


def test_big_files_are_sparse_and_made_at_once(tmp_path: Path) -> None:
    """C1: RocketMQ's sizes, without their weight."""
    config = StoreConfig(store_path_root_dir=tmp_path)
    with MessageStore.open(config, store_host=HOST, clock=ManualClock()) as store:
        store.put(draft(KEYS="k"))
        assert 1 == len(store.query("orders", "k", count_max=1, begin_ms=0, end_ms=1 << 62).buffers)
    sizes = {path.parent.name: path.stat() for path in tmp_path.rglob("*") if path.is_file()}
    assert (1 << 30, 6_000_000, 420_000_040) == (
        sizes["commitlog"].st_size,
        sizes["0"].st_size,
        sizes["index"].st_size,
    )
    assert sum(stat.st_blocks for stat in sizes.values()) * 512 < 64 << 20
