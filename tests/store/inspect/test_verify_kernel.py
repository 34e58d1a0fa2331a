"""``tern store verify`` finds with compiled kernels what it finds without, whatever is damaged (C2, C4, C8, P2; issue
21)."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.delay.schedule_check import ScheduleCheck
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.errors import TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect import index_files
from ternmq.store.inspect import verify as verify_module
from ternmq.store.inspect.verify import verify
from ternmq.store.store import MessageStore
from ternmq.wire.record import Sysflag, pack_host
from tests.manual_clock import ManualClock
from tests.store.small import HOST, draft, small_config

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

SEGMENT: Final = 16_384
WAITS: Final = "TIMER_OUT_MS\x011700000001000\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02"
COUNT: Final = 160


def config_of(root: Path) -> StoreConfig:
    return small_config(
        root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=50,
        max_index_num=200,
        auto_message_version_on_topic_len=True,
    )


def put(store: MessageStore, number: int) -> None:
    """A message of one kind or another; most are ordinary."""
    kind = number % 40
    message = draft("orders", number % 3, b"%d" % number * (number % 60), KEYS=f"k{number} both", TAGS="ab"[number % 2])
    if kind == 11:
        message.born_host = pack_host("::1", 7)
    elif kind == 13:
        message.topic = "t" * 140
    elif kind == 17:
        message.sysflag = Sysflag.PREPARED
    elif kind == 19:
        message.sysflag, message.prepared_transaction_offset = Sysflag.COMMIT, 1
    elif kind == 23:
        message.topic, message.properties = SCHEDULE_TOPIC, "DELAY\x013\x02" + message.properties
    elif kind == 29:
        message.topic, message.properties = WHEEL_TOPIC, message.properties + WAITS
    elif kind == 31:
        message.properties += "ODD\x01\0\0\x02"
    elif kind == 37:
        message.topic = "gone"
    store.put(message)


def fill(root: Path, *, is_member: bool) -> None:
    config, clock = config_of(root), ManualClock()
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=SEGMENT) if is_member else None
    schedule = ScheduleLog(FileDisk(), root, ring=lambda _: None)
    store = MessageStore.open(config, store_host=HOST, clock=clock, log=log, derived=(schedule,), threads=False)
    with store:
        for number in range(COUNT):
            if log is not None:
                log.term = 1 + number // 50
            put(store, number)
            clock.advance(250)
            if number == 100:
                store.confirm(store.written)
                store.delete_topics(["gone"])
        if log is not None:
            # Not all entries are committed.
            end = log.end_of(COUNT - 6)
            assert end is not None
            store.confirm(end)
            log.note_committed(COUNT - 6)
    schedule.close()
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"orders":{"topicName":"orders"}}}')


@cache
def stores() -> tempfile.TemporaryDirectory[str]:
    """A sound store of each kind, ``plain`` and ``member``; kept as long as this process."""
    directory = tempfile.TemporaryDirectory()
    for name in ("plain", "member"):
        fill(Path(directory.name) / name, is_member=name == "member")
    return directory


def damage(root: Path, number: int, what: str, at: int, value: int) -> None:
    """Change one of the files."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
    path = paths[number % len(paths)]
    data = bytearray(path.read_bytes())
    # Most files end with zeros: the places that count are before them.
    at %= max(len(data.rstrip(b"\0")), 1) + 40
    if what == "remove":
        path.unlink()
    elif what == "cut":
        path.write_bytes(data[:at])
    elif data:
        at = min(at, len(data) - 1)
        if what == "flip":
            data[at] ^= 1 << value % 8
        elif what == "zeros":
            data[at : at + value % 700] = bytes(len(data[at : at + value % 700]))
        elif what == "again":
            # What stands there once more, further on.
            piece = data[at : at + value % 700]
            data = (data[: at + len(piece)] + piece + data[at + 2 * len(piece) :])[: len(data)]
        path.write_bytes(data)


def found(root: Path) -> object:
    try:
        verification = verify(root, checks=(ScheduleCheck,))
    except TernError as error:
        return type(error), str(error)
    return verification


def found_by_both(root: Path) -> tuple[object, object]:
    by_kernel = found(root)
    with ExitStack() as stack:
        for module in (verify_module, index_files):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        return by_kernel, found(root)


damages = st.tuples(
    st.integers(0, 200),
    st.sampled_from(("flip", "flip", "flip", "zeros", "again", "cut", "remove")),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 16),
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(("plain", "member")), st.lists(damages, max_size=4))
@example("plain", [])
@example("member", [])
def test_any_damage_is_reported_the_same(kind: str, done: list[tuple[int, str, int, int]]) -> None:
    """C2, C4, C8, P2: of the log, queues, index, entries of a group, delayed messages and tables."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        shutil.copytree(Path(stores().name) / kind, root)
        for each in done:
            damage(root, *each)
        by_kernel, by_python = found_by_both(root)
        assert by_python == by_kernel


@pytest.mark.parametrize("kind", ["plain", "member"])
def test_ordinary_records_are_checked_by_the_kernel(kind: str) -> None:
    """C8, P2: and of all that are sound there is nothing to report."""
    counts = []
    scan = native.scan

    def counted(*arguments: Any, **options: Any) -> Any:
        result = scan(*arguments, **options)
        counts.append(result[2])
        return result

    with mock.patch.object(native, "scan", counted):
        verification = verify(Path(stores().name) / kind, checks=(ScheduleCheck,))
    assert (COUNT, []) == (verification.records, verification.faults)
    assert sum(counts) > COUNT * 0.7
