"""The state of shared consumption: a fold of its actions (R1). Pure.

For each group and topic (a *place*): a cursor for each queue, behind the last message that was handed out to any
consumer, and the pull log of each consumer. That is all. A message behind the cursor is held by one consumer, or it is
confirmed, or it was written again to the group's retry topic and confirmed here.

``apply`` takes actions in the order of their log. The master applies an action when it has written it; a node that
becomes the master folds the log, from the last checkpoint on (``share_log``). Both get the same state, except for
cursors that have passed messages which a filter left out: those are noted with the next action.

A checkpoint is a row of ordinary actions that *set* a cursor or a pull log. So it can be written in pieces, while
other actions come in between, and a fold that begins before it gets the same: an action on what is not known yet
(because its checkpoint record comes later) is applied as far as it makes sense, and then set right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from ternmq.share.actions import (
    Ack,
    Cursors,
    Forget,
    Gone,
    Hold,
    Holding,
    Mark,
    MoveRuns,
    Pull,
    ShareAction,
)
from ternmq.share.pull_log import PullLog, Run

#: Group and topic.
PlaceKey: TypeAlias = tuple[str, str]

#: What a place, a cursor, a consumer and a run take in memory, about.
_PLACE_BYTES: Final = 600
_CURSOR_BYTES: Final = 100
_CONSUMER_BYTES: Final = 400
_RUN_BYTES: Final = 120
#: Runs in one record of a checkpoint: some 200 KB.
_RUNS_MAX: Final = 5_000


class Place:
    """The shared consumption of one topic by one group."""

    __slots__ = ("begun_queues", "consumers", "cursors", "group", "is_ordered", "next_queue", "topic")

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        #: By queue id, the queue offset of the next message to hand out.
        self.cursors: dict[int, int] = {}
        self.consumers: dict[str, PullLog] = {}
        #: Whether one consumer at a time holds messages of a key.
        self.is_ordered = False
        #: In how many queues it is known to have begun, and the queue where the next pull begins. Not part of the fold.
        self.begun_queues = 0
        self.next_queue = 0

    @property
    def key(self) -> PlaceKey:
        return self.group, self.topic

    @property
    def held(self) -> int:
        """Messages that consumers hold, or that wait to be written again."""
        return sum(log.held for log in self.consumers.values())

    def floors(self) -> dict[int, int]:
        """By queue, the first message that is not confirmed: where a group that consumes in another way continues."""
        floors = dict(self.cursors)
        for log in self.consumers.values():
            for run in log.runs:
                if run.offset < floors.get(run.queue_id, run.offset + 1):
                    floors[run.queue_id] = run.offset
        return floors


class ShareState:
    """Of one broker."""

    def __init__(self) -> None:
        self.places: dict[PlaceKey, Place] = {}
        #: Cursors, consumers, runs and held messages in all places.
        self.cursor_count = 0
        self.consumer_count = 0
        self.run_count = 0
        self.held_count = 0

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        return (
            len(self.places) * _PLACE_BYTES
            + self.cursor_count * _CURSOR_BYTES
            + self.consumer_count * _CONSUMER_BYTES
            + self.run_count * _RUN_BYTES
        )

    def find(self, group: str, topic: str, consumer: str) -> PullLog | None:
        place = self.places.get((group, topic))
        return place.consumers.get(consumer) if place is not None else None

    def apply(self, action: ShareAction) -> None:
        """Take in the next action."""
        match action:
            case Mark():
                pass
            case Pull():
                self._pull(action)
            case Ack():
                self._remove(action)
            case Cursors():
                self._set_cursors(action)
            case Hold():
                log = self.find(action.group, action.topic, action.consumer)
                if log is not None:
                    self._count(log, -1)
                    log.hold(action.first, action.last, action.due_ms)
                    self._count(log, 1)
            case MoveRuns():
                self._move(action)
            case Gone():
                self._drop(action.group, action.topic, action.consumer)
            case Forget():
                self._forget(action)
            case Holding():
                self._hold_all(action)

    def checkpoint(self) -> Iterator[list[ShareAction]]:
        """Actions that make the same state. Each list must be written at once; between two of them the state may
        change."""
        for key in list(self.places):
            place = self.places.get(key)
            if place is None:
                continue
            yield [Cursors(place.group, place.topic, sorted(place.cursors.items()), place.is_ordered)]
            for name in list(place.consumers):
                log = place.consumers.get(name)
                if log is not None:
                    runs = [run.as_held() for run in log.runs]
                    yield [
                        Holding(place.group, place.topic, name, log.pulled, runs[at : at + _RUNS_MAX], at > 0)
                        for at in range(0, max(len(runs), 1), _RUNS_MAX)
                    ]

    # ------------------------------------------------------------------------------------------------------------

    def _place(self, group: str, topic: str) -> Place:
        place = self.places.get((group, topic))
        if place is None:
            place = self.places[group, topic] = Place(group, topic)
        return place

    def _log(self, group: str, topic: str, consumer: str, first: int) -> PullLog:
        place = self._place(group, topic)
        log = place.consumers.get(consumer)
        if log is None:
            log = place.consumers[consumer] = PullLog(first - 1)
            self.consumer_count += 1
        return log

    def _pull(self, action: Pull) -> None:
        if action.runs:
            self._give(action, action.consumer, action.first)
        if action.cursors:
            self._set_cursors(action)

    def _set_cursors(self, action: Cursors | Pull) -> None:
        place = self._place(action.group, action.topic)
        if isinstance(action, Cursors) and action.ordered is not None:
            place.is_ordered = action.ordered
        cursors = place.cursors
        self.cursor_count -= len(cursors)
        cursors.update(action.cursors)
        self.cursor_count += len(cursors)

    def _hold_all(self, action: Holding) -> None:
        log = self.find(action.group, action.topic, action.consumer) if action.is_more else None
        if log is None:
            self._drop(action.group, action.topic, action.consumer)
            log = self._place(action.group, action.topic).consumers[action.consumer] = PullLog(action.pulled)
            self.consumer_count += 1
        self._count(log, -1)
        log.restore(action.runs)
        self._count(log, 1)

    def _remove(self, action: Ack | MoveRuns) -> None:
        log = self.find(action.group, action.topic, action.consumer)
        if log is not None:
            self._count(log, -1)
            log.remove(action.first, action.last)
            self._count(log, 1)

    def _move(self, action: MoveRuns) -> None:
        self._remove(action)
        self._give(action, action.to, action.at)

    def _give(self, action: Pull | MoveRuns, consumer: str, first: int) -> None:
        """Add messages to a pull log, numbered from ``first`` on."""
        log = self._log(action.group, action.topic, consumer, first)
        self._count(log, -1)
        number = first
        for queue_id, offset, count in action.runs:
            if number > log.pulled:
                log.add(Run(number, queue_id, offset, count, action.life, action.due_ms))
            number += count
        self._count(log, 1)

    def _drop(self, group: str, topic: str, consumer: str) -> None:
        place = self.places.get((group, topic))
        log = place.consumers.pop(consumer, None) if place is not None else None
        if log is not None:
            self.consumer_count -= 1
            self._count(log, -1)

    def _count(self, log: PullLog, sign: int) -> None:
        """A pull log is about to change (-1), or has changed (1)."""
        self.run_count += sign * len(log.runs)
        self.held_count += sign * log.held

    def _forget(self, action: Forget) -> None:
        for key, place in list(self.places.items()):
            if action.group in ("", place.group) and action.topic in ("", place.topic):
                for consumer in list(place.consumers):
                    self._drop(place.group, place.topic, consumer)
                self.cursor_count -= len(place.cursors)
                del self.places[key]
