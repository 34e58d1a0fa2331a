"""A master and its slaves on real sockets and files (O1, O2)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from ternmq.replication import slave as slaves
from ternmq.replication.beside import CHUNK_BYTES, Beside
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import VERSION, Refusal, SlaveHello, encode
from ternmq.replication.history import Sample
from ternmq.replication.line import LineState
from ternmq.replication.master import NEW_LINES_MAX
from ternmq.replication.replicas import LINES_MAX
from ternmq.replication.slave import SlaveState
from ternmq.replication.stream import PROBE, pack_report, pack_text
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.file_disk import FileDisk
from tests.replication.world import LONG_S, following, opened_store, place, serving, until
from tests.store.small import bodies, draft, files, log_queues_index

#: No heartbeats or time-outs within a test that is not about them.
FAST = ReplicationConfig(ha_send_heartbeat_interval=50, ha_housekeeping_interval=10_000)


async def test_a_slave_has_the_files_of_its_master(tmp_path: Path) -> None:
    """O1: log, queues and index byte for byte, over many segments with their blank tails, while messages come."""
    async with serving(tmp_path / "one") as master:
        master.put(100)
        async with following(tmp_path / "two", master.address) as slave:
            for _ in range(20):
                master.put(10, body=b"x" * 700)
                await asyncio.sleep(0)
            await slave.reaches(master.store.written)
            assert bodies(master.store) == bodies(slave.store)
            await until(lambda: master.master.replicas.replicated.value == master.store.written)
    ours, theirs = (log_queues_index(tmp_path / name) for name in ("one", "two"))
    assert len(ours[0]) > 20
    assert ours == theirs


async def test_a_transfer_never_crosses_the_end_of_a_file(tmp_path: Path) -> None:
    """O1: a slave of RocketMQ would drop the bytes, and ask for them again for ever."""
    async with serving(tmp_path / "one") as master:
        master.put(3)
        host, port = master.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack_report(1))
        await until(lambda: master.master.status())
        end = master.put(60, body=b"y" * 300)
        at = 1
        while at < end:
            header = await reader.readexactly(12)
            offset, size = int.from_bytes(header[:8], "big"), int.from_bytes(header[8:], "big")
            assert at == offset
            assert at // 4096 == (at + size - 1) // 4096
            await reader.readexactly(size)
            at += size
        writer.close()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_slave_far_behind_catches_up_on_either_loop(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """O1: most of the log is read by a thread, the end of it from memory."""

    async def program() -> None:
        sizes: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
        async with serving(tmp_path / "one", **sizes) as master:
            end = master.put(6000, body=b"x" * 1000)
            async with following(tmp_path / "two", master.address, **sizes) as slave:
                await slave.reaches(end)
                assert await master.master.replicas.replicated.reached(master.put(3), 60_000)
        assert files(tmp_path / "one" / "commitlog") == files(tmp_path / "two" / "commitlog")

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(program())


async def test_a_slave_that_was_away_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """O1: after a stop of either side."""
    async with serving(tmp_path / "one") as master:
        port = int(master.address.rpartition(":")[2])
        end = master.put(30)
        async with following(tmp_path / "two", master.address) as slave:
            await slave.reaches(end)
        end = master.put(50)
        async with following(tmp_path / "two", master.address) as slave:
            await slave.reaches(end)
    async with following(tmp_path / "two", f"127.0.0.1:{port}") as slave:
        await until(lambda: slave.slave.trouble)
        async with serving(tmp_path / "one", port) as master:
            await slave.reaches(master.put(50))
    ours, theirs = (files(tmp_path / name / "commitlog") for name in ("one", "two"))
    assert ours == theirs


async def test_two_slaves_follow_one_master(tmp_path: Path) -> None:
    """O1, O2: each at its pace; the status tells them apart."""
    async with (
        serving(tmp_path / "one", settings=ReplicationConfig(in_sync_replicas=3)) as master,
        following(tmp_path / "two", master.address, broker_id=1) as first,
    ):
        end = master.put(20)
        await first.reaches(end)
        assert master.master.replicas.replicated.value < end
        async with following(tmp_path / "three", master.address, broker_id=2) as second:
            await second.reaches(end)
            assert await master.master.replicas.replicated.reached(end, 60_000)
            await until(lambda: all(not each.lag_bytes for each in master.master.status()))
            assert ["broker-a:1", "broker-a:2"] == sorted(each.replica for each in master.master.status())
        await until(lambda: len(master.master.status()) == 1)


async def test_an_empty_slave_of_a_master_without_its_first_files_begins_where_that_begins(tmp_path: Path) -> None:
    """O1: between TernMQ nodes everything is copied that there is; queues keep their numbers."""
    async with serving(tmp_path / "one") as master:
        end = master.put(60, body=b"y" * 300)
        for path in master.store._log.oldest(2):
            assert path == master.store._log.drop_first()
            path.unlink()
        async with following(tmp_path / "two", master.address) as slave:
            await slave.reaches(end)
            assert 2 * 4096 == slave.store.min_log_offset
            assert master.store.max_offset("orders", 1) == slave.store.max_offset("orders", 1)
        async with following(
            tmp_path / "three", master.address, broker_id=2, settings=ReplicationConfig(sync_from_last_file=True)
        ) as slave:
            await slave.reaches(end)
            assert master.store._log.starts[-1] == slave.store.min_log_offset


async def test_a_slave_that_has_more_than_its_master_keeps_it_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: the master lost the end of its log; nothing is overwritten when it grows beyond."""
    async with opened_store(tmp_path / "two") as store:
        for number in range(30):
            store.put(draft(body=b"%d" % number))
        more = store.written
    async with serving(tmp_path / "one") as master, following(tmp_path / "two", master.address) as slave:
        with caplog.at_level(logging.WARNING):
            await slave.comes_to(SlaveState.REFUSED)
        assert Refusal.AHEAD is slave.slave.refusal
        assert "tern broker promote" in slave.slave.trouble
        assert "AHEAD" in caplog.text
        assert more == slave.store.written
        assert not master.master.replicas.in_sync


