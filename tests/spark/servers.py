"""A name server and brokers of this process, each of which can be stopped and started again by itself."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.blocking.loop_thread import LoopThread
from ternmq.config import Settings
from ternmq.env import Env
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig

NAME_SERVER = "name server"


class Servers:
    """Servers on free ports of this machine. The name server keeps its port when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = LoopThread()
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._port = 0

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start_name_server()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)
        self._thread.stop()

    def start_name_server(self) -> None:
        settings = Settings.gather(flags=["bindAddress=127.0.0.1", f"listenPort={self._port}"])
        server = NameServer(settings.build(NamesrvConfig), Env())
        self._start(NAME_SERVER, server)
        self._port = server.port

    def start_broker(self, name: str) -> None:
        """Registered when this returns."""
        flags = {
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "brokerName": name,
            "namesrvAddr": self.name_servers,
            "storePathRootDir": self._directory / name,
            "mappedFileSizeCommitLog": 1 << 20,
            "maxHashSlotNum": 1_000,
            "maxIndexNum": 4_000,
        }
        settings = Settings.gather(flags=[f"{key}={value}" for key, value in flags.items()])
        self._start(name, Broker(settings.build(BrokerConfig), settings.build(StoreConfig), Env()))

    def stop(self, name: str) -> None:
        """Stop a broker, by its name, or the name server."""

        async def stop() -> None:
            task, end = self._running.pop(name)
            end.set()
            await task

        self._thread.run(stop())

    def _start(self, name: str, server: AbstractAsyncContextManager[Any]) -> None:
        async def start() -> None:
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            end = asyncio.Event()

            async def serve() -> None:
                # In one task, as what a task opened it must close.
                async with server:
                    started.set_result(None)
                    await end.wait()

            task = asyncio.create_task(serve())
            self._running[name] = task, end
            done, _ = await asyncio.wait((started, task), return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                task.result()

        self._thread.run(start())
