"""``tern bench``: how fast this cluster is, from this machine (S2, T1).

One process, one event loop: it measures the cluster up to what one Python client can send, some ten thousand messages a
second. ``script/bench`` compares whole systems with many clients.

``--rate`` sends at a fixed rate and counts the latency of a send from its *scheduled* time: a send that had to wait for
those before it is slow for its application, too (coordinated omission).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq import names
from ternmq.cli.latency import Latencies
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note, sentence_of
from ternmq.cli.running import run
from ternmq.env import Clock, SystemClock
from ternmq.errors import ConfigError, GroupMissing, NoPermission, RouteMissing, TernError

if TYPE_CHECKING:
    from ternmq.admin import Admin
    from ternmq.client.send.producer import Producer
    from ternmq.message import Message, ReceivedMessage

TOPIC: Final = "tern-bench"
GROUP: Final = "tern_bench"
#: Carries the time of the send, in µs of the clock of this process, to the consumer.
_SENT_AT: Final = "BENCH_AT"
_RUN: Final = "BENCH_RUN"
#: How long consumers may take for what was sent, after the last send.
DRAIN_S: Final = 30.0


@dataclass(slots=True)
class Load:
    """What is sent, and how."""

    topic: str
    messages: int | None
    seconds: float | None
    body: bytes
    in_flight: int
    batch: int
    rate: float | None
    #: Tells the messages of this run from those of others in the same topic.
    run: str


@dataclass(slots=True)
class BenchTally:
    """What has happened so far."""

    #: Given to a producer, with the first message, which is not measured.
    begun: int = 0
    sent: int = 0
    failed: int = 0
    consumed: int = 0
    first_error: str = ""
    send: Latencies = field(default_factory=Latencies)
    end_to_end: Latencies = field(default_factory=Latencies)
    sent_seconds: float = 0.0
    consumed_seconds: float = 0.0


def bench(
    topic: Annotated[str, typer.Argument(help="Topic to send to; created if missing.", metavar="TOPIC")] = TOPIC,
    messages: Annotated[
        int | None, typer.Option("--messages", min=1, metavar="COUNT", help="Send this many; default: 10,000.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Send for this long, instead of a number of messages.")
    ] = None,
    size: Annotated[int, typer.Option("--size", min=1, max=4 << 20, metavar="BYTES", help="Size of a body.")] = 1024,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=10_000, metavar="COUNT", help="Sends that wait at once.")
    ] = 64,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=10_000, metavar="COUNT", help="Messages of one request.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.1, metavar="COUNT", help="Messages a second; default: as fast as possible."),
    ] = None,
    group: Annotated[str, typer.Option("--group", "-g", help="Consume as this group.")] = GROUP,
    consume: Annotated[
        bool, typer.Option("--consume/--no-consume", help="Consume the messages as well, or only send.")
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the topic and the group, also if this command has created them.")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send messages and consume them, and print rates and percentiles of the latency.

    A topic or group that did not exist before is deleted at the end; in a topic that did, the messages stay until they
    expire. The exit code is 1 if a send failed or a message did not arrive.

    Examples:

        tern bench

        tern bench --seconds 10 --size 200 --rate 5000

        tern bench orders-test --messages 100000 --batch 32 --no-consume --json
    """
    from ternmq.env import unpredictable

    if messages is not None and seconds is not None:
        raise ConfigError("--messages and --seconds exclude each other; choose one of them")
    if messages is None and seconds is None:
        messages = 10_000
    load = Load(topic, messages, seconds, b"x" * size, in_flight, batch, rate, unpredictable(8))
    tally = BenchTally()
    with _bar(load, tally) as tell:
        run(_bench(load, tally, group=group if consume else None, keep=keep, name_servers=name_servers, tell=tell))
    _show(load, tally, consumes=consume, as_json=as_json)
    if tally.failed or (consume and tally.consumed < tally.sent):
        raise typer.Exit(1)


