"""``Admin``: administration of a cluster, through its name servers (D6, H2, L1, L2).

Each noun is an attribute, each verb a method that queries the servers; only connections are kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.clients import ClientAdmin
from ternmq.admin.deadletters import DeadLetterAdmin
from ternmq.admin.delays import DelayAdmin
from ternmq.admin.groups import GroupAdmin
from ternmq.admin.messages import MessageAdmin
from ternmq.admin.name_servers import NameServerAdmin
from ternmq.admin.offsets import OffsetAdmin
from ternmq.admin.queues import Queues
from ternmq.admin.quotas import QuotaAdmin
from ternmq.admin.raft import RaftAdmin
from ternmq.admin.topics import TopicAdmin
from ternmq.admin.traces import TraceAdmin
from ternmq.admin.transactions import TransactionAdmin
from ternmq.admin.users import UserAdmin
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.env import Env


class Admin:
    """Administers a cluster: topics, groups, offsets, messages, dead letters, transactions, clients, users.

    ::

        async with Admin("127.0.0.1:9876") as admin:
            await admin.topics.create("orders", queues=8)
            for queue in await admin.groups.progress("billing"):
                print(queue.queue, queue.lag)
            for message in await admin.messages.by_key("orders", "order-4711"):
                print(message.body)

    Its methods are grouped by what they work on: ``admin.brokers``, ``admin.name_servers``, ``admin.clients``,
    ``admin.topics``, ``admin.groups``, ``admin.messages``, ``admin.dead_letters``, ``admin.delays``,
    ``admin.offsets``, ``admin.quotas``, ``admin.raft``, ``admin.traces``, ``admin.transactions`` and ``admin.users``.
    Each call asks the servers anew. All of them raise ``NameServersUnreachable``, ``NetworkError`` if a broker cannot
    be reached, and ``BrokerRefused`` if a server refuses the request.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncAdmin``.

    Args:
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        config: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self, name_servers: str | Sequence[str] = "", *, config: ClientConfig | None = None, env: Env | None = None
    ) -> None:
        self._instance = ClientInstance(config if config is not None else ClientConfig(name_servers), env=env)
        self.brokers = BrokerAdmin(self._instance)
        self.name_servers = NameServerAdmin(self._instance)
        self.clients = ClientAdmin(self._instance, self.brokers)
        self.topics = TopicAdmin(self._instance, self.brokers)
        self.groups = GroupAdmin(self._instance, self.brokers, self.clients)
        queues = Queues(self._instance)
        self.messages = MessageAdmin(self._instance, self.brokers, queues)
        self.dead_letters = DeadLetterAdmin(self._instance, self.topics, self.messages, queues)
        self.delays = DelayAdmin(self._instance, self.brokers, queues)
        self.offsets = OffsetAdmin(self._instance, self.brokers, self.clients, self.groups, queues)
        self.quotas = QuotaAdmin(self._instance, self.brokers, self.topics, self.groups)
        self.raft = RaftAdmin(self._instance, self.brokers)
        self.traces = TraceAdmin(self.messages)
        self.transactions = TransactionAdmin(self._instance, self.brokers)
        self.users = UserAdmin(self._instance, self.brokers)

    async def __aenter__(self) -> Self:
        await self._instance.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._instance.__aexit__(kind, error, trace)
