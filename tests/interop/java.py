"""Apache's Java clients, driven from a test (V1): one ``Peer`` is one JVM that runs one command of ``TernPeer``.

::

    java = Java("4.9.4", tmp_path)
    async with java.consumer(namesrv, group="g", topic="t") as consumer, java.producer(namesrv) as producer:
        results = await producer.send(topic="t", count=3, properties={"城市": "杭州"})
        messages = await consumer.messages(3)

A peer writes JSON lines; each is an ``Event`` here. What a test asks for has a time limit and, should the JVM fail or
stay silent, an error that holds the end of its standard error. The options of each command stand in the Java class of
its name (``tests/java/src/main/java/ternmq``). Everything runs on the test's own loop, so that a broker in the same
process can serve it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.interop import jvm

Event = dict[str, Any]

# RocketMQ 5.2.0's consumers may wait for the next heartbeat, up to 30 s: one that finds another under way is left out,
# and until the next brokers refuse their pulls as «subscription not latest» (RocketMQ's brokers, too).
_ANSWER_S: Final = 75.0
_STOP_S: Final = 90.0
# A message of 4 MiB is a line of 5.4 MiB.
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


class PeerFailed(AssertionError):
    """A program failed or did not say what a test waited for."""


class Java:
    """Starts peers of one RocketMQ version; ``binary`` makes their requests carry RocketMQ's binary header.

    ``properties`` are system properties of their JVMs. ``credentials``, an access key and its secret, sign the requests
    of producers, push consumers, queries and ``mqadmin``.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        *,
        binary: bool = False,
        properties: Mapping[str, str] | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.version = version
        self._directory = directory
        self._credentials = credentials
        self._properties = ({"rocketmq.serialize.type": "ROCKETMQ"} if binary else {}) | dict(properties or {})
        self._numbers = itertools.count()

    @asynccontextmanager
    async def peer(self, command: str, **options: object) -> AsyncIterator[Peer]:
        """Run a command of ``TernPeer``; the end of the block stops it and waits until it has gone."""
        number = next(self._numbers)
        home = self._directory / f"java-{self.version}-{number}-{command}"
        arguments = jvm.command(self.version, "ternmq.TernPeer", command, home=home, properties=self._properties)
        if self._credentials is not None:
            key, secret = self._credentials
            options = {"accessKey": key, "secretKey": secret} | options
            # Where mqadmin looks.
            (home / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: {secret}\n")
        with (home / "stderr.log").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=jvm.environment(home),
                limit=LINE_BYTES_MAX,
            )
        peer = Peer(f"Java {self.version} {command}", process, home / "stderr.log")
        try:
            await peer.write(options)
            yield peer
            await peer.stop()
        finally:
            await peer.kill()

    @asynccontextmanager
    async def producer(self, namesrv: str, **options: object) -> AsyncIterator[Peer]:
        """A started ``DefaultMQProducer``; see ``Produce.java``."""
        async with self.peer("produce", namesrv=namesrv, **options) as peer:
            await peer.event("ready")
            yield peer

    @asynccontextmanager
    async def transactions(self, namesrv: str, *, group: str, **options: object) -> AsyncIterator[Peer]:
        """A started ``TransactionMQProducer``; see ``Transact.java``."""
        async with self.peer("transact", namesrv=namesrv, group=group, **options) as peer:
            await peer.event("ready")
            yield peer

    @asynccontextmanager
    async def consumer(self, namesrv: str, *, group: str, topic: str, **options: object) -> AsyncIterator[Peer]:
        """A started ``DefaultMQPushConsumer``; see ``Push.java``."""
        async with self.peer("push", namesrv=namesrv, group=group, topic=topic, **options) as peer:
            await peer.event("ready")
            yield peer

    @asynccontextmanager
    async def lite_pull(self, namesrv: str, *, group: str, topic: str, **options: object) -> AsyncIterator[Peer]:
        """A started ``DefaultLitePullConsumer``; see ``LitePull.java``."""
        async with self.peer("litepull", namesrv=namesrv, group=group, topic=topic, **options) as peer:
            await peer.event("ready")
            yield peer

    @asynccontextmanager
    async def replier(self, namesrv: str, *, group: str, topic: str) -> AsyncIterator[Peer]:
        """A consumer that answers requests; see ``Replier.java``."""
        async with self.peer("reply", namesrv=namesrv, group=group, topic=topic) as peer:
            await peer.event("ready")
            yield peer

    @asynccontextmanager
    async def popper(self, namesrv: str, *, address: str, broker: str, group: str, topic: str) -> AsyncIterator[Peer]:
        """The client's API for pops, without a consumer around it; see ``Pop.java``."""
        options = {"address": address, "broker": broker, "group": group, "topic": topic}
        async with self.peer("pop", namesrv=namesrv, **options) as peer:
            await peer.event("ready")
            yield peer

    async def pull(self, namesrv: str, *, group: str, topic: str, **options: object) -> list[Event]:
        """All events of a ``DefaultMQPullConsumer`` that reads to the end of each queue; see ``Pull.java``."""
        async with self.peer("pull", namesrv=namesrv, group=group, topic=topic, **options) as peer:
            return await peer.finish()

    async def query(self, namesrv: str, *, topic: str, **options: object) -> list[Event]:
        """Messages by key or id, or the ends of each queue; see ``Query.java``."""
        async with self.peer("query", namesrv=namesrv, topic=topic, **options) as peer:
            return await peer.finish()

    async def resume(self, namesrv: str, *, message_id: str) -> bool:
        """Whether a discarded half message is checked again; see ``Resume.java``."""
        async with self.peer("resume", namesrv=namesrv, msgId=message_id) as peer:
            return bool((await peer.event("resumed"))["success"])

    async def admin(self, namesrv: str, *arguments: str) -> str:
        """What ``mqadmin ARGUMENTS -n NAMESRV`` prints."""
        async with self.peer("admin", arguments=[*arguments, "-n", namesrv]) as peer:
            return await peer.text()


