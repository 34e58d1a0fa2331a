"""RocketMQ's slaves follow a TernMQ master, and a TernMQ slave follows masters of 4.9.4 and 5.2.0 (O1, O2, V3).

On our side stores and replication alone, and at the end whole brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.broker.registration import Identity, Registration
from ternmq.client.send.producer import Producer
from ternmq.env import Env
from ternmq.message import Message, SendStatus
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.replication.handshake import Refusal
from ternmq.replication.slave import SlaveState
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.topics import TopicTable
from tests.broker.calls import dialled
from tests.broker.test_replicating import broker, copies_tables, parts_of, slave, state_of
from tests.interop import jvm, rocketmq
from tests.interop.rocketmq import Server, free_port
from tests.replication.world import Serving, following, opened_store, serving, until
from tests.store.small import bodies

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEGMENT_BYTES: Final = 1 << 20
#: On both sides: files must be of the same size.
SIZES: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
ROCKETMQ_SIZES: Final = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


def log_of(root: Path, end: int, begin: int = 0) -> bytes:
    """The bytes of a log as they stand in its files; what is not there is left out."""
    found = b""
    for start in range(begin, end, SEGMENT_BYTES):
        path = root / "commitlog" / f"{start:020}"
        if path.exists():
            found += path.read_bytes()[: end - start]
    return found


@asynccontextmanager
async def rocketmq_slave(version: str, directory: Path, names: str, master: str) -> AsyncIterator[Server]:
    """A slave of RocketMQ that hears of its master from the name server."""
    settings = {"brokerRole": "SLAVE", "brokerId": 1, **ROCKETMQ_SIZES}
    identity = Identity("DefaultCluster", "broker-a", 0, f"127.0.0.1:{free_port()}", master)
    async with Registration([names], lambda: identity, TopicTable) as registration:
        await registration.settled()
        with ExitStack() as stack:
            # Of a master without topics there is no route to wait for.
            context = rocketmq.broker(version, directory, namesrv=names, settings=settings, has_route=False)
            server = await asyncio.to_thread(stack.enter_context, context)
            try:
                yield server
            finally:
                server.kill()


async def has_log(server: Server, master: Serving) -> None:
    """Wait until a slave of RocketMQ has the master's log, and has said so."""
    end = master.store.written
    expected = log_of(master.store.config.store_path_root_dir, end)
    await until(lambda: any(each.acked >= end for each in master.master.status()))
    assert expected == log_of(server.store, end)


