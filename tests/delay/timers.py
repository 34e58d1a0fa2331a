"""One broker's store, its schedule log and the runner that delivers, in virtual time on a disk in memory (I2, I3).

``TimerWorld`` knows what was sent, recalled and delivered, and what a power cut has taken of it: the log is the truth,
so after each start the world asks it. ``check`` is what must hold at any time:

- no message is delivered before its time, none twice, and none that was recalled;
- what was delivered is what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.recalls import Recalls
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import Timer
from ternmq.errors import IllegalOperation, NotRunning, StoreError
from ternmq.store.log.protocol import Log
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.testing.clock import SimulatedClock
from ternmq.testing.disk import PowerCut, SimulatedDisk
from ternmq.wire.properties import find
from ternmq.wire.record import unpack_record
from tests.store.small import HOST, draft, small_config

ROOT = Path("/store")
TOPICS = ("orders", "bills")
MAX_DELAY_SEC = 40 * 86_400


@dataclass(slots=True)
class Sent:
    """A message that the store has taken."""

    key: str
    topic: str
    body: bytes
    due_ms: int
    log_offset: int
    handle: str
    #: Log offset of the record that took it back.
    recalled_at: int | None = None


@dataclass(slots=True, frozen=True)
class Delivered:
    key: str
    body: bytes
    log_offset: int
    store_time_ms: int


class WrongDelivery(AssertionError):
    """What a simulation found; its seed replays it."""


class TimerWorld:
    """A world in which messages wait."""

    def __init__(self, seed: int = 0, *, make_log: Callable[[TimerWorld], Log] | None = None, **changes: Any) -> None:
        """``make_log`` makes a log that is not a plain one."""
        self.random = Random(seed)
        self.clock = SimulatedClock(asyncio.get_running_loop())
        self.disk = SimulatedDisk(page_bytes=512, now_ms=self.clock.now_ms)
        self.config = small_config(ROOT, **{"mapped_file_size_commit_log": 16_384, **changes})
        self._make_log = make_log
        self.sent: dict[str, Sent] = {}
        self.delivered: dict[str, list[Delivered]] = {topic: [] for topic in TOPICS}
        #: What was told of deliveries: topics, messages, bytes.
        self.counted: list[tuple[str, int, int]] = []
        #: Set when the power was cut inside a task.
        self.died = asyncio.Event()
        self._tasks = Tasks()
        self._count = 0

    # --- Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.died.clear()
        alarm = Alarm()
        self.schedule = ScheduleLog(self.disk, ROOT, ring=alarm.ring)
        self.store = MessageStore.open(
            self.config,
            store_host=HOST,
            clock=self.clock,
            disk=self.disk,
            derived=(self.schedule,),
            threads=False,
            log=self._make_log(self) if self._make_log is not None else None,
        )
        self.timer = Timer(
            clock=self.clock,
            broker_name="a",
            is_enabled=True,
            max_delay_sec=MAX_DELAY_SEC,
            announce=self.schedule.announce,
        )
        self.recalls = Recalls(self.schedule, clock=self.clock, broker_name="a")
        self._alarm = alarm
        self._forget_lost()
        self._tasks = Tasks()
        self.begin_term()
        self._run(partial(_every, 1.0, self.store.flush_when_due))
        self._run(partial(_every, 2.0, self._tick))

    def begin_term(self) -> None:
        """From now on this broker delivers."""
        self.delivery = Delivery(
            self.store, self.schedule, self._alarm, clock=self.clock, count=lambda *what: self.counted.append(what)
        )
        self._run(self.delivery.run)

    async def end_term(self) -> None:
        """What is not confirmed may be taken back now."""
        self.delivery.stop(NotRunning("another broker leads"))
        await self._tasks.close()
        self._tasks = Tasks()

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except PowerCut:
                self.died.set()

        self._tasks.create_task(guarded())

    def _tick(self) -> None:
        # Retention may delete what was delivered.
        self.look()
        self.store.tick()

    async def stop(self) -> None:
        await self._tasks.close()
        self.look()
        self.store.close()
        self.schedule.close()

    async def kill(self) -> None:
        await self._tasks.close()
        self.look()
        self.disk.die()

    async def cut_power(self) -> None:
        await self._tasks.close()
        self.disk.power_cut(self.random)

    def _forget_lost(self) -> None:
        """After a start: what the log does not have any more never happened. Everything else must be as it was."""
        for key, message in list(self.sent.items()):
            if message.log_offset >= self.store.written:
                del self.sent[key]
            elif message.recalled_at is not None and message.recalled_at >= self.store.written:
                message.recalled_at = None
        for topic, found in self.delivered.items():
            del found[self.store.max_offset(topic, 0) :]

    # --- What happens -----------------------------------------------------------------------------------------------

    def send(self, delay_ms: int, topic: str = "orders", *, absolute: bool = False) -> Sent | None:
        """Store a message that is due after ``delay_ms``; None if the store refuses it."""
        self._count += 1
        key = f"K{self._count}"
        body = key.encode() + b"." * self.random.choice((0, 10, 300))
        due_ms = self.clock.now_ms() + delay_ms
        asked = {"TIMER_DELIVER_MS": str(due_ms)} if absolute else {"TIMER_DELAY_MS": str(delay_ms)}
        message = draft(topic, 0, body, UNIQ_KEY=key, **asked)
        self.timer.redirect(message)
        try:
            placed = self.store.put(message)
        except (StoreError, NotRunning):
            return None
        handle = self.timer.handle(message, placed.log_offset, key) or ""
        sent = self.sent[key] = Sent(key, topic, body, due_ms, placed.log_offset, handle)
        return sent

    async def recall(self, message: Sent) -> bool:
        """Take a message back; whether that was possible."""
        self.look()
        try:
            taken_back, key = await self.recalls.draft(message.topic, message.handle, born_host=HOST)
            placed = self.store.put(taken_back)
        except IllegalOperation:
            return False
        except (StoreError, NotRunning):
            return False
        assert key == message.key
        message.recalled_at = placed.log_offset
        return True

    # --- What must hold ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read what was delivered since the last look."""
        for topic, found in self.delivered.items():
            while entries := self.store.entries(topic, 0, len(found), 100):
                for entry in entries:
                    page = self.store.record_at(entry.log_offset, entry.size)
                    if page is None:
                        raise WrongDelivery("a delivery was deleted before it was looked at")
                    record = unpack_record(page)
                    key = find(record.properties, "UNIQ_KEY") or ""
                    found.append(Delivered(key, bytes(record.body), record.log_offset, record.store_time_ms))
        self.check()

    def check(self) -> None:
        keys = [each.key for found in self.delivered.values() for each in found]
        if len(keys) != len(set(keys)):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise WrongDelivery(f"delivered twice: {twice}")
        for topic, found in self.delivered.items():
            for each in found:
                message = self.sent.get(each.key)
                if message is None:
                    # Its sender was not told: the power was cut before.
                    continue
                if (topic, each.body) != (message.topic, message.body):
                    raise WrongDelivery(f"{each.key} was changed on its way")
                if each.store_time_ms < message.due_ms:
                    raise WrongDelivery(f"{each.key} is {message.due_ms - each.store_time_ms} ms early")
                if message.recalled_at is not None:
                    raise WrongDelivery(f"{each.key} was delivered although it was recalled")

    def check_complete(self) -> None:
        """By now everything must have come."""
        self.look()
        came = {each.key for found in self.delivered.values() for each in found}
        missing = [key for key, message in self.sent.items() if message.recalled_at is None and key not in came]
        if missing:
            raise WrongDelivery(f"never delivered: {missing}")
        if self.schedule.waiting or self.schedule.topics_waiting:
            raise WrongDelivery(f"{self.schedule.waiting} still wait: {self.schedule.topics_waiting}")


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except StoreError:
            # A disk that is full now; it is tried again.
            continue