class Peer:
    """A running program: orders in, events out, in the order of its lines."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        #: Events read while waiting for another one.
        self._kept: list[Event] = []
        self._was_killed = False

    async def event(
        self, kind: str, *, where: Callable[[Event], bool] | None = None, limit_s: float = _ANSWER_S
    ) -> Event:
        """The next event of a kind (for which ``where`` holds); others are kept for later calls."""
        for index, kept in enumerate(self._kept):
            if kept["event"] == kind and (where is None or where(kept)):
                return self._kept.pop(index)
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    event = await self._read()
                    if event is None:
                        raise PeerFailed(self._story(f"ended before an event «{kind}»"))
                    if event["event"] == kind and (where is None or where(event)):
                        return event
                    self._kept.append(event)
        except TimeoutError:
            raise PeerFailed(self._story(f"told of no «{kind}» in {limit_s} s")) from None

    async def messages(self, count: int, *, limit_s: float = _ANSWER_S) -> list[Event]:
        """The next ``count`` messages that a consumer received."""
        return [await self.event("message", limit_s=limit_s) for _ in range(count)]

    async def allocated(self, topic: str, count: int, *, limit_s: float = 120.0) -> list[Event]:
        """Wait until a push consumer has been given exactly ``count`` queues of the topic; return them."""
        event = await self.event(
            "allocated", where=lambda event: event["topic"] == topic and len(event["queues"]) == count, limit_s=limit_s
        )
        queues: list[Event] = event["queues"]
        return queues

    async def order(self, *, limit_s: float = _ANSWER_S, **order: object) -> list[Event]:
        """Give a producer an order; return its ``result`` and ``error`` events, by message."""
        await self.write(order)
        await self.event("sent", limit_s=limit_s)
        answers = [event for event in self._kept if event["event"] in ("result", "error")]
        self._kept = [event for event in self._kept if event not in answers]
        return sorted(answers, key=lambda event: int(event["index"]))

    async def ask(self, what: str, **order: object) -> Event:
        """Give a popper an order; return its answer."""
        await self.write({"do": what, **order})
        return await self.event(what)

    async def send(self, *, limit_s: float = _ANSWER_S, **order: object) -> list[Event]:
        """Like ``order``, but any failed send fails the test."""
        answers = await self.order(limit_s=limit_s, **order)
        failed = [event for event in answers if event["event"] == "error"]
        if failed:
            raise PeerFailed(self._story(f"could not send: {failed[0]}"))
        return answers

    async def finish(self, *, limit_s: float = _ANSWER_S) -> list[Event]:
        """Ask the program to stop; return all unread events, but for the last («done»)."""
        self._end_of_input()
        await self.event("done", limit_s=limit_s)
        events, self._kept = self._kept, []
        return events

    async def text(self, *, limit_s: float = _ANSWER_S) -> str:
        """Everything that a program without events prints."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                printed = await self._process.stdout.read()
        except TimeoutError:
            raise PeerFailed(self._story(f"still runs after {limit_s} s")) from None
        return printed.decode()

    async def line(self, where: Callable[[str], bool], *, limit_s: float = _ANSWER_S) -> str:
        """The next line, of a program without events, for which ``where`` holds; others are skipped."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                while line := (await self._process.stdout.readline()).decode():
                    if where(line):
                        return line
        except TimeoutError:
            raise PeerFailed(self._story(f"did not print what was expected in {limit_s} s")) from None
        raise PeerFailed(self._story("ended before it printed what was expected"))

    async def stop(self) -> None:
        """Close its input, wait for its end; fails the test unless the exit code is 0, or the test has killed it."""
        if self._was_killed:
            return
        self._end_of_input()
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_STOP_S):
                while await self._process.stdout.read(65536):
                    pass
                code = await self._process.wait()
        except TimeoutError:
            raise PeerFailed(self._story("does not stop")) from None
        if code != 0:
            raise PeerFailed(self._story(f"ended with exit code {code}"))

    async def kill(self) -> None:
        """kill -9, and wait; nothing when it has ended already."""
        self._was_killed = True
        if self._process.returncode is None:
            self._process.kill()
        assert self._process.stdout is not None
        # Read to the end, or the pipe's transport outlives the loop and warns.
        while await self._process.stdout.read(65536):
            pass
        await self._process.wait()
        self._end_of_input()

    async def write(self, order: dict[str, object]) -> None:
        """One JSON line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order, default=str).encode() + b"\n")
        await self._process.stdin.drain()

    def _end_of_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _read(self) -> Event | None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            return None
        event: Event = json.loads(line)
        if event["event"] == "failed":
            raise PeerFailed(self._story(f"failed: {event}"))
        if event["event"] == "message":
            event["body"] = base64.b64decode(event["body"])
        return event

    def _story(self, what: str) -> str:
        kept = "".join(f"\n  {str(event)[:300]}" for event in self._kept[-5:])
        return f"{self.name} {what}; unread events:{kept or ' none'}\nits stderr ends:\n{jvm.tail(self._errors)}"
