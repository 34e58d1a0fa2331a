"""One seed, some lives of a store with messages that wait: kills and power cuts at any step of the disk, full disks,
clocks that jump, retention (I2, I3). What must hold is in ``timers``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from ternmq.delay.hour_files import SUFFIXES
from ternmq.delay.schedule_log import DIRECTORY
from ternmq.errors import DiskFull, StoreError
from ternmq.testing.disk import PowerCut
from tests.delay.timers import ROOT, TOPICS, TimerWorld, WrongDelivery

HOUR_MS: Final = 3_600_000
#: ms, by kind: soon, within the minute, this hour or the next.
DELAYS_MS: Final = ((0, 1_500), (0, 60_000), (0, 2 * HOUR_MS))
WAITS_MS: Final = (0, 1, 999, 1_000, 2_500, 30_000, 61_000)
JUMPS_MS: Final = (-HOUR_MS, -90_000, -1_500, 1_500, 90_000, HOUR_MS)
GREEDY: Final = frozenset({"write", "claim", "create"})
#: Longer than any delay, any jump, and the pass that removes files.
END_S: Final = 4 * 3600.0 + 300
#: Which part of the seeds waits for its end; the others set the clock.
NATURAL: Final = 0.1


class TimerSimulation:
    """Runs one seed. Raises ``WrongDelivery``, or whatever should not have been raised."""

    def __init__(self, seed: int, *, lives: int = 3, actions: int = 25) -> None:
        self.seed = seed
        self.lives = lives
        self.actions = actions

    async def run(self) -> None:
        world = self.world = TimerWorld(self.seed, file_reserved_time=0, flush_consume_queue_thorough_interval=10_000)
        self.random = world.random
        for _ in range(self.lives):
            await self._live()
        world.disk.before = None
        world.start()
        if self.random.random() < NATURAL:
            await asyncio.sleep(END_S)
        # Beyond all jumps back.
        world.clock.jump(24 * HOUR_MS)
        await asyncio.sleep(60)
        world.check_complete()
        await self._check_files()

    async def _live(self) -> None:
        world, random = self.world, self.random
        self._light_fuse()
        try:
            world.start()
        except PowerCut:
            await world.cut_power()
            return
        except StoreError:
            # The disk was full: no start.
            world.disk.die()
            return
        for _ in range(random.randrange(self.actions)):
            try:
                await self._act()
            except PowerCut:
                world.died.set()
            if world.died.is_set():
                await world.cut_power()
                return
        world.disk.before = None
        match random.randrange(3):
            case 0:
                try:
                    await world.stop()
                except StoreError:
                    world.disk.die()
            case 1:
                await world.kill()
            case 2:
                await world.cut_power()

    def _light_fuse(self) -> None:
        """Let the power be cut, or the disk be full, after some steps of the disk."""
        random, disk = self.random, self.world.disk
        left, kind = random.randrange(10, 400), random.choice(("none", "cut", "cut", "full"))
        full = random.randrange(1, 60)

        def before(step: str, _path: Path) -> None:
            nonlocal left, full
            left -= 1
            if left > 0 or kind == "none":
                return
            if kind == "cut":
                raise PowerCut
            if full > 0 and step in GREEDY:
                full -= 1
                raise DiskFull("the disk is full")

        disk.before = before

    async def _act(self) -> None:
        world, random = self.world, self.random
        match random.choices(("send", "recall", "wait", "jump", "clean", "write back"), (8, 2, 6, 1, 2, 1))[0]:
            case "send":
                count = random.choice((1, 1, 5, 40))
                crowd = random.choice(DELAYS_MS) if count > 5 else None
                for _ in range(count):
                    low, high = crowd or random.choice(DELAYS_MS)
                    world.send(random.randint(low, high), random.choice(TOPICS), absolute=random.random() < 0.5)
            case "recall":
                if world.sent:
                    await world.recall(random.choice(list(world.sent.values())))
            case "wait":
                await asyncio.sleep(random.choice(WAITS_MS) / 1000)
            case "jump":
                world.clock.jump(random.choice(JUMPS_MS))
            case "clean":
                world.look()
                world.store.retention.ask()
                world.store.tick()
            case "write back":
                world.disk.write_back(random)
        world.look()

    async def _check_files(self) -> None:
        """Hours that are over and done have no files."""
        left = [
            entry.name for entry in self.world.disk.list(ROOT / DIRECTORY) if entry.name.partition(".")[2] in SUFFIXES
        ]
        if left:
            raise WrongDelivery(f"all is delivered, and these files are left: {left}")
        await self.world.stop()
