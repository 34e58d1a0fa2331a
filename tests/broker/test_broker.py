"""A whole broker: start, stop, restart, and what is wrong when it cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event, current_thread, main_thread

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.periodic import every
from ternmq.broker.settings import own_ip
from ternmq.errors import ConfigError, NetworkError, StoreLocked
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.disk.base import FileEntry
from ternmq.store.disk.file_disk import FileDisk
from ternmq.tasks import Tasks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import TopicRouteBody
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import OffsetReply, QueryOffset, UpdateOffset
from ternmq.wire.requests_admin import RouteQuery
from tests.broker.calls import FAR_MS, Caller, dialled, pull, serving, settings, small_store

ROOT = Path(__file__).parents[2]
#: A broker in a process of its own, for tests that kill it.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from ternmq.broker.broker import Broker
from tests.broker.calls import settings, small_store

async def main():
    async with Broker(settings(), small_store(Path(sys.argv[1]))) as broker:
        print(broker.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def free_ports() -> tuple[int, int]:
    """A port, and the one two below it, that are not in use."""
    for _ in range(100):
        with socket.socket() as upper, contextlib.suppress(OSError), socket.socket() as lower:
            upper.bind(("127.0.0.1", 0))
            port = upper.getsockname()[1]
            lower.bind(("127.0.0.1", port - 2))
            return port, port - 2
    raise AssertionError("no two free ports")


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[str]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    async with NameServer(config) as running:
        yield f"127.0.0.1:{running.port}"


async def brokers_of(name_server: str, topic: str) -> list[str]:
    """Addresses of the brokers that a name server knows for a topic."""
    async with dialled(name_server) as caller:
        response = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    route = decode(response.body, TopicRouteBody)
    return [address for data in route.broker_datas for address in data.broker_addrs.values()]


async def committed(caller: Caller) -> int:
    header = QueryOffset(consumer_group="readers", topic="orders", queue_id=0)
    return (await caller.call(RequestCode.QUERY_CONSUMER_OFFSET, header)).read(OffsetReply).queue_offset


# --- Restart --------------------------------------------------------------------------------------------------


async def test_a_restarted_broker_has_everything_that_it_had(tmp_path: Path) -> None:
    """C7, D1, D4: messages, topics and progress; the abort file tells a clean stop."""
    async with serving(tmp_path) as caller:
        for number in range(10):
            await caller.sent("orders", b"%d" % number)
        offset = UpdateOffset(consumer_group="readers", topic="orders", queue_id=0, commit_offset=4)
        await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()

    async with serving(tmp_path, auto_create_topic_enable=False) as caller:
        assert await caller.bodies("orders") == [b"%d" % number for number in range(10)]
        assert await committed(caller) == 4
        assert (await caller.sent("orders", b"10")).queue_offset == 10


async def test_a_killed_broker_has_every_message_that_it_acknowledged(tmp_path: Path) -> None:
    """C6, C8: kill -9 takes nothing that was answered, and the topics are there too."""
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert killed.stdout is not None
        address = (await killed.stdout.readline()).decode().strip()
        async with dialled(address) as caller:
            for number in range(100):
                await caller.sent("orders", b"%d" % number)
            killed.kill()
            await killed.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            killed.kill()
        await killed.communicate()

    async with serving(tmp_path, auto_create_topic_enable=False) as caller:
        stored: list[bytes] = []
        while len(stored) < 100:
            stored += await caller.bodies("orders", queue_offset=len(stored))
        assert stored == [b"%d" % number for number in range(100)]


# --- Name servers and addresses -------------------------------------------------------------------------------


async def test_a_broker_is_ready_when_the_name_server_knows_it_and_gone_when_it_stops(tmp_path: Path) -> None:
    """A2, A3"""
    async with name_server() as names:
        async with Broker(settings(namesrv_addr=names), small_store(tmp_path)) as broker:
            assert await brokers_of(names, "TBW102") == [broker.address]

        assert await brokers_of(names, "TBW102") == []


async def test_a_broker_starts_without_its_name_server(tmp_path: Path) -> None:
    """A6: it registers when there is one; until then any client that knows its address is served."""
    port, _ = free_ports()

    async with serving(tmp_path, namesrv_addr=f"127.0.0.1:{port}") as caller:
        await caller.sent("orders", b"x")


async def test_a_topic_made_by_a_send_has_a_route_at_once(tmp_path: Path) -> None:
    """A2, D1: known when its sender asks again, not after 30 s."""
    async with name_server() as names, serving(tmp_path, namesrv_addr=names) as caller:
        await caller.sent("orders", b"x")

        while not await brokers_of(names, "orders"):
            await asyncio.sleep(0)


async def test_ids_carry_the_address_that_clients_dial(tmp_path: Path) -> None:
    """C10"""
    async with Broker(settings(broker_ip1="10.1.2.3"), small_store(tmp_path)) as broker:
        assert broker.address == f"10.1.2.3:{broker.port}"
        async with dialled(f"127.0.0.1:{broker.port}") as caller:
            reply = await caller.sent("orders", b"x")

    assert parse_offset_id(reply.message_id) == ("10.1.2.3", broker.port, 0)


def test_a_broker_takes_the_address_by_which_its_name_server_is_reached() -> None:
    """C10"""
    assert own_ip(settings()) == "127.0.0.1"
    assert own_ip(settings(namesrv_addr="127.0.0.1:9876")) == "127.0.0.1"
    assert own_ip(settings(namesrv_addr="no-such-host.invalid:9876;127.0.0.1:9876")) == "127.0.0.1"
    assert own_ip(settings(broker_ip1="localhost")) in ("127.0.0.1", "::1")


async def test_several_brokers_live_in_one_process(tmp_path: Path) -> None:
    """T5"""
    async with (
        serving(tmp_path / "a") as first,
        serving(tmp_path / "b", broker_name="broker-b") as second,
    ):
        await first.sent("orders", b"a")
        await second.sent("orders", b"b")

        assert (await first.bodies("orders"), await second.bodies("orders")) == ([b"a"], [b"b"])


# --- The VIP port ---------------------------------------------------------------------------------------------


async def test_the_vip_port_serves_all_but_calls_that_wait(tmp_path: Path) -> None:
    """B3"""
    port, vip_port = free_ports()
    async with serving(tmp_path, listen_port=port), dialled(f"127.0.0.1:{vip_port}") as vip:
        await vip.sent("orders", b"x")

        assert (await vip.pull("orders")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_vip_port_in_use_is_a_warning_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B3"""
    port, vip_port = free_ports()
    with socket.create_server(("127.0.0.1", vip_port)), caplog.at_level(logging.WARNING):
        async with serving(tmp_path, listen_port=port) as caller:
            await caller.sent("orders", b"x")

    # Another program may have the port for slaves, next to ours, which is a warning, too.
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 == sum("VIP" in warning for warning in warnings)