async def _bench(
    load: Load, tally: BenchTally, *, group: str | None, keep: bool, name_servers: str, tell: Callable[[], None]
) -> None:
    """Measure, and leave the cluster as it was. Ctrl-C cleans up, too."""
    from ternmq.admin import Admin

    if keep:
        await _measure(load, tally, group=group, name_servers=name_servers, tell=tell)
        return
    async with Admin(name_servers) as admin:
        topics = {load.topic} if group is None else {load.topic, names.retry_topic(group)}
        try:
            made = topics - {one.name for one in await admin.topics.all()}
            made_group = group is not None and group not in await admin.groups.names()
        except NoPermission as error:
            note(f"this account cannot list topics and groups, so none is deleted: {sentence_of(error)}")
            made, made_group = set(), False
        try:
            await _measure(load, tally, group=group, name_servers=name_servers, tell=tell)
        finally:
            try:
                await delete_made(admin, load.topic, made, group if made_group else None, tally)
            except TernError as error:
                note(f"cannot delete what this command has created: {sentence_of(error)}")


async def delete_made(admin: Admin, topic: str, made: set[str], group: str | None, tally: BenchTally) -> None:
    """Delete what was not there before. A topic that has other messages as well was only not seen, as its broker was
    away then, or is used by others now: nothing is deleted."""
    if topic in made:
        with suppress(RouteMissing):
            stored = sum(queue.max_offset for queue in await admin.topics.status(topic))
            if stored > tally.begun:
                note(f"topic {topic} has {stored:,} messages, and {tally.begun:,} are of this command: it is kept")
                return
    if group is not None:
        with suppress(GroupMissing):
            await admin.groups.delete(group)
    for one in sorted(made):
        with suppress(RouteMissing):
            await admin.topics.delete(one)


async def _measure(
    load: Load, tally: BenchTally, *, group: str | None, name_servers: str, tell: Callable[[], None]
) -> None:
    from ternmq.client.send.producer import Producer

    clock = SystemClock()
    async with Producer(GROUP, name_servers=name_servers) as producer:
        # The route is known, and the topic exists, before anything is measured.
        tally.begun += 1
        await producer.send(_message(load, clock, run="warm-up"))
        if group is None:
            await _send_all(producer, load, tally, clock, tell)
            return
        async with _Consuming(load, tally, group, name_servers, clock, tell) as arrived:
            began = clock.monotonic()
            await _send_all(producer, load, tally, clock, tell)
            await arrived(tally.sent)
            tally.consumed_seconds = clock.monotonic() - began


def _message(load: Load, clock: Clock, *, run: str) -> Message:
    from ternmq.message import Message

    properties = {_RUN: run, _SENT_AT: str(int(clock.monotonic() * 1_000_000))}
    return Message(load.topic, load.body, properties=properties)


# --- Sending --------------------------------------------------------------------------------------------------------


async def _send_all(producer: Producer, load: Load, tally: BenchTally, clock: Clock, tell: Callable[[], None]) -> None:
    """``in_flight`` workers, each with one request after the other; with a rate, each request has its time."""
    began = clock.monotonic()
    started = 0

    def take() -> tuple[int, float] | None:
        """How many messages the next request has, and when it is due."""
        nonlocal started
        due = began + started / load.rate if load.rate else clock.monotonic()
        if load.seconds is not None and due - began >= load.seconds:
            return None
        count = load.batch if load.messages is None else min(load.batch, load.messages - started)
        if count <= 0:
            return None
        started += count
        tally.begun += count
        return count, due

    async def work() -> None:
        while (taken := take()) is not None:
            count, due = taken
            if (ahead := due - clock.monotonic()) > 0:
                await asyncio.sleep(ahead)
            await _send(producer, load, tally, clock, count, due)
            tell()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.in_flight):
            tasks.create_task(work())
    tally.sent_seconds = clock.monotonic() - began


async def _send(producer: Producer, load: Load, tally: BenchTally, clock: Clock, count: int, due: float) -> None:
    made = [_message(load, clock, run=load.run) for _ in range(count)]
    try:
        if count == 1:
            await producer.send(made[0])
        else:
            await producer.send_batch(made)
    except TernError as error:
        tally.failed += count
        tally.first_error = tally.first_error or sentence_of(error)
        return
    tally.sent += count
    tally.send.add(int((clock.monotonic() - due) * 1_000_000))


# --- Consuming ------------------------------------------------------------------------------------------------------


