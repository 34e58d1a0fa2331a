"""Shared consumption beside push and pop: throughput by number of consumers, time to join, fairness (R1, R4).

::

    script/bench --share                        # TernMQ; some minutes
    script/bench --share --rocketmq             # with RocketMQ 5.2.0's pop beside it (needs Java)
    script/bench --share --consumers 8 --count 40000 --only throughput

*Throughput*: a backlog on four queues is consumed by so many consumers of one group, in one client process; messages a
second, and CPU time of the broker and of the client for each message. *Join*: a consumer that is started while others
work: until its first message. *Fairness*: the latency (99th percentile) of a group with two consumers, alone and beside
a group with a hundred that consume a backlog as fast as they can, in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from bench import systems
from bench.systems import System
from ternmq import (
    Admin,
    Message,
    PopConfig,
    PopConsumer,
    Producer,
    PushConsumer,
    ReceivedMessage,
    ShareConsumer,
    StartPosition,
)

QUEUES: Final = 4
BODY: Final = bytes(range(128))
FIRST: Final = StartPosition.FIRST
WAYS: Final = ("push", "pop", "share")
Listen = Callable[[list[ReceivedMessage]], object]
Consumer = PushConsumer | PopConsumer | ShareConsumer


def consumer_of(way: str, group: str, topic: str, listener: Listen, name_servers: str) -> Consumer:
    async def listen(messages: list[ReceivedMessage]) -> None:
        listener(messages)

    consumer: Consumer
    if way == "push":
        consumer = PushConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32)
    elif way == "pop":
        config = PopConfig(unsettled_max=192)
        consumer = PopConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32, config=config)
    else:
        consumer = ShareConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32)
    consumer.subscribe(topic)
    return consumer


async def fill(name_servers: str, topic: str, count: int) -> None:
    """A topic with so many messages."""
    async with Admin(name_servers) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    async with Producer("bench", name_servers=name_servers) as producer:
        for _ in range(0, count, 100):
            await producer.send_batch([Message(topic, BODY) for _ in range(100)])


# --- Throughput -----------------------------------------------------------------------------------------------------


async def throughput(system: System, way: str, topic: str, count: int, consumers: int) -> dict[str, float]:
    left, ended = count, asyncio.Event()

    def seen(messages: list[ReceivedMessage]) -> None:
        nonlocal left
        left -= len(messages)
        if left <= 0:
            ended.set()

    group = f"{way}-{consumers}-{os.getpid()}"
    async with AsyncExitStack() as stack:
        members = [consumer_of(way, group, topic, seen, system.namesrv) for _ in range(consumers)]
        # All begin together, when they have joined.
        for member in members:
            member.suspend()
            await stack.enter_async_context(member)
        if way == "push":
            await asyncio.sleep(2)  # rounds of rebalancing
        began, cpu, client = time.monotonic(), system.cpu_s(), time.process_time()
        for member in members:
            member.resume()
        async with asyncio.timeout(180):
            await ended.wait()
        took = time.monotonic() - began
        used, ours = system.cpu_s() - cpu, time.process_time() - client
    return {"per_s": count / took, "broker_us": used / count * 1e6, "client_us": ours / count * 1e6}


# --- Joining --------------------------------------------------------------------------------------------------------


async def join(system: System, way: str, topic: str) -> float:
    """Seconds from the start of a consumer, beside eight that work, until its first message."""
    async with Admin(system.namesrv) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    group = f"join-{way}-{os.getpid()}"
    came = asyncio.Event()
    stopping = False

    async def sell() -> None:
        async with Producer("bench", name_servers=system.namesrv) as producer:
            while not stopping:
                await producer.send(Message(topic, BODY))
                await asyncio.sleep(0.002)

    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(consumer_of(way, group, topic, lambda _: None, system.namesrv))
        selling = asyncio.ensure_future(sell())
        await asyncio.sleep(2)
        began = time.monotonic()
        late = consumer_of(way, group, topic, lambda _: came.set(), system.namesrv)
        await stack.enter_async_context(late)
        async with asyncio.timeout(60):
            await came.wait()
        took = time.monotonic() - began
        stopping = True
        await selling
    return took


# --- Fairness -------------------------------------------------------------------------------------------------------


async def latencies(system: System, way: str, topic: str, seconds: float) -> list[float]:
    """Of a group with two consumers: seconds from the send to the listener, 100 messages a second."""
    found: list[float] = []

    def seen(messages: list[ReceivedMessage]) -> None:
        now = time.time()
        found.extend(now - float(message.body) for message in messages)

    group = f"small-{way}-{os.getpid()}-{topic}"
    async with (
        consumer_of(way, group, topic, seen, system.namesrv),
        consumer_of(way, group, topic, seen, system.namesrv),
        Producer("bench", name_servers=system.namesrv) as producer,
    ):
        await asyncio.sleep(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await producer.send(Message(topic, repr(time.time()).encode()))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
    return found


async def storm(name_servers: str, way: str, topic: str, consumers: int) -> None:
    """So many consumers that read a backlog again and again, until killed."""
    number = 0
    while True:
        number += 1
        group = f"storm-{way}-{os.getpid()}-{number}"
        last, began = time.monotonic(), time.monotonic()

        def seen(_: list[ReceivedMessage]) -> None:
            nonlocal last
            last = time.monotonic()

        async with AsyncExitStack() as stack:
            for _ in range(consumers):
                await stack.enter_async_context(consumer_of(way, group, topic, seen, name_servers))
            print("raging", flush=True)
            while time.monotonic() - last < 0.5 and time.monotonic() - began < 60:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.1)


def p99_ms(found: Sequence[float]) -> float:
    return sorted(found)[int(len(found) * 0.99)] * 1000 if found else float("nan")


async def fairness(system: System, way: str, backlog: str, seconds: float) -> dict[str, float]:
    async with Admin(system.namesrv) as admin:
        for topic in ("small-quiet", "small-storm"):
            await admin.topics.create(f"{topic}-{way}", queues=1)
    quiet = p99_ms(await latencies(system, way, f"small-quiet-{way}", seconds))
    command = [sys.executable, "-m", "bench.share", "--storm", way, backlog, system.namesrv]
    raging = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - nothing is measured now
    try:
        assert raging.stdout is not None
        await asyncio.to_thread(raging.stdout.readline)
        beside = p99_ms(await latencies(system, way, f"small-storm-{way}", seconds))
    finally:
        raging.kill()
        raging.wait()
    return {"quiet_ms": quiet, "storm_ms": beside, "ratio": beside / quiet}


# --------------------------------------------------------------------------------------------------------------------


async def measure(system: System, options: argparse.Namespace, ways: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    topic = f"bench-{os.getpid()}"
    await fill(system.namesrv, topic, options.count)
    for consumers in options.consumers if options.only in (None, "throughput") else ():
        for way in ways:
            figures = await throughput(system, way, topic, options.count, consumers)
            found[f"{way} x{consumers}"] = figures
            print(f"{system.name:16} {way:6} {consumers:4} consumers", _line(figures), flush=True)
    for way in ways if options.only in (None, "join") else ():
        found[f"join {way}"] = took = await join(system, way, f"{topic}-join-{way}")
        print(f"{system.name:16} {way:6} first message of a consumer that joins after {took:.3f} s", flush=True)
    for way in ways if options.only in (None, "fairness") else ():
        figures = await fairness(system, way, topic, options.seconds)
        found[f"fairness {way}"] = figures
        print(f"{system.name:16} {way:6} p99 of a small group", _line(figures), flush=True)
    return found


def _line(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40_000, help="messages of the backlog")
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement of latency")
    parser.add_argument("--only", choices=("throughput", "join", "fairness"))
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ 5.2.0's pop as well")
    parser.add_argument("--storm", nargs=3, metavar=("WAY", "TOPIC", "NAMESRV"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        way, topic, name_servers = options.storm
        uvloop.run(storm(name_servers, way, topic, 100))
        return
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="bench-share-") as directory:
        if options.rocketmq:
            with systems.start_rocketmq(Path(directory) / "rocketmq", version=systems.POP_VERSION) as system:
                found[system.name] = uvloop.run(measure(system, options, ("pop",)))
        with systems.start_ternmq(Path(directory) / "ternmq") as system:
            found[system.name] = uvloop.run(measure(system, options, WAYS))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