@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_a_slave_of_rocketmq_follows_our_master(version: str, tmp_path: Path) -> None:
    """O1, O2, V3: over segment ends, while messages come, after a pause, and what it serves is what was sent."""
    names_config, port = NamesrvConfig(listen_port=0), free_port()
    async with NameServer(names_config, Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        async with serving(tmp_path / "ours", port, **SIZES) as master:
            master.put(300, body=b"a" * 1000)
            async with rocketmq_slave(version, tmp_path / "theirs", names, master.address) as server:
                await until(lambda: master.master.status())
                for _ in range(30):
                    master.put(100, body=b"b" * 1000)
                    await asyncio.sleep(0.01)
                assert master.store.written > 3 * SEGMENT_BYTES
                await has_log(server, master)
                (status,) = master.master.status()
                assert 0 == status.lag_bytes
        # The master was away, and the slave is started again.
        async with serving(tmp_path / "ours", port, **SIZES) as master:
            master.put(500, body=b"c" * 1000)
            async with rocketmq_slave(version, tmp_path / "theirs", names, master.address) as server:
                await has_log(server, master)
                await queues_are(server.store, master.store)
            async with opened_store(tmp_path / "theirs" / "store", **SIZES) as theirs:
                for queue_id in (0, 1):
                    assert bodies(master.store, queue_id=queue_id) == bodies(theirs, queue_id=queue_id)


async def queues_are(root: Path, store: MessageStore) -> None:
    """Wait until a broker of RocketMQ has dispatched as much as our store has."""

    def entries(queue_id: int) -> int:
        paths = sorted((root / "consumequeue" / "orders" / str(queue_id)).glob("*"))
        data = b"".join(path.read_bytes() for path in paths)
        return len([at for at in range(0, len(data), 20) if any(data[at : at + 20])])

    await until(lambda: all(entries(queue_id) == store.max_offset("orders", queue_id) for queue_id in (0, 1)))


@pytest.mark.nightly
async def test_a_slave_of_rocketmq_that_has_more_is_not_sent_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: nothing is written behind messages that its master never had."""
    names_config, port = NamesrvConfig(listen_port=0), free_port()
    async with NameServer(names_config, Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        async with serving(tmp_path / "ours", port, **SIZES) as master:
            master.put(300, body=b"a" * 1000)
            async with rocketmq_slave("4.9.4", tmp_path / "theirs", names, master.address) as server:
                await has_log(server, master)
                more, end = log_of(server.store, SEGMENT_BYTES), master.store.written
        async with serving(tmp_path / "other", port, **SIZES) as master:
            master.put(10)
            async with rocketmq_slave("4.9.4", tmp_path / "theirs", names, master.address) as server:
                await until(lambda: f"asks for log offset {end}" in caplog.text)
                assert "start the slave as master" in caplog.text
                assert more == log_of(server.store, SEGMENT_BYTES)


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_our_slave_follows_a_master_of_rocketmq(version: str, tmp_path: Path) -> None:
    """O1, O2, V3: its SYNC_MASTER answers when our slave has the message; an empty slave gets the last file."""
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, **ROCKETMQ_SIZES}
    with ExitStack() as stack:
        context = rocketmq.cluster(version, tmp_path / "theirs", settings=settings)
        servers = await asyncio.to_thread(stack.enter_context, context)
        host, port = servers.broker.address.split(":")
        address = f"{host}:{int(port) + 1}"
        theirs = servers.broker.store
        async with Producer("shop", name_servers=servers.address) as producer:
            async with following(tmp_path / "ours", address, **SIZES) as slave:
                await slave.comes_to(SlaveState.FOLLOWING)
                receipts = [await producer.send(Message("orders", b"%d" % number * 50)) for number in range(50)]
                # The first may come before the slave's first report.
                assert SendStatus.OK is receipts[-1].status
                batches = [[Message("orders", b"x" * 1000) for _ in range(20)] for _ in range(120)]
                for batch in batches:
                    assert SendStatus.OK is (await producer.send_batch(batch))[-1].status
                sent = sum(receipt.queue.queue_id == 0 for receipt in receipts)
                assert sent
                await until(lambda: slave.store.written > 2 * SEGMENT_BYTES)
                end = slave.store.written
                assert log_of(theirs, end) == log_of(tmp_path / "ours", end)
            # One that was away, and goes on in the middle of a file.
            for batch in batches[:3]:
                # 5.2.0 waits 3 s for a slave that is not there.
                receipt, *_ = await producer.send_batch(batch, timeout_ms=30_000)
                assert SendStatus.OK is not receipt.status
            async with following(tmp_path / "ours", address, **SIZES) as slave:
                assert SendStatus.OK is await replicated(producer)
                end = slave.store.written
                assert log_of(theirs, end) == log_of(tmp_path / "ours", end)
                total = sum(slave.store.max_offset("orders", queue_id) for queue_id in range(16))
                assert total >= 50 + 20 * 123
            async with following(tmp_path / "empty", address, **SIZES) as slave:
                assert SendStatus.OK is await replicated(producer)
                begin, end = slave.store.min_log_offset, slave.store.written
                assert begin == (end - 1) // SEGMENT_BYTES * SEGMENT_BYTES
                assert log_of(theirs, end, begin) == log_of(tmp_path / "empty", end, begin)


@pytest.mark.nightly
async def test_our_slave_says_what_its_rocketmq_master_does_not_have_any_more(tmp_path: Path) -> None:
    """O1, V3: RocketMQ sends nothing then, and does not say why; a slave would wait for ever."""
    directory, port = tmp_path / "theirs", free_port(neighbours=(-2, 1))
    with ExitStack() as stack:
        names = await asyncio.to_thread(stack.enter_context, rocketmq.name_server("4.9.4", tmp_path / "names"))

        def start() -> Server:
            context = rocketmq.broker("4.9.4", directory, namesrv=names.address, port=port, settings=ROCKETMQ_SIZES)
            return stack.enter_context(context)

        server = await asyncio.to_thread(start)
        async with Producer("shop", name_servers=names.address) as producer:
            async with slave(tmp_path / "ours", names.address, **ROCKETMQ_SIZES) as copy:
                await producer.send(Message("orders", b"first"))
                await until(lambda: parts_of(copy)._store.dispatched > 0)
            for _ in range(120):
                await producer.send_batch([Message("orders", b"x" * 1000) for _ in range(20)])
        server.kill()
        (server.store / "commitlog" / f"{0:020}").unlink()
        await asyncio.to_thread(start)
        async with slave(tmp_path / "ours", names.address, **ROCKETMQ_SIZES) as copy:
            await until(lambda: state_of(copy) is SlaveState.REFUSED)
            follower = parts_of(copy).slave
            assert follower is not None
            assert Refusal.GONE is follower.refusal
            assert "Empty the store directory" in follower.trouble
            assert parts_of(copy)._store.written < SEGMENT_BYTES
        names.kill()


async def replicated(producer: Producer) -> SendStatus:
    """Send until a slave has it; it may take many seconds until one is connected."""
    for _ in range(120):
        receipt = await producer.send(Message("orders", b"is a slave there?"), timeout_ms=30_000)
        if receipt.status is SendStatus.OK:
            break
        await asyncio.sleep(0.5)
    return receipt.status


# --- Brokers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_a_slave_of_rocketmq_copies_our_broker(version: str, tmp_path: Path) -> None:
    """O1, O2, O4, V3: log, tables and timer state; our SYNC_MASTER answers when it has the message."""
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        port = free_port(neighbours=(1,))
        sizes = {**ROCKETMQ_SIZES, "listenPort": port, "brokerRole": "SYNC_MASTER"}
        async with broker(tmp_path / "ours", names, **sizes) as master:
            with ExitStack() as stack:
                settings = {"brokerRole": "SLAVE", "brokerId": 1, **ROCKETMQ_SIZES}
                context = rocketmq.broker(version, tmp_path / "theirs", namesrv=names, settings=settings)
                server = await asyncio.to_thread(stack.enter_context, context)
                async with Producer("shop", name_servers=names) as producer:
                    assert SendStatus.OK is await replicated(producer)
                    for number in range(50):
                        receipt = await producer.send(Message("orders", b"%d" % number), timeout_ms=30_000)
                        assert SendStatus.OK is receipt.status
                    later = Message("orders", b"later", delay=timedelta(hours=1))
                    assert SendStatus.OK is (await producer.send(later, timeout_ms=30_000)).status
                end = parts_of(master).log_end
                assert log_of(tmp_path / "ours", end) == log_of(server.store, end)
                topics = server.store / "config" / "topics.json"
                await until(lambda: topics.exists() and '"orders"' in topics.read_text())
                if version == "5.2.0":
                    # It asks its master how far the timer topic is taken in (60).
                    check = server.store / "config" / "timercheck"
                    await until(lambda: check.exists() and check.read_bytes()[24:32] == (1).to_bytes(8, "big"))
                server.kill()


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_our_broker_is_a_slave_of_rocketmq(version: str, tmp_path: Path) -> None:
    """O1, O3, O4, V3: it finds its master by RocketMQ's name server, copies log and tables, and serves them alone."""
    with ExitStack() as stack:
        context = rocketmq.cluster(version, tmp_path / "theirs", settings=ROCKETMQ_SIZES)
        servers = await asyncio.to_thread(stack.enter_context, context)
        async with slave(tmp_path / "ours", servers.address, **ROCKETMQ_SIZES) as copy:
            async with Producer("shop", name_servers=servers.address) as producer:
                for number in range(50):
                    await producer.send(Message("orders", b"%d" % number))
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            store = parts_of(copy)._store
            await until(lambda: sum(store.max_offset("orders", queue_id) for queue_id in range(16)) == 50)
            await copies_tables(copy)
            servers.broker.kill()
            async with dialled(copy.address) as reader:
                found = [body for queue_id in range(4) for body in await reader.bodies("orders", queue_id=queue_id)]
            assert sorted(b"%d" % number for number in range(50)) == sorted(found)
