"""How long the broker works until a message of a small group is on its way, alone and beside a storm (R4).

::

    .venv/bin/python -m bench.fairness                # push, pop and share; a minute
    .venv/bin/python -m bench.fairness --one-group    # push: a small topic of the group that is the storm

A probe sends one message after the other, with a pull of the small group waiting for it. Beside it a storm of a hundred
connections pulls, and confirms what it was given, without a pause: the broker always has work. ``bench.share --only
fairness`` measures the same with real clients and by the clock on the wall, which on two cores is also a measure of who
gets a processor. Here it is the broker's part alone: the **CPU time of the broker's loop** from the send to the arrival
of the message. What else runs on the machine makes no difference to it.

The broker notes both clocks, of the wall and of its thread, at each read and each write, with the connection. That
translates the moment of a send into its CPU time: it lies between two notes, which are tens of microseconds apart. A
send may come at any moment of a turn of the loop, so the rest of that turn is part of the figure, and is told apart: it
is the time until the send is read.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from bench.share import QUEUES, STORM, WAYS
from ternmq.broker.broker import Broker
from ternmq.net.peer import Peer
from ternmq.net.stream import Stream
from ternmq.store.config import StoreConfig
from ternmq.wire.bodies.clients import BatchAck, BatchAcks
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.handles import ALL_QUEUES, parse_messages, parse_starts
from ternmq.wire.header import Response
from ternmq.wire.requests import PopMessage, PopReply, PullReply, PullSysflag
from ternmq.wire.requests_share import ShareAck, SharePull, SharePullReply
from tests.broker.calls import FAR_MS, Caller, dialled, pull, settings, v2

#: Messages that a pull of the storm asks for.
COUNT: Final = 32
BACKLOG: Final = "backlog"
#: The storm of pulls: it begins again at its first message, so it is always of one group.
PUSHED: Final = "storm-push"
NOTES: Final = "clocks"
SHARES: Final = (0.5, 0.9, 0.99)
SEND_S: Final = 0.0002
#: Messages of a probe that do not count.
WARM: Final = 20
INVISIBLE_MS: Final = 600_000
SUSPEND: Final = PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND


# --- The small group ----------------------------------------------------------------------------------------------


class Line:
    """A connection without a loop."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._responses: deque[Response] = deque()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def response(self) -> Response:
        while not self._responses:
            commands = self._decoder.feed(self.socket.recv(1 << 16))
            self._responses += [command for command in commands if isinstance(command, Response)]
        return self._responses.popleft()


def packed(code: RequestCode, header: Any, body: bytes = b"") -> bytes:
    return b"".join(encode_request(code, header, body, opaque=1))


class Group:
    """The small group: pulls one message after the other."""

    def __init__(self, name: str, way: str, topic: str) -> None:
        self._name, self._way, self._topic = name, way, topic
        #: Behind the message that made the topic.
        self._next = 1
        self._held, self._life = -1, 0

    def pull(self, *, waits: bool) -> bytes:
        """A request for the next message, whether it waits for it or not."""
        if self._way == "push":
            fields: dict[str, Any] = {"consumer_group": self._name, "queue_offset": self._next}
            if waits:
                fields |= {"sysflag": SUSPEND, "suspend_timeout_ms": FAR_MS}
            return packed(RequestCode.PULL_MESSAGE, pull(self._topic, **fields))
        poll_ms = FAR_MS // 2 if waits else 0
        if self._way == "pop":
            return packed(RequestCode.POP_MESSAGE, pops(self._name, self._topic, poll_ms))
        header = SharePull(
            consumer_group=self._name,
            topic=self._topic,
            consumer="one",
            count_max=COUNT,
            held=self._held,
            life=self._life,
            poll_ms=poll_ms,
        )
        return packed(RequestCode.SHARE_PULL, header)

    def got(self, response: Response) -> None:
        """The next message came."""
        assert response.code == ResponseCode.SUCCESS, response.remark
        if self._way == "push":
            self._next = response.read(PullReply).next_offset
        elif self._way == "share":
            reply = response.read(SharePullReply)
            self._held, self._life = reply.first, reply.life


class Sent(NamedTuple):
    """A message: when it was sent, on which port, and on which one the pull waits."""

    wall: float
    producer: int
    consumer: int


