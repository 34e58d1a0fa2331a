"""``script/bench --delay``: messages with a delivery time, TernMQ beside RocketMQ 5.2.0's timer wheel (I2, I3).

For each system, by our own producer: the rate of sends with a delivery time as a ratio to that of plain sends, the CPU
time of the broker for each, and how late messages are delivered that are due within one second. For TernMQ alone: how
long a store with many waiting messages takes to open and to load this hour and the next, and the memory of each
waiting message.

RocketMQ, started afresh, goes through the seconds of the last week before it delivers anything; that is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from bench import systems
from bench.run import machine
from bench.systems import System
from ternmq import Message, Producer, PullConsumer
from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import Timer
from ternmq.env import SystemClock
from ternmq.message import MessageQueue
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import Draft, MessageStore
from ternmq.wire.record import pack_host

SYSTEMS: Final[dict[str, Callable[[Path], AbstractContextManager[System]]]] = {
    "rocketmq": partial(systems.start_rocketmq, version=systems.POP_VERSION),
    "ternmq": systems.start_ternmq,
}
WINDOW: Final = 64
BODY: Final = b"x" * 128
HOST: Final = pack_host("127.0.0.1", 10911)


async def sends(producer: Producer, system: System, message: Callable[[], Message], count: int) -> tuple[float, float]:
    """Messages a second, and the broker's CPU time for one, in µs."""
    began, cpu_s = time.monotonic(), system.cpu_s()
    for _ in range(count // WINDOW):
        await asyncio.gather(*(producer.send_nowait(message()) for _ in range(WINDOW)))
    took_s = time.monotonic() - began
    return count / took_s, (system.cpu_s() - cpu_s) / count * 1e6


async def lateness(system: System, producer: Producer, count: int) -> list[int]:
    """ms by which messages were late that are due within one second, sorted."""
    topic = "bench-late"
    queue = MessageQueue(topic, (await producer.queues("bench-plain"))[0].broker_name, 0)
    await producer.send(Message(topic, b"first", delay=timedelta(seconds=2)))
    lead_s = max(3.0, count / 2_000)
    begin = datetime.now(UTC) + timedelta(seconds=lead_s)
    due = [begin + timedelta(milliseconds=random.randrange(1000)) for _ in range(count)]
    for first in range(0, count, WINDOW):
        await asyncio.gather(
            *(
                producer.send_nowait(Message(topic, BODY, deliver_at=at), queue=queue)
                for at in due[first : first + WINDOW]
            )
        )
    late: list[int] = []
    offset = 0
    async with PullConsumer("bench", name_servers=system.namesrv) as consumer:
        while len(late) < count:
            result = await consumer.pull(queue, offset, count_max=32)
            for message in result.messages:
                offset = message.queue_offset + 1
                if asked := message.properties.get("TIMER_DELIVER_MS"):
                    late.append(message.store_time_ms - int(asked))
            if not result.messages:
                await asyncio.sleep(0.2)
    return sorted(late)


async def measure(system: System, args: argparse.Namespace) -> dict[str, float]:
    async with Producer("bench", name_servers=system.namesrv) as producer:
        await sends(producer, system, lambda: Message("bench-plain", BODY), 2_048)
        plain, delayed = [], []
        for _ in range(args.rounds):
            plain.append(await sends(producer, system, lambda: Message("bench-plain", BODY), args.messages))
            later = timedelta(seconds=random.randrange(7_200, 14_400))
            delayed.append(
                await sends(producer, system, partial(Message, "bench-timed", BODY, delay=later), args.messages)
            )
        late = await lateness(system, producer, args.due)
    rates = statistics.median(rate for rate, _ in plain), statistics.median(rate for rate, _ in delayed)
    return {
        "plain sends a second": rates[0],
        "delayed sends a second": rates[1],
        "ratio": rates[1] / rates[0],
        "broker CPU, µs a plain send": statistics.median(cpu for _, cpu in plain),
        "broker CPU, µs a delayed send": statistics.median(cpu for _, cpu in delayed),
        "late p50, ms": late[len(late) // 2],
        "late p99, ms": late[len(late) * 99 // 100],
        "late max, ms": late[-1],
        "late min, ms": late[0],
        "memory, MB": system.memory_mb(),
    }


async def start(directory: Path, waiting: int) -> dict[str, float]:
    """A store with messages that wait: an hour's part for this hour and the next, the rest later."""
    clock, config = SystemClock(), StoreConfig(store_path_root_dir=directory)
    timer = Timer(clock=clock, broker_name="a", is_enabled=True, max_delay_sec=config.timer_max_delay_sec)

    def opened() -> tuple[MessageStore, ScheduleLog, Alarm]:
        alarm = Alarm()
        schedule = ScheduleLog(FileDisk(), directory, ring=alarm.ring)
        store = MessageStore.open(config, store_host=HOST, clock=clock, derived=(schedule,))
        return store, schedule, alarm

    store, schedule, _ = opened()
    began = time.monotonic()
    for number in range(waiting):
        # A tenth within the hour or two that are loaded.
        low, high = (600_000, 3_600_000) if number % 10 == 0 else (7_200_000, 20 * 86_400_000)
        properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELAY_MS\x01{random.randrange(low, high)}\x02"
        draft = Draft("bench", 0, BODY, properties, 0, HOST)
        timer.redirect(draft)
        store.put(draft)
    filled_s = time.monotonic() - began
    store.close()
    schedule.close()
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    store, schedule, alarm = opened()
    open_s = time.monotonic() - began
    delivery = Delivery(store, schedule, alarm, clock=clock)
    task = asyncio.create_task(delivery.run())
    while delivery.loaded < sum(  # noqa: ASYNC110 - a bench may poll
        files.entry_count for files in schedule.hours(clock.now_ms() // 3_600_000 + 1)
    ):
        await asyncio.sleep(0.01)
    load_s = time.monotonic() - began - open_s
    loaded, bytes_each = delivery.loaded, delivery.memory_bytes / max(delivery.loaded, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.close()
    schedule.close()
    return {
        "waiting": waiting,
        "stored in, s": filled_s,
        "opened in, s": open_s,
        "this hour and the next loaded in, s": load_s,
        "… messages": loaded,
        "… bytes of memory each": bytes_each,
        "peak memory of the process before the start, MB": memory_kb / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --delay", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--messages", type=int, default=20_480, metavar="N", help="sends of a round (20,480)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, plain and delayed in turn (3)")
    parser.add_argument("--due", type=int, default=100_000, metavar="N", help="messages due in one second (100,000)")
    parser.add_argument("--waiting", type=int, default=10_000_000, metavar="N", help="waiting at a start (10,000,000)")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), help="which ones (both)")
    args = parser.parse_args()
    print(machine())
    for name in args.systems:
        directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
        try:
            with SYSTEMS[name](directory / name) as system:
                show(system.name, asyncio.run(measure(system, args)))
        finally:
            shutil.rmtree(directory)
    if args.waiting and "ternmq" in args.systems:
        directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
        try:
            show("start", asyncio.run(start(directory, args.waiting)))
        finally:
            shutil.rmtree(directory)


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:48s} {value:14,.2f}", flush=True)


if __name__ == "__main__":
    main()
