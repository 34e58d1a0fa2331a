"""Units beside queue entries: RocketMQ's ConsumeQueueExt files (C3)."""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.errors import CorruptFile, StoreError
from ternmq.filter.bloom import BloomFilter
from ternmq.store.derived.dispatch import OnArrival
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queue_ext import ADDRESS_ZERO, UNIT, QueueExt, Unit
from ternmq.store.disk.segment import segment_name
from ternmq.store.store import Fact, GetStatus, MessageStore, StoreConfig
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.ids import java_hash
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.properties import find
from ternmq.wire.record import unpack_record, unpack_records
from tests.manual_clock import ManualClock
from tests.store.disks import TroubledDisk
from tests.store.small import HOST, bodies, draft, files, put_all, quiet_store, small_config

RED, BLUE = java_hash("red"), java_hash("blue")
NOW_MS = ManualClock().now_ms()


def config_of(root: Path, *, on: bool = True, **changes: Any) -> StoreConfig:
    return small_config(root, enable_consume_queue_ext=on, mapped_file_size_consume_queue_ext=200, **changes)


def bits_at(queue_offset: int) -> bytes:
    """A map whose length tells the number, so that units differ in size."""
    return bytes([queue_offset % 251]) * (queue_offset % 5)


def bits_of(fact: Fact) -> bytes:
    return bits_at(fact.queue_offset)


def opened(
    config: StoreConfig,
    *,
    clock: ManualClock | None = None,
    bits: Callable[[Fact], bytes] = bits_of,
    on_arrival: OnArrival | None = None,
) -> MessageStore:
    return quiet_store(config, clock=clock, bits=bits, on_arrival=on_arrival)


