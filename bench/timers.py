"""What a message with a delivery time costs a broker, without sockets: ``python -m bench.timers``.

A real broker gets frames (``bench.frames``): plain sends and sends with a delivery time in turn, 64 in a read. Then the
deliveries of a store alone: messages that are due within one second, in any order, delivered by the term's runner; and
the same by the leader of a Raft group, whose entries are confirmed after each turn. CPU time of the thread for one
message, best and median of the rounds. ``--profile`` tells where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import pstats
import random
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from bench.frames import BODY, WINDOW, Clock, fed_broker
from bench.store import raft_log
from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import Timer
from ternmq.env import SystemClock
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import Draft, MessageStore
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import encode_request
from ternmq.wire.properties import join
from ternmq.wire.record import pack_host
from ternmq.wire.requests import SendMessageV2

TOPIC: Final = "bench-timers"
HOST: Final = pack_host("127.0.0.1", 10911)
_numbers: Final = itertools.count()


class Ahead(SystemClock):
    """A clock that can be set forward."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def pairs(number: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"7F000001000018B4AAC2{number:012X}", "WAIT": "true", "TAGS": "paid"}


def sends(due_ms: int | None) -> bytes:
    """A read of sends."""
    frames = bytearray()
    for number in itertools.islice(_numbers, WINDOW):
        timed = {} if due_ms is None else {"TIMER_DELIVER_MS": str(due_ms + number)}
        header = SendMessageV2(
            topic=TOPIC,
            queue_id=number % 4,
            producer_group="bench-producers",
            born_time_ms=1_700_000_000_000,
            properties=join(pairs(number) | timed),
        )
        frames += b"".join(encode_request(Code.SEND_MESSAGE_V2, header, BODY, opaque=number))
    return bytes(frames)


async def measure_sends(directory: Path, rounds: int, profile: cProfile.Profile | None) -> None:
    plain, timed = Clock("plain send"), Clock("send with a time", profile)
    async with fed_broker(directory) as broker:
        due_ms = SystemClock().now_ms() + 7_200_000
        for _ in range(rounds):
            await broker.feed(sends(None), plain)
            await broker.feed(sends(due_ms), timed)
    print(plain, timed, sep="\n")


async def measure_deliveries(
    directory: Path, count: int, rounds: int, profile: cProfile.Profile | None, *, is_member: bool
) -> None:
    title = "… on a Raft log" if is_member else f"delivery, {count:,} at once"
    clock, alarm, delivered = Ahead(), Alarm(), Clock(title, profile)
    schedule = ScheduleLog(FileDisk(), directory, ring=alarm.ring)
    config = StoreConfig(store_path_root_dir=directory)
    log = raft_log(config) if is_member else None
    store = MessageStore.open(config, store_host=HOST, clock=clock, derived=(schedule,), log=log)
    timer = Timer(clock=clock, broker_name="a", is_enabled=True, max_delay_sec=86_400, announce=schedule.announce)
    delivery = Delivery(store, schedule, alarm, clock=clock, count=lambda *_: None)
    for queue_id in range(4):
        store.put(Draft(TOPIC, queue_id, BODY, "", clock.now_ms(), HOST))
    longest_ms = 0.0
    for _ in range(rounds):
        # Later than the puts may take on a busy machine; the runner is told the time.
        begin_ms = clock.now_ms() + 600_000
        for number in itertools.islice(_numbers, count):
            due_ms = begin_ms + random.randrange(1_000)
            text = join(pairs(number) | {"TIMER_DELIVER_MS": str(due_ms)})
            draft = Draft(TOPIC, number % 4, BODY, text, clock.now_ms(), HOST)
            timer.redirect(draft)
            store.put(draft)
        if is_member:
            store.confirm(store.written)
        clock.ahead_ms += 601_100
        done = delivery.delivered
        gc.collect()
        with delivered.running(count):
            while delivery.delivered - done < count:
                began = time.thread_time()
                delivery._turn()  # noqa: SLF001 - what its task does, without the loop
                if is_member:
                    store.confirm(store.written)
                longest_ms = max(longest_ms, (time.thread_time() - began) * 1000)
    store.close()
    schedule.close()
    print(delivered, f"  longest turn {longest_ms:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--due", type=int, default=40_000)
    parser.add_argument("--profile", choices=("sends", "deliveries"))
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as name:
        if options.rounds:
            uvloop.run(measure_sends(Path(name) / "a", options.rounds, profile if options.profile == "sends" else None))
        if options.due:
            of_deliveries = profile if options.profile == "deliveries" else None
            for is_member in (False, True):
                directory = Path(name) / ("c" if is_member else "b")
                uvloop.run(measure_deliveries(directory, options.due, 3, of_deliveries, is_member=is_member))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
