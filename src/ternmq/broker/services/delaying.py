"""Delaying: messages with a delay level wait in the schedule topic, and a master delivers them (I1).

The delay levels (``delay.levels``) belong to a term. How far each is delivered (``delay.progress``) is a table that
every node has.
"""

from __future__ import annotations

from ternmq import names
from ternmq.broker.roles import Term
from ternmq.broker.tables.stats import Stats
from ternmq.delay.levels import DelayLevels
from ternmq.delay.progress import DelayProgress
from ternmq.env import Clock
from ternmq.errors import NotMaster
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore


class Delaying:
    """All methods belong to the broker's loop. Give ``begin`` to ``Roles.add``, and ``redirect`` to the intake."""

    def __init__(self, store: MessageStore, progress: DelayProgress, *, clock: Clock, stats: Stats) -> None:
        self._store = store
        self._stats = stats
        self._progress = progress
        self._clock = clock
        self._levels: DelayLevels | None = None

    def begin(self, _term: Term) -> DelayLevels:
        """What delivers in this term (``roles.RunnerFactory``)."""
        self._levels = DelayLevels(self._store, self._progress, clock=self._clock, count=self._stats.put)
        return self._levels

    def redirect(self, draft: Draft) -> None:
        """Let a draft with a delay level wait in the schedule topic. Raises ``NotMaster``."""
        if self._levels is None:
            raise NotMaster("this broker is not the master: send to the master")
        self._levels.redirect(draft)

    def state(self) -> dict[int, tuple[int, int]]:
        """By level: the queue offset of its next message, and the end of its queue. Levels never used are left out."""
        return {
            number: (self._progress.get(number), end)
            for number in range(1, len(self._store.config.delay_levels_ms) + 1)
            if (end := self._store.max_offset(names.SCHEDULE_TOPIC, number - 1))
        }
