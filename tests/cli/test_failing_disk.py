"""A real broker on a disk that returns errors: what it says, what it takes, and what is there afterwards (C6, C8, C9).

The errors come from ``failing_disk.c``, which stands between the broker and the C library.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ternmq.store.inspect.verify import verify
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import SendReply
from tests.broker.calls import Caller, dialled
from tests.cli.conftest import Serving, starter, tern
from tests.cli.test_bad_input import sentence
from tests.store.small import files

SOURCE = Path(__file__).with_name("failing_disk.c")
#: Longer than any test runs: no reply is caused by the time limit.
FAR_MS = 60_000

NO_SPACE = [f"{call} {errno.ENOSPC} /store/" for call in ("pwrite", "fallocate", "create", "ftruncate")]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("cc"), "this test needs a C compiler; script/bootstrap dev installs one"
    path = tmp_path_factory.mktemp("disk") / "failing_disk.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE, "-ldl"], check=True)
    return path


class FailingDisk:
    """A store's directory on a disk that does as it is told, and brokers on it."""

    def __init__(self, path: Path, library: Path, start: Callable[..., Serving]) -> None:
        self.root = path / "store"
        self._orders = path / "orders"
        self._environment = {"LD_PRELOAD": str(library), "FAILING_DISK": str(self._orders)}
        self._start = start
        #: Number of each message that a sender was told to be stored.
        self.told: list[int] = []
        self._number = 0

    def fail(self, *orders: str) -> None:
        """Each is a call, an errno and a part of a path."""
        self._orders.write_text("\n".join(orders))

    def heal(self) -> None:
        self._orders.unlink()

    def arguments(self, flush: str) -> list[str]:
        settings = {
            "storePathRootDir": self.root,
            "listenPort": 0,
            "flushDiskType": flush,
            "syncFlushTimeout": FAR_MS,
            "mappedFileSizeCommitLog": 64 * 1024,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 100,
            "maxIndexNum": 1000,
            "flushIntervalCommitLog": 5,
        }
        return ["broker", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]

    def broker(self, flush: str) -> Serving:
        return self._start(*self.arguments(flush), **self._environment)

    def broker_that_ends(self) -> subprocess.CompletedProcess[str]:
        return tern(*self.arguments("ASYNC_FLUSH"), "--log-level", "error", stdin=b"", **self._environment)

    async def send(self, caller: Caller) -> Response:
        self._number += 1
        number = self._number
        response = await caller.send("orders", body_of(number), properties={"KEYS": f"k{number}"})
        if response.code == 0:
            assert 0 == response.read(SendReply).queue_id
            self.told.append(number)
        return response

    async def send_until_refused(self, caller: Caller) -> list[Response]:
        """Eight senders, until each was told something else than SUCCESS; returns what."""

        async def until_refused() -> Response:
            while True:
                response = await self.send(caller)
                if response.code != 0:
                    return response

        return await asyncio.gather(*(until_refused() for _ in range(8)))

    async def check(self, caller: Caller) -> None:
        """All messages that senders were told of are there, as they were sent."""
        served = await bodies(caller)
        assert [] == [number for number in self.told if body_of(number) not in served]


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> Iterator[FailingDisk]:
    with starter(tmp_path) as start:
        yield FailingDisk(tmp_path, library, start)


def body_of(number: int) -> bytes:
    return b"%d," % number * 50


async def bodies(caller: Caller) -> set[bytes]:
    found: set[bytes] = set()
    queue_offset = 0
    while records := await caller.records("orders", queue_offset):
        found |= {bytes(record.body) for record in records}
        queue_offset = records[-1].queue_offset + 1
    return found


