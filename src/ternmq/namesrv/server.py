"""The name server: a port, the handlers and a scan for silent brokers (A1–A6).

Several name servers run independently of each other: each broker registers with all of them, and a client that loses
one uses another. So there is no replication, election or recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ternmq.auth.access import AccessControl
from ternmq.env import Env
from ternmq.errors import ConfigError
from ternmq.files import Chores, TableFiles
from ternmq.namesrv.config import CHANGEABLE, CHANGES_SUFFIX, NamesrvConfig
from ternmq.namesrv.handlers import BROKER_LANE, CLIENT_LANE, NameServerHandlers
from ternmq.namesrv.kv import KvConfig
from ternmq.namesrv.registry import Registry
from ternmq.net.endpoint import bind
from ternmq.net.gate import Gate
from ternmq.net.lanes import LaneConfig
from ternmq.net.server import Server
from ternmq.net.settings_text import Changes
from ternmq.tasks import Tasks


class NameServer:
    """``async with NameServer(config) as name_server``: serves until the block ends.

    Entering raises ``NetworkError`` if the port is in use, ``CorruptFile`` if a file of its settings is unreadable, and
    ``ConfigError`` if the file of changed settings has an invalid line.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        env: Env | None = None,
        *,
        gate: Gate | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """``gate`` admits requests, instead of the access control that the config asks for. ``origins`` says where
        settings were given, for tools (``Settings.origins``).
        """
        self._origins = dict(origins or {})
        self._config = config or NamesrvConfig()
        self._env = env or Env()
        self._gate = gate
        self._exit = AsyncExitStack()
        #: The port that is served; the actual one if the config says 0.
        self.port = self._config.listen_port
        self.registry = Registry(brokers_max=self._config.max_brokers, bytes_max=self._config.max_topic_bytes)

    async def __aenter__(self) -> Self:
        path = self._config.kv_config_path
        capacity, bytes_max = self._config.default_thread_pool_queue_capacity, self._config.max_queued_request_bytes
        lanes = [LaneConfig(name, capacity, bytes_max=bytes_max) for name in (CLIENT_LANE, BROKER_LANE)]
        async with AsyncExitStack() as stack:
            kv_bytes_max = min(self._config.max_kv_config_bytes, self._config.frame_max_length // 2)
            kv, changes = KvConfig(bytes_max=kv_bytes_max), Changes(None)
            if path is not None:
                on_loop = asyncio.get_running_loop().call_soon_threadsafe
                files = TableFiles(path.parent, stack.enter_context(Chores()), back=on_loop)
                stack.push_async_callback(files.settle)
                kv = KvConfig(files(path.name), bytes_max=kv_bytes_max)
                kv.load()
                changes = Changes(files(f"{path.stem}{CHANGES_SUFFIX}"))
            settings = changes.given(NamesrvConfig).change(self._config, CHANGEABLE.__contains__)
            handlers = NameServerHandlers(self.registry, kv, settings, changes, self._env.clock, origins=self._origins)
            access = await stack.enter_async_context(
                AccessControl.running(self._config, self._env.clock, gate=self._gate)
            )
            tasks = await stack.enter_async_context(Tasks())
            server = await stack.enter_async_context(
                Server.running(
                    handlers.routes(),
                    lanes,
                    limits=self._config,
                    gate=access.gate,
                    tls=access.tls,
                    on_close=handlers.closed,
                )
            )
            self.port = await server.listen(self._config.bind_address, self._config.listen_port)
            tasks.create_task(self._tend(handlers), name="scan for silent brokers")
            if self._config.http_port:
                await self._listen_http(stack, tasks, server, access)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)

    async def _listen_http(self, stack: AsyncExitStack, tasks: Tasks, server: Server, access: AccessControl) -> None:
        try:
            from ternmq.namesrv.web import NameServerWeb
            from ternmq.net.http import HttpServer
        except ImportError as error:
            raise ConfigError(f"httpPort needs `pip install ternmq[http]`: {error}") from None
        web = NameServerWeb(
            self.registry, server, clock=self._env.clock, tasks=tasks, is_guarded=access.gate is not None
        )
        http = HttpServer(web.answer, tasks)
        await http.listen(bind(self._config.bind_address, self._config.http_port), access.tls)
        stack.callback(http.close)

    async def _tend(self, handlers: NameServerHandlers) -> None:
        while True:
            await asyncio.sleep(self._config.scan_not_active_broker_interval / 1000)
            handlers.tend()
