"""The machine of a master fails under load, a slave is promoted, the old master returns: real processes (O1, O2)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.store.inspect.dump import RecordChoice, records
from ternmq.store.inspect.view import StoreView
from tests.broker.test_promotion import differences
from tests.cli.conftest import Serving, Start, tern
from tests.store.small import draft, quiet_store, small_config

SETTINGS = {
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerName": "broker-a",
    "listenPort": 0,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "waitTimeMillsInSendQueue": 60_000,
}
MASTER = {"brokerRole": "SYNC_MASTER"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}


def broker(start: Start, root: Path, names: str, settings: dict[str, Any]) -> Serving:
    given = SETTINGS | {"storePathRootDir": root} | settings
    flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return start("broker", "-n", names, *flags)


def status(names: str) -> dict[str, dict[str, Any]]:
    """By role, what ``tern broker status`` says."""
    done = tern("broker", "status", "--json", NAMESRV_ADDR=names)
    assert 0 == done.returncode, done.stderr
    return {each.get("role", ""): each for each in json.loads(done.stdout)}


async def comes(names: str, state: str) -> dict[str, dict[str, Any]]:
    """Wait until the slave is in a state, and has all that its master has."""
    async with asyncio.timeout(120):
        while True:
            found = await asyncio.to_thread(status, names)
            copy, master = found.get("SLAVE"), found.get("SYNC_MASTER")
            if copy and master and copy["master"]["state"] == state and copy["logEnd"] == master["logEnd"]:
                return found


class Load:
    """Senders that never stop, and what they were told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.is_over = False

    async def run(self, producer: Producer, name: str) -> None:
        number = 0
        while not self.is_over:
            number += 1
            body = f"<{name} {number}>".encode()
            try:
                receipt = await producer.send(Message("orders", body), timeout_ms=3_000)
            except TernError:
                await asyncio.sleep(0.05)
                continue
            if receipt.status is SendStatus.OK:
                self.told.append(body)

    async def grows(self, count: int) -> None:
        end = len(self.told) + count
        async with asyncio.timeout(120):
            while len(self.told) < end:
                await asyncio.sleep(0.01)


async def test_a_killed_master_is_replaced_and_returns_as_a_slave(tmp_path: Path, start: Start) -> None:
    """O1, O2: no message that was answered with OK is lost, and both logs are equal at the end."""
    names = start("namesrv", "-p", "0", "--set", "bindAddress=127.0.0.1", "--set", "kvConfigPath=").name_server
    old = broker(start, tmp_path / "one", names, MASTER)
    new = broker(start, tmp_path / "two", names, SLAVE)
    await comes(names, "following")
    load = Load()
    async with Producer("shop", name_servers=names) as producer, asyncio.TaskGroup() as tasks:
        for name in ("a", "b", "c", "d"):
            tasks.create_task(load.run(producer, name))
        await load.grows(100)
        old.end(signal.SIGKILL)
        asked = await asyncio.to_thread(tern, "broker", "promote", new.ready["address"], NAMESRV_ADDR=names)
        assert (2, True) == (asked.returncode, "There is no terminal for the answer; add --yes" in asked.stderr)
        told = await asyncio.to_thread(
            tern, "broker", "promote", new.ready["address"], "--yes", "--json", NAMESRV_ADDR=names
        )
        assert 0 == told.returncode, told.stderr
        assert ("SYNC_MASTER", 101) == (json.loads(told.stdout)["role"], json.loads(told.stdout)["epoch"])
        # It starts with its old settings, while messages come.
        old = await asyncio.to_thread(broker, start, tmp_path / "one", names, MASTER)
        await load.grows(100)
        # And back, with both alive.
        back = await asyncio.to_thread(
            tern, "broker", "promote", old.ready["address"], "--yes", "--json", NAMESRV_ADDR=names
        )
        assert 0 == back.returncode, back.stderr
        await load.grows(100)
        load.is_over = True
    found = await comes(names, "following")
    assert (200, old.ready["address"]) == (found["SYNC_MASTER"]["epoch"], found["SYNC_MASTER"]["address"])
    assert True is found["SYNC_MASTER"]["slaves"][0]["inSync"]
    for serving in (old, new):
        assert 0 == serving.end(signal.SIGTERM)
    assert [] == differences(tmp_path / "one", tmp_path / "two")
    kept = {bytes(record.body) for record in records(StoreView(tmp_path / "two"), RecordChoice(topic="orders"))}
    assert [] == [body for body in load.told if body not in kept]


def test_a_log_is_cut_and_what_was_cut_off_can_be_read(tmp_path: Path) -> None:
    """O1: by an operator, on a stopped broker."""
    root = tmp_path / "store"
    with quiet_store(small_config(root)) as store:
        ends = [store.put(draft(body=b"%d" % number)).end_offset for number in range(5)]
    done = tern("store", "cut", str(root), "--at", str(ends[2]), "--yes", "--json")
    assert 0 == done.returncode, done.stderr
    made = json.loads(done.stdout)
    assert (2, ends[4] - ends[2]) == (made["messages"], made["cut_bytes"])
    dumped = tern("store", "dump", made["kept"], "--body", "--json")
    assert ["3", "4"] == [json.loads(line)["body"] for line in dumped.stdout.splitlines()]
    wrong = tern("store", "cut", str(root), "--at", "7", "--yes")
    assert 1 == wrong.returncode
    assert "no record ends at log offset 7" in wrong.stderr
    assert f"{root} has nothing behind" in tern("store", "cut", str(root), "--at", str(ends[2]), "--yes").stdout