async def test_a_slave_with_another_history_keeps_it_and_says_so(tmp_path: Path) -> None:
    """O1: its log is shorter, so only the bytes can tell."""
    async with opened_store(tmp_path / "two") as store:
        store.put(draft(body=b"of another master"))
        theirs = store.written
    async with serving(tmp_path / "one") as master:
        master.put(30)
        async with following(tmp_path / "two", master.address) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.OTHER_HISTORY is slave.slave.refusal
            assert theirs == slave.store.written


async def test_a_slave_whose_next_bytes_were_deleted_is_told_the_cure(tmp_path: Path) -> None:
    """O1: it does not wait for ever."""
    async with serving(tmp_path / "one") as master:
        async with following(tmp_path / "two", master.address) as slave:
            await slave.reaches(master.put(3))
        master.put(60, body=b"y" * 300)
        for path in master.store._log.oldest(2):
            master.store._log.drop_first()
            path.unlink()
        async with following(tmp_path / "two", master.address) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.GONE is slave.slave.refusal
            assert "empty the directory of the slave" in slave.slave.trouble


async def test_a_slave_of_another_broker_is_refused(tmp_path: Path) -> None:
    """O1: id 0 is the master's own; other sizes of files cannot be copied."""
    async with serving(tmp_path / "one") as master:
        master.put(3)
        async with following(tmp_path / "two", master.address, broker_id=0) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.OTHER_BROKER is slave.slave.refusal
        async with following(tmp_path / "three", master.address, mapped_file_size_commit_log=8192) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.OTHER_SEGMENTS is slave.slave.refusal
            assert not slave.store.written


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_slave_acknowledges_its_page_cache_or_its_disk(tmp_path: Path, flush: FlushDiskType) -> None:
    """O2: with SYNC_FLUSH what is on its disk."""
    async with (
        serving(tmp_path / "one") as master,
        following(tmp_path / "two", master.address, flush_disk_type=flush, flush_interval_commit_log=60_000) as slave,
    ):
        for _ in range(5):
            end = master.put(5)
            assert await master.master.replicas.replicated.reached(end, 60_000)
            assert slave.store.written == end
            if flush is FlushDiskType.SYNC_FLUSH:
                assert slave.store.flushed.value == end


