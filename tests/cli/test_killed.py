"""kill -9 of a real broker: what its senders were told is true (C6, C8)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ternmq.errors import NetworkError
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.verify import verify
from ternmq.wire.codes import RequestCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import QueryMessage
from tests.broker.calls import Caller, dialled
from tests.cli.conftest import ENVIRONMENT, TERN, Start
from tests.manual_clock import ManualClock
from tests.store.small import log_queues_index

#: Senders at a time, each of which waits for its answer.
SENDERS = 8
QUEUES = 4


@dataclass(slots=True, frozen=True)
class Acknowledged:
    """A line of the senders' log."""

    number: int
    queue_id: int
    queue_offset: int
    log_offset: int


def body_of(number: int) -> bytes:
    return b"%d," % number * (number % 150)


def arguments(root: Path, flush: str) -> list[str]:
    """Segments that fill within a round, and every timer running."""
    settings = {
        "storePathRootDir": root,
        "listenPort": 0,
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": 256 * 1024,
        "mappedFileSizeConsumeQueue": 2000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 1000,
        "flushIntervalCommitLog": 5,
        "flushIntervalConsumeQueue": 10,
        "flushConsumeQueueThoroughInterval": 50,
    }
    return ["broker", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


class Senders:
    """Eight senders that never stop, and the log of what they were told."""

    def __init__(self, path: Path) -> None:
        self._log = path.open("ab", buffering=0)
        self._numbers = count(1)
        self.told: list[Acknowledged] = []

    async def send_until_told(self, caller: Caller, wanted: int, kill: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._send(caller, len(self.told) + wanted, kill))

    async def _send(self, caller: Caller, wanted: int, kill: asyncio.Event) -> None:
        with contextlib.suppress(NetworkError):
            while True:
                number = next(self._numbers)
                reply = await caller.sent(
                    "orders", body_of(number), queue_id=number % QUEUES, properties={"KEYS": f"k{number}"}
                )
                log_offset = parse_offset_id(reply.message_id)[2]
                self.told.append(Acknowledged(number, reply.queue_id, reply.queue_offset, log_offset))
                self._log.write(b"%d %d %d %d\n" % (number, reply.queue_id, reply.queue_offset, log_offset))
                if len(self.told) >= wanted:
                    kill.set()

    def close(self) -> None:
        self._log.close()


@pytest.mark.parametrize("rounds", [15, pytest.param(35, marks=pytest.mark.nightly)])
async def test_what_senders_were_told_survives_rounds_of_kill_9(start: Start, tmp_path: Path, rounds: int) -> None:
    """C6, C8: at any moment, also while it starts; under ASYNC_FLUSH, too, since the kernel lives on."""
    root = tmp_path / "store"
    choice = Random(20261116 + rounds)
    senders = Senders(tmp_path / "acknowledged")
    for number in range(rounds):
        flush = ("SYNC_FLUSH", "ASYNC_FLUSH")[number % 2]
        if number % 5 == 4:
            await kill_while_it_starts(root, flush, after_s=choice.uniform(0.1, 0.8))
            continue
        broker = start(*arguments(root, flush))
        kill = asyncio.Event()
        async with dialled(broker.ready["address"]) as caller, asyncio.TaskGroup() as tasks:
            tasks.create_task(senders.send_until_told(caller, choice.randrange(1, 400), kill))
            await kill.wait()
            # Not always right behind an answer.
            await asyncio.sleep(choice.choice((0, 0, 0.01)) * choice.random())
            assert -signal.SIGKILL == broker.end(signal.SIGKILL)
    senders.close()

    broker = start(*arguments(root, "SYNC_FLUSH"))
    async with dialled(broker.ready["address"]) as caller:
        served = {queue_id: await read_queue(caller, queue_id) for queue_id in range(QUEUES)}
        for each in senders.told:
            assert (each.log_offset, body_of(each.number)) == served[each.queue_id][each.queue_offset]
        for each in senders.told[:: len(senders.told) // 50]:
            assert [each.log_offset] == await find(caller, f"k{each.number}")
    assert 0 == broker.end(signal.SIGTERM)

    assert [] == verify(root).findings
    before = log_queues_index(root)
    rebuild(root, clock=ManualClock())
    assert before == log_queues_index(root)


async def kill_while_it_starts(root: Path, flush: str, *, after_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        TERN, *arguments(root, flush), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )
    await asyncio.sleep(after_s)
    process.kill()
    await process.wait()


async def read_queue(caller: Caller, queue_id: int) -> dict[int, tuple[int, bytes]]:
    """Log offset and body of all messages of a queue, as a consumer gets them."""
    found: dict[int, tuple[int, bytes]] = {}
    while records := await caller.records("orders", len(found), queue_id=queue_id):
        for record in records:
            assert len(found) == record.queue_offset
            found[record.queue_offset] = (record.log_offset, bytes(record.body))
    return found


async def find(caller: Caller, key: str) -> list[int]:
    """Log offsets of the messages with a key."""
    header = QueryMessage(topic="orders", key=key, count_max=9, begin_ms=0, end_ms=1 << 62)
    response = await caller.call(RequestCode.QUERY_MESSAGE, header)
    return [record.log_offset for record in unpack_records(response.body)]
