"""Sharing: what pulls, acks and the end of a consumer mean where any number of consumers share a topic (R1–R3, K1, K2).

No consumer owns a queue. A pull gives a consumer the next messages of the topic, of any queue, and numbers them; an ack
confirms numbers ``first`` to ``last``:

- up to what is confirmed already: nothing to do; an ack may come twice, or late;
- with a gap in front of it: what is in the gap was passed over. It is written again for any consumer (``share.retry``);
- beyond what was given to the consumer, of another life, or of a consumer that holds nothing: refused, and nothing is
  confirmed.

The rules of reading are those of every other way (``access``). What is in flight belongs to a term (``share_term``).
Without one, on a slave, all calls raise ``NotMaster``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Term
from ternmq.broker.services.access import Access, Way
from ternmq.broker.services.polls import PollKind, Polls
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.reading import COLD_MAX
from ternmq.broker.services.share_term import ShareCounts, ShareTerm
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.env import Clock
from ternmq.errors import InvalidParameter, NoMessage, NotMaster, SystemBusy, TernError
from ternmq.share.actions import LOST, Ack, Cursors, Hold
from ternmq.share.pull_log import PullLog, Run
from ternmq.share.retry import Resend
from ternmq.share.state import Place, PlaceKey
from ternmq.share.take import BYTES_MAX
from ternmq.share.wish import ColdPlace, ShareTaken, ShareWish
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.share import ShareMember
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.requests_share import COUNT_MAX, is_consumer

_FROM_LAST: Final = 1
_LIFE_BITS: Final = 62
#: What one answer with members may have, and about how many bytes one takes beside its topic and name.
MEMBERS_BYTES_MAX: Final = 1024 * 1024
_MEMBER_EXTRA_BYTES: Final = 160
#: What waits to be written again, in the list of members.
_LOST_STATE: Final = "lost"


class ConsumerQuery(Protocol):
    """Which consumer a request is about. The headers of the remoting protocol fit."""

    consumer_group: str
    topic: str
    consumer: str


class SharePullQuery(ConsumerQuery, Protocol):
    """What a pull asks for; see ``wire.requests_share``."""

    count_max: int
    bytes_max: int
    held: int
    life: int
    hold_ms: int
    init_mode: int
    expression_type: str | None
    subscription: str | None
    order: bool | None


class SharePullOutcome(Enum):
    FOUND = "found"
    #: Records must be read first: ``Sharing.read_old``.
    OLD = "old"
    #: Nothing is there; the request may wait.
    NOTHING = "nothing"
    #: Pull again at once.
    AGAIN = "again"
    #: The consumer holds all that it may, or the broker all that it can: confirm something, and pull again later.
    FULL = "full"


@dataclass(slots=True)
class Shared:
    """What became of a pull."""

    wish: ShareWish
    taken: ShareTaken
    wanted: Wanted
    outcome: SharePullOutcome
    queue_count: int


class Sharing:
    """All methods belong to the broker's loop. Give ``begin`` to ``Roles.add``."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        access: Access,
        polls: Polls,
        store: MessageStore,
        store_host: bytes,
        groups: Groups,
        offsets: Offsets,
        stats: Stats,
        quotas: Quotas,
        filters: Filters,
        resend: Resend,
        clock: Clock,
        choice: random.Random,
    ) -> None:
        self._access = access
        self._polls = polls
        self._store = store
        self._store_host = store_host
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._quotas = quotas
        self._filters = filters
        self._resend = resend
        self._clock = clock
        self._random = choice
        self._cold_count = 0
        self._running: ShareTerm | None = None
        self._reason: TernError = NotMaster("this broker is not the master: share messages of the master")
        self.counts = ShareCounts()
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._config = config
        if self._running is not None:
            self._running.apply(config)

    # --- Terms --------------------------------------------------------------------------------------------------

    def begin(self, _term: Term) -> ShareTerm:
        """What shares messages in this term (``roles.RunnerFactory``)."""
        self._running = ShareTerm(
            self._config,
            store=self._store,
            offsets=self._offsets,
            resend=self._resend,
            clock=self._clock,
            host=self._store_host,
            life=self._random.getrandbits(_LIFE_BITS),
            counts=self.counts,
            wake=self._wake,
            on_end=self._ended,
        )
        return self._running

    def _ended(self, _term: ShareTerm, reason: TernError) -> None:
        self._running, self._reason = None, reason
        self._polls.answer_all(reason, (PollKind.SHARE,))

    def _term(self) -> ShareTerm:
        if self._running is None:
            raise self._reason.with_traceback(None)
        return self._running

    # --- Pull ---------------------------------------------------------------------------------------------------

    def take(self, query: SharePullQuery, *, is_first: bool) -> Shared:
        """Give a consumer messages. ``is_first``: the pull has just come, and may wait for the disk.

        Raises ``NotMaster``, ``NoPermission``, ``TopicMissing``, ``GroupMissing``, ``InvalidParameter``, ``SystemBusy``
        and ``StoreError``.
        """
        term = self._term()
        config = self._check(query)
        if not 0 < query.count_max <= COUNT_MAX:
            raise InvalidParameter(
                f"invalid number of messages {query.count_max} for a shared pull: expected 1 to {COUNT_MAX}"
            )
        if not query.bytes_max > 0:
            raise InvalidParameter(f"invalid number of bytes {query.bytes_max} for a shared pull: expected 1 or more")
        if query.held < -1 or query.life < 0:
            raise InvalidParameter(
                f"invalid last number {query.held} (life {query.life}) of a shared pull: expected -1 or more"
            )
        self._groups.find(query.consumer_group)
        self._admit(term, query)
        wanted = self._filters.of_request(query.consumer_group, query.topic, query.expression_type, query.subscription)
        now_ms = self._clock.now_ms()
        wish = ShareWish(
            group=query.consumer_group,
            topic=query.topic,
            consumer=query.consumer,
            count_max=query.count_max,
            bytes_max=min(query.bytes_max, BYTES_MAX),
            held=query.held,
            held_life=query.life,
            due_ms=now_ms + query.hold_ms if query.hold_ms else 0,
            matches=wanted.matches,
            accepts=wanted.accepts,
            is_over=self._filters.timer() if wanted.accepts is not None else None,
            from_last=query.init_mode == _FROM_LAST,
            ordered=bool(query.order),
            held_max=self._config.max_share_held,
        )
        shared = Shared(wish, ShareTaken(), wanted, SharePullOutcome.NOTHING, config.read_queue_nums)
        self._take(term, shared)
        self.counts.pulls += 1
        may_wait = is_first and self._cold_count < COLD_MAX
        return self._concluded(shared, may_wait=may_wait)

    async def read_old(self, shared: Shared) -> Shared:
        """Take the records of a pull whose outcome is ``OLD``, once a thread has read them: FOUND or AGAIN now.

        Raises as ``take``.
        """
        cold = shared.taken.cold
        assert cold is not None
        self._cold_count += 1
        try:
            # What it returns is not needed: the pages are in memory now, and what goes out are views of them.
            await asyncio.wrap_future(self._store.cold.read(cold.pieces))
        finally:
            self._cold_count -= 1
        # The topic may be gone.
        term, wish = self._term(), shared.wish
        self._access.topic_for(self._access.group(wish.group, creates=False), wish.topic, Way.SHARE)
        shared.taken = ShareTaken()
        if not term.lives.has_left((wish.group, wish.topic), wish.consumer):
            self._take(term, shared, read=cold)
        return self._concluded(shared, may_wait=False)

    def waits_for(self, shared: Shared) -> int:
        """Where the log must be safe before the messages may go out; 0: they may now.

        On a log that confirms at once nothing is waited for: what a power cut takes away is handed out again.
        """
        return shared.taken.end_offset if self._store.safety.is_required else 0

    def _take(self, term: ShareTerm, shared: Shared, *, read: ColdPlace | None = None) -> None:
        wish, taken = shared.wish, shared.taken
        if term.taker.take_again(wish, taken, read=read):
            return
        if term.memory_bytes >= self._config.max_share_bytes:
            taken.is_full = True
            return
        term.taker.take_new(wish, taken, shared.queue_count, read=read)
        if taken.is_full:
            # It may have been woken for a message: others have room for it.
            self._wake(wish.group, wish.topic, "")
        if taken.is_unread:
            term.read_keys_soon()

    def _concluded(self, shared: Shared, *, may_wait: bool) -> Shared:
        wish, taken = shared.wish, shared.taken
        for consumer in taken.others:
            self._wake(wish.group, wish.topic, consumer)
        if taken.count:
            shared.outcome = SharePullOutcome.FOUND
            self._stats.got(wish.topic, wish.group, taken.count, taken.body_bytes)
            if self._quotas.groups:
                self._quotas.got(wish.group, taken.count, taken.body_bytes)
            # One that was given what it had before has left the new ones.
            if taken.rest or taken.is_again:
                self._polls.wake(PollKind.SHARE, wish.group, wish.topic, ALL_QUEUES)
        elif taken.cold is not None and may_wait:
            shared.outcome = SharePullOutcome.OLD
        else:
            self._stats.missed()
            if taken.cold is not None:
                # It has waited already; it pulls again, and has time for the disk then.
                shared.outcome = SharePullOutcome.FULL if self._cold_count >= COLD_MAX else SharePullOutcome.AGAIN
            else:
                shared.outcome = SharePullOutcome.FULL if taken.is_full else SharePullOutcome.NOTHING
        return shared

    def _admit(self, term: ShareTerm, query: ConsumerQuery) -> None:
        """Note that a consumer lives. Raises ``SystemBusy`` if there are too many of them."""
        group, topic, consumer = query.consumer_group, query.topic, query.consumer
        lives, config = term.lives, self._config
        if not lives.is_known((group, topic), consumer):
            if lives.size((group, topic)) >= config.max_share_consumers:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: group {group} has {config.max_share_consumers} consumers of {topic} "
                    "already; end some of them, or raise maxShareConsumers"
                )
            if lives.memory_bytes >= config.max_share_bytes:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: {lives.count} consumers share messages of this broker already; end some "
                    "of them, or raise maxShareBytes"
                )
        lives.seen((group, topic), consumer, self._clock.monotonic())

    def waits(self, query: ConsumerQuery, wait_s: float) -> None:
        """The pull of a consumer is parked for this long: until then nothing else is to be heard of it."""
        lives = self._term().lives
        lives.seen((query.consumer_group, query.topic), query.consumer, self._clock.monotonic() + wait_s)

    # --- Ack, hold, leave ---------------------------------------------------------------------------------------

    def ack(self, query: ConsumerQuery, *, life: int, first: int, last: int) -> None:
        """Numbers of a consumer are done. Raises ``InvalidParameter`` for numbers that it was not given, ``NoMessage``
        if what it names is not its own, and ``StoreError`` if that cannot be written: then nothing is confirmed."""
        term = self._term()
        self._check(query)
        known = self._holding(term, query, first=first, last=last)
        runs = self._own_runs(known, life, first, last)
        if not runs:
            # Confirmed before, or taken back and given to others.
            return
        group, topic, consumer = query.consumer_group, query.topic, query.consumer
        place = term.state.places[group, topic]
        self._lose(term, place, consumer, known.within(known.acked + 1, first - 1))
        term.do(Ack(group, topic, consumer, runs[0].first, last))
        term.keys.release(group, topic, consumer, runs[0].first, last)
        self.counts.acks += 1
        if place.key in term.keys.blocked:
            term.keys.blocked.discard(place.key)
            self._wake(group, topic, "")

    def hold(self, query: ConsumerQuery, *, life: int, first: int, last: int, hold_ms: int) -> None:
        """Give numbers of a consumer another time limit, from now on; 0: none. Raises as ``ack``, and ``NoMessage`` if
        the consumer does not hold them any more."""
        term = self._term()
        self._check(query)
        if last - first >= COUNT_MAX:
            raise InvalidParameter(
                f"invalid numbers {first} to {last} for another time limit: expected {COUNT_MAX} numbers at most"
            )
        known = self._holding(term, query, first=first, last=last)
        if not self._own_runs(known, life, first, last):
            raise NoMessage(
                f"consumer {query.consumer} does not hold the messages {first} to {last} of {query.topic} any more; "
                "they were confirmed, or are delivered again"
            )
        if term.memory_bytes >= self._config.max_share_bytes:
            # A message with a limit of its own is a run of its own.
            raise SystemBusy(
                f"[OVERLOAD]system busy: what consumers hold takes {term.memory_bytes} bytes of this broker's memory; "
                "confirm some messages before you ask for more time, or raise maxShareBytes"
            )
        due_ms = self._clock.now_ms() + hold_ms if hold_ms else 0
        term.do(Hold(query.consumer_group, query.topic, query.consumer, first, last, due_ms))

    def beat(self, query: ConsumerQuery) -> None:
        """A consumer lives. One that the broker does not know is not noted: it has nothing."""
        term = self._term()
        self._check(query)
        if term.state.find(query.consumer_group, query.topic, query.consumer) is not None:
            term.lives.seen((query.consumer_group, query.topic), query.consumer, self._clock.monotonic())

    def leave(self, query: ConsumerQuery) -> None:
        """A consumer ends: others get what it holds, of all topics. Raises ``StoreError``.

        Of all topics at once: what it held of one is written to the retry topic, for which it may still wait.
        """
        term, now = self._term(), self._clock.monotonic()
        self._check(query)
        group, consumer = query.consumer_group, query.consumer
        keys = term.lives.places_of(group, consumer)
        for key in keys:
            term.lives.left(key, consumer, now)
        for key in keys:
            place = term.state.places.get(key)
            known = place.consumers.get(consumer) if place is not None else None
            if place is not None and known is not None and known.runs:
                term.go_offline(place, consumer, known)

    def has_left(self, query: ConsumerQuery) -> bool:
        """Whether a consumer has said that it ends, and was not heard of since."""
        running = self._running
        return running is not None and running.lives.has_left((query.consumer_group, query.topic), query.consumer)

    def _lose(self, term: ShareTerm, place: Place, consumer: str, gap: Sequence[Run]) -> None:
        """Messages were passed over: they are written again for any consumer."""
        if not gap:
            return
        if place.is_ordered:
            raise InvalidParameter(
                f"an ack of consumer {consumer} passes over message {gap[0].first}: in a group that keeps the order of "
                "keys messages are confirmed in their order"
            )
        term.give_up(place, consumer, gap)
        self.counts.lost_acks += sum([run.count for run in gap])
        self.counts.lost_ack_ms = self._clock.now_ms()

    def _holding(self, term: ShareTerm, query: ConsumerQuery, *, first: int, last: int) -> PullLog:
        """The pull log that numbers are of. It is also a sign of life. Raises ``InvalidParameter``, ``NoMessage``."""
        if not 0 <= first <= last:
            raise InvalidParameter(f"invalid numbers {first} to {last} of messages: expected 0 or more, in order")
        group, topic, consumer = query.consumer_group, query.topic, query.consumer
        known = term.state.find(group, topic, consumer)
        if known is None:
            self.counts.refused_acks += 1
            raise NoMessage(f"consumer {consumer} of group {group} holds no messages of {topic}; pull some first")
        term.lives.seen((group, topic), consumer, self._clock.monotonic())
        if last > known.pulled:
            self.counts.refused_acks += 1
            raise InvalidParameter(
                f"consumer {consumer} cannot confirm message {last} of {topic}: it was given messages up to "
                f"{known.pulled} only"
            )
        return known

    def _own_runs(self, known: PullLog, life: int, first: int, last: int) -> list[Run]:
        """What is held of these numbers. Raises ``NoMessage`` if it was given in another life."""
        runs = known.within(first, last)
        if any(run.life != life for run in runs):
            self.counts.refused_acks += 1
            raise NoMessage(
                f"the numbers {first} to {last} belong to other messages by now: the broker has restarted and does not "
                "know that it gave them out; the messages are delivered again"
            )
        return runs

    # --- What tools do ------------------------------------------------------------------------------------------

    def members(self, group: str, *, after: tuple[str, str] = ("", "")) -> tuple[list[ShareMember], bool]:
        """The consumers of a group, with what they hold: those behind a topic and name, as many as one answer has room
        for; and whether there are more."""
        running = self._running
        if running is None:
            return [], False
        lives, places = running.lives, running.state.places
        found: list[ShareMember] = []
        room = MEMBERS_BYTES_MAX
        for key in sorted({key for key in (*places, *lives.places()) if key[0] == group and key[1] >= after[0]}):
            topic = key[1]
            logs = place.consumers if (place := places.get(key)) is not None else {}
            is_lost = (lost := logs.get(LOST)) is not None and lost.held
            for consumer in sorted({*lives.names(key), *((LOST,) if is_lost else ())}):
                if (topic, consumer) <= after:
                    continue
                room -= len(topic.encode()) + len(consumer.encode()) + _MEMBER_EXTRA_BYTES
                if room < 0 and found:
                    return found, True
                found.append(self._member(running, key, consumer, logs.get(consumer) or PullLog()))
        return found, False

    def _member(self, running: ShareTerm, key: PlaceKey, consumer: str, known: PullLog) -> ShareMember:
        topic = key[1]
        if consumer == LOST:
            return ShareMember(topic=topic, consumer=LOST, state=_LOST_STATE, held=known.held)
        now, lives = self._clock.monotonic(), running.lives
        return ShareMember(
            topic=topic,
            consumer=consumer,
            state=lives.of(key, consumer, now).value,
            held=known.held,
            pulled=known.pulled,
            acked=known.acked,
            idle_ms=max(0, int(lives.idle_s(key, consumer, now) * 1000)),
        )

    def measures(self) -> dict[str, str]:
        """For GET_BROKER_RUNTIME_INFO."""
        counts, running = self.counts, self._running
        table = {
            "sharePulls": counts.pulls,
            "shareAcks": counts.acks,
            "shareLostAcks": counts.lost_acks,
            "shareLostAckTimestamp": counts.lost_ack_ms,
            "shareRefusedAcks": counts.refused_acks,
            "shareExpired": counts.expired,
            "shareAckTimeouts": counts.ack_timeouts,
            "shareRetried": counts.retried,
            "shareOfflineTasks": counts.offline_tasks,
            "shareWaiting": self._polls.waiting(PollKind.SHARE),
        }
        if running is not None:
            state = running.state
            table["shareConsumers"] = state.consumer_count
            table["shareHeld"] = state.held_count
            lost = [place.consumers[LOST].held for place in state.places.values() if LOST in place.consumers]
            table["shareRetryWaiting"] = sum(lost)
            table["shareBytes"] = running.memory_bytes
        return {name: str(value) for name, value in table.items()}

    def moved(self, group: str, topic: str, queue_id: int) -> None:
        """A tool has moved a group: share from there. What consumers hold stays theirs."""
        term = self._running
        place = term.state.places.get((group, topic)) if term is not None else None
        if term is None or place is None or queue_id not in place.cursors:
            return
        offset = self._offsets.get(group, topic, queue_id)
        if offset >= 0:
            term.do(Cursors(group, topic, [(queue_id, offset)]))
            self._polls.wake(PollKind.SHARE, group, topic, ALL_QUEUES)

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """A group or a topic is gone."""
        if self._running is not None:
            self._running.forget(group=group, topic=topic)

    # --------------------------------------------------------------------------------------------------------------

    def _wake(self, group: str, topic: str, consumer: str) -> None:
        if consumer:
            self._polls.wake_member(group, topic, consumer)
        else:
            self._polls.wake(PollKind.SHARE, group, topic, ALL_QUEUES)

    def _check(self, query: ConsumerQuery) -> TopicConfig:
        """The topic; raises what forbids the group to read it, or a name that cannot be one."""
        name = query.consumer
        if not is_consumer(name):
            raise InvalidParameter(
                f"invalid name {name[:40]!r} of a consumer: expected 1 to 255 bytes without slashes and blanks"
            )
        group = self._access.group(query.consumer_group, creates=False)
        return self._access.topic_for(group, query.topic, Way.SHARE)
