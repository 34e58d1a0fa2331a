"""CPU time of the client for each message that it consumes or sends, with the broker in another process.

::

    .venv/bin/python -m bench.consume                                  # all ways of consuming
    .venv/bin/python -m bench.consume --rounds 5 --against ../old/src  # two versions of the client, in turns

The broker is a process of this version. Each measurement is a process of its own, which consumes a backlog with a new
group and prints the CPU time (user and system) from its first message to its last. With ``--against``, the versions
take turns, so that a machine that becomes slower does so for both; compare the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from ternmq import (
    EmbeddedCluster,
    LitePullConfig,
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
    SyncLitePullConsumer,
    SyncProducer,
    SyncPushConsumer,
)

TOPIC: Final = "bench"
BODY: Final = bytes(range(128))
#: Messages before the clock starts: connections, routes and the first pulls are not what is measured.
WARM_UP: Final = 2_000


class Meter:
    """Counts messages; ``ended`` is set with the last one."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.began_s = 0.0
        self.cpu_us = 0.0
        self._count = count
        self.ended = asyncio.Event()

    def seen(self, count: int = 1) -> None:
        before, self.left = self.left, self.left - count
        if before > self._count - WARM_UP >= self.left:
            self.began_s = time.process_time()
        if before > 0 >= self.left:
            self.cpu_us = (time.process_time() - self.began_s) * 1e6 / (self._count - WARM_UP)
            self.ended.set()


# --- Ways to consume, in the measuring process ----------------------------------------------------------------------


async def listener(name_servers: str, meter: Meter) -> None:
    """An ``async`` listener, one message a call."""

    async def on_message(_: ReceivedMessage) -> None:
        meter.seen()

    await _listen(
        PushConsumer(group("listener"), on_message, name_servers=name_servers, start=StartPosition.FIRST), meter
    )


async def batches(name_servers: str, meter: Meter) -> None:
    """An ``async`` listener, up to 32 messages a call."""

    async def on_messages(messages: list[ReceivedMessage]) -> None:
        meter.seen(len(messages))

    consumer = PushConsumer(
        group("batches"), on_messages, name_servers=name_servers, start=StartPosition.FIRST, batch_max=32
    )
    await _listen(consumer, meter)


async def threads(name_servers: str, meter: Meter) -> None:
    """A plain listener, in one thread, one message a call."""
    loop = asyncio.get_running_loop()

    def on_message(_: ReceivedMessage) -> None:
        loop.call_soon_threadsafe(meter.seen) if meter.left <= 1 else meter.seen()

    consumer = PushConsumer(
        group("threads"), on_message, name_servers=name_servers, start=StartPosition.FIRST, threads=1
    )
    await _listen(consumer, meter)


async def orderly(name_servers: str, meter: Meter) -> None:
    """An ``async`` listener of an orderly consumer."""

    async def on_message(_: ReceivedMessage) -> None:
        meter.seen()

    consumer = PushConsumer(
        group("orderly"), on_message, name_servers=name_servers, start=StartPosition.FIRST, orderly=True
    )
    await _listen(consumer, meter)