# --- Bad input ------------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    """«Bad input»"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NetworkError, match=f"port {port} on 127.0.0.1 is in use; stop the program"):
            async with Broker(settings(listen_port=port), small_store(tmp_path / "store")):
                pass

    assert not (tmp_path / "store").exists()


async def test_a_directory_that_another_broker_holds_is_named_and_the_port_set_free(tmp_path: Path) -> None:
    """«Bad input»"""
    port, _ = free_ports()
    async with serving(tmp_path):
        with pytest.raises(StoreLocked, match="is in use by another process"):
            async with Broker(settings(listen_port=port), small_store(tmp_path)):
                pass

    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_table_that_cannot_be_read_stops_the_start_and_leaves_a_clean_store(tmp_path: Path) -> None:
    """«Bad input», C7"""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{broken")

    with pytest.raises(Exception, match=r"topics\.json.*restore one of these files"):
        async with Broker(settings(), small_store(tmp_path)):
            pass

    assert not (tmp_path / "abort").exists()


async def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    """«Bad input»"""
    with pytest.raises(ConfigError, match=r"invalid brokerIP1 'no-such-host\.invalid'"):
        async with Broker(settings(broker_ip1="no-such-host.invalid"), small_store(tmp_path)):
            pass
    with pytest.raises(ConfigError, match="expected host:port"):
        async with Broker(settings(namesrv_addr="nowhere"), small_store(tmp_path)):
            pass


# --- Chores ---------------------------------------------------------------------------------------------------


async def test_a_chore_that_fails_once_is_done_again(caplog: pytest.LogCaptureFixture) -> None:
    """D4: a full disk for a moment does not end the saving of offsets."""
    done = asyncio.Event()
    attempts = 0

    def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("no space left")
        done.set()

    async with Tasks() as tasks:
        tasks.create_task(every(0, work))
        await done.wait()

    assert [record.message for record in caplog.records] == ["a background task failed; retrying"]


async def test_progress_is_saved_while_the_broker_runs(tmp_path: Path) -> None:
    """D4"""
    async with serving(tmp_path, flush_consumer_offset_interval=1) as caller:
        await caller.sent("orders", b"x")
        offset = UpdateOffset(consumer_group="readers", topic="orders", queue_id=0, commit_offset=1)
        await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)

        file = tmp_path / "config" / "consumerOffset.json"
        while not file.exists():
            await asyncio.sleep(0)