async def test_an_idle_connection_stays_open_and_a_silent_one_does_not(tmp_path: Path) -> None:
    """O1: keep-alives both ways; either side closes what says nothing."""
    async with serving(tmp_path / "one", settings=FAST) as master:
        end = master.put(3)
        async with following(tmp_path / "two", master.address, settings=FAST) as slave:
            await slave.reaches(end)
            (line,) = master.master._lines
            heard_at = line.heard_at
            session_heard = slave.slave.state
            await until(lambda: line.heard_at > heard_at + 0.2)
            assert SlaveState.FOLLOWING is session_heard is slave.slave.state
            assert [line] == [*master.master._lines]
    impatient = ReplicationConfig(ha_send_heartbeat_interval=10, ha_housekeeping_interval=100)
    async with serving(tmp_path / "one", settings=impatient) as master:
        host, port = master.address.split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.setblocking(False)
            assert b"" == await asyncio.get_running_loop().sock_recv(silent, 10)


async def test_a_master_that_falls_silent_is_left(tmp_path: Path) -> None:
    """O1: a slave does not wait for one that is frozen."""
    impatient = ReplicationConfig(ha_send_heartbeat_interval=10, ha_housekeeping_interval=100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with following(tmp_path / "two", address, settings=impatient) as slave:
            await until(lambda: "nothing was heard" in slave.slave.trouble)


# --- Others on the port ----------------------------------------------------------------------------------------------


async def talk(address: str, data: bytes) -> bytes:
    """Send bytes and read until the end of the connection, or some bytes."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await reader.read(100)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff" * 7 + b"\xfe",
        b"\xff" * 8 + b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 16 + b"\0\0\0\2[]",
        pack_report(10**9),
    ],
)
async def test_a_client_that_is_no_slave_is_closed(tmp_path: Path, data: bytes) -> None:
    """O1: by its first bytes; others do not notice."""
    async with serving(tmp_path / "one") as master:
        end = master.put(3)
        answer = await talk(master.address, data)
        assert answer == b"" or data.startswith(b"\xff" * 8)
        await until(lambda: not master.master._new and not master.master._lines)
        async with following(tmp_path / "two", master.address) as slave:
            await slave.reaches(end)


async def test_connections_that_say_nothing_do_not_keep_slaves_out(tmp_path: Path) -> None:
    """O1: the oldest of too many is closed."""
    async with serving(tmp_path / "one") as master:
        end = master.put(3)
        host, port = master.address.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(NEW_LINES_MAX + 10)]
        try:
            await until(lambda: len(master.master._new) == NEW_LINES_MAX)
            async with following(tmp_path / "two", master.address) as slave:
                await slave.reaches(end)
        finally:
            for each in silent:
                each.close()


async def test_only_allowed_addresses_may_fetch_the_log(tmp_path: Path) -> None:
    """O1: a setting; all may by default."""
    closed = ReplicationConfig(ha_allowed_addresses=("10.0.0.0/8", "192.168.1.7"))
    async with serving(tmp_path / "one", settings=closed) as master:
        master.put(3)
        assert b"" == await talk(master.address, pack_report(0))
        assert not master.master.status()
    half_open = ReplicationConfig(ha_allowed_addresses=("10.0.0.0/8", "127.0.0.1"))
    async with serving(tmp_path / "one", settings=half_open) as master:
        assert await talk(master.address, pack_report(0))


async def test_an_acknowledgement_of_what_was_never_sent_is_refused(tmp_path: Path) -> None:
    """O2: it must not answer a send."""
    async with serving(tmp_path / "one") as master:
        master.put(3)
        host, port = master.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack_report(0))
        await reader.readexactly(12)
        writer.write(pack_report(master.store.written + 1))
        await until(lambda: not master.master.status())
        assert master.master.replicas.replicated.value < master.store.written
        writer.close()


async def test_a_slave_that_does_not_read_holds_no_memory(tmp_path: Path) -> None:
    """O1: what waits for it is a few batches, however much there is."""
    async with serving(tmp_path / "one", mapped_file_size_commit_log=1 << 20) as master:
        end = master.put(3000, body=b"z" * 4000)
        host, port = master.address.split(":")
        with socket.create_connection((host, int(port))) as lazy:
            lazy.sendall(pack_report(1))
            await until(lambda: master.master.status())
            (line,) = master.master._lines
            await until(lambda: not line._takes.is_set())
            for _ in range(100):
                await asyncio.sleep(0)
            assert LineState.SENDING is line.state
            assert line._transport is not None
            assert line._transport.get_write_buffer_size() <= 64 * 1024 + 2 * 32 * 1024
            assert line._sent < end
            # Others are served meanwhile.
            async with following(tmp_path / "two", master.address, mapped_file_size_commit_log=1 << 20) as slave:
                await slave.reaches(master.put(10))


async def test_an_empty_slave_that_does_not_read_holds_no_memory(tmp_path: Path) -> None:
    """O4: neither for files, of which a part of a MiB waits, nor for deletions."""
    paths = [tmp_path / "part" / name for name in ("large", "state")]
    paths[0].parent.mkdir()
    paths[0].write_bytes(bytes(50_000_000))
    paths[1].write_bytes(b"counts")
    deletions = {f"topic-{number}-".ljust(250, "x"): number for number in range(60_000)}

    async def waiting_bytes(beside: Beside) -> int:
        async with serving(tmp_path / "one") as master:
            master.put(1)
            master.master.beside = beside
            host, port = master.address.split(":")
            with socket.create_connection((host, int(port))) as lazy:
                hello = SlaveHello(VERSION, place(1), master.store.log.segment_bytes, 0, 0)
                lazy.sendall(pack_report(PROBE) + pack_text(encode(hello)))
                await until(lambda: master.master.status() and master.master.status()[0].state is LineState.SENDING)
                (line,) = master.master._lines
                await until(lambda: not line._takes.is_set())
                for _ in range(100):
                    await asyncio.sleep(0)
                assert line._transport is not None
                return line._transport.get_write_buffer_size()

    assert await waiting_bytes(Beside(tmp_path, lambda: [paths])) <= 64 * 1024 + CHUNK_BYTES + 1024
    assert await waiting_bytes(Beside(tmp_path, deletions=lambda: deletions)) <= 64 * 1024 + 1024


async def test_a_deletion_that_a_lost_master_announced_is_forgotten(tmp_path: Path) -> None:
    """O4: the log offset that it named may come again with other records, after the master has lost its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with following(tmp_path / "two", f"127.0.0.1:{port}") as slave:
        async with serving(tmp_path / "one", port) as master:
            end = master.put(4)
            announced = {"orders": end + 10}
            master.master.beside = Beside(tmp_path, deletions=lambda: announced)
            await slave.reaches(end)
            await until(lambda: slave.store._replica._reached.waiting)
        await until(lambda: not slave.store._replica._reached.waiting)
        async with serving(tmp_path / "one", port) as master:
            await slave.reaches(master.put(4))
            assert 4 == slave.store.max_offset("orders", 0)
            assert 0 == slave.store.min_offset("orders", 0)
            assert 4 == len(bodies(slave.store))


async def test_a_slave_says_that_it_knows_no_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1: once, with what to do; and it follows as soon as there is one."""
    monkeypatch.setattr(slaves, "_NO_ADDRESS_S", 0.01)
    async with following(tmp_path / "two", "") as slave:
        await until(lambda: slave.slave.trouble)
        for _ in range(20):
            await asyncio.sleep(0.01)
    assert SlaveState.NO_ADDRESS is slave.slave.state
    assert 1 == caplog.text.count("no master of broker-a is known; start it with the same brokerName")


async def test_a_second_slave_with_the_same_id_is_told_so(tmp_path: Path) -> None:
    """O2: they would count as one copy, and take each other's connection; when the first has gone, it follows."""
    quick = ReplicationConfig(ha_send_heartbeat_interval=500)
    async with serving(tmp_path / "one", settings=quick) as master:
        end = master.put(3)
        async with AsyncExitStack() as first:
            slave = await first.enter_async_context(following(tmp_path / "two", master.address, settings=quick))
            await slave.reaches(end)
            host, port = master.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            other = msgspec.structs.replace(place(1), address="10.0.0.9:10911")
            hello = SlaveHello(VERSION, other, master.store.log.segment_bytes, 0, 0)
            writer.write(pack_report(PROBE) + pack_text(encode(hello)))
            answer = await asyncio.wait_for(reader.read(), LONG_S)
            assert b"SAME_ID" in answer
            assert b"127.0.0.1:10912 follows already with the id 1" in answer
            writer.close()
            # The first one has not noticed.
            await slave.reaches(master.put(1))
            assert SlaveState.FOLLOWING is slave.slave.state
        await until(lambda: not master.master.status())
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack_report(PROBE) + pack_text(encode(hello)))
        await until(lambda: ["10.0.0.9:10911"] == [each.own_address for each in master.master._lines])
        writer.close()