@pytest.mark.parametrize(
    ("flush", "end", "code"), [("SYNC_FLUSH", signal.SIGTERM, 1), ("ASYNC_FLUSH", signal.SIGKILL, -signal.SIGKILL)]
)
async def test_after_a_sync_that_failed_nothing_is_taken(
    flush: str, end: signal.Signals, code: int, disk: FailingDisk
) -> None:
    """C6, C8: senders that wait for the disk get no OK, and get the error at once."""
    broker = disk.broker(flush)
    async with dialled(broker.ready["address"]) as caller:
        for _ in range(20):
            assert 0 == (await disk.send(caller)).code
        disk.fail(f"fdatasync {errno.EIO} /commitlog/")

        refused = await disk.send_until_refused(caller)
        codes = {response.code for response in refused}
        assert codes <= {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SYSTEM_ERROR}
        assert (flush == "SYNC_FLUSH") == (ResponseCode.FLUSH_DISK_TIMEOUT in codes)
        # Another sync would succeed, and prove nothing: the kernel may have dropped the pages.
        disk.heal()
        remark = (await disk.send(caller)).remark or ""
        assert f"cannot flush {disk.root}/commitlog/" in remark
        assert "Input/output error; look at the disk and the system's log; no more messages are taken until" in remark
        await disk.check(caller)  # who reads goes on
    assert code == broker.end(end)
    assert 1 == broker.errors.count("flush failed; no more messages are taken until the broker is started again")

    broker = disk.broker(flush)
    async with dialled(broker.ready["address"]) as caller:
        await disk.check(caller)
        assert 0 == (await disk.send(caller)).code
    assert 0 == broker.end(signal.SIGTERM)
    assert [] == verify(disk.root).findings


@pytest.mark.parametrize("orders", [NO_SPACE, [f"pwrite {errno.EIO} /store/"]], ids=["no space", "failing writes"])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_messages_are_refused_while_nothing_can_be_written_and_taken_again(
    flush: str, orders: list[str], disk: FailingDisk
) -> None:
    """C9: with the cure, without a restart, and nothing is lost that was acknowledged."""
    broker = disk.broker(flush)
    async with dialled(broker.ready["address"]) as caller:
        for _ in range(20):
            assert 0 == (await disk.send(caller)).code
        disk.fail(*orders)
        told = {
            (response.code, (response.remark or "").rsplit("; ", 1)[1])
            for response in await disk.send_until_refused(caller)
        }
        expected = (
            (ResponseCode.SERVICE_NOT_AVAILABLE, "free some space, or lower fileReservedTime")
            if orders is NO_SPACE
            else (ResponseCode.SYSTEM_ERROR, "look at the disk and the system's log")
        )
        assert {expected} == told
        await disk.check(caller)
        disk.heal()
        for _ in range(300):
            assert 0 == (await disk.send(caller)).code
    assert -signal.SIGKILL == broker.end(signal.SIGKILL)

    broker = disk.broker(flush)
    async with dialled(broker.ready["address"]) as caller:
        await disk.check(caller)
    assert 0 == broker.end(signal.SIGTERM)
    assert [] == verify(disk.root).findings


async def test_a_read_that_fails_is_told_and_the_next_one_succeeds(disk: FailingDisk) -> None:
    """C2: with the file, and without an end to anything else."""
    broker = disk.broker("ASYNC_FLUSH")
    async with dialled(broker.ready["address"]) as caller:
        for _ in range(250):  # more than are kept in memory
            assert 0 == (await disk.send(caller)).code
        disk.fail(f"pread {errno.EIO} /consumequeue/")
        response = await caller.pull("orders", 0)
        assert ResponseCode.SYSTEM_ERROR == response.code
        assert f"cannot read {disk.root}/consumequeue/orders/0/" in (response.remark or "")
        assert 0 == (await disk.send(caller)).code
        disk.heal()
        await disk.check(caller)
    assert 0 == broker.end(signal.SIGTERM)


async def test_a_broker_does_not_start_on_a_log_that_it_cannot_read(disk: FailingDisk) -> None:
    """C8: it says which file, leaves the log alone, and starts when the disk is well."""
    broker = disk.broker("ASYNC_FLUSH")
    async with dialled(broker.ready["address"]) as caller:
        assert 0 == (await disk.send(caller)).code
    broker.end(signal.SIGKILL)
    before = files(disk.root / "commitlog")
    disk.fail(f"pread {errno.EIO} /commitlog/")

    told = sentence(await asyncio.to_thread(disk.broker_that_ends))

    assert f"tern: cannot read {disk.root}/commitlog/{0:020d}: Input/output error; look at the disk" in told
    assert before == files(disk.root / "commitlog")
    disk.heal()
    broker = disk.broker("ASYNC_FLUSH")
    async with dialled(broker.ready["address"]) as caller:
        await disk.check(caller)
    assert 0 == broker.end(signal.SIGTERM)
