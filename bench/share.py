"""Shared consumption beside push and pop: throughput by number of consumers, changes of members, fairness (R1, R4).

::

    script/bench --share                        # TernMQ; some minutes
    script/bench --share --rocketmq             # with RocketMQ 5.2.0's pop beside it (needs Java)
    script/bench --share --consumers 8 --count 40000 --only throughput

*Throughput*: a backlog on four queues is consumed by so many consumers of one group, in one client process; messages a
second, and CPU time of the broker and of the client for each message; the start of the consumers, with what it leaves
to the garbage collector, is told apart (CPU time of the client for each). *Join*: a consumer that is started while two
others work: until its first message. *Death*: one of three consumers is killed: until messages that were sent after
that have come from each queue. *Hang*: one of three consumers hangs with its first messages, while its heartbeats go
on: how many of the messages that were sent since wait 8 s later, and how long the longest waited (limit 5 s, where a
way has one). *Acks* and *memory*: what an ack and a consumer cost the broker.

*Fairness*: the latency (99th percentile) of a group with two consumers, alone and beside a group with a hundred that
consume a backlog all the time, in a process of their own. How it is measured is the same for both brokers:

- The storm's clients run with the CPU time that is left over (SCHED_IDLE). The broker's fairness is measured, not
  whether the machine has enough CPUs for the clients. This holds only among processes that the kernel schedules
  together (``systems.is_scheduled_here``), so all are of one session.
- Where other programs run, ``--realtime`` keeps them away: the broker and the small group's clients come before all
  of them (SCHED_FIFO), and the storm's clients before the others. Some seconds at a time; it needs root.
- Once as fast as they can, and once with the same rate for both brokers: a broker that feeds its storm ten times as
  fast has ten times the work.
- The rate that the storm reached, and the CPU that the broker used, are part of the row. The storm is in full swing
  before the measurement begins. If it is over before its end, it gets a larger backlog, and is measured again.

What does not fit into ``--minutes`` is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
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
from ternmq.client.consume.config import POP_INVISIBLE_LEAST_MS
from ternmq.errors import TernError
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_share import ShareAck, SharePull, SharePullReply
from tests.broker.calls import dialled

QUEUES: Final = 4
#: Consumers of the storm.
STORM: Final = 100
BODY: Final = bytes(range(128))
BATCH: Final = 500
FIRST: Final = StartPosition.FIRST
WAYS: Final = ("push", "pop", "share")
#: Ten thousand consumers come from one address.
SETTINGS: Final = {"maxConnectionsPerAddress": 12_000}
#: When a message of a consumer that hangs is given to another one, where there is such a limit.
HOLD_MS: Final = POP_INVISIBLE_LEAST_MS
#: Messages a second of the storm that both brokers can feed.
RATE: Final = 10_000.0
#: How long a group sends and consumes before its latency counts: code is compiled, and pops find their pace.
WARM_S: Final = 1.0
#: Messages a second that a storm without a limit may consume; beside RocketMQ's broker, a fifth of it.
STORM_PER_S: Final = 200_000
#: So often a storm is measured that was over too early, each time with twice the backlog.
STORMS_MAX: Final = 3
#: No row takes longer.
ROW_S: Final = 60.0
Listen = Callable[[list[ReceivedMessage]], object]
Consumer = PushConsumer | PopConsumer | ShareConsumer


def consumer_of(
    way: str, group: str, topic: str, listener: Listen, name_servers: str, *, hold_ms: int = 60_000
) -> Consumer:
    """``hold_ms``: after how long a message that is not confirmed is given to another consumer; push has no such limit
    below 15 minutes."""

    async def listen(messages: list[ReceivedMessage]) -> None:
        result = listener(messages)
        if isinstance(result, Awaitable):
            await result

    consumer: Consumer
    if way == "push":
        consumer = PushConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32)
    elif way == "pop":
        config = PopConfig(unsettled_max=192, invisible_ms=max(hold_ms, POP_INVISIBLE_LEAST_MS))
        consumer = PopConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32, config=config)
    else:
        consumer = ShareConsumer(group, listen, name_servers=name_servers, start=FIRST, batch_max=32, hold_ms=hold_ms)
    consumer.subscribe(topic)
    return consumer


async def fill(name_servers: str, topic: str, count: int) -> None:
    """A topic with so many messages."""
    async with Admin(name_servers) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    async with Producer("bench", name_servers=name_servers) as producer:
        for _ in range(0, count, BATCH):
            await producer.send_batch([Message(topic, BODY) for _ in range(BATCH)])
    # What the disk still has to do must not be measured.
    await asyncio.to_thread(os.sync)


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
    client = time.process_time()
    async with running(members):
        if way == "push":
            await asyncio.sleep(2)  # rounds of rebalancing
        # Else a full collection of what the start has made comes in the midst of the run.
        gc.collect()
        start = time.process_time() - client
        began, cpu, client = time.monotonic(), system.cpu_s(), time.process_time()
        for member in members:
            member.resume()
        async with asyncio.timeout(ROW_S):
            await ended.wait()
        took = time.monotonic() - began
        used, ours = system.cpu_s() - cpu, time.process_time() - client
    return {
        "per_s": count / took,
        "broker_us": used / count * 1e6,
        "client_us": ours / count * 1e6,
        "start_ms_each": start / consumers * 1e3,
    }


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
    group, done = f"hang-{way}-{os.getpid()}", dict[float, float]()
    hung, ended = asyncio.Event(), asyncio.Event()

    def seen(messages: list[ReceivedMessage]) -> None:
        now = time.time()
        done.update((float(message.body), now) for message in messages)

    async def hanging(_: list[ReceivedMessage]) -> None:
        hung.set()
        await ended.wait()

    members = [consumer_of(way, group, topic, listen, system.namesrv, hold_ms=HOLD_MS) for listen in (seen, seen)]
    third = consumer_of(way, group, topic, hanging, system.namesrv, hold_ms=HOLD_MS)
    async with selling(system, topic) as sent, running([*members, third]):
        async with asyncio.timeout(ROW_S):
            await hung.wait()
        began = time.time()
        await asyncio.sleep(seconds)
        since = [one for one in sent if one > began]
        # What was sent in the last moment may be on its way.
        await asyncio.sleep(1.0)
        waiting, now = [one for one in since if one not in done], time.time()
        longest = max([done.get(one, now) - one for one in since])
        # The members end with the block, and may have much to do.
        ended.set()
    return {"sent": len(since), "waiting": len(waiting), "longest_s": longest}


async def hangs(system: System, ways: Sequence[str], topic: str) -> dict[str, float]:
    """All ways at the same time: they only wait."""
    seconds = HOLD_MS / 1000 + 3
    found = await asyncio.gather(*(hang(system, way, f"{topic}-hang-{way}", seconds) for way in ways))
    return {f"{way}_{name}": value for way, row in zip(ways, found, strict=True) for name, value in row.items()}


# --- What a consumer takes ------------------------------------------------------------------------------------------


async def memory(system: System, topic: str, consumers: int) -> dict[str, float]:
    """Of consumers that hold a message each: bytes of the broker for each, with a connection of its own, and with a
    hundred connections for all (the state alone)."""
    found: dict[str, float] = {}
    for name, connections in (("state_bytes_each", 100), ("bytes_each", consumers)):
        async with AsyncExitStack() as stack:
            address = await broker_address(system)
            before = system.memory_mb()
            callers = [await stack.enter_async_context(dialled(address)) for _ in range(connections)]
            group = f"memory-{name}-{consumers}"
            for at in range(0, consumers, 100):
                pulls = [
                    callers[number % connections].call(
                        RequestCode.SHARE_PULL,
                        SharePull(consumer_group=group, topic=topic, consumer=f"worker-{number}", count_max=1),
                        timeout_ms=60_000,
                    )
                    for number in range(at, min(at + 100, consumers))
                ]
                for response in await asyncio.gather(*pulls):
                    assert response.code == ResponseCode.SUCCESS, response.remark
            found[name] = (system.memory_mb() - before) * 1024 * 1024 / consumers
    return found


async def acks(system: System, topic: str, count: int) -> dict[str, float]:
    """CPU time of the broker for an ack, of any number of messages, with its record in the log."""
    fields: dict[str, Any] = {"consumer_group": "acks", "topic": topic, "consumer": "worker"}
    held, life, used = -1, 0, 0.0
    async with dialled(await broker_address(system)) as caller:
        for _ in range(0, count, 1_000):
            pull = SharePull(**fields, count_max=1_000, bytes_max=1 << 20, held=held, life=life)
            reply = (await caller.call(RequestCode.SHARE_PULL, pull)).read(SharePullReply)
            held, life = reply.first + 999, reply.life
            cpu = system.cpu_s()
            for at in range(reply.first, held + 1, 100):
                calls = [
                    caller.call(RequestCode.SHARE_ACK, ShareAck(**fields, life=life, first=number, last=number))
                    for number in range(at, at + 100)
                ]
                for response in await asyncio.gather(*calls):
                    assert response.code == ResponseCode.SUCCESS, response.remark
            used += system.cpu_s() - cpu
    return {"ack_us": used / count * 1e6}


async def broker_address(system: System) -> str:
    async with Admin(system.namesrv) as admin:
        [broker] = await admin.brokers.all()
        return broker.address


# --- Fairness -------------------------------------------------------------------------------------------------------


async def latencies(system: System, way: str, topic: str, seconds: float) -> list[float]:
    """Of a group with two consumers: seconds from the send to the listener, up to 200 messages a second."""
    found: list[tuple[float, float]] = []

    def seen(messages: list[ReceivedMessage]) -> None:
        now = time.time()
        found.extend([(float(message.body), now) for message in messages])

    group = f"small-{way}-{os.getpid()}-{topic}"
    async with (
        consumer_of(way, group, topic, seen, system.namesrv),
        consumer_of(way, group, topic, seen, system.namesrv),
        Producer("bench", name_servers=system.namesrv) as producer,
    ):
        await asyncio.sleep(0.5)
        begin = time.time() + WARM_S
        while time.time() < begin + seconds:
            await producer.send(Message(topic, repr(time.time()).encode()))
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.5)
    return [came - sent for sent, came in found if sent >= begin]


async def storm(name_servers: str, way: str, topic: str, rate: float, *, is_realtime: bool) -> None:
    """A hundred consumers that consume a backlog, at ``rate`` messages a second (0: as fast as they can), until killed.

    Prints how many messages they have got in all, five times a second.
    """
    if is_realtime:
        # Before all but those that are before all; this process has a session of its own.
        Path("/proc/self/autogroup").write_text("-20")  # noqa: ASYNC240 - no file of a disk
    else:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    count, free_at = 0, time.monotonic()

    async def seen(messages: list[ReceivedMessage]) -> None:
        nonlocal count, free_at
        count += len(messages)
        if rate:
            free_at = max(free_at, time.monotonic() - 0.1) + len(messages) / rate
            await asyncio.sleep(free_at - time.monotonic())

    group = f"storm-{way}-{os.getpid()}"
    async with running([consumer_of(way, group, topic, seen, name_servers) for _ in range(STORM)]):
        while True:
            print(count, flush=True)
            await asyncio.sleep(0.2)


@contextmanager
def ahead(system: System, *, is_realtime: bool) -> Iterator[None]:
    """Let the broker and this process come before all others of the machine, if so wished."""

    def set_policy(policy: int, priority: int) -> None:
        for pid in (system.broker_pid, os.getpid()):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    if not is_realtime:
        yield
        return
    set_policy(os.SCHED_FIFO, 1)
    try:
        yield
    finally:
        set_policy(os.SCHED_OTHER, 0)


def p99_ms(found: Sequence[float]) -> float:
    return sorted(found)[int(len(found) * 0.99)] * 1000 if found else float("nan")


async def fairness(
    system: System, way: str, backlog: str, seconds: float, *, is_realtime: bool = False
) -> dict[str, float]:
    assert is_realtime or systems.is_scheduled_here(system.broker_pid), (
        "the kernel schedules the broker apart from the storm's clients: start both in one session, without tern up"
    )
    async with Admin(system.namesrv) as admin:
        for name in ("quiet", "storm", "bounded"):
            await admin.topics.create(f"{name}-{way}", queues=1)
    with ahead(system, is_realtime=is_realtime):
        quiet = p99_ms(await latencies(system, way, f"quiet-{way}", seconds))
    figures = {"quiet_ms": quiet}
    for name, rate in (("storm", 0.0), ("bounded", RATE)):
        for _ in range(STORMS_MAX):
            async with raging(way, backlog, system.namesrv, rate, is_realtime=is_realtime) as counted:
                before, began, cpu = counted[-1], time.monotonic(), system.cpu_s()
                with ahead(system, is_realtime=is_realtime):
                    beside = p99_ms(await latencies(system, way, f"{name}-{way}", seconds))
                took, used = time.monotonic() - began, system.cpu_s() - cpu
            if counted[-1] > counted[-3]:
                break
            # It was over before the measurement.
            await fill(system.namesrv, backlog, counted[-1])
        else:
            raise AssertionError(f"the storm was over before the measurement {STORMS_MAX} times: raise --backlog")
        figures |= {
            f"{name}_ms": beside,
            f"{name}_ratio": beside / quiet,
            f"{name}_per_s": (counted[-1] - before) / took,
            f"{name}_broker_cpu": used / took,
        }
    return figures


@asynccontextmanager
async def raging(
    way: str, topic: str, name_servers: str, rate: float, *, is_realtime: bool = False
) -> AsyncIterator[list[int]]:
    """The storm, as a process of its own, in full swing; yields how many messages it has got, from time to time."""
    command = [sys.executable, "-m", "bench.share", "--storm", way, topic, name_servers, str(rate)]
    command += ["--realtime"] if is_realtime else []
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, start_new_session=is_realtime
    )
    counted: list[int] = []

    async def count() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            counted.append(int(line))

    counting = asyncio.ensure_future(count())
    try:
        async with asyncio.timeout(ROW_S):
            while not counted or not counted[-1]:  # noqa: ASYNC110 - another process, which tells nothing else
                await asyncio.sleep(0.1)
        yield counted
    finally:
        process.kill()
        await process.wait()
        await counting


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
            found[f"fairness {way}"] = partial(
                fairness, system, way, f"{topic}-storm", options.seconds, is_realtime=options.realtime
            )
    if options.only in (None, "members"):
        for way in ways:
            found[f"join {way}"] = partial(join, system, way, f"{topic}-join-{way}")
            found[f"death {way}"] = partial(death, system, way, f"{topic}-death-{way}")
        found["hang"] = partial(hangs, system, ways, topic)
    if options.only == "cost":
        # In a broker of its own: memory that others gave back would be used again.
        found["acks"] = partial(acks, system, topic, options.count)
        for consumers in (256, 10_000):
            # Each holds a message.
            if consumers <= options.count:
                found[f"memory x{consumers}"] = partial(memory, system, topic, consumers)
    return found


async def measure(
    system: System, options: argparse.Namespace, ways: Sequence[str], *, end: float
) -> dict[str, dict[str, float]]:
    """All rows that can be begun before ``end``."""
    found: dict[str, dict[str, float]] = {}
    topic = f"bench-{os.getpid()}"
    await fill(system.namesrv, topic, options.count)
    if options.only in (None, "fairness"):
        # As many as the storm consumes while it is measured, with its start and end.
        per_s = STORM_PER_S if "share" in ways else STORM_PER_S // 5
        await fill(system.namesrv, f"{topic}-storm", options.backlog or int((options.seconds + WARM_S + 2) * per_s))
    for name, row in rows_of(system, options, ways, topic).items():
        if time.monotonic() > end:
            print(f"{system.name:16} {name:24} left out: the time is over, see --minutes", flush=True)
            continue
        try:
            found[name] = figures = await row()
        except (AssertionError, TernError, TimeoutError) as error:
            print(f"{system.name:16} {name:24} not done: {error or f'more than {ROW_S:.0f} s'}", flush=True)
            continue
        print(
            f"{system.name:16} {name:24}",
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
    parser.add_argument("--only", choices=("throughput", "members", "fairness", "cost"))
    parser.add_argument("--backlog", type=int, help="messages that the storm finds; else as many as it may need")
    parser.add_argument(
        "--realtime", action="store_true", help="keep other programs away from the fairness rows (root)"
    )
    parser.add_argument("--rocketmq", action="store_true", help="RocketMQ 5.2.0's pop as well")
    parser.add_argument("--storm", nargs=4, metavar=("WAY", "TOPIC", "NAMESRV", "RATE"), help=argparse.SUPPRESS)
    parser.add_argument("--member", nargs=4, metavar=("WAY", "GROUP", "TOPIC", "NAMESRV"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        logging.basicConfig(level=logging.ERROR)
        way, topic, name_servers, rate = options.storm
        uvloop.run(storm(name_servers, way, topic, float(rate), is_realtime=options.realtime))
        return
    if options.member:
        way, group, topic, name_servers = options.member
        uvloop.run(member(name_servers, way, group, topic))
        return
    logging.basicConfig(level=logging.ERROR)
    found: dict[str, dict[str, dict[str, float]]] = {}
    began, all_s = time.monotonic(), options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="bench-share-") as directory:
        if options.rocketmq:
            with systems.start_rocketmq(Path(directory) / "rocketmq", version=systems.POP_VERSION) as system:
                # One way instead of three.
                found[system.name] = uvloop.run(measure(system, options, ("pop",), end=began + all_s * 0.4))
        for number, only in enumerate((options.only,) if options.only else (None, "cost")):
            options.only = only
            with systems.start_ternmq(Path(directory) / f"ternmq-{number}", settings=SETTINGS) as system:
                found.setdefault(system.name, {}).update(uvloop.run(measure(system, options, WAYS, end=began + all_s)))
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