class _Consuming:
    """A consumer of the messages of this run; gives a function that waits until so many have arrived."""

    def __init__(
        self, load: Load, tally: BenchTally, group: str, name_servers: str, clock: Clock, tell: Callable[[], None]
    ) -> None:
        from ternmq.client.consume.offsets import StartPosition
        from ternmq.client.consume.push import PushConsumer

        self._load, self._tally, self._clock, self._tell = load, tally, clock, tell
        self._progressed = asyncio.Event()
        self._consumer = PushConsumer(group, self._take, name_servers=name_servers, start=StartPosition.LAST)
        self._consumer.subscribe(load.topic)

    async def __aenter__(self) -> Callable[[int], Awaitable[None]]:
        await self._consumer.__aenter__()
        return self._arrived

    async def __aexit__(self, *error: object) -> None:
        await self._consumer.__aexit__(None, None, None)

    async def _take(self, message: ReceivedMessage) -> None:
        if message.properties.get(_RUN) != self._load.run:
            return
        sent_us = int(message.properties[_SENT_AT])
        self._tally.end_to_end.add(int(self._clock.monotonic() * 1_000_000) - sent_us)
        self._tally.consumed += 1
        self._progressed.set()
        self._tell()

    async def _arrived(self, count: int) -> None:
        """Return when ``count`` messages have arrived, or nothing arrived for a long time."""
        while self._tally.consumed < count:
            self._progressed.clear()
            try:
                async with asyncio.timeout(DRAIN_S):
                    await self._progressed.wait()
            except TimeoutError:
                note(f"no message arrived for {DRAIN_S:.0f} s; {count - self._tally.consumed} are missing")
                return


# --- Printing -------------------------------------------------------------------------------------------------------


@contextmanager
def _bar(load: Load, tally: BenchTally) -> Iterator[Callable[[], None]]:
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True) as bar:
        total = load.messages or (int(load.rate * (load.seconds or 0)) if load.rate else None)
        tasks = {name: bar.add_task(name, total=total, rate="") for name in ("sent", "consumed")}

        def tell() -> None:
            for name, task in tasks.items():
                bar.update(task, completed=getattr(tally, name), rate=f"{bar.tasks[task].speed or 0:,.0f}/s")

        yield tell


def _show(load: Load, tally: BenchTally, *, consumes: bool, as_json: bool) -> None:
    parts: dict[str, tuple[int, float, Latencies]] = {"send": (tally.sent, tally.sent_seconds, tally.send)}
    if consumes:
        parts["consume"] = (tally.consumed, tally.consumed_seconds, tally.end_to_end)
    rows: list[dict[str, object]] = [
        {
            "what": name,
            "messages": count,
            "seconds": round(seconds, 3),
            "messages_s": round(count / seconds) if seconds else 0,
            "mb_s": round(count * len(load.body) / seconds / 1_000_000, 2) if seconds else 0.0,
            **{f"{key}_ms": round(value, 3) for key, value in latencies.fields().items()},
        }
        for name, (count, seconds, latencies) in parts.items()
    ]
    output = Output(as_json=as_json)
    if as_json:
        load_fields = {"topic": load.topic, "size": len(load.body), "in_flight": load.in_flight, "batch": load.batch}
        failed = {"failed": tally.failed, "first_error": tally.first_error or None}
        output.item({**load_fields, "rate": load.rate, **failed, **{str(row.pop("what")): row for row in rows}}, "")
        return
    if output.is_terminal:
        output.item({}, "\n".join(summary(rows)))
    else:
        output.rows(rows, columns=tuple(rows[0]), empty="")
    if tally.failed:
        note(f"{tally.failed} messages were not sent; the first error: {tally.first_error}")


def summary(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """For people: a line for each measure, a column for each row. The table itself is too wide for most terminals."""
    shown = {name: name.removesuffix("_ms") + " ms" if name.endswith("_ms") else name for name in rows[0]}
    shown |= {"what": "", "messages_s": "messages/s", "mb_s": "MB/s"}
    width = max(map(len, shown.values()))
    return [f"{label:<{width}}" + "".join(f"{_number(row[name]):>14}" for row in rows) for name, label in shown.items()]


def _number(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