def queue_of(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> ConsumeQueue:
    queue = store._queues.get(topic, queue_id)
    assert queue is not None
    return queue


def ext_of(store: MessageStore) -> QueueExt:
    ext = queue_of(store).ext
    assert ext is not None
    return ext


def fields(store: MessageStore) -> list[int]:
    """The tags fields of the queue's entries."""
    queue = queue_of(store)
    entries = [queue.entry(number) for number in range(queue.min_offset, queue.next_offset)]
    return [entry[2] for entry in entries if entry is not None]


def put(store: MessageStore, count: int, tags: str = "red") -> None:
    for _ in range(count):
        number = store.max_offset("orders", 0)
        store.put(draft(body=str(number).encode(), TAGS=tags))


def found(store: MessageStore, code: int) -> list[int]:
    """Queue offsets of the messages with a tags code, as a pull finds them."""
    numbers: list[int] = []
    queue_offset = store.min_offset("orders", 0)
    while queue_offset < store.max_offset("orders", 0):
        result = store.get("orders", 0, queue_offset, count_max=32, matches=lambda given: given == code)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        numbers += [record.queue_offset for buffer in result.buffers for record in unpack_records(buffer)]
        queue_offset = result.next_offset
    return numbers


def test_units_spare_the_reading_of_records(tmp_path: Path) -> None:
    """C3, K3: a record is asked for its properties only if its unit may pass; one without a unit is asked."""
    put_by(tmp_path, on=True, count=3)
    put_by(tmp_path, on=False, count=1)
    put_by(tmp_path, on=True, count=1)
    units: list[Unit] = []
    asked: list[str | None] = []

    def may_pass(unit: Unit) -> bool:
        units.append(unit)
        return len(unit.bits) != 1

    def accepts(properties: str) -> bool:
        asked.append(find(properties, "TAGS"))
        return properties != "TAGS\x012\x02"

    store = opened(config_of(tmp_path))
    result = store.get("orders", 0, 0, count_max=32, may_pass=may_pass, accepts=accepts)
    numbers = [record.queue_offset for buffer in result.buffers for record in unpack_records(buffer)]
    store.close()

    assert [bits_at(number) for number in (0, 1, 2, 4)] == [unit.bits for unit in units]
    assert ["0", "2", "3", "4"] == asked
    assert [0, 3, 4] == numbers


def test_a_record_whose_unit_is_missing_is_asked_itself(tmp_path: Path) -> None:
    """C3, K3: it is not known what its map said."""
    put_by(tmp_path, on=True, count=2)
    (tmp_path / "consumequeue_ext" / "orders" / "0" / segment_name(0)).unlink()
    store = opened(config_of(tmp_path, on=False))
    assert ext_of(store).file_count == 0
    result = store.get("orders", 0, 0, count_max=32, may_pass=lambda _: False, accepts=lambda text: "\x011" in text)
    assert [1] == [record.queue_offset for buffer in result.buffers for record in unpack_records(buffer)]
    store.close()


def put_by(root: Path, *, on: bool, count: int) -> None:
    """Messages whose tag is their number, with units or without."""
    store = opened(config_of(root, on=on))
    for _ in range(count):
        store.put(draft(TAGS=str(store.max_offset("orders", 0))))
    store.close()


# --- Layout -----------------------------------------------------------------------------------------------------


def test_units_stand_in_files_as_rocketmq_has_them(tmp_path: Path) -> None:
    """C3: size, tags code, store time, bytes of the map, map; the entry holds the position less 2**63."""
    store = opened(config_of(tmp_path))
    put(store, 2, "red")
    put(store, 1, "")
    assert [ADDRESS_ZERO, ADDRESS_ZERO + 20, ADDRESS_ZERO + 41] == fields(store)
    store.close()

    expected = b"".join(
        (
            struct.pack(">hqqh", 20, RED, NOW_MS, 0),
            struct.pack(">hqqh", 21, RED, NOW_MS, 1) + b"\x01",
            struct.pack(">hqqh", 22, 0, NOW_MS, 2) + b"\x02\x02",
        )
    )
    assert {f"orders/0/{segment_name(0)}": expected.ljust(200, b"\0")} == files(tmp_path / "consumequeue_ext")


def test_a_unit_that_does_not_fit_goes_to_the_next_file(tmp_path: Path) -> None:
    """C3: 4 bytes stay free; -1 in two bytes ends a file."""
    # Units of 49 bytes: four and the end are exactly 200.
    store = opened(config_of(tmp_path), bits=lambda fact: b"b" * (29 if fact.queue_offset < 4 else 30))
    put(store, 8)
    assert [0, 49, 98, 147, 200, 250, 300, 400] == [field - ADDRESS_ZERO for field in fields(store)]
    store.close()

    written = files(tmp_path / "consumequeue_ext" / "orders" / "0")
    assert [segment_name(start) for start in (0, 200, 400)] == list(written)
    assert b"\xff\xff\0\0" == written[segment_name(0)][196:]
    assert b"\xff\xff" + bytes(48) == written[segment_name(200)][150:]


def test_the_defaults_are_rocketmqs() -> None:
    """C3, T2: off; files of 48 MiB."""
    config = StoreConfig(store_path_root_dir=Path("/store"))
    assert (False, 50_331_648, 64) == (
        config.enable_consume_queue_ext,
        config.mapped_file_size_consume_queue_ext,
        config.bit_map_length_consume_queue_ext,
    )


def test_without_the_switch_there_is_no_directory(tmp_path: Path) -> None:
    """C3: and entries hold tags codes."""
    store = opened(config_of(tmp_path, on=False))
    put(store, 3)
    assert [RED] * 3 == fields(store)
    assert queue_of(store).ext is None
    store.close()
    assert not (tmp_path / "consumequeue_ext").exists()


def test_a_map_that_no_unit_can_hold_leaves_the_tags_code(tmp_path: Path) -> None:
    """C3: the message is stored; filters look at it later."""
    store = opened(config_of(tmp_path), bits=lambda fact: bytes(176 if fact.queue_offset else 177))
    put(store, 2)
    assert [RED, ADDRESS_ZERO] == fields(store)
    assert [0, 1] == found(store, RED)
    store.close()


def test_halves_have_no_unit(tmp_path: Path) -> None:
    """C3: a record without an entry has nothing to stand beside."""
    store = opened(config_of(tmp_path))
    half = draft(TAGS="red")
    half.sysflag = 4
    store.put(half)
    put(store, 1)
    assert [ADDRESS_ZERO] == fields(store)
    store.close()


# --- Reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("restart", [True, False])
def test_filters_get_the_tags_code_itself(on: bool, restart: bool, tmp_path: Path) -> None:
    """C3: from memory and from files; also when the switch is off and another process wrote the units."""
    store = opened(config_of(tmp_path))
    for number in range(40):
        put(store, 1, "red" if number % 3 else "blue")
    if restart or not on:
        store.close()
        store = opened(config_of(tmp_path, on=on))
    reds = [number for number in range(40) if number % 3]
    assert reds == found(store, RED)
    assert [number for number in range(40) if number not in reds] == found(store, BLUE)
    assert [] == found(store, 1)
    assert 40 == len(bodies(store))
    store.close()


def test_a_unit_is_read_back_whole(tmp_path: Path) -> None:
    """C3: tags code, store time and a map longer than what is read at a time."""
    config = small_config(tmp_path, enable_consume_queue_ext=True)
    store = opened(config, bits=lambda fact: b"map" if fact.queue_offset else bytes(range(256)) * 127)
    put(store, 1)
    put(store, 1, "blue")
    expected = [Unit(RED, NOW_MS, bytes(range(256)) * 127), Unit(BLUE, NOW_MS, b"map")]
    addresses = fields(store)
    assert expected == [ext_of(store).read(address) for address in addresses]
    store.close()

    store = opened(config)
    assert expected == [ext_of(store).read(address) for address in addresses]
    store.close()


def test_no_unit_is_found_where_none_is(tmp_path: Path) -> None:
    """C3: behind the row, between units, in a file's end, beyond all files."""
    store = opened(config_of(tmp_path))
    put(store, 12)
    ext = ext_of(store)
    real = {field - ADDRESS_ZERO for field in fields(store)}
    for _ in range(2):
        for position in (ext.end, ext.end + 30, 1000, 1 << 62, *(position + 1 for position in real)):
            assert ext.read(position + ADDRESS_ZERO) is None
        queue_of(store).write_out()
    store.close()


def test_arrivals_are_told_the_tags_code(tmp_path: Path) -> None:
    """C3, F8: a consumer that waits for a tag waits for the code, not for an address."""
    told: list[tuple[str, int, int, int]] = []
    store = opened(config_of(tmp_path), on_arrival=lambda *what: told.append(what[:4]))
    put(store, 1)
    put_all(store, [draft(TAGS="blue"), draft()])
    assert [("orders", 0, 1, RED), ("orders", 0, 3, BLUE), ("orders", 0, 3, 0)] == told
    store.close()


def test_the_map_is_made_from_the_facts_of_the_record(tmp_path: Path) -> None:
    """C3, K3: once for a fresh record, alone or in a batch, and again by a fold."""
    facts: list[Fact] = []
    bloom = BloomFilter.sized(error_percent=20, names=32)
    positions = bloom.positions("g#orders")

    def bits(fact: Fact) -> bytes:
        facts.append(fact)
        return bloom.bits([positions] if "TAGS\x01red" in fact.properties else [])

    store = quiet_store(config_of(tmp_path), bits=bits)
    put(store, 1)
    put_all(store, [draft(TAGS="red"), draft(TAGS="blue")])
    units = [ext_of(store).read(address) for address in fields(store)]
    assert [True, True, False] == [bloom.tester(positions)(unit.bits) for unit in units if unit is not None]
    store.close()

    fresh = facts.copy()
    facts.clear()
    shutil.rmtree(tmp_path / "consumequeue")
    store = quiet_store(config_of(tmp_path), bits=bits)
    assert fresh == facts
    assert units == [ext_of(store).read(address) for address in fields(store)]
    store.close()


# --- Life -------------------------------------------------------------------------------------------------------


def crashed(store: MessageStore, into: Path) -> StoreConfig:
    shutil.copytree(store.config.store_path_root_dir, into)
    return config_of(into)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 6)),
        st.tuples(st.just("batch"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["write out", "restart", "crash", "lose queues", "delete topic"]), st.just(0)),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_units_are_a_fold_of_the_log(steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """C3, C8: whatever happens, queues and units are those of a store that read the log from its beginning."""
    base = tmp_path_factory.mktemp("ext")
    store = opened(config_of(base / "0"))
    tags: list[str] = []
    for number, (step, count) in enumerate(steps, 1):
        root = store.config.store_path_root_dir
        drafts = [draft(TAGS="red" if (len(tags) + each) % 3 else "blue") for each in range(count)]
        match step:
            case "put":
                for each in drafts:
                    store.put(each)
            case "batch":
                put_all(store, drafts)
            case "write out":
                store._queues.write_out(100)
            case "restart":
                store.close()
                store = opened(config_of(root))
            case "crash" | "lose queues":
                config = crashed(store, base / str(number))
                store.close()
                if step == "lose queues":
                    shutil.rmtree(config.store_path_root_dir / "consumequeue", ignore_errors=True)
                store = opened(config)
            case _:
                store.delete_topics(["orders"])
                tags = []
        tags += ["red" if each % 3 else "blue" for each in range(len(tags), len(tags) + count)]
        assert [number for number, tag in enumerate(tags) if tag == "red"] == found(store, RED)
    store.close()

    root, fresh = store.config.store_path_root_dir, base / "fresh"
    if store.written:
        shutil.copytree(root / "commitlog", fresh / "commitlog")
        # A topic without queues leaves no note.
        if (notes := root / "deletedTopics.json").exists():
            shutil.copy(notes, fresh)
        opened(config_of(fresh)).close()
        for name in ("consumequeue", "consumequeue_ext"):
            assert files(fresh / name) == files(root / name)


@pytest.mark.parametrize("seed", range(40))
def test_no_power_cut_separates_an_entry_from_its_unit(seed: int) -> None:
    """C3, C8: whatever is left of files and names, each address leads to the unit of its record."""
    random, clock = Random(seed), ManualClock()
    disk = SimulatedDisk(page_bytes=512, names_in_order=bool(seed % 2), now_ms=clock.now_ms)
    config = config_of(Path("/store"), flush_consume_queue_thorough_interval=5_000, mapped_file_size_consume_queue=400)
    acknowledged = 0
    for _ in range(8):
        store = MessageStore.open(config, store_host=HOST, clock=clock, disk=disk, bits=bits_of, threads=False)
        check_units(store, at_least=acknowledged)
        for _ in range(random.randrange(60)):
            clock.advance(random.choice((0, 0.1, 1, 3)))
            match random.randrange(8):
                case 0:
                    store.tick()
                case 1:
                    store.flush_now()
                    acknowledged = store.max_offset("orders", 0)
                case 2:
                    disk.write_back(random)
                case _:
                    put(store, random.randrange(1, 5), random.choice(("red", "blue")))
        if random.random() < 0.3:
            store.close()
            acknowledged = store.max_offset("orders", 0)
        elif random.random() < 0.7:
            disk.power_cut(random)
        else:
            disk.die()


def check_units(store: MessageStore, *, at_least: int) -> None:
    """Each entry holds an address, and the unit there tells what the record does."""
    assert at_least <= store.max_offset("orders", 0)
    for number, field in enumerate(fields(store) if store.max_offset("orders", 0) else []):
        entry = queue_of(store).entry(number)
        assert entry is not None
        data = store.record_at(entry[0], entry[1])
        assert data is not None
        record = unpack_record(data)
        expected = java_hash(find(record.properties, "TAGS") or ""), record.store_time_ms, bits_at(number)
        assert expected == ext_of(store).read(field)


def test_a_cut_takes_units_with_their_entries(tmp_path: Path) -> None:
    """C3, C8: files behind the last unit that is left are deleted, its own file is zeroed."""
    store = opened(config_of(tmp_path))
    put(store, 20)
    before = fields(store)
    queue = queue_of(store)
    entry = queue.entry(5)
    assert entry is not None
    queue.cut(entry[0])
    assert (before[:5], before[5] - ADDRESS_ZERO) == (fields(store), ext_of(store).end)
    (data,) = files(tmp_path / "consumequeue_ext").values()
    assert not any(data[before[5] - ADDRESS_ZERO :])
    queue.cut(0)
    assert 0 == ext_of(store).end
    assert {} == files(tmp_path / "consumequeue_ext")
    store.close()


def test_stale_units_behind_the_row_go_before_the_first_write(tmp_path: Path) -> None:
    """C3: RocketMQ cuts without zeroing, and a later walk of it could run into the rest of a unit."""
    store = opened(config_of(tmp_path))
    put(store, 3)
    end = ext_of(store).end
    store.close()
    path = tmp_path / "consumequeue_ext" / "orders" / "0" / segment_name(0)
    path.write_bytes(path.read_bytes()[:end].ljust(200, b"\x07"))
    (path.parent / segment_name(200)).write_bytes(b"\x07" * 200)

    store = opened(config_of(tmp_path))
    put(store, 1)
    assert end == fields(store)[-1] - ADDRESS_ZERO
    store.close()
    assert [segment_name(0)] == list(files(path.parent))
    assert UNIT.pack(23, RED, NOW_MS, 3) + b"\3\3\3" + bytes(200 - end - 23) == path.read_bytes()[end:]


def test_old_files_of_units_go_when_the_log_forgets(tmp_path: Path) -> None:
    """C3, C9: those before the first entry that is left; the others stay readable."""
    store = opened(config_of(tmp_path))
    put(store, 60)
    queue = queue_of(store)
    queue.write_out()
    entry = queue.entry(33)
    assert entry is not None
    queue.raise_min(entry[0])
    first = (entry[2] - ADDRESS_ZERO) // 200 * 200
    assert first > 0
    assert segment_name(first) == min(files(tmp_path / "consumequeue_ext" / "orders" / "0"))
    assert list(range(33, 60)) == found(store, RED)
    store.close()


def test_a_deleted_topic_takes_its_units_along(tmp_path: Path) -> None:
    """C3, D1: made again it begins with address 0."""
    store = opened(config_of(tmp_path))
    put(store, 20)
    queue_of(store).write_out()
    store.delete_topics(["orders"])
    assert not (tmp_path / "consumequeue_ext" / "orders").exists()
    put(store, 1)
    assert [ADDRESS_ZERO] == fields(store)
    store.close()


@pytest.mark.parametrize("plain", [1, 30, 500])
def test_the_switch_may_be_turned_off_and_on(plain: int, tmp_path: Path) -> None:
    """C3: entries of both kinds stand in one queue, and no address is given twice."""
    store = opened(config_of(tmp_path))
    put(store, 10, "blue")
    first = fields(store)
    store.close()
    store = opened(config_of(tmp_path, on=False))
    put(store, plain)
    assert list(range(10, 10 + plain)) == found(store, RED)
    store.close()
    store = opened(config_of(tmp_path))
    put(store, 10, "blue")
    assert [*first, *[RED] * plain] == fields(store)[: 10 + plain]
    assert min(fields(store)[10 + plain :]) > max(first)
    assert [*range(10), *range(10 + plain, 20 + plain)] == found(store, BLUE)
    assert list(range(10, 10 + plain)) == found(store, RED)
    store.close()


# --- Damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [0, 7])
def test_entries_without_their_units_pass_every_filter(
    plain: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C3: as in RocketMQ, the client looks again. New units are not taken for those that are gone."""
    store = opened(config_of(tmp_path))
    put(store, 30, "blue")
    last = max(fields(store))
    store.close()
    store = opened(config_of(tmp_path, on=False))
    put(store, plain, "red")
    store.close()
    shutil.rmtree(tmp_path / "consumequeue_ext")

    store = opened(config_of(tmp_path, on=False))
    assert list(range(30 + plain)) == found(store, RED)
    assert list(range(30)) == found(store, BLUE)
    store.close()
    with caplog.at_level(logging.WARNING):
        store = opened(config_of(tmp_path))
        put(store, 30, "red")
    assert ["units are missing, the row starts over"] == [record.message for record in caplog.records]
    assert min(fields(store)[30 + plain :]) > last
    assert list(range(60 + plain)) == found(store, RED)
    assert list(range(30)) == found(store, BLUE)
    store.close()
    store = opened(config_of(tmp_path))
    assert list(range(30)) == found(store, BLUE)
    store.close()


def test_units_without_their_queue_are_forgotten(tmp_path: Path) -> None:
    """C3: a queue that is folded again gets new ones."""
    store = opened(config_of(tmp_path))
    put(store, 20)
    store.close()
    before = files(tmp_path / "consumequeue_ext")
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(config_of(tmp_path))
    assert list(range(20)) == found(store, RED)
    store.close()
    assert before == files(tmp_path / "consumequeue_ext")


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    """C3: the sentence names file and setting; nothing is touched."""
    store = opened(config_of(tmp_path))
    put(store, 3)
    store.close()
    before = files(tmp_path)
    for on in (True, False):
        config = small_config(tmp_path, enable_consume_queue_ext=on)
        with pytest.raises(CorruptFile, match="has 200 bytes, but mappedFileSizeConsumeQueueExt is 50331648; set"):
            quiet_store(config)
    assert before == files(tmp_path)


def test_files_that_a_power_cut_left_behind_are_removed(tmp_path: Path) -> None:
    """C3, C8: behind one that is missing, or without their length; and of queues that are gone."""
    store = opened(config_of(tmp_path))
    put(store, 20)
    store.close()
    (tmp_path / "abort").touch()
    for queue_id in ("0", "7"):
        directory = tmp_path / "consumequeue_ext" / "orders" / queue_id
        directory.mkdir(exist_ok=True)
        (directory / segment_name(1000)).touch()
        (directory / segment_name(2000)).write_bytes(b"\7" * 200)
    for _ in range(2):
        store = opened(config_of(tmp_path))
        assert list(range(20)) == found(store, RED)
        store.close()
    assert {"orders/0"} == {name.rpartition("/")[0] for name in files(tmp_path / "consumequeue_ext")}


def test_a_full_disk_takes_neither_entry_nor_unit(tmp_path: Path) -> None:
    """C3, C9: what was put is served from memory, and written when there is space again."""
    disk = TroubledDisk()
    store = MessageStore.open(config_of(tmp_path), store_host=HOST, clock=ManualClock(), disk=disk, threads=False)
    put(store, 3)
    disk.is_full = True
    for write_out in (queue_of(store).write_out, queue_of(store).write_out):
        with pytest.raises(StoreError, match="full"):
            write_out()
    assert [0, 1, 2] == found(store, RED)
    disk.is_full = False
    put(store, 2, "blue")
    store.close()
    store = opened(config_of(tmp_path))
    assert ([0, 1, 2], [3, 4]) == (found(store, RED), found(store, BLUE))
    store.close()


def test_a_row_that_cannot_be_read_costs_units_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C3: the record is in the log already; the message is stored, and a log line tells it once."""
    store = opened(config_of(tmp_path))
    put(store, 3, "blue")
    store.close()

    disk = _Unreadable()
    store = MessageStore.open(config_of(tmp_path), store_host=HOST, clock=ManualClock(), disk=disk, threads=False)
    disk.is_broken = True
    with caplog.at_level(logging.WARNING):
        put(store, 2)
    disk.is_broken = False
    assert ["units cannot be written; filters read each message"] == [record.message for record in caplog.records]
    put(store, 1)
    assert [RED, RED] == fields(store)[3:5]
    assert ([3, 4, 5], [0, 1, 2]) == (found(store, RED), found(store, BLUE))
    store.close()


class _Unreadable(TroubledDisk):
    is_broken = False

    def open_file(self, path: Path, *, create_size: int | None = None) -> Any:
        if self.is_broken and "consumequeue_ext" in path.parts:
            raise StoreError(f"cannot open {path}: Input/output error")
        return super().open_file(path, create_size=create_size)


def test_entries_with_addresses_are_what_rocketmq_reads(tmp_path: Path) -> None:
    """C3: 20 bytes, the address where the tags code was."""
    store = opened(config_of(tmp_path))
    put(store, 1)
    store.close()
    data = (tmp_path / "consumequeue" / "orders" / "0" / segment_name(0)).read_bytes()
    assert (0, -(1 << 63)) == ENTRY.unpack_from(data)[::2]
