"""Offsets that were committed on a slave return to the master (O3).

While the master is away, members commit on a slave. When the slave follows its master again, it hands these offsets
over, before it copies the master's tables the next time. The master decides on each: the newer commit counts, and a
reset of an administrator is one (``broker.tables.offsets``). Then the slave has what the master has, by the next copy.

Which commit is newer is a question of time, and clocks differ. So the slave first asks for the master's clock, with a
request without offsets, and translates its times. The answer was on its way for a while, so a translated time is never
later than the true one: in doubt the master's commit counts, and messages are repeated, not lost.

Only a slave that follows the log returns offsets: in another history the same queue offset is another message.

A master of RocketMQ has no such request, and does not tell when it took a commit. There an offset is committed if the
master has none, or a smaller one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from ternmq.env import Clock
from ternmq.errors import refused
from ternmq.net.peer import Peer
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.offsets import OffsetsTaken, OwnOffset, OwnOffsets
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import OffsetReply, QueryOffset, UpdateOffset

log = logging.getLogger(__name__)

#: Offsets of one request.
COUNT_MAX: Final = 1_000
TIMEOUT_MS: Final = 10_000


class SlaveOffsets(Protocol):
    """The table of a slave."""

    @property
    def has_own(self) -> bool: ...

    def own(self) -> list[OwnOffset]: ...

    def returned(self, offsets: Sequence[OwnOffset], /) -> None: ...


class Returning:
    """Belongs to the loop. ``may`` says whether the slave follows its master."""

    def __init__(self, owner: SlaveOffsets, clock: Clock, *, may: Callable[[], bool]) -> None:
        self._owner = owner
        self._clock = clock
        self._may = may

    @property
    def is_due(self) -> bool:
        """Whether there is something to return, and the master is there."""
        return self._owner.has_own and self._may()

    async def run(self, master: Peer) -> None:
        """Return what there is. Raises ``TernError``, and ``BrokerRefused`` if the master does not take offsets from
        this slave; what the master has not heard of stays."""
        if not self.is_due:
            return
        answer = await self._ask(master, [])
        now_ms = self._clock.now_ms()
        own = self._owner.own()
        taken = 0
        while own and self._may():
            some, own = own[:COUNT_MAX], own[COUNT_MAX:]
            if answer is None:
                for each in some:
                    taken += await self._commit(master, each)
            else:
                ahead_ms = answer.now_ms - now_ms
                translated = [replace(each, committed_ms=each.committed_ms + ahead_ms) for each in some]
                told = await self._ask(master, translated)
                taken += told.taken if told is not None else 0
            self._owner.returned(some)
        log.info("returned offsets that were committed here to the master, which has taken %d of them", taken)

    async def _ask(self, master: Peer, offsets: list[OwnOffset]) -> OffsetsTaken | None:
        """None: the master does not know this request."""
        body = encode(OwnOffsets(offsets=offsets))
        response = await master.call(RequestCode.RETURN_OFFSETS, None, body, timeout_ms=TIMEOUT_MS)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if response.code != ResponseCode.SUCCESS:
            reason = f"the request to take offsets over got code {response.code}: {response.remark}"
            raise refused(response.code, reason)
        return decode(response.body, OffsetsTaken)

    async def _commit(self, master: Peer, own: OwnOffset) -> bool:
        query = QueryOffset(
            consumer_group=own.group, topic=own.topic, queue_id=own.queue_id, set_zero_if_not_found=False
        )
        found = await master.call(RequestCode.QUERY_CONSUMER_OFFSET, query, timeout_ms=TIMEOUT_MS)
        if found.code == ResponseCode.SUCCESS and found.read(OffsetReply).queue_offset >= own.queue_offset:
            return False
        update = UpdateOffset(
            consumer_group=own.group, topic=own.topic, queue_id=own.queue_id, commit_offset=own.queue_offset
        )
        return (
            await master.call(RequestCode.UPDATE_CONSUMER_OFFSET, update, timeout_ms=TIMEOUT_MS)
        ).code == ResponseCode.SUCCESS
