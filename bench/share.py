"""Shared consumption beside push and pop: throughput by number of consumers, changes of members, fairness (R1, R4).

::

    script/bench --share                        # TernMQ; some minutes
    script/bench --share --rocketmq             # with RocketMQ 5.2.0's pop beside it (needs Java)
    script/bench --share --consumers 8 --count 40000 --only throughput

*Throughput*: a backlog on four queues is consumed by so many consumers of one group, in one client process; messages a
second, and CPU time of the broker and of the client for each message. *Join*: a consumer that is started while two
others work: until its first message. *Death*: one of three consumers is killed: until messages that were sent after
that have come from each queue. *Hang*: one of three consumers hangs with its first message, while its heartbeats go on:
how many of the messages that were sent since wait after some seconds. *Fairness*: the latency (99th percentile) of a
group with two consumers, alone and beside a group with a hundred that consume a backlog as fast as they can, in another
process. That one has a lower priority: the broker's fairness is measured, not whether the machine has enough CPUs.

What does not fit into ``--minutes`` is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

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
#: No row takes longer.
ROW_S: Final = 60.0
Listen = Callable[[list[ReceivedMessage]], object]
Consumer = PushConsumer | PopConsumer | ShareConsumer


def consumer_of(way: str, group: str, topic: str, listener: Listen, name_servers: str) -> Consumer:
    async def listen(messages: list[ReceivedMessage]) -> None:
        result = listener(messages)
        if isinstance(result, Awaitable):
            await result

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
    members = [consumer_of(way, group, topic, seen, system.namesrv) for _ in range(consumers)]
    # All begin together, when they have joined.
    for member in members:
        member.suspend()
    async with running(members):
        if way == "push":
            await asyncio.sleep(2)  # rounds of rebalancing
        began, cpu, client = time.monotonic(), system.cpu_s(), time.process_time()
        for member in members:
            member.resume()
        async with asyncio.timeout(ROW_S):
            await ended.wait()
        took = time.monotonic() - began
        used, ours = system.cpu_s() - cpu, time.process_time() - client
    return {"per_s": count / took, "broker_us": used / count * 1e6, "client_us": ours / count * 1e6}


# --- Members that come, die and hang ---------------------------------------------------------------------------------


@asynccontextmanager
async def running(members: Sequence[Consumer]) -> AsyncIterator[None]:
    """Start consumers at the same time, and end them so."""
    await asyncio.gather(*(member.__aenter__() for member in members))
    try:
        yield
    finally:
        await asyncio.gather(*(member.__aexit__(None, None, None) for member in members))


@asynccontextmanager
async def selling(system: System, topic: str) -> AsyncIterator[list[float]]:
    """A topic to which messages with their time as body are sent, up to 300 a second; yields the times."""
    async with Admin(system.namesrv) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    ended, sent = asyncio.Event(), list[float]()

    async def sell() -> None:
        async with Producer("bench", name_servers=system.namesrv) as producer:
            while not ended.is_set():
                now = time.time()
                await producer.send(Message(topic, repr(now).encode()))
                sent.append(now)
                await asyncio.sleep(0.003)

    task = asyncio.ensure_future(sell())
    try:
        yield sent
    finally:
        ended.set()
        await task


async def join(system: System, way: str, topic: str) -> dict[str, float]:
    group, came = f"join-{way}-{os.getpid()}", asyncio.Event()
    two = [consumer_of(way, group, topic, lambda _: None, system.namesrv) for _ in range(2)]
    async with selling(system, topic), running(two):
        await asyncio.sleep(2)
        began = time.monotonic()
        late = consumer_of(way, group, topic, lambda _: came.set(), system.namesrv)
        async with late, asyncio.timeout(ROW_S):
            await came.wait()
            took = time.monotonic() - began
    return {"join_s": took}


async def death(system: System, way: str, topic: str) -> dict[str, float]:
    group, killed, queues = f"death-{way}-{os.getpid()}", [float("inf")], set[int]()
    busy = asyncio.Event()

    def seen(messages: list[ReceivedMessage]) -> None:
        queues.update(message.queue_id for message in messages if float(message.body) > killed[0])
        if len(queues) == QUEUES:
            busy.set()

    two = [consumer_of(way, group, topic, seen, system.namesrv) for _ in range(2)]
    async with selling(system, topic), running(two):
        command = [sys.executable, "-m", "bench.share", "--member", way, group, topic, system.namesrv]
        third = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - not measured yet
        try:
            assert third.stdout is not None
            async with asyncio.timeout(ROW_S):
                await asyncio.to_thread(third.stdout.readline)
                killed[0] = time.time()
                third.send_signal(signal.SIGKILL)
                await busy.wait()
            took = time.time() - killed[0]
        finally:
            third.kill()
            third.wait()
    return {"death_s": took}


async def hang(system: System, way: str, topic: str, seconds: float) -> dict[str, float]:
    group, done = f"hang-{way}-{os.getpid()}", set[float]()
    hung, ended = asyncio.Event(), asyncio.Event()

    def seen(messages: list[ReceivedMessage]) -> None:
        done.update(float(message.body) for message in messages)

    async def hanging(_: list[ReceivedMessage]) -> None:
        hung.set()
        await ended.wait()

    two = [consumer_of(way, group, topic, seen, system.namesrv) for _ in range(2)]
    third = consumer_of(way, group, topic, hanging, system.namesrv)
    async with selling(system, topic) as sent, running([*two, third]):
        async with asyncio.timeout(ROW_S):
            await hung.wait()
        began = time.time()
        await asyncio.sleep(seconds)
        since = [one for one in sent if one > began]
        # What was sent in the last moment may be on its way.
        await asyncio.sleep(1.0)
        waiting = sum(one not in done for one in since)
        ended.set()
    return {"sent": len(since), "waiting": waiting}


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
    os.nice(10)
    number = 0
    while True:
        number += 1
        group = f"storm-{way}-{os.getpid()}-{number}"
        last, began = time.monotonic(), time.monotonic()

        def seen(_: list[ReceivedMessage]) -> None:
            nonlocal last
            last = time.monotonic()

        async with running([consumer_of(way, group, topic, seen, name_servers) for _ in range(consumers)]):
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


async def member(name_servers: str, way: str, group: str, topic: str) -> None:
    """One consumer, until killed; says when it has its first message."""
    busy = asyncio.Event()
    async with consumer_of(way, group, topic, lambda _: busy.set(), name_servers):
        await busy.wait()
        print("busy", flush=True)
        await asyncio.Event().wait()


# --------------------------------------------------------------------------------------------------------------------

Row = Callable[[], Coroutine[Any, Any, dict[str, float]]]


def rows_of(system: System, options: argparse.Namespace, ways: Sequence[str], topic: str) -> dict[str, Row]:
    """What is measured, by name: what every run must have first."""
    found: dict[str, Row] = {}
    if options.only in (None, "throughput"):
        for consumers in options.consumers:
            for way in ways:
                found[f"{way} x{consumers}"] = partial(throughput, system, way, topic, options.count, consumers)
    if options.only in (None, "fairness"):
        for way in ways:
            found[f"fairness {way}"] = partial(fairness, system, way, topic, options.seconds)
    if options.only in (None, "members"):
        for way in ways:
            found[f"join {way}"] = partial(join, system, way, f"{topic}-join-{way}")
            found[f"death {way}"] = partial(death, system, way, f"{topic}-death-{way}")
            found[f"hang {way}"] = partial(hang, system, way, f"{topic}-hang-{way}", options.seconds)
    return found


async def measure(
    system: System, options: argparse.Namespace, ways: Sequence[str], *, end: float
) -> dict[str, dict[str, float]]:
    """All rows that can be begun before ``end``."""
    found: dict[str, dict[str, float]] = {}
    topic = f"bench-{os.getpid()}"
    await fill(system.namesrv, topic, options.count)
    for name, row in rows_of(system, options, ways, topic).items():
        if time.monotonic() > end:
            print(f"{system.name:16} {name:16} left out: the time is over, see --minutes", flush=True)
            continue
        try:
            found[name] = figures = await row()
        except TimeoutError:
            print(f"{system.name:16} {name:16} not done within {ROW_S:.0f} s", flush=True)
            continue
        print(
            f"{system.name:16} {name:16}",
            "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()),
            flush=True,
        )
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """All rows, for docs/performance.md."""
    lines = ["| Broker | Measurement | Figures |", "|---|---|---|"]
    for system, rows in found.items():
        for name, figures in rows.items():
            lines.append(f"| {system} | {name} | {_line(figures)} |")
    return "\n".join(lines)


def _line(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40_000, help="messages of the backlog")
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement of latency, or of a hang")
    parser.add_argument("--minutes", type=float, default=6.0, help="no row begins later than this")
    parser.add_argument("--only", choices=("throughput", "members", "fairness"))
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ 5.2.0's pop as well")
    parser.add_argument("--storm", nargs=3, metavar=("WAY", "TOPIC", "NAMESRV"), help=argparse.SUPPRESS)
    parser.add_argument("--member", nargs=4, metavar=("WAY", "GROUP", "TOPIC", "NAMESRV"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        way, topic, name_servers = options.storm
        uvloop.run(storm(name_servers, way, topic, 100))
        return
    if options.member:
        way, group, topic, name_servers = options.member
        uvloop.run(member(name_servers, way, group, topic))
        return
    found: dict[str, dict[str, dict[str, float]]] = {}
    began, all_s = time.monotonic(), options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="bench-share-") as directory:
        if options.rocketmq:
            with systems.start_rocketmq(Path(directory) / "rocketmq", version=systems.POP_VERSION) as system:
                # One way instead of three.
                found[system.name] = uvloop.run(measure(system, options, ("pop",), end=began + all_s * 0.35))
        with systems.start_ternmq(Path(directory) / "ternmq") as system:
            found[system.name] = uvloop.run(measure(system, options, WAYS, end=began + all_s))
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
