"""A store with delay levels in virtual time, on a disk in memory: what the tests of this package share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ternmq.delay.levels import DelayLevels
from ternmq.delay.progress import DelayProgress
from ternmq.files import TableFile, do_now
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.testing.clock import SimulatedClock
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop
from ternmq.wire.record import Record, unpack_record
from tests.memory_files import MemoryFiles
from tests.store.small import HOST, draft, small_config

ROOT = Path("/store")
#: Level 1, 2 and 3 in ms; all others of a message are the last.
DELAYS_MS = (1_000, 2_000, 5_000)
LEVELS = "1s 2s 5s"

T = TypeVar("T")


def in_virtual_time(program: Coroutine[Any, Any, T]) -> T:
    with simulated_loop() as loop:
        return loop.run_until_complete(program)


@dataclass(slots=True, frozen=True)
class Sent:
    body: bytes
    level: int
    store_time_ms: int
    end_offset: int

    @property
    def due_ms(self) -> int:
        return self.store_time_ms + DELAYS_MS[min(self.level, len(DELAYS_MS)) - 1]


class World:
    """One broker's store and its delay levels; ``sent`` is what was stored."""

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        self.random = Random(seed)
        self.clock = SimulatedClock(asyncio.get_running_loop())
        self.disk = SimulatedDisk(page_bytes=512)
        self.files = MemoryFiles()
        self.config = small_config(
            ROOT, **{"message_delay_level": LEVELS, "mapped_file_size_commit_log": 65_536, **changes}
        )
        self.sent: list[Sent] = []
        self._tasks = Tasks()

    def start(self) -> None:
        self.store = MessageStore.open(self.config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False)
        file = TableFile(ROOT / "config" / "delayOffset.json", do_now, self.files)
        self.progress = DelayProgress(file, self.store, self.clock)
        self.progress.load()
        self.levels = DelayLevels(self.store, self.progress, clock=self.clock, count=lambda *_: None)
        self._tasks = Tasks()
        self._tasks.create_task(self.levels.run())
        self._tasks.create_task(_every(10.0, self.progress.save))
        self._tasks.create_task(_every(0.5, self.store.flush_when_due))
        self._tasks.create_task(_every(1.0, self.store.tick))

    async def stop(self) -> None:
        await self._tasks.close()
        self.store.flush_now()
        self.progress.save()
        self.store.close()

    async def kill(self) -> None:
        await self._tasks.close()
        self.disk.die()

    async def cut_power(self) -> None:
        """What was sent and not on the disk may be lost, or not."""
        await self._tasks.close()
        flushed = self.store.flushed.value
        self.disk.power_cut(self.random)
        self.sent = [message for message in self.sent if message.end_offset <= flushed]

    def send(self, level: int, topic: str = "orders", queue_id: int = 0) -> Sent:
        body = b"%d" % len(self.sent) + b"-%d" % self.random.getrandbits(60)
        message = draft(topic, queue_id, body, DELAY=str(level), TAGS="A")
        self.levels.redirect(message)
        placed = self.store.put(message)
        self.sent.append(Sent(body, level, placed.store_time_ms, placed.end_offset))
        return self.sent[-1]

    def delivered(self, topic: str = "orders", queue_id: int = 0) -> list[Record]:
        """All messages of a queue."""
        found: list[Record] = []
        while entries := self.store.entries(topic, queue_id, len(found), 100):
            for entry in entries:
                page = self.store.record_at(entry.log_offset, entry.size)
                assert page is not None
                found.append(unpack_record(page))
        return found


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        work()
