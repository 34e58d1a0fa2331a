"""Quotas of topics and groups (M1): who has one, and what it means for a request (``broker.quota``).

A send that exceeds the quota of its topic is refused with SYSTEM_BUSY, which RocketMQ's clients know: those up to 5.2
tell the application, later ones try another broker. A fetch that exceeds the quota of its group waits, as a fetch from
an empty queue does, and is answered in the end as from an empty queue: clients ask again at once, and wait again. A
refusal would make them pause for 3 s, and an answer at once would make them ask without end.

Where no topic, and no group, has a quota, both tables are empty: that is the one test on the paths of messages.

A quota that is changed begins with a full bucket; other changes of its topic or group leave it alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.quota import Quota, rates
from ternmq.env import Clock
from ternmq.errors import InvalidParameter, SystemBusy

log = logging.getLogger(__name__)

#: Fetches of a group that wait look again no sooner than this (all of them do: 1,000 cost some 5 ms each time), and no
#: later than that, as the quota may be changed.
LOOK_S: Final = 0.1
LOOK_AGAIN_S: Final = 1.0


class Limited(Protocol):
    """A topic or group: its configuration."""

    @property
    def attributes(self) -> Mapping[str, str] | None: ...


class Quotas:
    """All methods belong to the broker's loop. Call the ``…_changed`` methods with each change of their tables."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._now = clock.monotonic
        self.topics: dict[str, Quota] = {}
        self.groups: dict[str, Quota] = {}
        #: Fetches that wait now.
        self.waiting = 0
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._waiting_max = config.max_suspended_pulls

    # --- Changes ----------------------------------------------------------------------------------------------------

    def topics_changed(self, topics: Mapping[str, Limited]) -> None:
        """The topics are these now."""
        self.topics = self._read("topic", topics.items(), self.topics)

    def topic_changed(self, topic: str, config: Limited) -> None:
        """One of them was created or changed."""
        _set(self.topics, topic, self._read("topic", [(topic, config)], self.topics))

    def groups_changed(self, groups: Mapping[str, Limited]) -> None:
        self.groups = self._read("group", groups.items(), self.groups)

    def group_changed(self, group: str, config: Limited) -> None:
        _set(self.groups, group, self._read("group", [(group, config)], self.groups))

    def _read(self, kind: str, configs: Iterable[tuple[str, Limited]], old: Mapping[str, Quota]) -> dict[str, Quota]:
        found = {}
        for name, config in configs:
            if not config.attributes:
                continue
            try:
                wanted = rates(config.attributes)
            except InvalidParameter as error:
                # Of a file, or of a master that is RocketMQ's: what is asked for here is checked before it is stored.
                log.warning("%s %s has no quota: %s", kind, name, error)
                continue
            if wanted != (None, None):
                known = old.get(name)
                found[name] = (
                    known if known and (known.messages, known.bytes) == wanted else Quota(*wanted, self._now())
                )
        return found

    # --- Sends ------------------------------------------------------------------------------------------------------

    def check_send(self, topic: str) -> None:
        """Raise ``SystemBusy`` if nothing may be sent to a topic now."""
        quota = self.topics.get(topic)
        if quota is not None and (wait_s := quota.wait_s(self._now())):
            quota.refused += 1
            raise SystemBusy(
                f"[QUOTA]system busy, start flow control for a while: topic {topic} has a quota of "
                f"{quota.describe()}; send again in {wait_s:.3f} s, or raise it with `tern quota set --topic {topic}`"
            )

    def sent(self, topic: str, messages: int, size_bytes: int) -> None:
        """So much is sent to a topic."""
        quota = self.topics.get(topic)
        if quota is not None:
            quota.take(messages, size_bytes, self._now())

    # --- Fetches ----------------------------------------------------------------------------------------------------

    def is_exceeded(self, group: str) -> bool:
        """Whether nothing may be given to a group now."""
        quota = self.groups.get(group)
        if quota is None or not quota.wait_s(self._now()):
            return False
        quota.refused += 1
        return True

    async def wait(self, group: str, timeout_s: float) -> bool:
        """Wait until something may be given to a group, for so long at most: whether it may.

        Raises ``SystemBusy`` if too many wait.
        """
        if self.waiting >= self._waiting_max:
            raise SystemBusy(
                f"[OVERLOAD]system busy: {self.waiting} requests of groups that have a quota are already waiting; "
                "retry later, or raise maxSuspendedPulls"
            )
        time = asyncio.get_running_loop().time
        deadline = time() + timeout_s
        self.waiting += 1
        try:
            while (left_s := deadline - time()) > 0:
                quota = self.groups.get(group)
                if quota is None or not (wait_s := quota.wait_s(self._now())):
                    return True
                await asyncio.sleep(min(max(wait_s, LOOK_S), LOOK_AGAIN_S, left_s))
        finally:
            self.waiting -= 1
        return False

    def got(self, group: str, messages: int, size_bytes: int) -> None:
        """So much is given to a group."""
        quota = self.groups.get(group)
        if quota is not None:
            quota.take(messages, size_bytes, self._now())


def _set(table: dict[str, Quota], name: str, found: Mapping[str, Quota]) -> None:
    if name in found:
        table[name] = found[name]
    else:
        table.pop(name, None)
