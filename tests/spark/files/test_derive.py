"""Entries of queues and index for many records at once, against the store's own folds (U4)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ternmq.names import SCHEDULE_TOPIC
from ternmq.spark.files.columns import LogRows
from ternmq.spark.files.derive import KEYED, Rules, index_entries, queue_runs
from ternmq.spark.files.index_file import IndexWriter
from ternmq.spark.files.queues import ENTRIES
from ternmq.spark.source.records import Records
from ternmq.store.derived.dispatch import Dispatcher
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.index import Index
from ternmq.store.derived.key_hash import KeyHashes
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.inspect.rebuild import LeftOut
from ternmq.wire.layouts.index_file import index_file_bytes
from ternmq.wire.record import RECORD_BYTES_MIN, pack_record, unpack_records
from tests.store.small import HOST, files

KEYS = (
    "k",
    "order-1 order-2",
    " two  blanks ",
    "ключ",
    "a\U0001f600b",
    "x" * 1_500,
    "C0A80001" * 4,
    "c0a80001" * 4,
    "",
)
SYSFLAGS = (0, 0, 0, 0x4, 0x8, 0xC)


def record(chance: random.Random, log_offset: int) -> bytes:
    """Any record: odd properties, topics, transaction states."""
    topic = chance.choice(("orders", "others", "заказы", SCHEDULE_TOPIC, "t" * 130)).encode()
    pairs = [
        (
            "UNIQ_KEY",
            chance.choice((f"{chance.getrandbits(128):032X}", f"{chance.getrandbits(224):056X}", "short", "")),
        ),
        ("KEYS", chance.choice(KEYS)),
        ("TAGS", chance.choice(("A", "B", "", "тег"))),
        ("DELAY", chance.choice(("1", "99", "", "x"))),
    ]
    chance.shuffle(pairs)
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value or chance.random() < 0.1)
    properties = text[: -1 if chance.random() < 0.3 and text else None].encode()
    body = b"b" * chance.randrange(5)
    size = RECORD_BYTES_MIN + len(body) + len(topic) + len(properties) + (len(topic) > 127)
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=chance.randrange(3),
        flag=0,
        queue_offset=chance.choice((0, 1, 2, 3, 50)),
        log_offset=log_offset,
        sysflag=chance.choice(SYSFLAGS),
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=1_700_000_000_000 + log_offset,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=topic,
        properties=properties,
    )
    return bytes(page)


def many(seed: int) -> bytes:
    chance, data = random.Random(seed), b""
    for _ in range(chance.choice((1, 5, 60))):
        data += record(chance, len(data))
    return data


@pytest.mark.parametrize("seed", range(30))
def test_entries_are_those_of_the_store_s_folds(tmp_path: Path, seed: int) -> None:
    """C2, C4, I1: of every record its queue, tags code or due time, and the hashes of all its keys."""
    data, delays_ms = many(seed), (1_000, 5_000)
    queues = ConsumeQueues(FileDisk(), tmp_path, file_bytes=2000)
    deleted = DeletedTopics(FileDisk(), tmp_path / "deleted")
    dispatcher = Dispatcher(queues, None, deleted, delays_ms=delays_ms)
    facts = [dispatcher.fact(each) for each in unpack_records(data)]

    rows = LogRows(Records(data), segment="")
    rules = Rules(
        LeftOut(frozenset(), frozenset({"orders", "заказы", SCHEDULE_TOPIC, "t" * 130})), {}, False, delays_ms
    )

    def expected(fact: Fact) -> tuple[object, ...]:
        return fact.topic, fact.queue_id, fact.queue_offset, fact.log_offset, fact.size, fact.tags_code

    found = [
        (topic, queue_id, queue_offset + number, *entry)
        for runs in queue_runs(rows, rules)
        for topic, queue_id, queue_offset, entries in zip(
            *(each.to_pylist() for each in (runs.topics, runs.queue_ids, runs.queue_offsets, runs.entries)), strict=True
        )
        for number, entry in enumerate(np.frombuffer(entries, ENTRIES).tolist())
    ]
    assert sorted(expected(fact) for fact in facts if fact.is_queued and fact.topic != "others") == sorted(found)
    keyed = [(fact.topic, fact.properties, fact.log_offset, fact.store_time_ms) for fact in facts if fact.is_indexed]
    assert KeyHashes().entries(keyed) == index_entries(rows).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_index_files_are_the_store_s_to_the_byte(tmp_path: Path, seed: int) -> None:
    """C4: chains, slots, seconds and headers, whatever batches the entries come in."""
    chance = random.Random(seed)
    slots, entries, count = chance.choice((3, 50)), 40, chance.choice((1, 38, 39, 40, 100))
    log_offset, time_ms, made = 0, chance.choice((0, 1_700_000_000_000)), []
    for _ in range(count):
        made.append((chance.choice((0, 7, chance.getrandbits(31))), log_offset, time_ms))
        log_offset += chance.choice((0, 100))
        time_ms += chance.choice((0, 1, 999, 5_000_000, -2_000))
    size = index_file_bytes(slots, entries)
    index = Index(
        FileDisk(), tmp_path / "index", slots=slots, entries=entries, file_bytes=size, now_ms=lambda: 1_700_000_000_000
    )
    index._entries_left = list(made)
    index.write_out()
    index.close()

    keyed, per_file = np.array(made, KEYED), entries - 1
    for number, begin in enumerate(range(0, count, per_file)):
        own = keyed[begin : begin + per_file]
        before_ms = int(keyed["store_time_ms"][begin - 1]) if begin else 0
        path = tmp_path / "ours" / str(number)
        writer = IndexWriter(path, slots=slots, entries=entries, count=len(own), before_ms=before_ms)
        at = 0
        while at < len(own):
            step = chance.randrange(1, 30)
            writer.add(own[at : at + step])
            at += step
        writer.close()

    assert [*files(tmp_path / "index").values()] == [*files(tmp_path / "ours").values()]
