"""A copy of the store of a running broker (T1).

A backup is made by a slave that leaves again (``broker.replicating``): it copies the messages that wait for their time,
the log and the tables, folds queues and index, and is done when it has tables and all of the log that they know. So the
copy is consistent, the master does not stop, and a second backup into the same directory brings only what is new. The
slave does not count as a copy (``countsAsCopy``): no send is acknowledged because a backup has it.

The directory is a store like any other. ``backup.json`` in it says what it is a copy of, and how large its files are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.config import Settings
from ternmq.env import Env
from ternmq.errors import UNREADABLE, ConfigError, CorruptFile, NetworkError, ServiceNotAvailable, StoreError
from ternmq.files import SYSTEM_FILES
from ternmq.replication.config import BrokerRole, ReplicationConfig
from ternmq.replication.slave import SlaveState
from ternmq.store.config import StoreConfig
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.replication import BrokerStatus

NOTE: Final = "backup.json"
_VERSION: Final = 1
#: Settings that decide how files look: the copy has the master's.
SIZES: Final = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "enableConsumeQueueExt",
    "mappedFileSizeConsumeQueueExt",
    "bitMapLengthConsumeQueueExt",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageIndexEnable",
    "timerMaxDelaySec",
)
#: An id that no slave has. Two backups of one broker at once are refused, as two slaves with one id are.
BACKUP_ID: Final = 999_999
#: How often it looks how far the copy is.
_LOOK_S: Final = 0.1
#: Nothing is deleted while it copies, and the disk of the copy may become fuller than that of a broker.
_RESERVED_HOURS: Final = 876_000
_DISK_FULL_PERCENT: Final = 99
_BLOCK_BYTES: Final = 1 << 20


class BackupNote(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup is a copy of."""

    version: int
    cluster: str
    broker: str
    #: Where its master served.
    source: str
    taken_ms: int
    log_begin: int
    log_end: int
    messages: int
    #: ``SIZES`` of the master.
    settings: dict[str, str]
    #: False while it is being made, and after an attempt that failed.
    is_complete: bool = True


class Backup:
    """Makes one backup. ``status`` and ``told`` are state and settings of the master (15010, 26), ``given`` are the
    settings of this slave: keys and TLS."""

    def __init__(
        self,
        directory: Path,
        status: BrokerStatus,
        told: Mapping[str, str],
        given: Settings,
        credentials: Credentials | None,
    ) -> None:
        """Raises ``ConfigError``."""
        master = status.address
        if told.get("enableDLegerCommitLog", "").lower() == "true":
            raise ConfigError(
                f"{master} is a member of a Raft group, which has no port for slaves; stop one follower, copy its "
                "store directory and start it again: the group works without it meanwhile"
            )
        self._directory = directory
        self._master = master
        self._sizes = {name: told[name] for name in SIZES if name in told}
        self._credentials = credentials
        if not status.log_port:
            raise ConfigError(f"{master} is {status.role}, and has no port for slaves; name the master, or a broker")
        host = told.get("brokerIP2") or master.rpartition(":")[0]
        sizes = Settings.gather(flags=[f"{name}={value}" for name, value in self._sizes.items()])
        self._store = dataclasses.replace(
            sizes.build(StoreConfig),
            store_path_root_dir=directory,
            file_reserved_time=_RESERVED_HOURS,
            clean_file_forcibly_enable=False,
            disk_space_warning_level_ratio=_DISK_FULL_PERCENT,
        )
        self._broker = dataclasses.replace(
            given.build(BrokerConfig),
            broker_cluster_name=status.cluster,
            broker_name=status.broker,
            broker_id=BACKUP_ID,
            namesrv_addr="",
            listen_port=0,
            http_port=0,
            bind_address="127.0.0.1",
        )
        self._replication = dataclasses.replace(
            given.build(ReplicationConfig),
            broker_role=BrokerRole.SLAVE,
            ha_master_address=f"{host}:{status.log_port}",
            ha_listen_port=0,
            counts_as_copy=False,
        )

    async def run(self, tell: Callable[[int, int], None], *, patience_s: float) -> BackupNote:
        """Copy until all is there; ``tell`` gets the bytes that are copied, and all.

        ``patience_s``: how long it may take to reach the master, and how long nothing may come. Raises ``TernError``;
        what was copied stays, and the next attempt goes on with it.
        """
        _check_target(self._directory, self._broker)
        env = Env()
        note = BackupNote(
            version=_VERSION,
            cluster=self._broker.broker_cluster_name,
            broker=self._broker.broker_name,
            source=self._master,
            taken_ms=env.clock.now_ms(),
            log_begin=0,
            log_end=0,
            messages=0,
            settings=self._sizes,
            is_complete=False,
        )
        if not (self._directory / NOTE).exists():
            # An older backup stays one: at each moment the directory is that of a slave, which is consistent.
            _write_note(self._directory, note)
        async with Broker(
            self._broker, self._store, env, replication=self._replication, credentials=self._credentials
        ) as slave:
            await self._wait(slave, tell, patience_s)
            replicating = slave.replicating
            assert replicating is not None, "it runs"
            if not replicating.has_beginning:
                raise ServiceNotAvailable(
                    f"{self._master} has not sent its whole log: this is no backup; make a new one"
                )
            copied = replicating.status()
        note = msgspec.structs.replace(
            note,
            taken_ms=env.clock.now_ms(),
            log_begin=copied.log_begin,
            log_end=copied.log_end,
            messages=copied.messages,
            is_complete=True,
        )
        _write_note(self._directory, note)
        return note

    async def _wait(self, slave: Broker, tell: Callable[[int, int], None], patience_s: float) -> None:
        replicating, loop = slave.replicating, asyncio.get_running_loop()
        assert replicating is not None, "it runs"
        came, since = -1, loop.time()
        while replicating.metadata is None or not replicating.metadata.rounds:
            metadata, following = replicating.metadata, replicating.slave
            trouble = (following.trouble if following is not None else "") or (metadata.trouble if metadata else "")
            if following is not None and following.state in (SlaveState.REFUSED, SlaveState.BROKEN):
                raise ServiceNotAvailable(f"no backup of {self._master}: {trouble}")
            if replicating.log_end != came and not (metadata is not None and metadata.trouble):
                came, since = replicating.log_end, loop.time()
            elif loop.time() - since > patience_s:
                raise NetworkError(
                    f"no backup of {self._master}: nothing came from {self._replication.ha_master_address} for "
                    f"{patience_s:g} s{': ' + trouble if trouble else ''}; check that this is the master's port for "
                    "slaves (haListenPort), and that this address may use it (haAllowedAddresses)"
                )
            if metadata is not None and metadata.known is not None and metadata.master_begin is not None:
                tell(max(came - metadata.master_begin, 0), max(metadata.known[0] - metadata.master_begin, 0))
            await asyncio.sleep(_LOOK_S)


