"""Backups of running brokers: ``tern backup`` (T1, O4)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ternmq import Message, Producer, PushConsumer, StartPosition
from ternmq.admin import Admin
from ternmq.broker.backup import read_note
from ternmq.errors import TernError
from ternmq.message import SendStatus
from tests.cli.conftest import ENVIRONMENT, TERN, Serving, Start, tern
from tests.cli.test_promote import broker

pytestmark = pytest.mark.long


class Source:
    """A name server and one broker, whose store has small files."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        self.directory = directory
        self.names = start("namesrv", "-p", "0", "--set", "bindAddress=127.0.0.1").name_server
        self.broker = self.begin(directory / "store")

    def begin(self, store: Path, **settings: Any) -> Serving:
        return broker(self._start, store, self.names, settings)

    def restore(self, kept: Path, to: Path) -> tuple[int, str]:
        return self.tern("backup", "restore", str(kept), "--to", str(to))

    def tern(self, *arguments: str) -> tuple[int, str]:
        done = tern(*arguments, NAMESRV_ADDR=self.names)
        return done.returncode, done.stdout + done.stderr

    def back_up(self, to: Path, *more: str) -> dict[str, Any]:
        done = tern("backup", "create", "broker-a", "--to", str(to), "--json", *more, NAMESRV_ADDR=self.names)
        assert 0 == done.returncode, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def source(start: Start, tmp_path: Path) -> Source:
    return Source(start, tmp_path)


async def sent(names: str, bodies: list[bytes], delay: timedelta | None = None) -> None:
    async with Producer("shop", name_servers=names) as producer:
        for body in bodies:
            assert SendStatus.OK is (await producer.send(Message("orders", body, keys="k", delay=delay))).status


