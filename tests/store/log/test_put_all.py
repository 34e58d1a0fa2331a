"""Records of any queues in one go (C1, C5): the same bytes as one by one, and what happens when one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import DiskFull, RecordRefused
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.record import pack_host
from tests.manual_clock import ManualClock
from tests.store.late_log import LateLog
from tests.store.small import BORN, HOST, draft, quiet_store, small_config
from tests.store.waiting_part import WaitingPart

ROOT = Path("/store")
DRAFTS = st.builds(
    Draft,
    st.sampled_from(("orders", "t" * 120, "waits", "SCHEDULE_TOPIC_XXXX")),
    st.integers(0, 1),
    st.sampled_from((b"", b"hello", b"x" * 700, memoryview(b"view"))),
    st.sampled_from(
        (
            "",
            "UNIQ_KEY\x01A\x02",
            "TAGS\x01é\x02KEYS\x01a b\x02",
            "DELAY\x013\x02",
            "A\x01\ud800\x02",
            "A\x01" + "v" * 600 + "\x02",
        )
    ),
    st.just(1_699_999_999_000),
    st.sampled_from((BORN, pack_host("::1", 7))),
    sysflag=st.sampled_from((0, 0, 0, 4, 8, 12)),
    prepared_transaction_offset=st.sampled_from((0, 0, 1, 400)),
)


def opened(disk: SimulatedDisk, arrived: list[object], *, late: bool) -> tuple[MessageStore, WaitingPart]:
    config = small_config(ROOT)
    part = WaitingPart(disk, ROOT / "part", ("waits",))
    log = LateLog(
        disk,
        config.log_paths,
        segment_bytes=config.mapped_file_size_commit_log,
        confirmed_path=ROOT / "confirmed",
    )
    store = MessageStore.open(
        config,
        store_host=HOST,
        clock=ManualClock(),
        disk=disk,
        log=log if late else None,
        derived=(part,),
        on_arrival=lambda *what: arrived.append(what),
        threads=False,
    )
    return store, part


def content(disk: SimulatedDisk, directory: Path) -> dict[Path, bytes | None]:
    """Every file below a directory."""
    found: dict[Path, bytes | None] = {}
    for entry in disk.list(directory):
        path = directory / entry.name
        found |= content(disk, path) if entry.is_directory else {path: disk.read(path)}
    return found


@given(drafts=st.lists(DRAFTS, max_size=20), late=st.booleans())
def test_the_files_are_the_same_as_with_one_put_for_each(drafts: list[Draft], late: bool) -> None:
    """C1–C5: log, queues, index, the folds of a part, and what consumers are told; over the ends of segments, too."""
    results = []
    for together in (False, True):
        arrived: list[object] = []
        disk = SimulatedDisk(page_bytes=512, now_ms=ManualClock().now_ms)
        store, part = opened(disk, arrived, late=late)
        with store:
            if together:
                assert len(drafts) == store.put_all(drafts)
            else:
                for each in drafts:
                    store.put(each)
            if late:
                store.confirm(store.written)
        results.append((content(disk, ROOT), part.events, arrived))
    assert results[0] == results[1]


def test_one_that_is_refused_ends_what_is_stored(tmp_path: Path) -> None:
    """C1: those before it are stored; if it is the first, the caller learns why."""
    with quiet_store(small_config(tmp_path)) as store:
        refused = draft(body=b"refused")
        refused.flag = 1 << 40
        drafts = [draft(body=b"1"), draft(body=b"2"), refused, draft(body=b"3")]
        assert 2 == store.put_all(drafts)
        with pytest.raises(RecordRefused, match="does not fit"):
            store.put_all(drafts[2:])
        assert 1 == store.put_all(drafts[3:])
        assert 3 == store.max_offset("orders", 0)


def test_a_full_disk_ends_what_is_stored() -> None:
    """C9: those that had room are stored, whole; the others come when there is room again."""
    disk = SimulatedDisk(page_bytes=512, now_ms=ManualClock().now_ms)
    store = MessageStore.open(small_config(ROOT), store_host=HOST, clock=ManualClock(), disk=disk, threads=False)
    store.put(draft())

    def before(step: str, _path: Path) -> None:
        if step in ("claim", "create"):
            raise DiskFull("the disk is full")

    disk.before = before
    drafts = [draft(body=b"%d" % number + b"." * 300) for number in range(30)]
    stored = store.put_all(drafts)
    assert 0 < stored < 30
    with pytest.raises(DiskFull):
        store.put_all(drafts[stored:])
    disk.before = None
    assert 30 - stored == store.put_all(drafts[stored:])
    assert 31 == store.max_offset("orders", 0)
    store.close()
