"""``tern store`` and readers of files on the directory of a Raft member, also with a plain log in front (C11, P2)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ternmq.errors import StoreError
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.raft.term_file import TermFile
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.compare import compare
from ternmq.store.inspect.dump import RecordChoice, records
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.summary import log_summary, member_summary
from ternmq.store.inspect.verify import verify
from ternmq.store.inspect.view import StoreView
from ternmq.store.read.reader import LogReader
from ternmq.wire.layouts.raft_state import Vote
from tests.cli.conftest import tern
from tests.manual_clock import ManualClock
from tests.store.small import crash, draft, files, quiet_store, small_config
from tests.store.spoiled import edit

SEGMENT = 4096


def member(root: Path, *, was_single: bool = True, uncommitted: int = 0) -> Path:
    """A member with 20 committed messages of two terms, 10 of them from the time when it was alone."""
    config = small_config(root, mapped_file_size_commit_log=SEGMENT)
    numbers = iter(range(20))
    if was_single:
        with quiet_store(config) as single:
            for number in [next(numbers) for _ in range(10)]:
                single.put(draft("orders", number % 2, b"%d " % number * 200, KEYS=f"k{number}"))
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=SEGMENT)
    store = quiet_store(config, log=log)
    for number in numbers:
        log.term = 3 + number // 15
        store.put(draft("orders", number % 2, b"%d " % number * 200, KEYS=f"k{number}"))
    store.confirm(log.end)
    log.note_committed(log.last_index)
    TermFile(FileDisk(), root / "dledger-n0" / "currterm").save(Vote(5, "n1"))
    for _ in range(uncommitted):
        store.put(draft("orders", 0, b"not yet", KEYS="no"))
    store.close()
    return root


def kinds(root: Path) -> list[str]:
    """What ``verify`` finds."""
    return [found.kind for found in verify(root).findings]


@pytest.mark.parametrize("was_single", [True, False])
def test_the_tools_find_all_that_is_there(tmp_path: Path, was_single: bool) -> None:
    """C11, P2: info, dump, verify, rebuild, diff."""
    root = member(tmp_path / "store", was_single=was_single)
    view = StoreView(root)
    log = log_summary(view)
    found = member_summary(view, log)
    first = 10 if was_single else 0
    assert found is not None
    assert ("n0", 5, "n1", 0, 19 - first, 4, 19 - first) == (
        found.member,
        found.term,
        found.voted_for,
        found.first_index,
        found.last_index,
        found.last_term,
        found.committed_index,
    )
    assert (0, view.log.walk(0).position) == (log.min_offset, 0)
    bodies = [bytes(record.body) for record in records(view, RecordChoice(topic="orders"))]
    assert [b"%d " % number * 200 for number in range(20)] == bodies
    assert bodies == [bytes(record.body) for record in LogReader(root)]
    assert [17] == [int(bytes(one.body).split()[0]) for one in records(view, RecordChoice(key="k17"))]
    verdict = verify(root)
    assert ([], 20, 20) == (verdict.findings, verdict.records, verdict.queue_entries)
    before = files(root)
    shutil.copytree(root, tmp_path / "copy")
    edit(min((root / "consumequeue" / "orders" / "0").iterdir()), 0, b"\xff" * 60)
    assert [*compare(StoreView(root), StoreView(tmp_path / "copy"))]
    made = rebuild(root, clock=ManualClock())
    assert (20, 2, []) == (made.records, made.queues, made.damages)
    assert [] == [*compare(StoreView(root), StoreView(tmp_path / "copy"))]
    assert {name: data for name, data in before.items() if "index" not in name} == {
        name: data for name, data in files(root).items() if "index" not in name
    }


def test_info_shows_the_member(tmp_path: Path) -> None:
    """T1: for people, and for programs."""
    root = member(tmp_path / "store")
    shown = tern("store", "info", str(root))
    line = "raft       member n0, term 5, voted for n1; entries 0 to 9, the last of term 4, committed to 9\n"
    assert line in shown.stdout
    assert 9 == json.loads(tern("store", "info", str(root), "--json").stdout)["raft"]["committed_index"]


def test_what_is_not_committed_is_in_no_queue(tmp_path: Path) -> None:
    """C5, P2: not after a rebuild either; the broker takes it up when it is committed."""
    root = member(tmp_path / "store", uncommitted=3)
    assert ([], 23, 20) == ((found := verify(root)).findings, found.records, found.queue_entries)
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    assert 20 == rebuild(root, clock=ManualClock()).records
    assert [] == verify(root).findings
    config = small_config(root, mapped_file_size_commit_log=SEGMENT)
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=SEGMENT)
    with quiet_store(config, log=log) as store:
        assert (10, 12) == (store.max_offset("orders", 0), log.last_index)
        store.confirm(log.end)
        assert 13 == store.max_offset("orders", 0)


def test_faults_of_entries_are_told(tmp_path: Path) -> None:
    """C8, P2: a damaged header, a changed property, a gap in the numbers, an index that differs."""
    root = member(tmp_path / "store", was_single=False)
    first = min((root / "dledger-n0" / "data").iterdir())
    place = next(iter(LogReader(root)))
    sound = first.read_bytes()
    edit(first, 12, b"\x07")
    assert ["log-damage"] == kinds(root)
    first.write_bytes(sound)
    edit(first, place.log_offset + place.size - 3, b"!")
    assert "entry-crc" in kinds(root)
    first.write_bytes(sound)
    # As DLedger writes it, without a CRC.
    edit(first, place.log_offset + place.size + 8, (0).to_bytes(8, "big"))
    edit(first, place.log_offset + place.size + 36, bytes(8))
    assert ["entry-order", "entry-index"] == kinds(root)
    first.write_bytes(sound)
    edit(min((root / "dledger-n0" / "index").iterdir()), 0, bytes(64))
    (note,) = verify(root).findings
    assert ("entry-index", 2, True) == (note.kind, note.count, note.is_note)


def test_data_files_elsewhere_are_asked_for(tmp_path: Path) -> None:
    """C11: a tool that reads the old log only would show half of the messages."""
    root = member(tmp_path / "store")
    home = root / "dledger-n0"
    (home / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"dledger-n0 has no data files: .* make .*/data a link to that"):
        StoreView(root)
    (home / "data").symlink_to(tmp_path / "elsewhere")
    assert [] == verify(root).findings
    shutil.copytree(home, root / "dledger-n1")
    with pytest.raises(StoreError, match="several members of Raft groups, dledger-n0 and dledger-n1"):
        StoreView(root)


def test_a_killed_member_is_looked_at_without_a_fault(tmp_path: Path) -> None:
    """C11: what its broker had in memory is noted, not blamed."""
    root = member(tmp_path / "store")
    config = small_config(root, mapped_file_size_commit_log=SEGMENT)
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=SEGMENT)
    with quiet_store(config, log=log) as store:
        log.term = 9
        for number in range(5):
            store.put(draft("orders", 0, b"more %d" % number))
        store.confirm(log.end)
        crash(store, tmp_path / "killed")
    assert [] == verify(tmp_path / "killed").faults
