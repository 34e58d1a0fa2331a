"""Shared consumption on a master, for one term (R1–R3): what consumers hold, and what becomes of it without them.

Made when a term begins: the action log is folded (``share.share_log``). From then on each action is written first and
applied then (``do``). Once a second the runner looks after all consumers:

- one that was not heard of for too long is offline, and what it holds is written again for others;
- messages whose time limit is over are taken back, as lost ones; one that is gone for days is forgotten;
- what retention has deleted is confirmed in its holder's name: the numbers of the rest stay as they are;
- how far the group is, in each queue, is noted for tools, once it is safe; and a checkpoint is written when it is due.

In a group where one consumer at a time holds the messages of a key, lost messages are not written again: they would
come behind later ones of their key. They move to another consumer, in their order, as soon as one is online. Which keys
are held from an earlier term is read from the records, in slices, when the first pull asks (``read_keys``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.offsets import Offsets
from ternmq.env import Clock
from ternmq.errors import BrokerRefused, StoreError, TernError
from ternmq.share.actions import LOST, Ack, Forget, Gone, Mark, MoveRuns, ShareAction
from ternmq.share.heirs import Heirs
from ternmq.share.keys import ShareKeys
from ternmq.share.members import Life, Lives
from ternmq.share.pull_log import PullLog, Run
from ternmq.share.retry import Resend, Rewriter
from ternmq.share.share_log import ShareLog
from ternmq.share.state import Place, PlaceKey
from ternmq.share.take import ShareTaker
from ternmq.store.log.draft import Placed
from ternmq.store.store import MessageStore

log = logging.getLogger(__name__)

#: How often consumers are looked after.
TEND_S: Final = 1.0
#: How often it is noted for tools how far groups are.
NOTE_S: Final = 5.0
#: Consumers that are looked at in one turn of the loop, and how many of their runs count as one.
TURN_CONSUMERS: Final = 500
RUNS_EACH: Final = 20
#: Runs that one action moves. A consumer with a filter may hold thousands, of a message each.
MOVE_RUNS: Final = 1_000


@dataclass(slots=True)
class ShareCounts:
    """Since the broker started, under the names that QMQ's operators know."""

    #: Messages that a consumer passed over when it confirmed later ones; and when that happened last.
    lost_acks: int = 0
    lost_ack_ms: int = 0
    #: Messages that retention deleted before they were confirmed, or handed out.
    expired: int = 0
    #: Messages whose consumer took too long.
    ack_timeouts: int = 0
    #: Messages that were written again.
    retried: int = 0
    #: How often a consumer went offline with messages in hand.
    offline_tasks: int = 0
    #: Acks of numbers that were given in another life, or never.
    refused_acks: int = 0
    pulls: int = 0
    acks: int = 0


