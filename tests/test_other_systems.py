"""What runs where: servers on macOS too, clients and tools on Windows too (T1). Each in a process that lacks what the
other system lacks; the systems themselves are not at hand here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ternmq import EmbeddedCluster
from ternmq.store.disk.file_disk import FileDisk

ROOT = Path(__file__).parent.parent

#: Sends, consumes, and opens the store again.
_SERVERS = """
import tests.linux_calls_missing
import asyncio, sys
from ternmq import Admin, EmbeddedCluster, Message, Producer, PullConsumer
from ternmq.message import MessageQueue

async def main():
    for number in range(2):
        async with EmbeddedCluster(directory=sys.argv[1], settings={"flushDiskType": "SYNC_FLUSH"}) as cluster:
            names = cluster.name_servers
            async with Producer("shop", name_servers=names) as producer, Admin(names) as admin:
                await admin.topics.create("orders", queues=1)
                queue = MessageQueue("orders", "broker-a", 0)
                receipt = await producer.send(Message("orders", b"%d" % number), queue=queue)
            async with PullConsumer("readers", name_servers=names) as consumer:
                result = await consumer.pull(receipt.queue, 0, wait=False)
                print(*[message.body.decode() for message in result.messages])

asyncio.run(main())
"""
#: A producer, a consumer in broadcasting mode, whose offsets are in a file, and the synchronous classes.
_CLIENTS = """
import tests.windows_like
import asyncio, sys
from ternmq import Message, Producer, PushConsumer, StartPosition, SyncProducer
from ternmq.client.consume.config import MessageModel

async def main(names):
    seen = asyncio.Queue()
    consumer = PushConsumer(
        "shop", seen.put, name_servers=names, start=StartPosition.FIRST, model=MessageModel.BROADCASTING
    )
    consumer.subscribe("orders")
    async with Producer("shop", name_servers=names) as producer, consumer:
        await producer.send(Message("orders", b"hello"))
        print((await seen.get()).body.decode())

with SyncProducer("shop", name_servers=sys.argv[1]) as producer:
    producer.send(Message("orders", b"first"))
asyncio.run(main(sys.argv[1]))
"""


def python(code: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home), "TERNMQ_NATIVE": "0"},
    )


def tern(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    code = "import tests.windows_like, sys; from ternmq.cli.main import main; sys.argv[0] = 'tern'; main()"
    return python(code, *arguments, home=home)


def test_servers_run_without_the_calls_that_macos_lacks(tmp_path: Path) -> None:
    """T1: with SYNC_FLUSH."""
    done = python(_SERVERS, str(tmp_path / "data"), home=tmp_path)
    assert ("0\n0 1\n", 0) == (done.stdout, done.returncode), done.stderr


def test_blocks_are_claimed_without_posix_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: what the file has stays."""
    monkeypatch.delattr(os, "posix_fallocate")
    segment = FileDisk().open_segment(tmp_path / "0", size=1 << 20, create=True)
    segment.page[300_000:300_003] = b"abc"
    segment.sync()
    segment.reserve(100_000, 900_000)
    assert (b"abc", bytes(100)) == (bytes(segment.page[300_000:300_003]), bytes(segment.page[:100]))
    assert (tmp_path / "0").stat().st_blocks * 512 >= 800_000 - 2 * 4096


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_tests_of_the_store_pass_without_the_calls_that_macos_lacks(tmp_path: Path) -> None:
    """C1 to C8, T1."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.linux_calls_missing", "tests/store"]
    done = subprocess.run(
        [sys.executable, *words, "-m", "not nightly", f"--basetemp={tmp_path / 'store'}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert 0 == done.returncode, done.stdout[-5000:]


async def test_clients_and_tools_run_without_what_windows_lacks(tmp_path: Path) -> None:
    """T1: no fcntl, resource, termios, signal handlers, uvloop."""
    async with EmbeddedCluster() as cluster:
        names = cluster.name_servers
        clients = await asyncio.to_thread(python, _CLIENTS, names, home=tmp_path)
        assert 0 == clients.returncode, clients.stderr
        assert clients.stdout.strip() in ("first", "hello")
        for words in (
            ("send", "orders", "from the tool", "-n", names),
            ("topic", "list", "-n", names),
            ("group", "progress", "shop", "-n", names),
            ("broker", "status", "-n", names),
        ):
            done = await asyncio.to_thread(tern, *words, home=tmp_path)
            assert 0 == done.returncode, done.stderr


def test_sparks_connector_is_imported_without_what_windows_lacks(tmp_path: Path) -> None:
    """U1, U2, T1."""
    code = (
        "import tests.windows_like, pyspark_ternmq; from ternmq.spark.source import source, batch, stream; "
        "from ternmq.spark.sink import sink; print('imported')"
    )
    done = python(code, home=tmp_path)
    assert "imported\n" == done.stdout, done.stderr


@pytest.mark.parametrize("words", [("up",), ("namesrv", "-p", "0"), ("broker",), ("store", "verify", ".")])
def test_servers_say_in_one_sentence_where_they_run(words: tuple[str, ...], tmp_path: Path) -> None:
    """T1."""
    done = tern(*words, home=tmp_path)
    assert (1, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert "need Linux or macOS" in done.stderr
