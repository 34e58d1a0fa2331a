"""Directories on which no broker can start, and tools cannot work: a sentence, exit code 1, and nothing is touched.

The sentence names the file and the cure (C1, C2, C4, C7, T1). Whether a process may read and write is asked of one that
has no more rights than any other: root's right to everything is taken from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, TERN, Start
from tests.cli.test_bad_input import sentence
from tests.store.small import draft, files, quiet_store, small_config

FIRST = f"{0:020d}"
SEGMENT = f"commitlog/{FIRST}"
QUEUE = f"consumequeue/orders/0/{FIRST}"
SIZES = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 100,
    "maxHashSlotNum": 7,
    "maxIndexNum": 10,
}
WITHOUT_RIGHTS = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
]
PERMISSION = "Permission denied; let the broker's user read and write it"

Spoil = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of a few messages in two queues."""
    path = tmp_path / "store"
    with quiet_store(small_config(path)) as store:
        for number in range(24):
            store.put(draft("orders", number % 2, b"%d " % number * 200, KEYS=f"k{number}"))
    (path / "config").mkdir()
    return path


def restricted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``tern`` without root's right to read and write everything."""
    command = [*(WITHOUT_RIGHTS if os.geteuid() == 0 else ()), TERN, *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, env=ENVIRONMENT, text=True)


def broker_on(root: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    settings = {"storePathRootDir": root, "listenPort": 0, **SIZES, **changes}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return restricted("broker", "--log-level", "error", *flags)


def state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file's bytes and when it was last written to."""
    return {name: ((root / name).stat().st_mtime_ns, data) for name, data in files(root).items()}


def truncated(name: str) -> Spoil:
    return lambda root: os.truncate(root / name, (root / name).stat().st_size - 1)


def moded(name: str, mode: int) -> Spoil:
    return lambda root: (root / name).chmod(mode)


def truncate_index(root: Path) -> None:
    for path in (root / "index").iterdir():
        os.truncate(path, 100)


def protect_index_files(root: Path) -> None:
    for path in (root / "index").iterdir():
        path.chmod(0o400)


def remove_segment(root: Path) -> None:
    (root / "commitlog" / f"{4096:020d}").unlink()


def add_stranger(root: Path) -> None:
    (root / "commitlog" / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            truncated(f"commitlog/{FIRST}"),
            f"/commitlog/{FIRST} has 4095 bytes, but mappedFileSizeCommitLog is 4096; set",
        ),
        (truncated(QUEUE), f"/{QUEUE} has 99 bytes, but mappedFileSizeConsumeQueue is 100; set"),
        (truncate_index, " has 100 bytes, but maxHashSlotNum and maxIndexNum make 268; set them to what the store was"),
        (remove_segment, f"/commitlog/{8192:020d} does not follow the file before it; restore what is missing between"),
        (add_stranger, "/commitlog/notes.txt is no segment: its name should be 20 digits; move it out of the store"),
        (moded(".", 0), f"/store/lock: {PERMISSION}"),
        (moded(".", 0o500), f"cannot write {{root}}: {PERMISSION}"),
        (moded("lock", 0o400), f"cannot lock {{root}}/lock: {PERMISSION}"),
        (moded("checkpoint", 0o400), f"cannot write {{root}}/checkpoint: {PERMISSION}"),
        (moded("commitlog", 0), f"cannot read {{root}}/commitlog: {PERMISSION}"),
        (moded("commitlog", 0o500), f"cannot write {{root}}/commitlog: {PERMISSION}"),
        (moded(SEGMENT, 0o400), f"cannot open {{root}}/{SEGMENT}: {PERMISSION}"),
        (moded("consumequeue/orders/0", 0), f"cannot read {{root}}/consumequeue/orders/0: {PERMISSION}"),
        (moded("consumequeue/orders/0", 0o500), f"cannot write {{root}}/consumequeue/orders/0: {PERMISSION}"),
        (moded(QUEUE, 0o400), f"cannot open {{root}}/{QUEUE}: {PERMISSION}"),
        (protect_index_files, f": {PERMISSION}"),
        (moded("config", 0o500), f"cannot write {{root}}/config: {PERMISSION}"),
    ],
    ids=[
        *("segment-length", "queue-length", "index-length", "gap", "stranger"),
        *("root-unreadable", "root-protected", "lock-protected", "checkpoint-protected"),
        *("log-unreadable", "log-protected", "segment-protected"),
        *("queue-unreadable", "queue-protected", "queue-file-protected", "index-files-protected", "tables-protected"),
    ],
)
def test_a_broker_says_what_is_wrong_with_its_store_and_leaves_it(spoil: Spoil, told: str, root: Path) -> None:
    """C1, C2, C4: before it changes anything; the next start on the healed directory finds all as it was."""
    spoil(root)
    before = state(root)

    said = sentence(broker_on(root))

    assert said.startswith("tern: ")
    assert told.format(root=root) in said
    assert before == state(root)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"mappedFileSizeCommitLog": 8192},
            f"/commitlog/{FIRST} has 4096 bytes, but mappedFileSizeCommitLog is 8192; set",
        ),
        ({"mappedFileSizeConsumeQueue": 200}, f"/{QUEUE} has 100 bytes, but mappedFileSizeConsumeQueue is 200; set"),
        (
            {"maxHashSlotNum": 8},
            "has 268 bytes, but maxHashSlotNum and maxIndexNum make 272; set them to what the store",
        ),
    ],
    ids=["segments", "queues", "index"],
)
def test_a_store_of_other_sizes_is_left_alone(changes: dict[str, int], told: str, root: Path) -> None:
    """C11, T2."""
    before = state(root)
    assert told in sentence(broker_on(root, **changes))
    assert before == state(root)


def test_a_log_directory_among_several_that_may_not_be_written_to_is_named(root: Path, tmp_path: Path) -> None:
    """C1."""
    other = tmp_path / "other"
    other.mkdir(mode=0o500)
    said = sentence(broker_on(root, storePathCommitLog=f"{root / 'commitlog'},{other}"))
    assert f"cannot write {other}: {PERMISSION}" in said


def test_a_second_broker_leaves_the_first_one_s_directory_alone(root: Path, start: Start) -> None:
    """C7."""
    settings = {"storePathRootDir": root, "listenPort": 0, **SIZES}
    start("broker", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")))
    before = state(root)
    said = sentence(broker_on(root))
    assert (
        f"the store directory {root} is in use by another process; stop that broker, or give this one another directory"
        in said
    )
    assert before == state(root)


@pytest.mark.parametrize(
    ("command", "name"),
    [("info", "."), ("verify", "commitlog"), ("dump", SEGMENT), ("diff", QUEUE), ("rebuild", "commitlog")],
)
def test_a_tool_says_what_it_cannot_read(command: str, name: str, root: Path, tmp_path: Path) -> None:
    """T1: and changes nothing, not even a time."""
    shutil.copytree(root, tmp_path / "copy")
    before = state(root)
    (root / name).chmod(0)
    more = {"diff": [str(tmp_path / "copy")], "rebuild": ["--yes"]}.get(command, [])

    said = sentence(restricted("store", command, str(root), *more))

    (root / name).chmod(0o755)
    assert f"{root / name}: {PERMISSION}" in said
    assert before == state(root)


def test_a_rebuild_that_may_not_write_changes_nothing(root: Path) -> None:
    """C5: it says so before it has begun."""
    before = state(root)
    root.chmod(0o500)
    said = sentence(restricted("store", "rebuild", str(root), "--yes"))
    root.chmod(0o755)
    assert PERMISSION in said
    assert before == state(root)
