"""Masters and slaves on real sockets and files, without brokers: what the tests of this package share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ternmq.env import Env, SystemClock
from ternmq.net.endpoint import bind
from ternmq.net.tls import LiveTls
from ternmq.replication.admission import Admission
from ternmq.replication.beside import Beside
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.epochs import Epochs
from ternmq.replication.handshake import BrokerNode
from ternmq.replication.master import Master
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.session import MustCut
from ternmq.replication.slave import Slave, SlaveState
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from tests.store.small import HOST, draft, small_config

#: Far beyond what anything here takes, also on a busy machine.
LONG_S: Final = 60.0


def place(broker_id: int, broker: str = "broker-a") -> BrokerNode:
    return BrokerNode("DefaultCluster", broker, broker_id, f"127.0.0.1:{10911 + broker_id}")


@asynccontextmanager
async def opened_store(root: Path, **changes: Any) -> AsyncIterator[MessageStore]:
    """A store with its threads, on this loop."""
    store = MessageStore.open(
        small_config(root, **changes),
        store_host=HOST,
        clock=SystemClock(),
        notify=asyncio.get_running_loop().call_soon_threadsafe,
    )
    try:
        yield store
    finally:
        store.close()


@dataclass(slots=True)
class Serving:
    """A master with its store."""

    store: MessageStore
    master: Master
    address: str

    def put(self, count: int, *, body: bytes = b"hello", topic: str = "orders") -> int:
        """Append messages; returns where the log ends then."""
        for number in range(count):
            self.store.put(draft(topic, number % 2, body, KEYS=f"k{number}", TAGS="red"))
        self.master.wake()
        return self.store.written


@asynccontextmanager
async def serving(
    root: Path,
    port: int = 0,
    *,
    settings: ReplicationConfig | None = None,
    admission: Admission | None = None,
    tls: LiveTls | None = None,
    epochs: Epochs | None = None,
    **changes: Any,
) -> AsyncIterator[Serving]:
    """A store whose log slaves may fetch."""
    async with opened_store(root, **changes) as store:
        bound = bind("127.0.0.1", port)
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        config, beside = settings or ReplicationConfig(), Beside(root, store.part_files, lambda: store.deletions)
        async with Master(
            store.log, FileDisk(), config, place(0), epochs=epochs, admission=admission, tls=tls, beside=beside
        ) as master:
            await master.serve(bound)
            yield Serving(store, master, address)


@dataclass(slots=True)
class Following:
    """A slave with its store."""

    store: MessageStore
    slave: Slave

    async def reaches(self, log_offset: int) -> None:
        """Wait until the slave has the log up to there, folded."""
        await until(lambda: self.store.written >= log_offset and self.store.dispatched >= log_offset)
        assert log_offset == self.store.written

    async def comes_to(self, state: SlaveState) -> None:
        await until(lambda: self.slave.state is state)


@asynccontextmanager
async def following(
    root: Path,
    address: str,
    *,
    broker_id: int = 1,
    settings: ReplicationConfig | None = None,
    caller: MasterCaller | None = None,
    on_cut: Callable[[MustCut], None] | None = None,
    **changes: Any,
) -> AsyncIterator[Following]:
    """A store that follows the log of the master at ``address``."""
    async with opened_store(root, **changes) as store, Tasks() as tasks:
        slave = Slave(
            store,
            store.log,
            FileDisk(),
            settings or ReplicationConfig(),
            place(broker_id),
            lambda: address,
            Env(),
            caller=caller,
            on_cut=on_cut,
        )
        tasks.create_task(slave.run())
        yield Following(store, slave)


async def until(is_true: Callable[[], object]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(LONG_S):
        while not is_true():
            await asyncio.sleep(0.002)