def probe(address: str, name: str, way: str, topic: str, count: int) -> list[Sent]:
    """Send messages, one after the other."""
    producer, consumer, group = Line(address), Line(address), Group(name, way, topic)
    send = packed(RequestCode.SEND_MESSAGE_V2, v2(topic, queue_id=0), b"x" * 128)
    found, choice = list[Sent](), random.Random(1)
    if way != "push":
        consumer.send(group.pull(waits=False))
        group.got(consumer.response())
    ports = producer.socket.getsockname()[1], consumer.socket.getsockname()[1]
    while len(found) < WARM + count:
        # When the second one is answered the first one waits: they come one after the other.
        consumer.send(group.pull(waits=True) + group.pull(waits=False))
        consumer.response()
        time.sleep(choice.uniform(0.001, 0.01))
        sent = time.perf_counter()
        producer.send(send)
        # If it took long, another program had the processor, and the message was sent at some moment meanwhile.
        if time.perf_counter() - sent < SEND_S:
            found.append(Sent(sent, *ports))
        group.got(consumer.response())
        assert producer.response().code == ResponseCode.SUCCESS
    return found[WARM:]


# --- The storm ----------------------------------------------------------------------------------------------------


def pops(group: str, topic: str, poll_ms: int = 0) -> PopMessage:
    return PopMessage(
        consumer_group=group,
        topic=topic,
        queue_id=ALL_QUEUES,
        count_max=COUNT,
        invisible_ms=INVISIBLE_MS,
        poll_ms=poll_ms,
        born_time_ms=int(time.time() * 1000),
    )


async def rage(caller: Caller, way: str, topic: str, number: int, answered: list[int]) -> None:
    """One connection of the storm; counts the pulls that found messages in ``answered``. A group that has consumed all
    is followed by another one."""
    generation, offset, held, life = 0, 0, -1, 0
    while True:
        group = PUSHED if way == "push" else f"storm-{way}-{generation}"
        if way == "push":
            header = pull(topic, consumer_group=group, queue_id=number % 4, queue_offset=offset, count_max=COUNT)
            response = await caller.call(RequestCode.PULL_MESSAGE, header, timeout_ms=FAR_MS)
            offset = response.read(PullReply).next_offset if response.code == ResponseCode.SUCCESS else 0
        elif way == "pop":
            response = await caller.call(RequestCode.POP_MESSAGE, pops(group, topic), timeout_ms=FAR_MS)
            if response.code == ResponseCode.SUCCESS:
                body = encode(BatchAcks(broker_name="broker-a", acks=batched(group, topic, response.read(PopReply))))
                await caller.call(RequestCode.BATCH_ACK_MESSAGE, None, body, timeout_ms=FAR_MS)
        else:
            names: dict[str, Any] = {"consumer_group": group, "topic": topic, "consumer": f"worker-{number}"}
            asked = SharePull(**names, count_max=COUNT, held=held, life=life)
            response = await caller.call(RequestCode.SHARE_PULL, asked, timeout_ms=FAR_MS)
            if response.code == ResponseCode.SUCCESS:
                reply = response.read(SharePullReply)
                # Less at the end; then a part of the numbers is refused, and the group is over anyway.
                held, life = reply.first + COUNT - 1, reply.life
                ack = ShareAck(**names, life=life, first=reply.first, last=held)
                await caller.call(RequestCode.SHARE_ACK, ack, timeout_ms=FAR_MS)
        if response.code == ResponseCode.SUCCESS:
            answered[0] += 1
        else:
            generation, offset, held, life = generation + 1, 0, -1, 0


def batched(group: str, topic: str, reply: PopReply) -> list[BatchAck]:
    starts = parse_starts(reply.start_offset_info)
    found = []
    for (retry, queue_id), offsets in parse_messages(reply.msg_offset_info).items():
        start = starts[retry, queue_id]
        bits = sum(1 << (offset - start) for offset in offsets)
        found.append(
            BatchAck(
                consumer_group=group,
                topic=topic,
                start_offset=start,
                queue_id=queue_id,
                revive_queue_id=reply.revive_queue_id,
                pop_time_ms=reply.pop_time_ms,
                invisible_ms=reply.invisible_ms,
                bits=base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
            )
        )
    return found


async def storm(address: str, way: str) -> None:
    """A hundred connections, until killed; tells ten times a second how many pulls have found messages."""
    answered = [0]
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(dialled(address)) for _ in range(STORM)]

        async def tell() -> None:
            while True:
                print(answered[0], flush=True)
                await asyncio.sleep(0.1)

        await asyncio.gather(tell(), *(rage(caller, way, BACKLOG, at, answered) for at, caller in enumerate(callers)))


@contextmanager
def raging(address: str, way: str) -> Iterator[Callable[[], int]]:
    """The storm, while it rages; yields what tells how many of its pulls have found messages."""
    command = [sys.executable, "-m", "bench.fairness", "--storm", address, way]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        told = process.stdout
        assert told is not None
        told.readline()
        os.set_blocking(told.fileno(), False)
        yield lambda: int(told.read().split()[-1])
    finally:
        process.kill()
        process.wait()


