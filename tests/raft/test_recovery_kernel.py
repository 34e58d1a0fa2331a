"""A member of a Raft group that starts with compiled kernels finds what one without them finds (P2, C8; issue 21)."""

from __future__ import annotations

import shutil
import struct
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.errors import TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.config import StoreConfig
from ternmq.store.derived import follower, index
from ternmq.store.disk.file_disk import FileDisk
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, INDEX_UNIT_BYTES, pack_entry_header
from tests.manual_clock import ManualClock
from tests.store.small import draft, files, quiet_store, small_config

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

SEGMENT: Final = 8192
NUMBER_MAX: Final = 2**63 - 1
_CRC_OF_RECORD: Final = struct.Struct(">I")


def config_of(root: Path) -> StoreConfig:
    return small_config(root, mapped_file_size_commit_log=SEGMENT, max_index_num=1000)


def raft_log(root: Path) -> RaftLog:
    paths = RaftPaths.of(config_of(root), "n0")
    return RaftLog(FileDisk(), paths, segment_bytes=SEGMENT, index_file_bytes=64 * INDEX_UNIT_BYTES)


def fill(root: Path, count: int, *, confirmed: int) -> list[tuple[Path, int, int]]:
    """A member that was not closed; of each entry its file, where it begins there, and its size."""
    log, clock = raft_log(root), ManualClock()
    with quiet_store(config_of(root), log=log, clock=clock) as store:
        for number in range(count):
            log.term = 1 + number // 7
            topic = "t" * 130 if number % 11 == 10 else "orders"
            store.put(draft(topic[:120], number % 3, b"%d" % number * 20, KEYS=f"k{number}", TAGS="ab"[number % 2]))
            clock.advance(400)
        end = log.end_of(min(confirmed, count) - 1)
        assert end is not None
        store.confirm(end)
        log.note_committed(min(confirmed, count) - 1)
        places = [(log.position_of(number), log.end_of(number)) for number in range(count)]
    (root / "abort").touch()
    return [
        (root / "dledger-n0" / "data" / f"{begin - begin % SEGMENT:020d}", begin % SEGMENT, end - begin)
        for begin, end in places
        if begin is not None and end is not None
    ]


def damage(place: tuple[Path, int, int], what: str, value: int) -> None:
    """Change an entry as a disk, or DLedger, may have left it."""
    path, at, size = place
    data = bytearray(path.read_bytes())
    _, _, number, term, position, _, _, record_crc, record_bytes = ENTRY_HEADER.unpack_from(data, at)
    record = bytes(data[at + ENTRY_HEADER_BYTES : at + size])
    before = (1, ENTRY_HEADER_BYTES + record_bytes)
    if what == "flip":
        data[at + value % size] ^= 1 << value % 8
    elif what == "index":
        # Of an entry that was taken back, and has right checksums.
        data[at : at + ENTRY_HEADER_BYTES] = pack_entry_header((number + value) % 100, term, position, record)
    elif what == "term":
        data[at : at + ENTRY_HEADER_BYTES] = pack_entry_header(number, value % 9, position, record)
    elif what == "position":
        data[at : at + ENTRY_HEADER_BYTES] = pack_entry_header(number, term, position + value, record)
    elif what == "no checksums":
        # As DLedger writes them; also with a number, or a term, that none can follow.
        number = NUMBER_MAX if value % 7 == 0 else number
        term = NUMBER_MAX if value % 7 == 1 else term
        ENTRY_HEADER.pack_into(data, at, *before, number, term, position, 0, 0, 0, record_bytes)
    elif what == "checksum of the record":
        data[at + 40 : at + 44] = _CRC_OF_RECORD.pack(record_crc ^ (value or 1) & 0xFFFFFFFF)
    elif what == "cut":
        data[at + value % size :] = bytes(len(data) - at - value % size)
    path.write_bytes(data)


def started(root: Path) -> tuple[Any, ...]:
    """What a start finds, or why it fails; and the files afterwards."""
    log = raft_log(root)
    try:
        with quiet_store(config_of(root), log=log) as store:
            pending = len(store._pending)
            found = [log.first_index, log.last_index, log.last_term, log.end, log.committed, store.dispatched, pending]
            log.term = log.last_term + 1
            placed = store.put(draft())
            store.confirm(store.written)
            found += [placed.log_offset, placed.queue_offset]
    except TernError as error:
        return type(error), str(error).replace(str(root), "")
    home = root / "dledger-n0"
    return (
        found,
        files(root / "consumequeue"),
        [*files(root / "index").values()],
        files(home / "data"),
        files(home / "index"),
    )


kinds = st.sampled_from(("flip", "flip", "index", "term", "position", "no checksums", "checksum of the record", "cut"))
damages = st.tuples(st.integers(0, 59), kinds, st.integers(-3, 1 << 16))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.lists(damages, max_size=3),
    st.sets(st.sampled_from(("consumequeue", "index", "dledger-n0/index", "checkpoint", "dledger-n0/checkpoint"))),
)
@example(60, 60, [], {"checkpoint"})
@example(60, 40, [(30, "index", 1)], {"checkpoint", "consumequeue"})
@example(60, 60, [(20, "no checksums", 7), (21, "no checksums", 7)], {"checkpoint", "consumequeue"})
@example(1, 1, [(0, "no checksums", 7)], set())
@example(2, 1, [(1, "no checksums", 1)], {"dledger-n0/index"})
def test_a_start_with_kernels_finds_what_one_without_finds(
    count: int, confirmed: int, damaged: list[tuple[int, str, int]], lost: set[str]
) -> None:
    """P2, C8: with damaged entries, such that do not follow each other, those of DLedger, and files that are lost."""
    with tempfile.TemporaryDirectory() as directory:
        first = Path(directory) / "first"
        places = fill(first, count, confirmed=confirmed)
        for number, what, value in damaged:
            damage(places[number % count], what, value)
        for name in lost:
            path = first / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        results = []
        for is_native in (True, False):
            root = Path(directory) / f"copy-{is_native}"
            shutil.copytree(first, root)
            with ExitStack() as stack:
                if not is_native:
                    for module in (follower, index):
                        stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
                results.append(started(root))
        assert results[1] == results[0]


def test_committed_entries_are_folded_by_the_kernel(tmp_path: Path) -> None:
    """P2, C8: all but the first of each queue, over the ends of data files; their checksums are checked by it."""
    fill(tmp_path, 60, confirmed=60)
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "checkpoint").unlink()
    counts = []
    scan = native.scan

    def counted(*arguments: Any, **options: Any) -> Any:
        found = scan(*arguments, **options)
        counts.append((options["before"], found[2]))
        return found

    with mock.patch.object(native, "scan", counted):
        started(tmp_path)
    assert all(before is not None for before, _ in counts)
    assert sum(count for _, count in counts) >= 60 - 6
