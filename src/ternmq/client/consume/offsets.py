"""How far a group is, and where it starts (D4, F5, F6).

In clustering, brokers keep the progress: each queue's broker its own (QUERY_CONSUMER_OFFSET 14,
UPDATE_CONSUMER_OFFSET 15). While a master is away, a slave of it is asked and told; it returns the offsets when the
master is back (O3). In broadcasting, each member reads all and keeps its progress itself, in a file::

    {"group": "g", "offsets": [{"topic": "t", "broker": "broker-a", "queue_id": 0, "offset": 42}]}

"None stored" and "not known now" are different. The first starts at the ``StartPosition``, the second is an error and
is asked again: to take one for the other would skip messages or read everything twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Protocol, Self
from urllib.parse import quote

import msgspec

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.file_lock import ProcessLock
from ternmq.errors import ConfigError, NetworkError, NotFound, TableUnsaved, TernError
from ternmq.files import Chores, Encode, TableFile, Work
from ternmq.message import MessageQueue
from ternmq.names import RETRY_PREFIX
from ternmq.wire.bodies.clients import ConsumeFromWhere
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import OffsetReply, QueryOffset, QueueBounds, SearchOffset, UpdateOffset

log = logging.getLogger(__name__)

#: Under the user's home; a directory per client, a file per group.
LOCAL_DIRECTORY: Final = Path("~/.ternmq/offsets")


# --- Where to start ---------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class StartPosition:
    """Where a group begins to read a queue for which it has no stored offset.

    - ``StartPosition.LAST``: at the end, with new messages. Brokers make one exception: a new queue, whose first
      message is still in memory, is read from its beginning, so that no message of a new queue is missed.
    - ``StartPosition.FIRST``: at the oldest message that is still stored.
    - ``StartPosition.at(time)``: at the first message stored at that time or later.

    Args:
        where: The end, the beginning, or a time.
        time_ms: The time, in ms since 1970, if ``where`` is a time.
    """

    where: ConsumeFromWhere
    time_ms: int = 0

    LAST: ClassVar[StartPosition]
    FIRST: ClassVar[StartPosition]

    @classmethod
    def at(cls, time: datetime | int) -> StartPosition:
        """The first message stored at ``time`` or later: a ``datetime`` (local time if naive) or ms since 1970."""
        time_ms = time if isinstance(time, int) else int(time.timestamp() * 1000)
        return cls(ConsumeFromWhere.TIMESTAMP, time_ms)


StartPosition.LAST = StartPosition(ConsumeFromWhere.LAST_OFFSET)
StartPosition.FIRST = StartPosition(ConsumeFromWhere.FIRST_OFFSET)


async def start_offset(queue: MessageQueue, start: StartPosition, brokers: BrokerOffsets) -> int:
    """The queue offset to begin with when no progress is stored.

    A slave may not have heard of the group's first commit, and of the last messages. So the end, and a time, are asked
    of the master only: otherwise messages could be skipped. Raises ``NetworkError`` while it is away.
    """
    if start.where is ConsumeFromWhere.FIRST_OFFSET or queue.topic.startswith(RETRY_PREFIX):
        # Retries are the group's own messages; none of them is too old. (Java's clients that start at a time
        # take the end, and lose what failed before the first of them had stored its progress.) Where offset 0 is long
        # gone, the broker's answer to the first pull names the first one that is there.
        return 0
    if start.where is ConsumeFromWhere.TIMESTAMP:
        return await brokers.of_masters().at_time(queue, start.time_ms)
    return await brokers.of_masters().max(queue)


# --- Progress -----------------------------------------------------------------------------------------------------


class OffsetStore(Protocol):
    """Where the offsets of a group are kept: on the brokers, in a file, or where an application wants them.

    An application gives its own store to a consumer, to keep offsets beside the rows that it writes. All methods are
    called on the event loop. What they raise is logged, and tried again.
    """

    async def load(self, queue: MessageQueue) -> int | None:
        """The stored offset of ``queue``: that of the first message that is not done. None if there is none.

        Raises an error when that cannot be found out: None would begin at the ``StartPosition``.
        """
        ...

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Store ``offsets``. With ``wait`` they are stored when this returns: another member continues there. Without
        it, soon: it is called every 5 s."""
        ...


