"""``spark.read.format("ternmq_files")``: store directories as tables, with no broker (U3)."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from ternmq.spark.session import sentence_of
from ternmq.store.inspect.scan import Damage
from ternmq.store.read.reader import LogReader
from ternmq.store.store import Draft
from ternmq.wire.ids import offset_id
from ternmq.wire.properties import join, parse
from ternmq.wire.record import FIXED_V4_BYTES, Record, Sysflag, pack_host, unpack_host
from tests.manual_clock import ManualClock
from tests.spark.stores import SEGMENT_BYTES, files_reader, load, write_store
from tests.store.conftest import unpacked
from tests.store.small import RECORDED, RecordedStore, quiet_store, sha1, small_config
from tests.store.spoiled import edit

__all__ = ["unpacked"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that TernMQ wrote; tests that change it take a copy."""
    return write_store(tmp_path_factory.mktemp("written"))


def shown(record: Record, root: Path, segment_bytes: int = SEGMENT_BYTES) -> dict[str, object]:
    """The row of a record, made of the record alone."""
    properties = parse(record.properties)
    ip, port = unpack_host(record.born_host)
    start = record.log_offset - record.log_offset % segment_bytes
    return {
        "topic": record.topic,
        "broker": "broker-a",
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_offset": record.log_offset,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "properties": properties,
        "body": bytes(record.body),
        "born_time": record.born_time_ms,
        "store_time": record.store_time_ms,
        "born_host": f"{ip}:{port}",
        "message_id": properties.get("UNIQ_KEY") or offset_id(record.store_host, record.log_offset),
        "reconsume_times": record.reconsume_times,
        "sysflag": record.sysflag,
        "record_bytes": record.size,
        "segment": str(root / "commitlog" / f"{start:020d}"),
        "damage": None,
    }


def plain(row: Row) -> dict[str, object]:
    fields = row.asDict()
    fields["body"] = bytes(fields["body"])
    for name in ("born_time", "store_time"):
        fields[name] = round(fields[name].timestamp() * 1000)
    return fields


def offsets(rows: list[Row]) -> list[int]:
    return sorted(row["log_offset"] for row in rows)


def test_a_store_is_a_table_without_a_broker(spark: SparkSession, written: Path) -> None:
    """U3: all columns of all records, in slices much smaller than a segment; by topic and by time."""
    records = list(LogReader(written))
    frame = load(spark, written, broker="broker-a", sliceBytes=4_000)

    rows = frame.orderBy("log_offset").collect()

    assert [shown(record, written) for record in records] == [plain(row) for row in rows]
    assert frame.rdd.getNumPartitions() > 2 * len(list((written / "commitlog").iterdir()))
    middle = records[150].store_time_ms

    def expected(topic: str, *, begin: int = 0, end: int = 1 << 62) -> list[int]:
        chosen = [record for record in records if record.topic == topic and begin <= record.store_time_ms < end]
        return [record.log_offset for record in chosen]

    narrow = files_reader(spark).schema("log_offset BIGINT")
    assert expected("others") == offsets(narrow.option("topics", "others,nobody").load(str(written)).collect())
    since = files_reader(spark, topicPattern="ord.*", startingTimestamp=middle).load(str(written))
    before = files_reader(spark, topic="orders", endingTimestamp=middle).load(str(written))
    assert expected("orders", begin=middle) == offsets(since.collect())
    assert expected("orders", end=middle) == offsets(before.collect())
    assert since.rdd.getNumPartitions() < len(list((written / "commitlog").iterdir()))


def test_logs_lie_where_they_lie(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    """U3, C1, C9: the log alone, spread over disks, cut by retention; and the queues as a table."""
    records = [record.log_offset for record in LogReader(written)]
    assert records == offsets(load(spark, written / "commitlog").collect())
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]
    for number, path in enumerate(sorted((written / "commitlog").iterdir())):
        disks[number % 2].mkdir(exist_ok=True)
        shutil.copy(path, disks[number % 2])
    assert records == offsets(load(spark, *disks).collect())
    (disks[0] / f"{0:020d}").unlink()
    assert [offset for offset in records if offset >= SEGMENT_BYTES] == offsets(load(spark, *disks).collect())

    entries = load(spark, written, part="queues", topics="orders").orderBy("log_offset").collect()

    orders = [record for record in LogReader(written) if record.topic == "orders"]
    assert [(record.queue_id, record.queue_offset, record.log_offset, record.size) for record in orders] == [
        (row["queue_id"], row["queue_offset"], row["log_offset"], row["record_bytes"]) for row in entries
    ]


def test_what_rocketmq_wrote_is_read_like_ours(spark: SparkSession, unpacked: Path, tmp_path: Path) -> None:
    """U3, V1: directories of 4.9.4 and 5.2.0, one of them of a broker that was killed, in one read."""
    stores = [RecordedStore(unpacked, name, tmp_path) for name in RECORDED]

    rows = load(spark, *(store.root for store in stores), sliceBytes=200_000).collect()

    for store in stores:
        ours = sorted(
            (row for row in rows if row["segment"].startswith(f"{store.root}/")), key=lambda row: row["log_offset"]
        )
        assert [
            (line["log_offset"], line["topic"], line["queue_offset"], line["properties"], line["body_bytes"])
            for line in store.lines
        ] == [
            (row["log_offset"], row["topic"], row["queue_offset"], row["properties"], line["body_bytes"])
            for row, line in zip(ours, store.lines, strict=True)
        ]
        assert [line["body_sha1"] for line in store.lines if not line["sysflag"] & 1] == [
            sha1(bytes(row["body"])) for row in ours if not row["sysflag"] & 1
        ]