class ShareTerm:
    """A runner (``broker.roles``). All methods belong to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MessageStore,
        offsets: Offsets,
        resend: Resend,
        clock: Clock,
        host: bytes,
        life: int,
        counts: ShareCounts,
        wake: Callable[[str, str, str], None],
        on_end: Callable[[ShareTerm, TernError], None],
    ) -> None:
        """``life`` is a random number of this term. ``wake`` is told group, topic and consumer when there is something
        in the pull log of a consumer that it did not pull, and "" when there is something for any consumer."""
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._counts = counts
        self._wake = wake
        self._on_end = on_end
        self._log = ShareLog(store, offsets, host=host, clock=clock)
        self.life = life
        self.state = self._log.fold()
        self.lives = Lives(offline_s=0, gone_s=0)
        self.keys = ShareKeys(store=store, state=self.state)
        self.taker = ShareTaker(
            store=store,
            offsets=offsets,
            state=self.state,
            keys=self.keys,
            life=life,
            do=self.do,
            next_number=self.next_number,
            expired=self._expired,
        )
        self._heirs = Heirs(self.lives, clock)
        self._rewriter = Rewriter(
            store=store,
            resend=resend,
            do=self.do,
            done=self._rewritten,
            is_current=self._is_current,
            pass_on=self._pass_on,
        )
        #: Numbers below this were given out to consumers that are gone.
        self._floor = 0
        self._is_stopped = False
        #: Places with actions since their progress was noted, and when that was.
        self._changed: dict[PlaceKey, None] = dict.fromkeys(self.state.places)
        self._noted_s = clock.monotonic()
        #: Where the log began when consumers were last looked after: retention has deleted nothing since.
        self._log_begin = -1
        self._soon = asyncio.Event()
        #: Keys of held messages must be read.
        self._unread = asyncio.Event()
        self.apply(config)
        now = clock.monotonic()
        for place in self.state.places.values():
            for consumer in place.consumers:
                if consumer != LOST:
                    self.lives.seen(place.key, consumer, now)

    def apply(self, config: BrokerConfig) -> None:
        self._crowd = config.max_share_consumers // 2
        self._bytes_max = config.max_share_bytes
        self.lives.apply(offline_s=config.share_offline_time / 1000, gone_s=config.share_gone_time / 1000)

    @property
    def memory_bytes(self) -> int:
        """About what is known takes in memory."""
        return self.state.memory_bytes + self.keys.memory_bytes

    def do(self, action: ShareAction) -> Placed:
        """Write an action, then have it count. Raises what the store raises; then nothing happened."""
        placed = self._log.write(action)
        self.state.apply(action)
        if not isinstance(action, Mark | Forget):
            self._changed[action.group, action.topic] = None
        return placed

    def next_number(self, group: str, topic: str, consumer: str) -> int:
        """The number that the next message of a consumer gets."""
        known = self.state.find(group, topic, consumer)
        return known.pulled + 1 if known is not None else self._floor

    def soon(self) -> None:
        """Look after consumers now, not within a second."""
        self._soon.set()

    def read_keys_soon(self) -> None:
        """A pull waits until the keys of what its group holds are known."""
        self._unread.set()

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """A group or a topic was deleted. Raises what the store raises."""
        keys = [key for key in self.state.places if group in ("", key[0]) and topic in ("", key[1])]
        if not keys:
            return
        for key in keys:
            self.keys.forget(key)
            for known in self.state.places[key].consumers.values():
                self._floor = max(self._floor, known.pulled + 1)
            for consumer in self.lives.names(key):
                self.lives.forget(key, consumer)
        self.do(Forget(group, topic))

    # --- Runner -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after consumers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tend_on(), name="share: look after consumers")
            tasks.create_task(self._read_keys_on(), name="share: read the keys of held messages")

    async def _tend_on(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TEND_S):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            try:
                await self.tend()
            except (StoreError, BrokerRefused) as error:
                # A full disk, or too much to do: what is left is done the next time.
                log.warning("the consumers of shared groups cannot be looked after now: %s; retrying", error)

    async def _read_keys_on(self) -> None:
        """Beside the rest: a group with many held messages, perhaps on a slow disk, must not hold up the others."""
        while True:
            await self._unread.wait()
            self._unread.clear()
            try:
                await self.read_keys()
            except StoreError as error:
                log.warning("the keys of messages that are held cannot be read now: %s; retrying", error)

    def stop(self, reason: TernError) -> None:
        """The term is over (``roles.Runner``)."""
        self._is_stopped = True
        self._log.stop()
        self._on_end(self, reason)

    async def tend(self) -> None:
        """Look after all consumers once. Raises what writing again raises, when all else is done."""
        looked, log_begin = 0, self._store.min_log_offset
        failure: StoreError | BrokerRefused | None = None
        await self._forget_idle()
        self._heirs.begin()
        for key in list(self.state.places):
            place = self.state.places.get(key)
            if place is None:
                continue
            for consumer in list(place.consumers):
                known = place.consumers.get(consumer)
                if known is not None and consumer != LOST:
                    if log_begin != self._log_begin:
                        self._confirm_deleted(place, consumer, known)
                    self._look_after(place, consumer, known)
                looked += 1 + (len(known.runs) // RUNS_EACH if known is not None else 0)
                if looked >= TURN_CONSUMERS:
                    looked = 0
                    await asyncio.sleep(0)
            try:
                is_left = True
                while is_left and self._is_current(place):
                    is_left = await self._rewriter.rewrite(place)
                    await asyncio.sleep(0)
            except (StoreError, BrokerRefused) as error:
                # Perhaps of this group alone, such as a retry topic without permission: others must not wait for it.
                failure = failure or error
        self._log_begin = log_begin
        if self.keys.unread():
            self.read_keys_soon()
        if self._clock.monotonic() - self._noted_s >= NOTE_S:
            self._noted_s = self._clock.monotonic()
            await self._note_progress()
        if self._log.is_due(self.state):
            for _ in self._log.checkpoint(self.state):
                await asyncio.sleep(0)
        if failure is not None:
            raise failure

    async def read_keys(self) -> None:
        """Read the keys of held messages, a slice in a turn of the loop, until all are known or there is no room for
        more of them: then ``tend`` goes on when messages are confirmed. Raises ``StoreError``, when all else is
        done."""
        failures: dict[PlaceKey, StoreError] = {}
        while keys := [key for key in self.keys.unread() if key not in failures]:
            for key in keys:
                if self._is_stopped or self.memory_bytes >= self._bytes_max:
                    return
                try:
                    await self._read_keys_of(key)
                except StoreError as error:
                    # Of this place alone: others must not wait for it.
                    failures[key] = error
                await asyncio.sleep(0)
        for failure in failures.values():
            raise failure

    async def _read_keys_of(self, key: PlaceKey) -> None:
        """One slice."""
        cold = self.keys.read(key)
        if cold is not None:
            # What it returns is not needed: the pages are in memory now.
            await asyncio.wrap_future(self._store.cold.read(cold.pieces))
            if not self._is_stopped:
                self.keys.read(key, read=cold)
        known = self.keys.by_place.get(key)
        if known is not None and not known.unread:
            self._wake(*key, "")

    def _look_after(self, place: Place, consumer: str, known: PullLog) -> None:
        life = self.lives.of(place.key, consumer, self._clock.monotonic())
        if life is Life.ONLINE:
            late = known.late(self._clock.now_ms())
            if late:
                count = sum([run.count for run in late])
                if self.give_up(place, consumer, late):
                    self._counts.ack_timeouts += count
                    log.warning(
                        "consumer %s of group %s did not confirm %d messages of %s in time; others get them",
                        consumer,
                        place.group,
                        count,
                        place.topic,
                    )
        elif known.runs:
            self.go_offline(place, consumer, known)
        elif life is Life.GONE or self._is_in_the_way(place, consumer):
            self.do(Gone(place.group, place.topic, consumer))
            self._floor = max(self._floor, known.pulled + 1)
            self.lives.forget(place.key, consumer)
            log.info("consumer %s of group %s is gone from %s and is forgotten", consumer, place.group, place.topic)

    def _is_in_the_way(self, place: Place, consumer: str) -> bool:
        """Whether a consumer that is offline and holds nothing is forgotten before its time: those without a name of
        their own are new ones with each start, and would fill the table for days."""
        return self.lives.size(place.key) > self._crowd and self.lives.is_silent(
            place.key, consumer, self._clock.monotonic()
        )

    def go_offline(self, place: Place, consumer: str, known: PullLog) -> None:
        """Have others get what a consumer holds."""
        count = known.held
        if self.give_up(place, consumer, known.runs):
            self._counts.offline_tasks += 1
            log.info(
                "consumer %s of group %s is offline; others get %d messages of %s that it held",
                consumer,
                place.group,
                count,
                place.topic,
            )

    def give_up(self, place: Place, consumer: str, runs: Sequence[Run]) -> bool:
        """Have others get these runs of a consumer: later, as copies, or in order as they are. False: not now."""
        if place.is_ordered:
            return self._bequeath(place, consumer, runs)
        self._move(place, consumer, runs, LOST)
        self.soon()
        return True

    def _pass_on(self, place: Place, lost: Run) -> bool:
        """Have a consumer get what was lost and cannot be written again. False: not now."""
        return self._bequeath(place, LOST, [lost])

    def _bequeath(self, place: Place, consumer: str, runs: Sequence[Run]) -> bool:
        heir = self._heirs.find(place, besides=consumer)
        if heir is None:
            return False
        self._move(place, consumer, runs, heir)
        self._wake(place.group, place.topic, heir)
        return True

    def _move(self, place: Place, consumer: str, runs: Sequence[Run], to: str) -> None:
        group, topic = place.key
        for row in place.consumers[consumer].in_rows(runs, MOVE_RUNS):
            at = self.next_number(group, topic, to)
            stretches = [(run.queue_id, run.offset, run.count) for run in row]
            self.do(MoveRuns(group, topic, consumer, row[0].first, row[-1].last, to, at, self.life, 0, stretches))
            self.keys.moved(group, topic, row, consumer, to, at)

    async def _forget_idle(self) -> None:
        """Forget consumers that hold nothing, never did, and are not heard of any more."""
        now, looked = self._clock.monotonic(), 0
        for key in self.lives.places():
            for consumer in self.lives.names(key):
                looked += 1
                if not looked % TURN_CONSUMERS:
                    await asyncio.sleep(0)
                place = self.state.places.get(key)
                is_known = place is not None and consumer in place.consumers
                # One that has just left is remembered: a pull of it may still wait (``Sharing.has_left``).
                if not is_known and self.lives.is_silent(key, consumer, now):
                    self.lives.forget(key, consumer)

    def _confirm_deleted(self, place: Place, consumer: str, known: PullLog) -> None:
        for first, last, count in known.deleted(lambda queue_id: self._store.min_offset(place.topic, queue_id)):
            self.do(Ack(place.group, place.topic, consumer, first, last))
            self.keys.release(place.group, place.topic, consumer, first, last)
            self._expired(count)

    async def _note_progress(self) -> None:
        """Where each group is, for tools, and for members that consume in another way: once that is safe.

        After a power cut the log may know less than the table of offsets would.
        """
        changed, self._changed = self._changed, {}
        floors: list[tuple[Place, dict[int, int]]] = []
        looked = 0
        for key in changed:
            place = self.state.places.get(key)
            if place is None:
                continue
            floors.append((place, place.floors()))
            looked += 1 + len(place.consumers)
            if looked >= TURN_CONSUMERS:
                self._note_when_safe(floors)
                floors, looked = [], 0
                await asyncio.sleep(0)
        self._note_when_safe(floors)

    def _note_when_safe(self, floors: Sequence[tuple[Place, dict[int, int]]]) -> None:
        def note() -> None:
            for place, offsets in floors:
                if self._is_current(place):
                    for queue_id, offset in offsets.items():
                        if self._offsets.get(place.group, place.topic, queue_id) != offset:
                            self._offsets.commit(place.group, place.topic, queue_id, offset)

        self._store.safe.call_when(self._store.written, note)

    def _expired(self, count: int) -> None:
        self._counts.expired += max(count, 0)

    def _rewritten(self, written: int, gone: int) -> None:
        self._counts.retried += written
        self._expired(gone)

    def _is_current(self, place: Place) -> bool:
        return not self._is_stopped and self.state.places.get(place.key) is place