# --- The broker ---------------------------------------------------------------------------------------------------


async def broker(directory: Path) -> None:
    """A broker that notes its clocks, until its input ends; then the notes are written."""
    notes, wall, cpu = array("d"), time.perf_counter, time.thread_time

    read, write = Peer.data_received, Stream._flush  # noqa: SLF001 - where bytes leave

    def noted_read(self: Peer, data: bytes) -> None:
        notes.extend((wall(), cpu(), self._remote[1]))
        read(self, data)

    def noted_write(self: Stream) -> None:
        write(self)
        notes.extend((wall(), cpu(), -self._remote[1]))

    Peer.data_received = noted_read  # type: ignore[method-assign]
    Stream._flush = noted_write  # type: ignore[method-assign]  # noqa: SLF001 - the same
    async with Broker(settings(), StoreConfig(store_path_root_dir=directory)) as running:
        gc.freeze()
        print(running.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    (directory / NOTES).write_bytes(notes.tobytes())


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A broker of this kind; yields its address."""
    command = [sys.executable, "-m", "bench.fairness", "--broker", str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


class Notes:
    """What the broker noted: by the clock on the wall, its CPU time, and the port that it read from or (-) wrote to."""

    def __init__(self, directory: Path) -> None:
        notes = array("d")
        notes.frombytes((directory / NOTES).read_bytes())
        self._walls, self._cpus, self._ports = notes[0::3], notes[1::3], notes[2::3]

    def cpu_at(self, wall: float) -> float:
        # The storm may have been over before what was noted last.
        number = min(bisect(self._walls, wall), len(self._walls) - 1)
        before, after = self._cpus[number - 1], self._cpus[number]
        return min(before + wall - self._walls[number - 1], after)

    def took(self, message: Sent) -> tuple[float, float]:
        """CPU time from the send until it was read, and until the message was written."""
        ports, number = self._ports, bisect(self._walls, message.wall)
        read = ports.index(message.producer, number)
        written = ports.index(-message.consumer, read)
        began = self.cpu_at(message.wall)
        return self._cpus[read] - began, self._cpus[written] - began


# ------------------------------------------------------------------------------------------------------------------


async def prepared(address: str, topics: Sequence[str], count: int) -> None:
    """A backlog for the storm, and the topics of the small group."""
    async with dialled(address) as caller:
        for topic in topics:
            await caller.sent(topic, b"first")
        batch: list[tuple[bytes, dict[str, str]]] = [(b"x" * 128, {})] * 500
        for number in range(count // len(batch)):
            response = await caller.send_batch(BACKLOG, batch, queue_id=number % QUEUES)
            assert response.code == ResponseCode.SUCCESS, response.remark


def measure(way: str, count: int, backlog: int, directory: Path, *, one_group: bool) -> None:
    name = PUSHED if one_group else f"small-{way}"
    with serving(directory) as address:
        uvloop.run(prepared(address, ("quiet", "beside"), backlog))
        quiet = probe(address, name, way, "quiet", count)
        with raging(address, way) as answered:
            time.sleep(0.5)
            before = answered(), time.perf_counter()
            beside = probe(address, name, way, "beside", count)
            after = answered(), time.perf_counter()
    notes = Notes(directory)
    parts = [
        sorted([took * 1000 for took in column])
        for sent in (quiet, beside)
        for column in zip(*map(notes.took, sent), strict=True)
    ]
    texts = ["/".join(f"{part[int(len(part) * share)]:.2f}" for share in SHARES) for part in parts]
    ratio = parts[3][int(count * SHARES[-1])] / parts[1][int(count * SHARES[-1])]
    used = (notes.cpu_at(after[1]) - notes.cpu_at(before[1])) / max(after[0] - before[0], 1)
    print(f"{way:6} {texts[1]:>16} {texts[3]:>16} {ratio:6.1f} {texts[2]:>16} {used * 1e6:6.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="messages of each measurement")
    parser.add_argument("--backlog", type=int, default=400_000, help="messages that the storm finds")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument(
        "--one-group", action="store_true", help="the storm and the small topic are of one group (push)"
    )
    parser.add_argument("--storm", nargs=2, metavar=("ADDRESS", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--broker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.storm:
        uvloop.run(storm(*options.storm))
    elif options.broker:
        uvloop.run(broker(options.broker))
    else:
        print("ms of CPU, p50/p90/p99: alone, beside the storm, ratio of p99, until read; µs for a pull of the storm")
        for way in ("push",) if options.one_group else options.ways:
            with tempfile.TemporaryDirectory(prefix="bench-fairness-") as directory:
                measure(way, options.count, options.backlog, Path(directory), one_group=options.one_group)


if __name__ == "__main__":
    main()
