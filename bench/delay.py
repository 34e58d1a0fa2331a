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
import os
import random
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from bench import systems
from bench.run import machine
from bench.systems import System, memory_mb
from ternmq import Message, Producer, PullConsumer
from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.due import HOUR_MS, AskedTime, Waiting, slot_of
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.env import SystemClock
from ternmq.errors import SystemBusy
from ternmq.message import MessageQueue
from ternmq.names import WHEEL_TOPIC
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import Draft, Fact, MessageStore
from ternmq.wire.record import field_at, pack_host, pack_record, record_bytes

SYSTEMS: Final[dict[str, Callable[[Path], AbstractContextManager[System]]]] = {
    "rocketmq": partial(systems.start_rocketmq, version=systems.POP_VERSION),
    "ternmq": systems.start_ternmq,
}
WINDOW: Final = 64
BODY: Final = b"x" * 128
HOST: Final = pack_host("127.0.0.1", 10911)
#: Queue offset and log offset, next to each other in a record.
_OFFSETS: Final = struct.Struct(">qq")


async def sends(producer: Producer, system: System, message: Callable[[], Message], count: int) -> tuple[float, float]:
    """Messages a second, and the broker's CPU time for one, in µs."""
    began, cpu_s = time.monotonic(), system.cpu_s()
    sent = 0
    while sent < count:
        receipts = await asyncio.gather(
            *(producer.send_nowait(message()) for _ in range(WINDOW)), return_exceptions=True
        )
        # RocketMQ refuses what has waited for 200 ms, as on a busy machine, or before its code is compiled.
        sent += sum(not isinstance(receipt, SystemBusy) for receipt in receipts)
        for receipt in receipts:
            if isinstance(receipt, BaseException) and not isinstance(receipt, SystemBusy):
                raise receipt
    took_s = time.monotonic() - began
    return sent / took_s, (system.cpu_s() - cpu_s) / sent * 1e6


async def lateness(system: System, producer: Producer, count: int, sends_a_second: float) -> tuple[list[int], float]:
    """ms by which messages due within one second were late, sorted; and the CPU time of the broker for one, in µs."""
    topic = "bench-late"
    queue = MessageQueue(topic, (await producer.queues("bench-plain"))[0].broker_name, 0)
    await producer.send(Message(topic, b"first", delay=timedelta(seconds=2)))
    begin = datetime.now(UTC) + timedelta(seconds=3 + 2 * count / sends_a_second)
    due = [begin + timedelta(milliseconds=random.randrange(1000)) for _ in range(count)]
    for first in range(0, count, WINDOW):
        left = due[first : first + WINDOW]
        while left:
            receipts = await asyncio.gather(
                *(producer.send_nowait(Message(topic, BODY, deliver_at=at), queue=queue) for at in left),
                return_exceptions=True,
            )
            left = [at for at, receipt in zip(left, receipts, strict=True) if isinstance(receipt, BaseException)]
    if datetime.now(UTC) > begin:
        print("  the sends took longer than expected: some came after their time", flush=True)
    late: list[int] = []
    offset, cpu_s = 0, system.cpu_s()
    async with PullConsumer("bench", name_servers=system.namesrv) as consumer:
        while len(late) < count:
            result = await consumer.pull(queue, offset, count_max=32)
            for message in result.messages:
                offset = message.queue_offset + 1
                if asked := message.properties.get("TIMER_DELIVER_MS"):
                    late.append(message.store_time_ms - int(asked))
            if not result.messages:
                await asyncio.sleep(0.2)
    return sorted(late), (system.cpu_s() - cpu_s) / count * 1e6


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
        rates = statistics.median(rate for rate, _ in plain), statistics.median(rate for rate, _ in delayed)
        late, delivery_us = await lateness(system, producer, args.due, rates[1])
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
        "broker CPU, µs a delivery and its pull": delivery_us,
        "memory, MB": system.memory_mb(),
    }