async def test_a_program_that_fetches_the_log_in_a_loop_does_not_keep_slaves_out(tmp_path: Path) -> None:
    """O1: the address with the most connections loses one of them, and gets no more than there are."""
    async with serving(tmp_path / "one") as master:
        end = master.put(3)
        host, port = master.address.split(":")
        greedy = [socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)) for _ in range(70)]
        try:
            for each in greedy:
                each.sendall(pack_report(1))
            await until(lambda: len(master.master._lines) == LINES_MAX)
            async with following(tmp_path / "two", master.address) as slave:
                await slave.reaches(end)
                assert len(master.master._lines) <= LINES_MAX
                await slave.reaches(master.put(1))
        finally:
            for each in greedy:
                each.close()


async def test_comparisons_of_logs_are_made_one_after_the_other(tmp_path: Path) -> None:
    """O1: greetings that ask for many bytes cost a MiB of memory and one thread, however many there are."""
    disk = CountingDisk()
    async with serving(tmp_path / "one", mapped_file_size_commit_log=16 << 20) as master:
        master.put(3000, body=b"z" * 4000)
        master.master.disk = disk
        host, port = master.address.split(":")
        samples = [Sample(0, 11 << 20, "0" * 32), Sample(1, 11 << 20, "1" * 32)]
        peers = []
        for number in range(1, 9):
            reader, writer = await asyncio.open_connection(host, int(port))
            hello = SlaveHello(VERSION, place(number), master.store.log.segment_bytes, 0, 12 << 20, samples=samples)
            writer.write(pack_report(PROBE) + pack_text(encode(hello)))
            peers.append((reader, writer))
        for reader, writer in peers:
            assert b"OTHER_HISTORY" in await asyncio.wait_for(reader.read(), LONG_S)
            writer.close()
        assert 8 * 22 == disk.reads
        assert (1, 1 << 20) == (disk.most, disk.largest_bytes)


class CountingDisk(FileDisk):
    """How many reads there are at once, and how large they are."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = self.reads = self.largest_bytes = 0

    def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
        self.now += 1
        self.most, self.reads = max(self.most, self.now), self.reads + 1
        self.largest_bytes = max(self.largest_bytes, length_bytes)
        try:
            return super().read_at(path, at, length_bytes)
        finally:
            self.now -= 1