def test_long_topics_ipv6_hosts_and_compressed_bodies(spark: SparkSession, tmp_path: Path) -> None:
    """U3, C1: records of both versions side by side."""
    long_topic, host_v6 = "t" * 200, pack_host("fe80::1", 9876)
    with quiet_store(small_config(tmp_path, mapped_file_size_commit_log=1 << 16), clock=ManualClock()) as store:
        for topic, host, body, sysflag in (
            ("short", pack_host("10.0.0.7", 1), b"plain", 0),
            (long_topic, host_v6, b"long", 0),
            ("short", host_v6, zlib.compress(b"z" * 1_000), Sysflag.COMPRESSED),
            (long_topic, pack_host("10.0.0.7", 1), b"", 0),
            ("short", host_v6, b"not compressed at all", Sysflag.COMPRESSED | Sysflag.ZLIB),
        ):
            store.put(Draft(topic, 0, body, join({"KEYS": "k"}), 1, host, sysflag=sysflag))

    rows = load(spark, tmp_path, onCorrupt="skip").orderBy("log_offset").collect()

    assert [
        ("short", "10.0.0.7:1", b"plain"),
        (long_topic, "[fe80::1]:9876", b"long"),
        ("short", "[fe80::1]:9876", b"z" * 1_000),
        (long_topic, "10.0.0.7:1", b""),
        ("short", "[fe80::1]:9876", None),
    ] == [
        (row["topic"], row["born_host"], row["body"] and bytes(row["body"]) if row["body"] else row["body"])
        for row in rows
    ]
    with pytest.raises(PySparkException) as caught:
        load(spark, tmp_path).collect()
    assert "is as it was sent, but the zlib body cannot be decompressed" in sentence_of(caught.value)


def test_damage_fails_is_passed_over_or_kept(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    """U3: a flipped bit in a body, and bytes that are no records at all."""
    root = shutil.copytree(written, tmp_path / "store")
    records = list(LogReader(written))
    flipped, shot = records[100], records[200]
    path = str(root / "commitlog" / f"{flipped.log_offset - flipped.log_offset % SEGMENT_BYTES:020d}")
    for record in (flipped, shot):
        start = record.log_offset - record.log_offset % SEGMENT_BYTES
        at = record.log_offset - start
        spoiled = at + FIXED_V4_BYTES if record is flipped else at
        edit(root / "commitlog" / f"{start:020d}", spoiled, b"\xff" * (1 if record is flipped else 30))
    whole = [record.log_offset for record in records if record not in (flipped, shot)]

    with pytest.raises(PySparkException) as caught:
        load(spark, root, sliceBytes=4_000).collect()
    assert (
        f"{path} is damaged at log offset {flipped.log_offset} ({flipped.size} bytes): the body of the record does not "
        "match its CRC; copy the segment from a slave or a backup, or set the option onCorrupt to skip or keep"
    ) == sentence_of(caught.value)
    assert whole == offsets(load(spark, root, onCorrupt="skip", sliceBytes=4_000).collect())

    kept = load(spark, root, onCorrupt="keep", sliceBytes=4_000).cache()

    assert whole == offsets(kept.where("damage IS NULL").collect())
    assert [
        (
            flipped.log_offset,
            flipped.size,
            "orders",
            flipped.queue_offset,
            "the body of the record does not match its CRC",
        ),
        (shot.log_offset, shot.size, None, None, Damage.NO_RECORD.value),
    ] == [
        (row["log_offset"], row["record_bytes"], row["topic"], row["queue_offset"], row["damage"])
        for row in kept.where("damage IS NOT NULL").orderBy("log_offset").collect()
    ]


def test_bad_input_is_one_clear_sentence(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    """U3: no store, files that do not fit, options that cannot be; and a log that a killed broker left."""
    root = shutil.copytree(written, tmp_path / "store")
    (tmp_path / "empty").mkdir()
    segments = sorted((root / "commitlog").iterdir())

    def sentence(*paths: Path, **options: object) -> str:
        with pytest.raises(PySparkException) as caught:
            load(spark, *paths, **options).collect()
        return sentence_of(caught.value)

    assert f"there is no directory {tmp_path}/nowhere on this machine; " in sentence(tmp_path / "nowhere")
    assert f"{tmp_path}/empty is not a store: it contains neither a commitlog nor segments" in sentence(
        tmp_path / "empty"
    )
    assert "'onCorrupt'?" in sentence(root, oncorupt="skip")
    assert "invalid option onCorrupt='maybe': expected one of fail, skip, keep" in sentence(root, onCorrupt="maybe")
    assert "invalid option startingTimestamp='noon': expected ms" in sentence(root, startingTimestamp="noon")
    assert "no directory is given" in sentence()
    with segments[1].open("r+b") as file:
        file.truncate(1_000)
    assert f"{segments[1]} has 1000 bytes, but mappedFileSizeCommitLog is {SEGMENT_BYTES}; " in sentence(root)
    records = [record.log_offset for record in LogReader(written)]
    salvaged = offsets(load(spark, root, onCorrupt="skip").collect())
    assert set(salvaged) < set(records)
    assert max(records) == max(salvaged)
    segments[1].unlink()
    assert f"{segments[2]} does not follow the file before it" in sentence(root)
    shutil.copy(written / "commitlog" / segments[1].name, segments[1])
    last = records[-1]
    edit(root / "commitlog" / f"{last - last % SEGMENT_BYTES:020d}", last % SEGMENT_BYTES + FIXED_V4_BYTES, b"\xff")
    # In a store that was closed, the last record is whole; a broker that died may have left half of it.
    assert "does not match its CRC" in sentence(root)
    (root / "abort").touch()
    assert records[:-1] == offsets(load(spark, root).collect())