async def test_pulls_that_wait_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    """F8"""
    async with serving(tmp_path) as caller:
        await caller.sent("orders", b"x")
        header = pull("orders", queue_offset=1, sysflag=6, suspend_timeout_ms=FAR_MS)
        waiting = caller.peer.start_call(RequestCode.PULL_MESSAGE, header)
        # Answered behind the pull on the same connection, so the pull is held by now.
        await caller.sent("orders", b"elsewhere", queue_id=1)

    with pytest.raises(NetworkError):
        await waiting


async def offset_of(consumer: Caller, group: str) -> int:
    where = QueryOffset(consumer_group=group, topic="orders", queue_id=0)
    return (await consumer.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).read(OffsetReply).queue_offset


async def test_after_a_power_cut_no_consumer_is_behind_the_end_of_its_queue(tmp_path: Path) -> None:
    """C8, D4: what it had consumed is lost; others get these queue offsets, and it would skip them."""
    store = small_store(tmp_path / "store")
    async with Broker(settings(), store) as broker, dialled(broker.address) as sender:
        for _ in range(3):
            await sender.sent("orders", b"1")
    offsets = tmp_path / "store" / "config" / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {"orders@billing": {"0": 100}, "orders@audit": {"0": 2}}}))
    # As a process leaves it that did not close.
    (tmp_path / "store" / "abort").write_text("1\n\n")

    async with Broker(settings(), store) as broker, dialled(broker.address) as consumer:
        found = [await offset_of(consumer, group) for group in ("billing", "audit")]

    assert [3, 2] == found


class SlowStart(FileDisk):
    """A thread that opens a store waits in it."""

    def __init__(self) -> None:
        self.is_waited_for, self.may_go_on = Event(), Event()

    def list(self, directory: Path) -> list[FileEntry]:
        if current_thread() is not main_thread():
            self.is_waited_for.set()
            self.may_go_on.wait(60)
        return super().list(directory)


async def test_a_start_that_is_cancelled_gives_its_directory_back(tmp_path: Path) -> None:
    """The thread that opens the store goes on: it kept the lock for as long as the process lived."""
    disk = SlowStart()
    starting = asyncio.create_task(Broker(settings(), small_store(tmp_path), disk=disk).__aenter__())
    assert await asyncio.to_thread(disk.is_waited_for.wait, 60)
    starting.cancel()
    await asyncio.sleep(0)
    with pytest.raises(StoreLocked):
        await Broker(settings(), small_store(tmp_path)).__aenter__()
    disk.may_go_on.set()
    await asyncio.wait([starting])
    assert starting.cancelled()
    async with Broker(settings(), small_store(tmp_path)):
        pass