def read_note(directory: Path, *, even_incomplete: bool = False) -> BackupNote:
    """Raises ``CorruptFile``, or ``StoreError`` if this is not a backup, or one that was not finished."""
    path = directory / NOTE
    try:
        note = msgspec.json.decode(path.read_bytes(), type=BackupNote)
    except FileNotFoundError:
        raise StoreError(f"{directory} is not a backup: it has no {NOTE}; make one with `tern backup create`") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except UNREADABLE as error:
        raise CorruptFile(f"{path} is damaged: {error}; make the backup again", path=str(path)) from None
    if note.version != _VERSION:
        raise StoreError(f"{path} is of version {note.version}; use a newer TernMQ, this one reads version {_VERSION}")
    if not note.is_complete and not even_incomplete:
        raise StoreError(f"the backup in {directory} is not complete; run `tern backup create` again, it goes on there")
    return note


def _write_note(directory: Path, note: BackupNote) -> None:
    path = directory / NOTE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{NOTE}.tmp")
        SYSTEM_FILES.write(part, msgspec.json.format(msgspec.json.encode(note)))
        SYSTEM_FILES.move(part, path)
        SYSTEM_FILES.sync_names(directory)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


def restore(directory: Path, to: Path, tell: Callable[[int, int], None]) -> BackupNote:
    """Copy a backup to the directory of a store. Raises ``StoreError``."""
    note, to = read_note(directory), to.absolute()
    try:
        if to.exists() and any(to.iterdir()):
            raise StoreError(f"{to} is not empty; restore into a new directory, and set storePathRootDir to it")
        found = _files_in(directory)
        total, done = sum(path.stat().st_blocks * 512 for path in found), 0
        # Complete under another name first: a broker must never start with half of it.
        part = to.with_name(f"{to.name}.part")
        if part.exists():
            raise StoreError(f"{part} is left from an earlier attempt; remove it")
        for path in found:
            target = part / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            for count in _copied(path, target):
                done += count
                tell(min(done, total), total)
        part.mkdir(parents=True, exist_ok=True)
        if to.exists():
            to.rmdir()
        part.rename(to)
    except OSError as error:
        raise StoreError(f"cannot restore {directory} to {to}: {error.strerror}: {error.filename}") from None
    return note


def _files_in(directory: Path) -> list[Path]:
    """All files of a backup but its note, also behind links. Raises ``StoreError`` for what no backup has: reading a
    named pipe would wait for ever, and so would a directory that contains itself."""
    found, seen = [], set()
    for parent, _, names in os.walk(directory, followlinks=True):
        place = Path(parent).stat()
        if (place.st_dev, place.st_ino) in seen:
            raise StoreError(f"{parent} is a link to a directory that the backup has already; remove it")
        seen.add((place.st_dev, place.st_ino))
        for path in (Path(parent) / name for name in names if name != NOTE):
            if not stat.S_ISREG(path.stat().st_mode):
                raise StoreError(f"{path} is not a file; it does not belong to a backup, remove it")
            found.append(path)
    return sorted(found)


def _copied(path: Path, target: Path) -> Iterator[int]:
    """Copy a file, and leave holes where it has zeros: files of the log are reserved before they are filled."""
    with path.open("rb") as source, target.open("wb") as copy:
        while block := source.read(_BLOCK_BYTES):
            if block.count(0) == len(block):
                copy.seek(len(block), os.SEEK_CUR)
            else:
                copy.write(block)
                yield len(block)
        copy.truncate(source.tell())
        copy.flush()
        os.fsync(copy.fileno())
    # Retention goes by the age of files.
    times = path.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def _check_target(directory: Path, config: BrokerConfig) -> None:
    """An empty directory, or an older backup of the same broker."""
    try:
        if not directory.exists() or not any(directory.iterdir()):
            return
    except OSError as error:
        raise StoreError(f"cannot read {directory}: {error.strerror}") from None
    if not (directory / NOTE).exists():
        raise StoreError(f"{directory} is neither empty nor a backup; choose another directory")
    note = read_note(directory, even_incomplete=True)
    if (note.cluster, note.broker) != (config.broker_cluster_name, config.broker_name):
        raise StoreError(
            f"{directory} is a backup of {note.broker} of cluster {note.cluster}, not of {config.broker_name} of "
            f"{config.broker_cluster_name}; choose another directory"
        )
