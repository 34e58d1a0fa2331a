"""The store compared with the bare disk: flush, recovery, verify, rebuild. Run: python -m bench.disk

    python -m bench.disk [flush|recover] [--messages N] [--dir DIR]

*flush*: senders that wait until their message is on disk (SYNC_FLUSH), 1, 8 and 64 at a time, compared with a loop that
writes as many bytes at once and calls ``fdatasync``. *a sync* is how many messages one sync serves, *ratio* how many
rounds of all senders the store makes in the time of one bare round.

*recover*: opens a store of messages of 300 bytes whose process was killed: once with its queues and index as they were
left, once without trusting them; then ``verify`` and ``rebuild`` run on it. For comparison: the same log read from
start to end, in pieces of a MiB. Everything is in memory, so the disk is not measured. Rates are per second of CPU
time, because other programs use this machine, too. Then a member of a Raft group starts on as many entries.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.store import raft_log
from ternmq.env import SystemClock
from ternmq.raft.log import RaftLog
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.verify import verify
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.wire.record import pack_host

HOST = pack_host("127.0.0.1", 10911)
PROPERTIES = "UNIQ_KEY\x017F00000100002A9F0000018E5B2C{:04X}\x02KEYS\x01order-{}\x02TAGS\x01TagA\x02WAIT\x01true\x02"
QUEUES = 16
#: A record with this body has 300 bytes.
BODY = b"x" * 120
#: Turns of store and bare loop, and how long each is.
TURNS = 10
TURN_S = 0.5
BARE_BYTES = 16 << 20
MB = 1_000_000


def draft(number: int) -> Draft:
    return Draft("BenchTopic", number % QUEUES, BODY, PROPERTIES.format(number & 0xFFFF, number), 1, HOST)


# --- Flush --------------------------------------------------------------------------------------------------------


def bench_flush(directory: Path) -> None:
    heads = ("senders", "messages/s", "syncs/s", "a sync", "bare/s", "ratio")
    print("".join(f"{head:>12}" for head in heads))
    for senders in (1, 8, 64):
        messages, syncs, bare = asyncio.run(flush_beside_bare(directory / f"store-{senders}", senders))
        row = (senders, f"{messages:,.0f}", f"{syncs:,.0f}", f"{messages / syncs:.1f}", f"{bare:,.0f}")
        print("".join(f"{cell:>12}" for cell in (*row, f"{messages / senders / bare:.2f}")), flush=True)


async def flush_beside_bare(root: Path, senders: int) -> tuple[float, float, float]:
    """Messages and syncs per second, and rounds per second of a bare loop; interleaved, since the disk is shared."""
    config = StoreConfig(store_path_root_dir=root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    loop = asyncio.get_running_loop()
    store = MessageStore.open(config, store_host=HOST, clock=SystemClock(), notify=loop.call_soon_threadsafe)
    sending = Sending(store, senders)
    rounds = 0
    path = root.with_name("bare")
    with path.open("wb", buffering=0) as file:
        file.write(bytes(BARE_BYTES))
        os.fsync(file.fileno())
        for _ in range(TURNS):
            await sending.go_on()
            rounds += bare_syncs(file.fileno(), bytes(300) * senders)
    store.close()
    return sending.sent / (TURNS * TURN_S), sending.syncs / (TURNS * TURN_S), rounds / (TURNS * TURN_S)


def bare_syncs(fd: int, data: bytes) -> int:
    """How often data is written and synced in one turn by a loop that does nothing else."""
    at = rounds = 0
    end = time.monotonic() + TURN_S
    while time.monotonic() < end:
        os.pwrite(fd, data, at)
        os.fdatasync(fd)
        at = (at + len(data)) % (BARE_BYTES - len(data))
        rounds += 1
    return rounds


class Sending:
    """Senders as in the broker: without a task each, with a callback when the message is on disk."""

    def __init__(self, store: MessageStore, senders: int) -> None:
        self._store = store
        self._senders = senders
        self._number = 0
        self._flushed = 0
        self._ends_at = 0.0
        self._waiting = 0
        self._idle = asyncio.Event()
        self.sent = 0
        self.syncs = 0

    async def go_on(self) -> None:
        """One turn."""
        self._ends_at = time.monotonic() + TURN_S
        self._idle.clear()
        for _ in range(self._senders):
            self._send()
        await self._idle.wait()

    def _send(self) -> None:
        self._number += 1
        self._waiting += 1
        placed = self._store.put(draft(self._number))
        self._store.flushed.call_when(placed.end_offset, self._done)

    def _done(self) -> None:
        self.sent += 1
        self._waiting -= 1
        if self._store.flushed.value != self._flushed:
            self._flushed = self._store.flushed.value
            self.syncs += 1
        if time.monotonic() < self._ends_at:
            asyncio.get_running_loop().call_soon(self._send)
        elif not self._waiting:
            self._idle.set()


# --- Recovery and tools -------------------------------------------------------------------------------------------


def bench_recovery(root: Path, messages: int) -> None:
    config = StoreConfig(store_path_root_dir=root)
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), threads=False) as store:
        for number in range(messages):
            store.put(draft(number))
        log_bytes = store.written
        record_bytes = log_bytes // messages
    print(
        f"{messages:,} records of {record_bytes} bytes, {log_bytes / MB:,.0f} MB\n{'':28}{'MB/s':>8}{'records/s':>12}"
    )

    told = partial(print_row, log_bytes=log_bytes, messages=messages)

    def recover(config: StoreConfig) -> None:
        with MessageStore.open(config, store_host=HOST, clock=SystemClock(), threads=False):
            pass

    told("sequential read", work=lambda: read_log(root / "commitlog", log_bytes))
    # The process died, the machine did not: the pages are there, but each record is checked.
    (root / "checkpoint").write_bytes(b"")
    (root / "abort").write_text(f"0\n{FileDisk().boot_id()}\n")
    told("recovery after kill -9", work=partial(recover, config))
    for name in ("checkpoint", "abort"):
        (root / name).write_bytes(b"")
    told("recovery after a power cut", work=partial(recover, config))
    # A part of it is for the keys: two per record here.
    (root / "abort").write_bytes(b"")
    (root / "checkpoint").write_bytes(b"")
    told("… without index", work=partial(recover, replace(config, message_index_enable=False)))
    told("verify", work=lambda: verify(root))
    told("rebuild", work=lambda: rebuild(root, clock=SystemClock(), out=root.with_name("rebuilt")))
    bench_raft_recovery(root.with_name("member"), messages)


def print_row(what: str, log_bytes: int, messages: int, work: Callable[[], object]) -> None:
    began = time.process_time()
    work()
    passed_s = time.process_time() - began
    print(f"{what:28}{log_bytes / MB / passed_s:>8,.0f}{messages / passed_s:>12,.0f}", flush=True)


def bench_raft_recovery(root: Path, messages: int) -> None:
    """A member of a Raft group, all of whose entries are committed."""
    config = StoreConfig(store_path_root_dir=root)

    def start() -> tuple[RaftLog, MessageStore]:
        log = raft_log(config)
        return log, MessageStore.open(config, store_host=HOST, clock=SystemClock(), log=log, threads=False)

    log, store = start()
    for number in range(messages):
        store.put(draft(number))
        if number % 1_000 == 0:
            store.confirm(store.written)
    store.confirm(store.written)
    log.note_committed(log.last_index)
    log_bytes = store.written
    store.close()
    told = partial(print_row, log_bytes=log_bytes, messages=messages)

    def restart() -> None:
        nonlocal store
        store = start()[1]

    for title, boot_id in (("Raft: after kill -9", FileDisk().boot_id()), ("Raft: after a power cut", "")):
        (root / "checkpoint").write_bytes(b"")
        (root / "abort").write_text(f"0\n{boot_id}\n" if boot_id else "")
        told(title, work=restart)
        assert store.dispatched == log_bytes, "all is committed"
        store.close()
    told("Raft: verify", work=lambda: verify(root))


def read_log(directory: Path, log_bytes: int) -> None:
    for path in sorted(directory.iterdir()):
        with path.open("rb", buffering=0) as file:
            left = min(log_bytes, path.stat().st_size)
            while left > 0 and (data := file.read(min(1 << 20, left))):
                left -= len(data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.disk")
    parser.add_argument("what", nargs="?", choices=("all", "flush", "recover"), default="all")
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the store that is recovered (1,000,000)")
    parser.add_argument("--dir", type=Path, help="where the stores are made (the system's directory for such)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        if given.what != "recover":
            bench_flush(Path(directory))
        if given.what != "flush":
            bench_recovery(Path(directory) / "recovered", given.messages)


if __name__ == "__main__":
    main()
