"""Queue locks of orderly consumers (F2): at most one client of a group reads a queue in order at a time.

A lock lives 60 s from its last renewal; clients renew every 20 s. It is lost, never extended, when its owner is silent,
and another client that asks then gets it. Locks are kept in memory only: after a restart of the broker the clients ask
again, and the first one wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ternmq.env import Clock
from ternmq.errors import TernError
from ternmq.message import MessageQueue

#: RocketMQ's ``rocketmq.broker.rebalance.lockMaxLiveTime``.
LOCK_S: Final = 60.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    until: float


class Locks:
    """Which client holds which queue. All methods belong to the broker's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_group: dict[str, dict[MessageQueue, _Lock]] = {}
        self._refusal: TernError | None = None

    def open(self) -> None:
        """A term begins: this broker grants locks."""
        self._refusal = None

    def shut(self, reason: TernError) -> None:
        """This broker is not the master: it drops all locks and grants none, as another broker does now."""
        self._refusal = reason
        self._by_group.clear()

    def lock(self, group: str, client_id: str, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Take or renew the locks of ``queues``; returns those that ``client_id`` holds now. Raises ``NotMaster``."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if not queues:
            return []
        now = self._clock.monotonic()
        locks = self._by_group.setdefault(group, {})
        granted: list[MessageQueue] = []
        for queue in queues:
            held = locks.get(queue)
            if held is None or held.client_id == client_id or held.until <= now:
                locks[queue] = _Lock(client_id, now + LOCK_S)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give back what ``client_id`` holds; locks of others stay."""
        locks = self._by_group.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
        if not locks:
            self._by_group.pop(group, None)

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue now."""
        held = self._by_group.get(group, {}).get(queue)
        return held.client_id if held is not None and held.until > self._clock.monotonic() else None

    def forget_expired(self) -> None:
        """Drop locks that were not renewed, so that groups long gone cost no memory."""
        now = self._clock.monotonic()
        for group, locks in list(self._by_group.items()):
            for queue in [queue for queue, held in locks.items() if held.until <= now]:
                del locks[queue]
            if not locks:
                del self._by_group[group]
