"""A lake: Parquet files of topics by date and hour, each message once (U4).

::

    LAKE/topic=orders/date=2026-11-16/hour=03/0000000012-0000.parquet    what any reader of Parquet sees
    LAKE/_ternmq/state.json      which queue offsets are in the lake, and files that are on their way
    LAKE/_ternmq/lock            held for the moment of a change, by one process at a time
    LAKE/_ternmq/staging/ID/…    files in the making; readers pass over names with an underscore in front

The lake itself says what is in it: ranges of offsets for each queue. No checkpoint is asked, so a batch that is written
again, by whatever run, finds that its offsets are there already. A change has three steps, under the lock:

1. files are complete in ``staging``, and on the disk;
2. ``state.json`` is replaced by one that has their offsets, and the moves that are left to do: from here on it counts;
3. the moves are done, each an atomic rename.

Killed before 2, nothing has happened, and the staging directory is swept by the next run. Killed after it, the next
one that takes the lock does the moves first; they may be done again and again. Meanwhile readers miss some rows, and
see none twice and none that is wrong. ``replace`` does the same for files that others were merged into: two
directories change places in one call of the kernel.

All this takes a file system with atomic renames and locks (a disk, NFS); object stores have neither.
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
from ternmq.errors import ConfigError, CorruptFile
from ternmq.files import SYSTEM_FILES, sync_directory
from ternmq.message import MessageQueue
from ternmq.spark.lake.covered import Covered, Span
from ternmq.spark.lake.files import local_path, swap, sync_directories

#: Stands in ``state.json``; a lake with other columns or other rules has another number.
FORMAT: Final = 1

_HOME: Final = "_ternmq"


class _Move(msgspec.Struct, frozen=True, tag="move"):
    """A file that goes from staging to its place. Paths are inside the lake."""

    source: str
    target: str


class _Swap(msgspec.Struct, frozen=True, tag="swap"):
    """A staged directory that takes the place of another; ``mark`` is a file that only the new one has."""

    source: str
    target: str
    mark: str


class _State(msgspec.Struct):
    format: int
    #: Names this lake: a checkpoint belongs to one.
    lake: str
    #: Changes so far; names files.
    changes: int = 0
    #: Changes so far of ``covered``.
    version: int = 0
    rows: int = 0
    #: topic → broker → queue id → spans
    covered: dict[str, dict[str, dict[str, list[Span]]]] = {}
    pending: list[_Move | _Swap] = []


@dataclass(slots=True, frozen=True)
class Content:
    """What is in a lake. ``version`` grows whenever ``covered`` does."""

    lake_id: str
    version: int
    rows: int
    covered: Covered


@dataclass(slots=True, frozen=True)
class Stage:
    """A directory for files in the making; whoever has it holds its lock."""

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
        """The lake of a path, which must be one; or, with ``make``, a new one where there is nothing yet.
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
                self._save(_State(FORMAT, f"{self._env.random.getrandbits(64):016x}"))

    # --- What is there --------------------------------------------------------------------------------------------

    def content(self) -> Content:
        state = self._load()
        return Content(state.lake, state.version, state.rows, _covered(state))

    def hours(self) -> dict[str, list[Path]]:
        """The data files of each directory ``topic=…/date=…/hour=…``, in the order of their names."""
        hours: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("topic=*/date=*/hour=*/*.parquet")):
            hours.setdefault(str(path.parent.relative_to(self.path)), []).append(path)
        return hours

    # --- Changes --------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Finish what a process that was killed has begun, and sweep what it has left."""
        with self._changing():
            pass
        with self._lock():
            for left in (self.home / "staging").iterdir():
                descriptor = os.open(left, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
                except BlockingIOError:
                    pass  # somebody is at work there
                finally:
                    os.close(descriptor)

    @contextmanager
    def stage(self) -> Iterator[Stage]:
        """A new directory for files; what is left in it at the end is removed, unless it is still to be moved."""
        with self._lock():
            path = self.home / "staging" / f"{self._env.random.getrandbits(64):016x}"
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield Stage(path, descriptor)
        except BaseException:
            # It may be an error after the moment that counts. Then the files are needed, now or by a later run.
            os.close(descriptor)
            with suppress(OSError):
                self.tidy()
            raise
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)

    def add(self, stage: Stage, found: Mapping[MessageQueue, Span], *, rows: int, apart_from: int | None) -> bool:
        """Take in the files of a stage, which hold the offsets ``found``.

        ``apart_from`` is the ``version`` of the content that the files were made to leave out, None if they were
        not. False, with nothing changed, where the lake may have some of the rows: make them again without.
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
        """Have the files ``new``, which lie alone in a directory of a stage, take the place of the files ``merged`` in
        the directory ``hour``, all at once. False, with nothing changed, where one of those is gone: somebody else has
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

    def _finish(self, state: _State) -> None:
        """Do what is pending; done again, nothing happens."""
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
        # Before anybody removes the staging directory, or writes a state in which these are not pending.
        sync_directories((self.path / one.target for one in state.pending), up_to=self.path)

    # --- Files ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.home / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _changing(self) -> Iterator[_State]:
        with self._lock():
            state = self._load()
            self._finish(state)
            yield state

    def _load(self) -> _State:
        path = self.home / "state.json"
        try:
            raw = path.read_bytes()
            number = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("format", msgspec.Raw(b"?"))
            if bytes(number) != b"%d" % FORMAT:
                raise ConfigError(
                    f"the lake {self.path} has format {bytes(number).decode()}, and this version of TernMQ writes "
                    f"{FORMAT}; use the version that made it, or a new directory"
                )
            return msgspec.json.decode(raw, type=_State)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptFile(
                f"{path} cannot be read ({error}); its data files are whole, but what they hold is not known; "
                "restore it from a backup, or archive into a new directory",
                path=str(path),
            ) from error

    def _save(self, state: _State) -> None:
        new = self.home / "state.json.new"
        SYSTEM_FILES.write(new, msgspec.json.encode(state))
        SYSTEM_FILES.move(new, self.home / "state.json")
        sync_directory(self.home)


def _others(path: Path) -> list[Path]:
    """What lies in a directory beside a lake that was begun and has no state yet."""
    return [one for one in path.iterdir() if one.name != _HOME]


def _covered(state: _State) -> Covered:
    return Covered(
        {
            MessageQueue(topic, broker, int(queue)): spans
            for topic, brokers in state.covered.items()
            for broker, queues in brokers.items()
            for queue, spans in queues.items()
        }
    )


def _table(covered: Covered) -> dict[str, dict[str, dict[str, list[Span]]]]:
    table: dict[str, dict[str, dict[str, list[Span]]]] = {}
    for queue, span in covered:
        queues = table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        queues.setdefault(str(queue.queue_id), []).append(span)
    return table
