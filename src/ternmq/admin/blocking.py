"""The blocking twin of ``Admin``, for scripts and notebooks without asyncio (D6, H2, L1, L2).

::

    with SyncAdmin("127.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=8)
        for message in admin.messages.by_key("orders", "order-4711"):
            print(message.body)

Nouns, verbs, arguments, results and errors are those of ``Admin``, whose methods have the documentation. All blocking
clients of a process share one loop in one thread (``client.loop_thread``); an admin may be used from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ternmq.admin.admin import Admin
from ternmq.admin.brokers import BrokerInfo, Brokers
from ternmq.admin.clients import Clients, Consumed, ConsumerInfo, Member, Members
from ternmq.admin.deadletters import DeadLetter, DeadLetterCount, DeadLetters, Purged, Resent
from ternmq.admin.groups import GroupInfo, Groups, QueueProgress
from ternmq.admin.messages import COUNT_MAX, Messages
from ternmq.admin.offsets import Move, Offsets
from ternmq.admin.topics import READ_WRITE, QueueStatus, TopicInfo, Topics
from ternmq.client.config import ClientConfig
from ternmq.client.loop_thread import LoopThread, loop_thread
from ternmq.client.offsets import StartPosition
from ternmq.errors import NotRunning
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire.bodies.clients import RequestMode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.routes import TopicRoute

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine on the loop's thread and waits for its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SyncAdmin:
    """``Admin`` with calls that wait; arguments and errors are the same. May be used from many threads."""

    def __init__(self, name_servers: str | Sequence[str] = "", *, config: ClientConfig | None = None) -> None:
        self._config = config if config is not None else ClientConfig(name_servers)
        self._open: tuple[LoopThread, Admin] | None = None
        self.brokers = SyncBrokers(lambda: self._admin().brokers, self._run)
        self.clients = SyncClients(lambda: self._admin().clients, self._run)
        self.topics = SyncTopics(lambda: self._admin().topics, self._run)
        self.groups = SyncGroups(lambda: self._admin().groups, self._run)
        self.messages = SyncMessages(lambda: self._admin().messages, self._run)
        self.dead_letters = SyncDeadLetters(lambda: self._admin().dead_letters, self._run)
        self.offsets = SyncOffsets(lambda: self._admin().offsets, self._run)

    def __enter__(self) -> Self:
        thread = loop_thread()
        self._open = thread, thread.run(_opened(self._config))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admin = self._admin()
        assert self._open is not None
        thread, self._open = self._open[0], None
        thread.run(admin.__aexit__(kind, error, trace))

    def _admin(self) -> Admin:
        if self._open is None:
            raise NotRunning("this admin is closed; make its calls inside `with SyncAdmin(…)`")
        return self._open[1]

    def _run(self, work: Coroutine[Any, Any, T], /) -> T:
        assert self._open is not None, "whoever made the coroutine had the admin"
        return self._open[0].run(work)


async def _opened(config: ClientConfig) -> Admin:
    # On the loop, as an instance makes its locks and events there.
    return await Admin(config=config).__aenter__()


class SyncBrokers:
    """``admin.brokers``; see ``Brokers``."""

    def __init__(self, noun: Callable[[], Brokers], run: Run) -> None:
        self._noun, self._run = noun, run

    def all(self) -> list[BrokerInfo]:
        return self._run(self._noun().all())

    def masters(self) -> list[BrokerInfo]:
        return self._run(self._noun().masters())

    def masters_of(self, cluster: str | None) -> list[BrokerInfo]:
        return self._run(self._noun().masters_of(cluster))


class SyncClients:
    """``admin.clients``; see ``Clients``."""

    def __init__(self, noun: Callable[[], Clients], run: Run) -> None:
        self._noun, self._run = noun, run

    def consumers(self, group: str) -> Members | None:
        return self._run(self._noun().consumers(group))

    def producers(self, group: str) -> list[Member]:
        return self._run(self._noun().producers(group))

    def info(self, group: str, client_id: str, *, stack: bool = False) -> ConsumerInfo:
        return self._run(self._noun().info(group, client_id, stack=stack))

    def offsets(self, group: str, topic: str) -> dict[str, dict[MessageQueue, int]]:
        return self._run(self._noun().offsets(group, topic))

    def consume(self, group: str, offset_id: str, *, client_id: str | None = None) -> Consumed:
        return self._run(self._noun().consume(group, offset_id, client_id=client_id))


class SyncTopics:
    """``admin.topics``; see ``Topics``."""

    def __init__(self, noun: Callable[[], Topics], run: Run) -> None:
        self._noun, self._run = noun, run

    def create(
        self, topic: str, *, queues: int = 8, cluster: str | None = None, perm: int = READ_WRITE, order: bool = False
    ) -> list[BrokerInfo]:
        return self._run(self._noun().create(topic, queues=queues, cluster=cluster, perm=perm, order=order))

    def delete(self, topic: str) -> list[BrokerInfo]:
        return self._run(self._noun().delete(topic))

    def all(self) -> list[TopicInfo]:
        return self._run(self._noun().all())

    def route(self, topic: str) -> TopicRoute:
        return self._run(self._noun().route(topic))

    def status(self, topic: str) -> list[QueueStatus]:
        return self._run(self._noun().status(topic))


class SyncGroups:
    """``admin.groups``; see ``Groups``."""

    def __init__(self, noun: Callable[[], Groups], run: Run) -> None:
        self._noun, self._run = noun, run

    def names(self) -> list[str]:
        return self._run(self._noun().names())

    def create(
        self, group: str, *, retry_max: int = 16, broadcast: bool = True, cluster: str | None = None
    ) -> list[BrokerInfo]:
        return self._run(self._noun().create(group, retry_max=retry_max, broadcast=broadcast, cluster=cluster))

    def table(self, broker: BrokerInfo) -> Mapping[str, SubscriptionGroupConfig]:
        return self._run(self._noun().table(broker))

    def set_mode(
        self, group: str, topic: str, mode: RequestMode, *, share: int = 0, cluster: str | None = None
    ) -> list[BrokerInfo]:
        return self._run(self._noun().set_mode(group, topic, mode, share=share, cluster=cluster))

    def all(self, *, system: bool = True) -> list[GroupInfo]:
        return self._run(self._noun().all(system=system))

    def info(self, name: str) -> GroupInfo:
        return self._run(self._noun().info(name))

    def progress(self, group: str, *, topic: str | None = None) -> list[QueueProgress]:
        return self._run(self._noun().progress(group, topic=topic))


class SyncMessages:
    """``admin.messages``; see ``Messages``."""

    def __init__(self, noun: Callable[[], Messages], run: Run) -> None:
        self._noun, self._run = noun, run

    def by_id(self, offset_id: str) -> ReceivedMessage:
        return self._run(self._noun().by_id(offset_id))

    def by_unique_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        return self._run(self._noun().by_unique_key(topic, key))

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        count_max: int = COUNT_MAX,
    ) -> list[ReceivedMessage]:
        return self._run(self._noun().by_key(topic, key, begin=begin, end=end, count_max=count_max))

    def by_queue_offset(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        return self._run(self._noun().by_queue_offset(queue, queue_offset))

    def by_time(self, topic: str, time: datetime | int) -> list[ReceivedMessage]:
        return self._run(self._noun().by_time(topic, time))


class SyncDeadLetters:
    """``admin.dead_letters``; see ``DeadLetters``."""

    def __init__(self, noun: Callable[[], DeadLetters], run: Run) -> None:
        self._noun, self._run = noun, run

    def groups(self) -> list[DeadLetterCount]:
        return self._run(self._noun().groups())

    def all(
        self,
        group: str,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        count_max: int = 100,
        handled: bool = False,
    ) -> list[DeadLetter]:
        return self._run(self._noun().all(group, begin=begin, end=end, count_max=count_max, handled=handled))

    def find(self, group: str, message_id: str) -> list[DeadLetter]:
        return self._run(self._noun().find(group, message_id))

    def marks(self, group: str) -> dict[MessageQueue, int]:
        return self._run(self._noun().marks(group))

    def resend(
        self,
        group: str,
        message_ids: Sequence[str] = (),
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        chosen: Callable[[DeadLetter], bool] | None = None,
        to_topic: bool = False,
        again: bool = False,
        dry_run: bool = False,
        on_resent: Callable[[Resent], None] | None = None,
    ) -> list[Resent]:
        return self._run(
            self._noun().resend(
                group,
                message_ids,
                begin=begin,
                end=end,
                chosen=chosen,
                to_topic=to_topic,
                again=again,
                dry_run=dry_run,
                on_resent=on_resent,
            )
        )

    def purge(self, group: str, *, before: datetime | int | None = None, for_good: bool = False) -> list[Purged]:
        return self._run(self._noun().purge(group, before=before, for_good=for_good))


class SyncOffsets:
    """``admin.offsets``; see ``Offsets``."""

    def __init__(self, noun: Callable[[], Offsets], run: Run) -> None:
        self._noun, self._run = noun, run

    def of(self, group: str, *, topic: str | None = None) -> dict[MessageQueue, int]:
        return self._run(self._noun().of(group, topic=topic))

    def reset(self, group: str, topic: str, to: StartPosition, *, dry_run: bool = False) -> list[Move]:
        return self._run(self._noun().reset(group, topic, to, dry_run=dry_run))

    def clone(self, source: str, target: str, *, topic: str | None = None) -> list[Move]:
        return self._run(self._noun().clone(source, target, topic=topic))
