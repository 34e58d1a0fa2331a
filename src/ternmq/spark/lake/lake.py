"""A lake: Parquet files of topics by date and hour, each message once (U4).

::

    LAKE/topic=orders/date=2026-11-16/hour=03/0000000012-0000.parquet    visible to any reader of Parquet
    LAKE/_ternmq/state.json      which queue offsets are in the lake, and files that are still to be moved
    LAKE/_ternmq/lock            held during a change, by one process at a time
    LAKE/_ternmq/staging/ID/…    files being written; readers ignore names that begin with an underscore

The lake records its own content: ranges of offsets for each queue. No checkpoint is used, so a batch that is written
again, by any run, finds that its offsets are already there. A change has three steps, under the lock:

1. files are complete in ``staging``, and on the disk;
2. ``state.json`` is replaced by one that has their offsets, and the pending moves: from here on the change is valid;
3. the moves are done, each an atomic rename.

If a process is killed before step 2, the change has not happened, and the next run removes the staging directory. If
it is killed later, the next process that takes the lock does the moves first; they can be repeated. Meanwhile readers
miss some rows, but see none twice and no wrong ones. ``replace`` does the same for merged files: two directories are
exchanged in one system call.

This requires a file system with atomic renames and locks (a disk, NFS); object stores have neither.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ternmq.env import Env
from ternmq.errors import UNREADABLE, ConfigError, CorruptFile
from ternmq.files import SYSTEM_FILES, sync_directory
from ternmq.message import MessageQueue
from ternmq.spark.lake.covered import Covered, OffsetSpan
from ternmq.spark.lake.files import local_path, swap, sync_directories

#: Stored in ``state.json``; a lake with other columns or other rules has another number.
FORMAT: Final = 1

_HOME: Final = "_ternmq"


class _Move(msgspec.Struct, frozen=True, tag="move"):
    """A file to be moved from staging to its place. Paths are relative to the lake."""

    source: str
    target: str


class _Swap(msgspec.Struct, frozen=True, tag="swap"):
    """A staged directory that replaces another one; ``mark`` is a file that only the new one has."""

    source: str
    target: str
    mark: str


class _LakeState(msgspec.Struct):
    format: int
    #: Identifies this lake: a checkpoint belongs to one lake.
    lake: str
    #: Number of changes so far; part of file names.
    changes: int = 0
    #: Number of changes of ``covered`` so far.
    version: int = 0
    rows: int = 0
    #: topic → broker → queue id → spans
    covered: dict[str, dict[str, dict[str, list[OffsetSpan]]]] = {}
    pending: list[_Move | _Swap] = []


@dataclass(slots=True, frozen=True)
class LakeContent:
    """The content of a lake. ``version`` grows whenever ``covered`` does."""

    lake_id: str
    version: int
    rows: int
    covered: Covered


@dataclass(slots=True, frozen=True)
class StagingDirectory:
    """A directory for files being written; its owner holds its lock."""

    path: Path
    _descriptor: int = field(repr=False)

    def files(self) -> list[Path]:
        """The data files in it."""
        hidden = ("_", ".")
        return sorted(
            path
            for path in self.path.rglob("*.parquet")
            if not any(part.startswith(hidden) for part in path.relative_to(self.path).parts)
        )


class Lake:
    """One lake. Threads and processes may share it; each change is made under its lock."""

    def __init__(self, path: Path, *, env: Env | None = None) -> None:
        self.path = path
        self.home = path / _HOME
        self._env = env or Env()

    @classmethod
    def at(cls, path: str | Path, *, make: bool = False) -> Lake:
        """The existing lake of a path; or, with ``make``, a new one if the directory is empty or does not exist.
        Raises ``ConfigError`` in one sentence."""
        lake = cls(local_path(path))
        if not (lake.home / "state.json").exists():
            if lake.path.exists() and (not lake.path.is_dir() or _others(lake.path)):
                raise ConfigError(
                    f"{lake.path} is not a lake and not empty; give a new directory, or the directory of a lake"
                )
            if not make:
                raise ConfigError(f"there is no lake at {lake.path}; create one with `tern pipeline archive`")
            lake._make()
        lake.content()
        return lake

    def _make(self) -> None:
        (self.home / "staging").mkdir(parents=True, exist_ok=True)
        with self._lock():
            if not (self.home / "state.json").exists():
                self._save(_LakeState(FORMAT, f"{self._env.random.getrandbits(64):016x}"))

    # --- Content --------------------------------------------------------------------------------------------------

    def content(self) -> LakeContent:
        state = self._load()
        return LakeContent(state.lake, state.version, state.rows, _covered(state))

    def hours(self) -> dict[str, list[Path]]:
        """The data files of each directory ``topic=…/date=…/hour=…``, in the order of their names."""
        hours: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("topic=*/date=*/hour=*/*.parquet")):
            hours.setdefault(str(path.parent.relative_to(self.path)), []).append(path)
        return hours

    # --- Changes --------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Finish the change of a killed process, and remove its staging directory."""
        with self._changing():
            pass
        with self._lock():
            for left in (self.home / "staging").iterdir():
                descriptor = os.open(left, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
                except BlockingIOError:
                    pass  # in use by another process
                finally:
                    os.close(descriptor)

    @contextmanager
    def stage(self) -> Iterator[StagingDirectory]:
        """A new directory for files; remaining files are removed at the end, unless they are still to be moved."""
        with self._lock():
            path = self.home / "staging" / f"{self._env.random.getrandbits(64):016x}"
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield StagingDirectory(path, descriptor)
        except BaseException:
            # The error may have occurred after the change became valid. Then the files are still needed.
            os.close(descriptor)
            with suppress(OSError):
                self.tidy()
            raise
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)

    def add(
        self, stage: StagingDirectory, found: Mapping[MessageQueue, OffsetSpan], *, rows: int, apart_from: int | None
    ) -> bool:
        """Add the files of a stage, which contain the offsets ``found``.

        ``apart_from`` is the ``version`` of the content whose offsets the files leave out, None if they leave out none.
        Returns False, without a change, if the lake may have some of the rows: write the files again without them.
        """
        files = stage.files()
        for path in files:
            SYSTEM_FILES.sync(path)
        sync_directories(files, up_to=self.home)
        with self._changing() as state:
            covered = _covered(state)
            if state.version != apart_from and covered.overlaps(found):
                return False
            state.changes += 1
            state.version += 1
            state.rows += rows
            for queue, span in found.items():
                covered.add(queue, span)
            state.covered = _table(covered)
            state.pending = [
                _Move(
                    str(path.relative_to(self.path)),
                    str(path.parent.relative_to(stage.path) / f"{state.changes:010}-{number:04}.parquet"),
                )
                for number, path in enumerate(files)
            ]
            self._save(state)
            self._finish(state)
        return True

    def replace(self, hour: str, merged: Collection[str], new: Sequence[Path]) -> bool:
        """Replace the files ``merged`` in the directory ``hour`` by the files ``new``, which are alone in a directory
        of a stage, all at once. Returns False, without a change, if one of those does not exist: another process has
        merged it."""
        staged = new[0].parent / "new"
        for path in new:
            SYSTEM_FILES.sync(path)
        with self._changing() as state:
            live = self.path / hour
            names = {path.name for path in live.iterdir()} if live.exists() else set()
            if not names.issuperset(merged):
                return False
            state.changes += 1
            staged.mkdir()
            marks = [f"{state.changes:010}-{number:04}.parquet" for number in range(len(new))]
            for path, name in zip(new, marks, strict=True):
                path.rename(staged / name)
            for name in names.difference(merged):
                os.link(live / name, staged / name)
            sync_directories([staged / marks[0]], up_to=self.home)
            state.pending = [_Swap(str(staged.relative_to(self.path)), hour, marks[0])]
            self._save(state)
            self._finish(state)
        return True

    def _finish(self, state: _LakeState) -> None:
        """Do the pending moves; repeating it has no effect."""
        for one in state.pending:
            source, target = self.path / one.source, self.path / one.target
            match one:
                case _Move():
                    if source.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        source.rename(target)
                case _Swap(mark=mark):
                    if source.exists() and not (target / mark).exists():
                        swap(source, target)
        # Before the staging directory is removed, or a state is written in which these are not pending.
        sync_directories((self.path / one.target for one in state.pending), up_to=self.path)

    # --- Files ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.home / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _changing(self) -> Iterator[_LakeState]:
        with self._lock():
            state = self._load()
            self._finish(state)
            yield state

    def _load(self) -> _LakeState:
        path = self.home / "state.json"
        try:
            raw = path.read_bytes()
            number = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("format", msgspec.Raw(b"?"))
            if bytes(number) != b"%d" % FORMAT:
                raise ConfigError(
                    f"the lake {self.path} has format {bytes(number).decode()}, and this version of TernMQ writes "
                    f"{FORMAT}; use the version that made it, or a new directory"
                )
            return msgspec.json.decode(raw, type=_LakeState)
        except UNREADABLE as error:
            raise CorruptFile(
                f"{path} cannot be read ({error}); its data files are whole, but what they hold is not known; "
                "restore it from a backup, or archive into a new directory",
                path=str(path),
            ) from error

    def _save(self, state: _LakeState) -> None:
        new = self.home / "state.json.new"
        SYSTEM_FILES.write(new, msgspec.json.encode(state))
        SYSTEM_FILES.move(new, self.home / "state.json")
        sync_directory(self.home)


def _others(path: Path) -> list[Path]:
    """Other files in the directory of a lake that was begun and has no state yet."""
    return [one for one in path.iterdir() if one.name != _HOME]


def _covered(state: _LakeState) -> Covered:
    return Covered(
        {
            MessageQueue(topic, broker, int(queue)): spans
            for topic, brokers in state.covered.items()
            for broker, queues in brokers.items()
            for queue, spans in queues.items()
        }
    )


def _table(covered: Covered) -> dict[str, dict[str, dict[str, list[OffsetSpan]]]]:
    table: dict[str, dict[str, dict[str, list[OffsetSpan]]]] = {}
    for queue, span in covered:
        queues = table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        queues.setdefault(str(queue.queue_id), []).append(span)
    return table