async def read(names: str, group: str, count: int) -> list[bytes]:
    consumer = PushConsumer(group, name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    found: list[bytes] = []
    async with asyncio.timeout(120), consumer:
        async for message in consumer:
            with message:
                found.append(message.body)
            if len(found) == count:
                return found
    raise AssertionError


async def test_a_backup_of_a_broker_under_load_has_what_it_had_and_is_restored(source: Source) -> None:
    """T1: messages, progress, delayed messages; the broker serves meanwhile, and a second backup brings the rest."""
    names, kept = source.names, source.directory / "backup"
    await sent(names, [b"%d" % number for number in range(50)])
    assert 50 == len(await read(names, "billing", 50))
    await sent(names, [b"later"], delay=timedelta(seconds=20))
    stop, told = asyncio.Event(), 0

    async def load() -> None:
        nonlocal told
        async with Producer("load", name_servers=names) as producer:
            while not stop.is_set():
                await producer.send(Message("others", bytes(2_000)))
                told += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        first = await asyncio.to_thread(source.back_up, kept)
        before = told
        second = await asyncio.to_thread(source.back_up, kept)
        stop.set()
    assert before > 0
    assert first["log_end"] < second["log_end"]
    assert 0 == source.tern("backup", "verify", str(kept))[0]

    # The machine is lost.
    source.broker.end(signal.SIGKILL)
    code, text = source.tern("backup", "restore", str(kept), "--to", str(source.directory / "again"))
    assert (0, True) == (code, "start it with `tern broker --set brokerName=broker-a" in text)
    source.begin(source.directory / "again")
    async with Admin(names) as admin:
        offsets = await admin.groups.progress("billing", topic="orders")
    assert 50 == sum(each.consumer_offset for each in offsets)
    assert [b"later"] == await read(names, "billing", 1)
    assert {b"later", *(b"%d" % number for number in range(50))} == set(await read(names, "audit", 51))


async def test_a_backup_in_the_wrong_place_is_refused_with_a_sentence(source: Source) -> None:
    """T1, bad input: nothing is overwritten."""
    await sent(source.names, [b"1"])
    kept, other = source.directory / "backup", source.directory / "other"
    source.back_up(kept)
    other.mkdir()
    (other / "file").write_text("mine")
    for arguments, sentence in (
        (("create", "broker-b", "--to", str(kept)), "no master of 'broker-b' is registered"),
        (("create", "broker-a", "--to", str(other)), "neither empty nor a backup"),
        (("create", "broker-a", "--to", str(source.directory / "store")), "neither empty nor a backup"),
        (("create", source.names, "--to", str(source.directory / "new")), "not supported"),
        (("verify", str(other)), "is not a backup"),
        (("restore", str(other), "--to", str(source.directory / "new")), "is not a backup"),
        (("restore", str(kept), "--to", str(other)), "is not empty"),
    ):
        code, text = source.tern("backup", *arguments)
        assert (code > 0, sentence in text) == (True, True), (arguments, text)
    assert "mine" == (other / "file").read_text()
    note = kept / "backup.json"
    data = json.loads(note.read_text())
    for changed, sentence in (
        ({"broker": "broker-c"}, "is a backup of broker-c"),
        ({"isComplete": False}, "is not complete"),
        ({"version": 9}, "is of version 9"),
        ({"logEnd": "x"}, "is damaged"),
    ):
        note.write_text(json.dumps(data | changed))
        command = ("create", "broker-a", "--to") if "broker" in changed else ("verify",)
        code, text = source.tern("backup", *command, str(kept))
        assert (code > 0, sentence in text) == (True, True), (changed, text)


async def test_what_does_not_belong_to_a_backup_is_named(source: Source) -> None:
    """T1, bad input: a pipe would be read for ever, and so would a directory that contains itself."""
    await sent(source.names, [b"1"])
    kept, new = source.directory / "backup", source.directory / "new"
    source.back_up(kept)
    pipe, loop = kept / "config" / "a pipe", kept / "commitlog" / "again"
    os.mkfifo(pipe)
    code, text = source.restore(kept, new)
    assert (1, True) == (code, f"{pipe} is not a file" in text), text
    pipe.unlink()
    loop.symlink_to("..")
    code, text = source.restore(kept, new)
    assert (1, True) == (code, "is a link to a directory that the backup has already" in text), text
    assert not new.exists()
    loop.unlink()
    (kept / "notes of an operator").write_text("kept on purpose")
    assert 0 == source.restore(kept, new)[0]
    assert "kept on purpose" == (new / "notes of an operator").read_text()


async def test_a_backup_that_broke_off_is_continued(source: Source) -> None:
    """T1: killed while it copies; what it had stays, and is not taken for a backup."""
    await sent(source.names, [bytes(100_000)] * 40)
    kept = source.directory / "backup"
    making = await asyncio.create_subprocess_exec(
        *(str(each) for each in (TERN, "backup", "create", "broker-a", "--to", kept)),
        env=ENVIRONMENT | {"NAMESRV_ADDR": source.names},
    )
    async with asyncio.timeout(60):
        while not (kept / "commitlog").is_dir():
            await asyncio.sleep(0.001)
    making.kill()
    await making.wait()
    code, text = source.tern("backup", "verify", str(kept))
    if code:  # It may have been done already.
        assert "is not complete" in text
    assert 40 <= (await asyncio.to_thread(source.back_up, kept))["messages"]
    assert 0 == source.tern("backup", "verify", str(kept))[0]


async def test_a_master_that_does_not_answer_slaves_is_named(source: Source) -> None:
    """T1: the sentence says which port, and what to check."""
    source.broker.end(signal.SIGTERM)
    source.begin(source.directory / "store", haAllowedAddresses="10.9.9.9")
    await sent(source.names, [b"1"])
    code, text = source.tern("backup", "create", "broker-a", "--to", str(source.directory / "new"), "--patience", "2")
    assert (True, True) == (code > 0, "haAllowedAddresses" in text)
    with pytest.raises(TernError):
        read_note(source.directory / "new")