def fill(directory: Path, waiting: int) -> float:
    """Make a store in which messages wait, a tenth of them for this hour and the next; s that it took.

    Straight into the schedule log, as if the log had forgotten their records: a send for each would take minutes.
    """
    clock, config = SystemClock(), StoreConfig(store_path_root_dir=directory)
    schedule = ScheduleLog(FileDisk(), directory, ring=Alarm().ring)
    store = MessageStore.open(config, store_host=HOST, clock=clock, derived=(schedule,))
    began, now_ms, at = time.monotonic(), clock.now_ms(), 0
    for number in range(waiting):
        low, high = (600_000, 3_600_000) if number % 10 == 0 else (7_200_000, 20 * 86_400_000)
        due_ms = now_ms + random.randrange(low, high)
        slot_ms = slot_of(due_ms)
        properties = (
            f"UNIQ_KEY\x01K{number:09d}\x02TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_OUT_MS\x01{slot_ms}\x02"
            "REAL_TOPIC\x01bench\x02REAL_QID\x010\x02"
        )
        if not number:
            size = record_bytes(
                body=len(BODY),
                topic=len(WHEEL_TOPIC),
                properties=len(properties),
                born_host=len(HOST),
                store_host=len(HOST),
            )
            page = bytearray(size)
            record = memoryview(page)
            pack_record(
                page,
                0,
                size=size,
                queue_id=0,
                flag=0,
                queue_offset=0,
                log_offset=0,
                sysflag=0,
                born_time_ms=now_ms,
                born_host=HOST,
                store_time_ms=now_ms,
                store_host=HOST,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=BODY,
                topic=WHEEL_TOPIC.encode(),
                properties=properties.encode(),
            )
        page[size - len(properties) :] = properties.encode()
        _OFFSETS.pack_into(page, field_at("queue_offset"), number, at)
        schedule.announce(
            properties, Waiting(slot_ms, "bench", AskedTime("TIMER_DELIVER_MS", due_ms, is_relative=False))
        )
        schedule.fold(Fact(WHEEL_TOPIC, 0, number, at, size, 0, now_ms, 0, 0, properties), record)
        at += size
    segment_bytes = config.mapped_file_size_commit_log
    store.begin_at((at // segment_bytes + 1) * segment_bytes)
    store.put(Draft("bench", 0, BODY, "UNIQ_KEY\x01K\x02", now_ms, HOST))
    store.close()
    schedule.close()
    return time.monotonic() - began


async def start(directory: Path) -> dict[str, float]:
    """Open a store in this process, and load this hour and the next."""
    clock, config, alarm = SystemClock(), StoreConfig(store_path_root_dir=directory), Alarm()
    before_mb, began = memory_mb(os.getpid()), time.monotonic()
    schedule = ScheduleLog(FileDisk(), directory, ring=alarm.ring)
    store = MessageStore.open(config, store_host=HOST, clock=clock, derived=(schedule,))
    open_s, open_mb = time.monotonic() - began, memory_mb(os.getpid())
    delivery = Delivery(store, schedule, alarm, clock=clock, count=lambda *_: None)
    task = asyncio.create_task(delivery.run())
    longest_s = 0.0
    while delivery.loaded < sum(files.entry_count for files in schedule.hours(clock.now_ms() // HOUR_MS + 1)):
        turn = time.monotonic()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.monotonic() - turn)
    load_s, loaded, bytes_each = time.monotonic() - began - open_s, delivery.loaded, delivery.memory_bytes
    load_mb = memory_mb(os.getpid())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    waiting = schedule.waiting
    store.close()
    schedule.close()
    return {
        "waiting": waiting,
        "store opened in, s": open_s,
        "… memory for that, MB": open_mb - before_mb,
        "this hour and the next loaded in, s": load_s,
        "… longest turn of the loop, ms": longest_s * 1000,
        "… messages": loaded,
        "… bytes of the wheel for each": bytes_each / max(loaded, 1),
        "… bytes of memory for each": (load_mb - open_mb) * (1 << 20) / max(loaded, 1),
    }


def start_figures(waiting: int) -> dict[str, float]:
    """A directory with messages that wait: opened by a new process, and then by a whole broker."""
    directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
    try:
        store = directory / "ternmq" / "broker-a"
        figures = {"schedule written in, s": fill(store, waiting)}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            figures |= process.submit(run_start, store).result()
        with systems.start_ternmq(directory / "ternmq") as system:
            figures["name server and broker ready in, s"] = system.ready_s
            before_s = -1.0
            while system.cpu_s() > before_s:
                # Until this hour is loaded.
                before_s = system.cpu_s()
                time.sleep(1)
            figures["… memory of the broker, MB"] = system.memory_mb()
        return figures
    finally:
        shutil.rmtree(directory)


def run_start(store: Path) -> dict[str, float]:
    return asyncio.run(start(store))


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
        show("start of TernMQ", start_figures(args.waiting))


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:48s} {value:14,.2f}", flush=True)


if __name__ == "__main__":
    main()