class BrokerOffsets:
    """Offsets as brokers know them: bounds and times of queues, and the progress of one group."""

    def __init__(
        self, instance: ClientInstance, group: str, *, zero_if_young: bool = False, masters_only: bool = False
    ) -> None:
        """``zero_if_young``: take the first message of a young queue for the progress of a group that has none.
        ``masters_only``: do not ask a slave while its master is away."""
        self._masters_only = masters_only
        self._instance = instance
        self._group = group
        # RocketMQ 4.9 always does so. RocketMQ 5 and TernMQ do it unless told not to.
        self._set_zero = None if zero_if_young else False
        #: What was told to which address since the queue is ours; the same again is not worth a call.
        self._told: dict[MessageQueue, tuple[str, int]] = {}
        #: Broker and topic, where the group's progress has been stored before: see ``commit_all``.
        self._begun: set[tuple[str, str]] = set()

    def of_masters(self) -> BrokerOffsets:
        """The same, but masters only are asked."""
        return BrokerOffsets(self._instance, self._group, masters_only=True)

    async def min(self, queue: MessageQueue) -> int:
        """The first queue offset that is still there."""
        header = QueueBounds(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will get."""
        header = QueueBounds(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The queue offset of the first message stored at ``time_ms`` or later."""
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, time_ms=time_ms)
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def load(self, queue: MessageQueue) -> int | None:
        self._told.pop(queue, None)
        header = QueryOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=self._set_zero,
        )
        try:
            return await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except NotFound:
            return None

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store the progress of one queue; raises what went wrong."""
        address = self._address(queue)
        try:
            await self._instance.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, self._update(queue, queue_offset))
        except NetworkError:
            # Another copy of the broker may have to be told.
            self._instance.refresh_routes_soon()
            raise
        self._told[queue] = address, queue_offset
        self._begun.add((queue.broker_name, queue.topic))

    async def commit_all(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, BaseException]:
        """Store the progress of these queues; returns what went wrong.

        RocketMQ makes its table of a group's progress in a topic with the first commit, and of two that are the first
        at the same time it forgets one. So one queue of each topic goes before the others.
        """
        first = {
            (queue.broker_name, queue.topic): queue
            for queue in offsets
            if (queue.broker_name, queue.topic) not in self._begun
        }
        failures: dict[MessageQueue, BaseException] = {}
        for queues in (list(first.values()), [queue for queue in offsets if queue not in first.values()]):
            commits = (self.commit(queue, offsets[queue]) for queue in queues)
            results = await asyncio.gather(*commits, return_exceptions=True)
            failures |= {
                queue: result
                for queue, result in zip(queues, results, strict=True)
                if isinstance(result, BaseException)
            }
        return failures

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        if not wait:
            offsets = {queue: offset for queue, offset in offsets.items() if not self._is_told(queue, offset)}
        if wait or any((queue.broker_name, queue.topic) not in self._begun for queue in offsets):
            for queue, error in (await self.commit_all(offsets)).items():
                if not isinstance(error, TernError):
                    raise error
                log.warning("cannot store the offset of %s: %s", queue, error)
            return
        for queue, queue_offset in offsets.items():
            await self._tell(queue, queue_offset)

    async def _tell(self, queue: MessageQueue, queue_offset: int) -> None:
        try:
            address = self._address(queue)
            await self._instance.call_oneway(
                address, RequestCode.UPDATE_CONSUMER_OFFSET, self._update(queue, queue_offset)
            )
        except TernError as error:
            # The next pull of this queue carries its progress too, and so does the next round of this.
            log.info("cannot commit the offset of %s: %s", queue, error)
            self._instance.refresh_routes_soon()
        else:
            self._told[queue] = address, queue_offset

    def _is_told(self, queue: MessageQueue, queue_offset: int) -> bool:
        """Whether the copy that is to be told has heard it: not after the master was lost, or has come back."""
        told = self._told.get(queue)
        if told is None or told[1] != queue_offset:
            return False
        try:
            return told[0] == self._address(queue)
        except NetworkError:
            return False

    def _address(self, queue: MessageQueue) -> str:
        if self._masters_only:
            return self._instance.broker_address(queue.broker_name)
        return self._instance.copy_of(queue.broker_name).address

    def _update(self, queue: MessageQueue, queue_offset: int) -> UpdateOffset:
        return UpdateOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=queue_offset
        )

    async def _ask(
        self, queue: MessageQueue, code: RequestCode, header: QueueBounds | SearchOffset | QueryOffset
    ) -> int:
        # A broker's name has an address only once the route of one of its topics is known.
        await self._instance.routes.of(queue.topic)
        try:
            response = await self._instance.ask(self._address(queue), code, header)
        except NetworkError:
            self._instance.refresh_routes_soon()
            raise
        return response.read(OffsetReply).queue_offset


class _StoredOffset(msgspec.Struct, frozen=True):
    topic: str
    broker: str
    queue_id: int
    offset: int


class _Table(msgspec.Struct, frozen=True):
    group: str
    offsets: list[_StoredOffset]


_decoder: Final = msgspec.json.Decoder(_Table)


class LocalOffsets:
    """The progress of one member in broadcasting, in a file of its own with a backup beside it (F5).

    Use as an ``async with`` block: its end waits until the last version is written. Raises ``CorruptFile`` when neither
    the file nor its backup can be read, ``ConfigError`` when another member uses the same file: the slower of two would
    skip, after a restart, what only the faster has seen.
    """

    def __init__(self, path: Path, group: str) -> None:
        self._lock = ProcessLock(path.with_name(path.name + ".lock"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_ours = self._lock.acquire()
        except OSError as error:
            raise ConfigError(
                f"cannot store offsets in {path.parent}: {error.strerror}; give a writable offsets_directory"
            ) from None
        if not is_ours:
            raise ConfigError(
                f"another member of group {group!r} on this machine stores its offsets in {path}; give each "
                "member a different instance_name or offsets_directory"
            )
        self._chores = Chores()
        self._file = TableFile(path, self._chores, back=self._on_loop)
        self._group = group
        try:
            table = self._file.load(_decoder.decode)
        except BaseException:
            self._lock.release()
            raise
        places = table.offsets if table is not None else []
        self._offsets = {MessageQueue(place.topic, place.broker, place.queue_id): place.offset for place in places}

    @staticmethod
    def path_of(directory: Path, owner: str, group: str) -> Path:
        """The file of a member. Names may have characters that file systems do not like."""
        return directory.expanduser() / quote(owner, safe="@#") / f"{quote(group, safe='')}.json"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # What the disk did not take is logged by the file.
            with contextlib.suppress(TableUnsaved):
                await self._file.saved()
        finally:
            self._chores.close()
            self._lock.release()

    async def load(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:  # noqa: ARG002 - the end waits
        if all(self._offsets.get(queue) == queue_offset for queue, queue_offset in offsets.items()):
            return
        self._offsets |= offsets
        self._file.save(self._copy)

    def _copy(self) -> Encode:
        places = [_StoredOffset(*queue, queue_offset) for queue, queue_offset in sorted(self._offsets.items())]
        return partial(msgspec.json.encode, _Table(self._group, places))

    def _on_loop(self, work: Work) -> None:
        self._loop.call_soon_threadsafe(work)
