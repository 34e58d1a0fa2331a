"""A whole cluster in this process (T5): a name server and brokers, on free ports of 127.0.0.1, in a temporary
directory. For tests and small programs; ready in a few hundredths of a second.

With asyncio, on the running loop::

    async with EmbeddedCluster() as cluster:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await producer.send(Message("orders", b"hello"))

Without asyncio, on its own loop in a thread::

    with EmbeddedCluster(brokers=2) as cluster:
        with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
            producer.send(Message("orders", b"hello"))

As a pytest fixture::

    @pytest.fixture(scope="session")
    def cluster():
        with EmbeddedCluster() as cluster:
            yield cluster

    def test_an_order_is_sent(cluster):
        shop = Shop(name_servers=cluster.name_servers)
        ...

These are the same servers, files and sockets as in ``tern up``, not mocks, but with files small enough for tests.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ternmq.auth.access import own_credentials
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.config import Settings, nearest
from ternmq.env import Env
from ternmq.errors import ConfigError, NotRunning
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.endpoint import bind
from ternmq.raft.config import MEMBERS_MAX, RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig

HOST: Final = "127.0.0.1"

#: Files are sparse, so size costs only address space; a roll to the next file should still be rare in a test.
_SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 32 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}

#: Features that a developer may want to try; RocketMQ's default is off.
_FEATURES: Final = {"enablePropertyFilter": "true"}

#: Settings that differ from broker to broker, in the form of ``Setting.name``.
_CHOSEN_HERE: Final = frozenset(
    {"listenport", "bindaddress", "brokername", "brokerid", "brokerip1", "namesrvaddr", "storepathrootdir"}
    | {"halistenport", "hamasteraddress"}
    | {"enabledlegercommitlog", "dlegergroup", "dlegerpeers", "dlegerselfid"}
)
#: How long the members of a Raft group have to elect a leader: far longer than they need.
_ELECTION_S: Final = 30.0


class EmbeddedCluster:
    """A cluster in this process, for tests and small programs: a name server and brokers of the cluster
    ``DefaultCluster``.

    Use it as ``with EmbeddedCluster() as cluster``, which runs it in a thread, or with ``async with``, which runs it on
    the current event loop. Clients connect to ``cluster.name_servers``.

    Args:
        brokers: How many brokers to start, 1 to 26; they are called ``broker-a``, ``broker-b`` and so on.
        slaves: How many slaves each broker has, 0 to 8. They copy its messages, and consumers read from them while the
            broker is gone.
        raft: How many members each broker has, as a Raft group that elects its master, 1 to 9; 0: it has no group. All
            of them are in ``brokers``; ``leader`` tells which one is the master.
        settings: Settings of all servers, under RocketMQ's names or ours: ``{"autoCreateTopicEnable": False}``. An
            unknown one raises ``ConfigError``.
        directory: Where to keep the stores, so that a later cluster can open them again. None: in a temporary
            directory.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        slaves: int = 0,
        raft: int = 0,
        settings: Mapping[str, object] | None = None,
        directory: Path | str | None = None,
        env: Env | None = None,
    ) -> None:
        if not 1 <= brokers <= 26:
            raise ConfigError(f"invalid brokers={brokers}: expected 1 to 26")
        if not 0 <= slaves <= 8:
            raise ConfigError(f"invalid slaves={slaves}: expected 0 to 8")
        if not 0 <= raft <= MEMBERS_MAX:
            raise ConfigError(f"invalid raft={raft}: expected 0 to {MEMBERS_MAX}")
        if raft and slaves:
            raise ConfigError("invalid slaves: a Raft group has no slaves, its members copy each other; remove it")
        flags = [f"{key}={_text(value)}" for key, value in (settings or {}).items()]
        _check(Settings.gather(flags=flags))
        self._flags = [*(f"{key}={value}" for key, value in (_SMALL_FILES | _FEATURES).items()), *flags]
        self._broker_count = brokers
        self._slave_count = slaves
        self._member_count = raft
        self._directory = Path(directory) if directory is not None else None
        self._env = env or Env()
        self._exit = AsyncExitStack()
        self._thread: _ClusterThread | None = None
        self._name_server: NameServer | None = None
        #: The running brokers, and their slaves, those of one broker together. They belong to the cluster's loop.
        self.brokers: list[Broker] = []
        self.slaves: list[Broker] = []

    @property
    def name_servers(self) -> str:
        """``host:port``, as clients need it."""
        if self._name_server is None:
            raise NotRunning("the cluster is not running; use it inside its `with` block")
        return f"{HOST}:{self._name_server.port}"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            directory = self._directory or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="ternmq-", ignore_cleanup_errors=True))
            )
            settings = Settings.gather(flags=[*self._flags, f"bindAddress={HOST}", "listenPort=0"])
            name_server = NameServer(settings.build(NamesrvConfig), self._env)
            self._name_server = await stack.enter_async_context(name_server)
            for number in range(self._broker_count):
                name = f"broker-{chr(ord('a') + number)}"
                if self._member_count:
                    await self._start_group(stack, name, directory)
                    continue
                broker = self._broker(name, directory / name)
                self.brokers.append(await stack.enter_async_context(broker))
                for slave_id in range(1, self._slave_count + 1):
                    path = directory / f"{name}-slave-{slave_id}"
                    slave = self._broker(name, path, f"brokerId={slave_id}", "brokerRole=SLAVE")
                    self.slaves.append(await stack.enter_async_context(slave))
            self._exit = stack.pop_all()
        return self

    def leader(self, name: str = "broker-a") -> Broker | None:
        """The master of the Raft group ``name``; None while it has none."""
        members = [broker for broker in self.brokers if broker.config.broker_name == name]
        return next((broker for broker in members if broker.roles.is_master), None)

    async def _start_group(self, stack: AsyncExitStack, name: str, directory: Path) -> None:
        members = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(free_ports(self._member_count)))
        for number in range(self._member_count):
            own = f"dLegerSelfId=n{number}"
            broker = self._broker(
                name, directory / f"{name}-n{number}", "enableDLegerCommitLog=true", f"dLegerPeers={members}", own
            )
            self.brokers.append(await stack.enter_async_context(broker))
        for broker in self.brokers[-self._member_count :]:
            if broker.group is None or not await broker.group.settled(_ELECTION_S):
                raise NotRunning(f"the members of {name} did not elect a leader within {_ELECTION_S:g} s")

    def _broker(self, name: str, path: Path, *more: str) -> Broker:
        own = Settings.gather(
            flags=[
                *self._flags,
                f"bindAddress={HOST}",
                f"brokerIP1={HOST}",
                "listenPort=0",
                f"brokerName={name}",
                f"namesrvAddr={self.name_servers}",
                f"storePathRootDir={path}",
                *more,
            ]
        )
        config = own.build(BrokerConfig)
        credentials = own_credentials(config, os.environ)
        return Broker(
            config,
            own.build(StoreConfig),
            self._env,
            replication=own.build(ReplicationConfig),
            raft=own.build(RaftConfig),
            credentials=credentials,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._exit.__aexit__(kind, error, trace)
        finally:
            self.brokers.clear()
            self.slaves.clear()
            self._name_server = None

    def __enter__(self) -> Self:
        self._thread = _ClusterThread(self)
        self._thread.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.end()


def _check(settings: Settings) -> None:
    kinds = (BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig, NamesrvConfig)
    for setting in settings.strangers(*kinds):
        near = nearest(setting, *kinds)
        raise ConfigError(f"unknown setting {setting.key!r}" + (f"; did you mean {near!r}?" if near else ""))
    for setting in settings.given:
        if setting.name in _CHOSEN_HERE:
            raise ConfigError(f"{setting.key} is set by the embedded cluster and cannot be changed; remove it")


class _ClusterThread:
    """A thread with a loop that runs the cluster from start to stop in one task: a task must close what it opened."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="ternmq embedded cluster", daemon=True)

    def begin(self) -> None:
        """Start, and wait until clients can use the cluster; raises the error if it cannot start."""
        self._thread.start()
        self._ready.result()

    def end(self) -> None:
        """Stop, and wait until everything is closed; raises an error that occurred in between."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._cluster:
            self._ready.set_result(None)
            await self._stop.wait()


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Ports of this machine that nothing uses at this moment: the members of a group know each other's in advance."""
    bound = [bind(host, 0) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in bound]
    finally:
        for each in bound:
            each.close()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
