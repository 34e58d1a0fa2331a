"""Offsets of groups: reading them, resetting them to a time or an end, copying them from another group (D4, L2).

A reset works as in RocketMQ's tools. It is a request to the broker (INVOKE_BROKER_TO_RESET_OFFSET 222), because
connected members keep their offsets themselves and would soon overwrite offsets changed without their knowledge:

- TernMQ and RocketMQ 5 make the next pull of the members start at the new offset, and ignore commits before that;
- RocketMQ 4.9 sends the new offsets to each member, and refuses if none is connected (206) or if the group has no
  progress yet (1). Then, and only if no member is connected, the offsets are committed from here (15).

All offsets are computed here first (29, 30, 31, corrected to the millisecond by ``Queues.first_since``), so that a plan
can be shown without a change. The broker's reply to 222 overrides the plan: with connected members, RocketMQ 4.9 uses
its own search, whose result may differ by a message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.clients import ClientAdmin
from ternmq.admin.groups import GroupAdmin
from ternmq.admin.queues import Queues
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition
from ternmq.errors import ConfigError, ConsumerOffline, GroupMissing, NotFound, SystemFailure
from ternmq.message import MessageQueue
from ternmq.names import check_group, is_derived_topic
from ternmq.wire.bodies.clients import ConsumeFromWhere, QueueOffsets
from ternmq.wire.bodies.codec import by_queue, decode, encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import ResetOffset

#: Means "the end of the queue" in 222.
_END_MS: Final = -1


@dataclass(slots=True, frozen=True)
class Move:
    """The offsets of a group in one queue, before and after a change."""

    queue: MessageQueue
    #: None if it had no progress there.
    before: int | None
    after: int


class OffsetAdmin:
    """Stored offsets of groups: ``admin.offsets``."""

    def __init__(
        self, instance: ClientInstance, brokers: BrokerAdmin, clients: ClientAdmin, groups: GroupAdmin, queues: Queues
    ) -> None:
        self._instance = instance
        self._brokers = brokers
        self._clients = clients
        self._groups = groups
        self._queues = queues

    async def of(self, group: str, *, topic: str | None = None) -> dict[MessageQueue, int]:
        """The offsets that ``group`` has stored, in the queues of one ``topic`` or of all: those of the first messages
        not done.

        Raises ``GroupMissing``. For the lag, see ``admin.groups.progress``.
        """
        queues = [progress.queue for progress in await self._groups.progress(group, topic=topic)]
        # Statistics also return 0 if no offset is stored; this call distinguishes the two.
        stored = await self._queues.each(queues, BrokerOffsets(self._instance, group).load)
        return {queue: found for queue, found in zip(queues, stored, strict=True) if found is not None}

    async def reset(self, group: str, topic: str, to: StartPosition, *, dry_run: bool = False) -> list[Move]:
        """Reset the offsets of ``group`` in ``topic`` to ``to``: ``StartPosition.FIRST``, ``.LAST`` or ``.at(time)``.

        Returns the offsets before and after, of each queue. With ``dry_run`` nothing is changed. Connected members
        continue there with their next pull (RocketMQ's Java clients after about 10 s); messages that they are
        processing may be delivered again. Raises ``GroupMissing``, ``RouteMissing``.

        ::

            await admin.offsets.reset("billing", "orders", StartPosition.at(datetime(2026, 1, 31, 12, 0)))
        """
        if group not in await self._groups.names():
            raise GroupMissing(f"group {group!r} does not exist; see `tern group list`")
        queues = await self._queues.of(topic)
        before = await self._queues.each(queues, BrokerOffsets(self._instance, group).load)

        async def target(queue: MessageQueue) -> int:
            return await self._target(queue, to)

        after = dict(zip(queues, await self._queues.each(queues, target), strict=True))
        if not dry_run:
            planned_on = _by_broker(after)
            await self._make(group, like=group, brokers=planned_on)
            for broker, planned in planned_on.items():
                after |= await self._reset_on(broker, group, topic, to, planned)
        return [Move(queue, stood, after[queue]) for queue, stood in zip(queues, before, strict=True)]

    async def clone(self, source: str, target: str, *, topic: str | None = None, dry_run: bool = False) -> list[Move]:
        """Copy the offsets of the group ``source`` to the group ``target``, of one ``topic`` or of all.

        If the target does not exist, it is created with the settings of the source. Raises ``GroupMissing`` for an
        unknown source, ``NotFound`` when it has no offsets, ``ConfigError`` when the target has active members: they
        would overwrite the offsets. ``dry_run`` returns what would be copied, and changes nothing.
        """
        check_group(target)
        offsets = {
            queue: queue_offset
            for queue, queue_offset in (await self.of(source, topic=topic)).items()
            if not is_derived_topic(queue.topic)  # its retries are its own
        }
        if not offsets:
            raise NotFound(
                f"group {source!r} has no offsets{f' on topic {topic!r}' if topic else ''}; see `tern group "
                f"progress {source}`"
            )
        members = await self._clients.consumers(target)
        if members is not None:
            raise ConfigError(
                f"group {target!r} has {len(members.members)} active members, which would overwrite the offsets; "
                "stop them first"
            )
        if not dry_run:
            await self._make(target, like=source, brokers={queue.broker_name for queue in offsets})
        committing = BrokerOffsets(self._instance, target)
        before = await self._queues.each(offsets, committing.load)
        if not dry_run:
            await self._commit(target, offsets)
        return [Move(queue, stood, offsets[queue]) for queue, stood in zip(offsets, before, strict=True)]

    async def _target(self, queue: MessageQueue, to: StartPosition) -> int:
        if to.where is ConsumeFromWhere.TIMESTAMP:
            return await self._queues.first_since(queue, to.time_ms)
        bounds = self._queues.bounds
        return await (bounds.min(queue) if to == StartPosition.FIRST else bounds.max(queue))

    async def _reset_on(
        self, broker: str, group: str, topic: str, to: StartPosition, planned: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Reset the group on one broker; returns the offsets of the queues of ``planned`` that got other values."""
        header = ResetOffset(
            topic=topic,
            group=group,
            # FIRST has the time 0, and no message is older.
            time_ms=_END_MS if to == StartPosition.LAST else to.time_ms,
            force=True,
        )
        try:
            response = await self._instance.ask(
                self._instance.broker_address(broker), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header
            )
        except ConsumerOffline:
            pass
        except SystemFailure:
            if await self._clients.consumers(group) is not None:
                raise
        else:
            answer = by_queue(decode(response.body, QueueOffsets).offset_table)
            return {queue: answer[queue] for queue in planned if queue in answer}
        await self._commit(group, planned)
        return {}

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        committing = BrokerOffsets(self._instance, group)

        async def commit(queue: MessageQueue) -> None:
            await committing.commit(queue, offsets[queue])

        await self._queues.each(offsets, commit)

    async def _make(self, group: str, *, like: str, brokers: Collection[str]) -> None:
        """Create the group, with the settings of ``like``, on those brokers that do not have it.

        Brokers refuse offsets of unknown groups; and a broker that joined the cluster later does not know the group.
        """
        masters = await self._brokers.masters()
        tables = await asyncio.gather(*(self._groups.table(master) for master in masters))
        settings = next(table[like] for table in tables if like in table)
        for master, table in zip(masters, tables, strict=True):
            if master.name in brokers and group not in table:
                body = encode(msgspec.structs.replace(settings, group_name=group))
                await self._instance.ask(master.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


def _by_broker(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[MessageQueue, int]]:
    found: defaultdict[str, dict[MessageQueue, int]] = defaultdict(dict)
    for queue, queue_offset in offsets.items():
        found[queue.broker_name][queue] = queue_offset
    return found
