"""What a released version of TernMQ leaves behind, for the versions after it (C11, T1): a store directory, and the
frames between its clients and its servers, in ``tests/data/releases``. ``test_upgrade.py`` opens and replays them.

To make those of the version at hand, at its release and never again::

    .venv/bin/python -m tests.released

It starts the real programs, so that the files are those of a user. Clients reach the servers through ``Tap``, which
notes what passes: the servers listen on 127.0.0.1, and tell clients to use 127.0.0.2.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import importlib.metadata
import json
import shutil
import signal
import struct
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ternmq import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, ShareConsumer, StartPosition
from ternmq.admin import Admin
from ternmq.message import Outcome
from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Request
from tests.interop.rocketmq import free_port

DIRECTORY: Final = Path(__file__).parent / "data" / "releases"
#: Files of a size that suits a repository; readers need the same.
SETTINGS: Final = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    # A recorded file may be years old.
    "fileReservedTime": 24 * 365 * 100,
}
#: Messages of ``orders``, and the offset to which ``billing`` has consumed the first queue.
ORDERS: Final = 20
COMMITTED: Final = 3
#: Those of ``tasks``: a loop confirms each when it asks for the next, so ``worker-1`` holds the last.
TASKS: Final = 6
CONFIRMED: Final = TASKS - 1
LATER_S: Final = 60


def versions() -> list[str]:
    return sorted(path.name.removesuffix(".tar.gz") for path in DIRECTORY.glob("*.tar.gz"))


def unpack(version: str, directory: Path) -> Path:
    """The store directory of a version."""
    with tarfile.open(DIRECTORY / f"{version}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "broker-a"


def exchanges(version: str) -> Iterator[dict[str, Any]]:
    """Requests in the order of their arrival: ``server``, ``connection``, ``code``, ``request`` (a frame), ``answer``
    (the code of the reply; None if the request asked for none)."""
    with gzip.open(DIRECTORY / f"{version}.jsonl.gz") as lines:
        for line in map(json.loads, lines):
            line["request"] = base64.b64decode(line["request"])
            yield line


class Tap:
    """Passes bytes on between clients and servers, and notes requests and the codes of their replies."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._connections = 0

    @contextlib.asynccontextmanager
    async def on(self, server: str, port: int) -> AsyncIterator[None]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections += 1
            number, waiting = self._connections, dict[int, dict[str, Any]]()
            behind, before = await asyncio.open_connection("127.0.0.1", port)

            def note_request(frame: bytes, command: Any) -> None:
                if isinstance(command, Request):
                    line = {"server": server, "connection": number, "code": int(command.code), "answer": None}
                    line["request"] = base64.b64encode(frame).decode()
                    line["is_oneway"] = bool(command.flag & 2)
                    self.lines.append(line)
                    waiting[command.opaque] = line

            def note_answer(_frame: bytes, command: Any) -> None:
                if not isinstance(command, Request):
                    waiting.pop(command.opaque)["answer"] = int(command.code)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, before, note_request))
                tasks.create_task(self._pass_on(behind, writer, note_answer))

        async with await asyncio.start_server(accept, "127.0.0.2", port):
            yield

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Any) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
                [command] = FrameDecoder().feed(frame)
                note(frame, command)
                writer.write(frame)
                await writer.drain()
        writer.close()


async def fill(names: str) -> None:
    """What a store should have: everything that outlives a broker."""
    async with Admin(names) as admin:
        await admin.topics.create("orders", queues=4)
        await admin.topics.create("tasks", queues=1)
        await admin.topics.create("events", queues=1)
        await admin.groups.create("billing", retry_max=7)
        await admin.quotas.set_topic("orders", messages=1_000)
        async with Producer("shop", name_servers=names, checker=_unknown, topics=["events"]) as producer:
            receipts = [
                await producer.send(Message("orders", b"%d" % number, keys=f"order-{number}", tags="paid"))
                for number in range(ORDERS)
            ]
            for number in range(TASKS):
                await producer.send(Message("tasks", b"%d" % number))
            await producer.send(Message("events", b"by level", delay_level=5))
            later = datetime.now(UTC) + timedelta(seconds=LATER_S)
            await producer.send(Message("events", b"by time", deliver_at=later))
            async with producer.transaction(Message("events", b"committed")):
                pass
            with contextlib.suppress(ValueError):
                async with producer.transaction(Message("events", b"rolled back")):
                    raise ValueError("no")
            with contextlib.suppress(asyncio.CancelledError):
                async with producer.transaction(Message("events", b"open")):
                    raise asyncio.CancelledError
            first = next(receipt.queue for receipt in receipts if receipt.queue.queue_id == 0)
            await _consume(names)
            async with PullConsumer("billing", name_servers=names) as puller:
                result = await puller.pull(first, 0, wait=False)
                assert len(result.messages) > COMMITTED
                await puller.commit(first, COMMITTED)
            await admin.messages.by_key("orders", "order-7")


async def _unknown(_message: ReceivedMessage) -> Outcome:
    return Outcome.UNKNOWN


async def _consume(names: str) -> None:
    seen = asyncio.Queue[ReceivedMessage]()
    consumer = PushConsumer("mailer", seen.put, name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders", "paid")
    async with consumer:
        for _ in range(ORDERS):
            await seen.get()


@contextlib.asynccontextmanager
async def holding(names: str) -> AsyncIterator[None]:
    """A shared consumer has a message that it has not confirmed. When it leaves, it gives it back."""
    shared = ShareConsumer("workers", name_servers=names, start=StartPosition.FIRST, consumer="worker-1")
    shared.subscribe("tasks")
    async with shared:
        taken = 0
        async for _ in shared:
            taken += 1
            if taken == TASKS:
                break
        # Confirmations are sent a moment later, in ranges.
        await asyncio.sleep(2)
        yield


async def record(version: str) -> None:
    from tests.cli.conftest import starter  # pytest's fixtures are needed by this program only

    tap, directory = Tap(), Path(tempfile.mkdtemp(prefix="released-"))
    ports = {"namesrv": free_port(), "broker": free_port()}
    given = {"listenPort": ports["broker"], "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.2"}
    given |= SETTINGS | {"storePathRootDir": directory / "broker-a", "haListenPort": free_port()}
    flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    with starter(directory) as start:
        start("namesrv", "-p", str(ports["namesrv"]), "--set", "bindAddress=127.0.0.1")
        broker = start("broker", "-n", f"127.0.0.1:{ports['namesrv']}", *flags)
        async with tap.on("namesrv", ports["namesrv"]), tap.on("broker", ports["broker"]):
            names = f"127.0.0.2:{ports['namesrv']}"
            await fill(names)
            async with holding(names):
                assert 0 == await asyncio.to_thread(broker.end, signal.SIGTERM)
    DIRECTORY.mkdir(exist_ok=True)
    with tarfile.open(DIRECTORY / f"{version}.tar.gz", "w:gz") as archive:
        archive.add(directory / "broker-a", "broker-a", filter=_anonymous)
    with gzip.open(DIRECTORY / f"{version}.jsonl.gz", "wt") as lines:
        for line in tap.lines:
            lines.write(json.dumps(line) + "\n")
    shutil.rmtree(directory)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    asyncio.run(record(f"ternmq-{importlib.metadata.version('ternmq')}"))