async def loop(name_servers: str, meter: Meter) -> None:
    """``async for`` over a push consumer."""
    consumer: Any = PushConsumer(group("loop"), name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        # Before 0.2, the consumer itself could not be iterated.
        async for _ in consumer.messages() if hasattr(consumer, "messages") else consumer:
            meter.seen()
            if meter.ended.is_set():
                break


async def poll(name_servers: str, meter: Meter) -> None:
    """``poll`` of a lite pull consumer, up to 32 messages a call."""
    config = LitePullConfig(start=StartPosition.FIRST)
    async with LitePullConsumer(group("poll"), name_servers=name_servers, config=config) as consumer:
        consumer.subscribe(TOPIC)
        while not meter.ended.is_set():
            meter.seen(len(await consumer.poll()))


async def pop(name_servers: str, meter: Meter) -> None:
    """An ``async`` listener of a pop consumer, one message a call."""

    async def on_message(_: ReceivedMessage) -> None:
        meter.seen()

    await _listen(PopConsumer(group("pop"), on_message, name_servers=name_servers, start=StartPosition.FIRST), meter)


async def _listen(consumer: PushConsumer | PopConsumer, meter: Meter) -> None:
    consumer.subscribe(TOPIC)
    async with consumer:
        await meter.ended.wait()


async def send(name_servers: str, meter: Meter) -> None:
    """Sends one after the other, each awaited."""
    async with Producer("bench", name_servers=name_servers) as producer:
        while not meter.ended.is_set():
            await producer.send(Message("sent", BODY))
            meter.seen()


async def flight(name_servers: str, meter: Meter) -> None:
    """256 tasks, each of which awaits one send after the other."""

    async def sender() -> None:
        while not meter.ended.is_set():
            await producer.send(Message("sent", BODY))
            meter.seen()

    async with Producer("bench", name_servers=name_servers) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(256):
            tasks.create_task(sender())


async def nowait(name_servers: str, meter: Meter) -> None:
    """Sends without waiting, 256 at a time."""
    async with Producer("bench", name_servers=name_servers) as producer:
        while not meter.ended.is_set():
            await asyncio.gather(*[producer.send_nowait(Message("sent", BODY)) for _ in range(256)])
            meter.seen(256)


async def auto(name_servers: str, meter: Meter) -> None:
    """256 tasks, each of which awaits one send after the other, with automatic batches."""

    async def sender() -> None:
        while not meter.ended.is_set():
            await producer.send(Message("sent", BODY))
            meter.seen()

    config = ProducerConfig(auto_batch=True)
    async with Producer("bench", name_servers=name_servers, config=config) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(256):
            tasks.create_task(sender())


async def lists(name_servers: str, meter: Meter) -> None:
    """``send_batch`` of 100 messages, two at a time."""

    async def sender() -> None:
        while not meter.ended.is_set():
            await producer.send_batch([Message("sent", BODY) for _ in range(100)])
            meter.seen(100)

    async with Producer("bench", name_servers=name_servers) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(sender())


# --- The synchronous classes, in a thread of their own ---------------------------------------------------------------


async def sync_loop(name_servers: str, meter: Meter) -> None:
    """``for`` over a synchronous push consumer."""

    def run() -> None:
        with SyncPushConsumer(group("sync-loop"), name_servers=name_servers, start=StartPosition.FIRST) as consumer:
            consumer.subscribe(TOPIC)
            for _ in consumer:
                meter.seen()
                if meter.left <= 0:
                    break

    await asyncio.to_thread(run)


async def sync_poll(name_servers: str, meter: Meter) -> None:
    """``poll`` of a synchronous lite pull consumer."""

    def run() -> None:
        config = LitePullConfig(start=StartPosition.FIRST)
        with SyncLitePullConsumer(group("sync-poll"), name_servers=name_servers, config=config) as consumer:
            consumer.subscribe(TOPIC)
            while meter.left > 0:
                meter.seen(len(consumer.poll()))

    await asyncio.to_thread(run)


async def sync_send(name_servers: str, meter: Meter) -> None:
    """Sends of a synchronous producer, one after the other."""

    def run() -> None:
        with SyncProducer("bench", name_servers=name_servers) as producer:
            while meter.left > 0:
                producer.send(Message("sent", BODY))
                meter.seen()

    await asyncio.to_thread(run)


async def sync_nowait(name_servers: str, meter: Meter) -> None:
    """Sends of a synchronous producer without waiting, 256 at a time."""
    await _sync_nowait(name_servers, meter, ProducerConfig())


async def sync_auto(name_servers: str, meter: Meter) -> None:
    """The same with automatic batches."""
    await _sync_nowait(name_servers, meter, ProducerConfig(auto_batch=True))


async def _sync_nowait(name_servers: str, meter: Meter, config: ProducerConfig) -> None:
    def run() -> None:
        with SyncProducer("bench", name_servers=name_servers, config=config) as producer:
            while meter.left > 0:
                for sent in [producer.send_nowait(Message("sent", BODY)) for _ in range(256)]:
                    sent.result()
                meter.seen(256)

    await asyncio.to_thread(run)


async def sync_lists(name_servers: str, meter: Meter) -> None:
    """``send_batch`` of a synchronous producer, 100 messages each."""

    def run() -> None:
        with SyncProducer("bench", name_servers=name_servers) as producer:
            while meter.left > 0:
                producer.send_batch([Message("sent", BODY) for _ in range(100)])
                meter.seen(100)

    await asyncio.to_thread(run)


def group(way: str) -> str:
    """A group that has consumed nothing yet: each measurement reads the whole backlog."""
    return f"{way}-{os.getpid()}"


WAYS: Final[dict[str, Callable[[str, Meter], Awaitable[None]]]] = {
    way.__name__: way
    for way in (
        *(listener, batches, threads, orderly, loop, poll, pop, send, flight, nowait, auto, lists),
        *(sync_loop, sync_poll, sync_send, sync_nowait, sync_auto, sync_lists),
    )
}


def measure(way: str, name_servers: str, count: int) -> None:
    """Consume in one way, and print the CPU time of a message."""

    async def run() -> float:
        meter = Meter(count)
        async with asyncio.timeout(300):
            await WAYS[way](name_servers, meter)
        return meter.cpu_us

    print(json.dumps({"cpu_us": uvloop.run(run())}))


# --- The broker, and the measurements in turns ----------------------------------------------------------------------


async def _broker(count: int) -> None:
    """Serve a backlog until standard input ends."""
    async with EmbeddedCluster() as cluster:
        async with Producer("bench", name_servers=cluster.name_servers) as producer:
            messages = [Message(TOPIC, BODY, tags="new", keys=f"key-{number}") for number in range(count)]
            for at in range(0, count, 500):
                await producer.send_batch(messages[at : at + 500])
        print(cluster.name_servers, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", help=f"which of {', '.join(WAYS)}; default: all")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the src directory of another version")
    parser.add_argument("--broker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.broker:
        uvloop.run(_broker(options.messages))
        return
    if options.measure:
        way, name_servers = options.measure
        measure(way, name_servers, options.messages)
        return
    here = [sys.executable, "-m", "bench.consume", "--messages", str(options.messages)]
    versions: dict[str, dict[str, str]] = {"this": {}} | (
        {"other": {"PYTHONPATH": str(options.against.resolve())}} if options.against else {}
    )
    broker = subprocess.Popen([*here, "--broker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        name_servers = broker.stdout.readline().strip()
        for way in options.ways or WAYS:
            taken: dict[str, list[float]] = {version: [] for version in versions}
            for number in range(options.rounds):
                # Which goes first changes: the second finds the broker's caches warm.
                order = list(versions)[:: -1 if number % 2 else 1]
                for version in order:
                    command = [*here, "--measure", way, name_servers]
                    done = subprocess.run(
                        command, env={**os.environ, **versions[version]}, capture_output=True, text=True, check=True
                    )
                    taken[version].append(json.loads(done.stdout)["cpu_us"])
            shown = "  ".join(
                f"{version} {min(times):6.1f} (median {statistics.median(times):.1f})"
                for version, times in taken.items()
            )
            print(f"{way:12}{shown} µs", flush=True)
    finally:
        broker.terminate()
        broker.wait()


if __name__ == "__main__":
    main()
