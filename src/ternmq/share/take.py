"""Taking messages for one pull: what the consumer was given and never saw first, then new ones (R1, R2).

1. A consumer says up to which number it has what it was given. What lies behind that was lost on its way, or belongs to
   an earlier start of the same consumer: it comes first, with the numbers that it has.
2. New messages are read from the group's cursors, in all queues of the topic. The ``Pull`` action is written, and only
   then the cursors move: a crash in between hands the messages out again. If it cannot be written, nothing happened.
3. Records that are probably not in memory are not touched: they are named (``ShareTaken.cold``), must be read by
   another thread, and are taken by a second call, if the cursor is still there.

In a group that keeps the order of keys (``keys``), some of what a pull finds is given to other consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Protocol

from ternmq.share.actions import Ack, Cursors, Hold, Pull, ShareAction, Stretch
from ternmq.share.keys import KeyHolders, ShareKeys, key_in
from ternmq.share.pull_log import PullLog, Run
from ternmq.share.state import Place, ShareState
from ternmq.share.wish import ColdPlace, ShareTaken, ShareWish, records_in
from ternmq.store.log.draft import Placed
from ternmq.store.read.query import GetResult, GetStatus
from ternmq.store.read.records import offsets_of, start_offset
from ternmq.store.read.taking import TakeStore

#: Bytes of an answer, as frames have a bound; a first message may be larger.
BYTES_MAX: Final = 4 * 1024 * 1024
#: Stretches of 800 messages, in all queues, that one pull looks through for something that its filter lets through.
SCANS_MAX: Final = 4
#: Runs that a consumer is given again in one answer. With a filter a message may be a run, and each is looked up.
AGAIN_RUNS_MAX: Final = 128
#: How often one pull looks again behind messages that cannot be read any more.
AGAIN_LOOKS_MAX: Final = 16
#: Messages in the pull log of another consumer that it has not fetched, before pulls of others wait for it.
UNSEEN_MAX: Final = 256


class StartOffsets(Protocol):
    """Where groups stood that consumed in another way before; -1 where there is none."""

    def get(self, group: str, topic: str, queue_id: int) -> int: ...


class ShareTaker:
    """All methods belong to the broker's loop. ``do`` writes an action and applies it to ``state``."""

    def __init__(
        self,
        *,
        store: TakeStore,
        offsets: StartOffsets,
        state: ShareState,
        keys: ShareKeys,
        life: int,
        do: Callable[[ShareAction], Placed],
        next_number: Callable[[str, str, str], int],
        expired: Callable[[int], None],
    ) -> None:
        """``next_number`` tells the next number of a consumer, ``expired`` is told how many messages retention has
        taken from a consumer."""
        self._store = store
        self._offsets = offsets
        self._state = state
        self._life = life
        self._do = do
        self._next_number = next_number
        self._expired = expired
        self._keys = keys

    # --- What it was given before ----------------------------------------------------------------------------------

    def take_again(self, wish: ShareWish, taken: ShareTaken, *, read: ColdPlace | None = None) -> bool:
        """Give a consumer what it was given and does not have; False if there is nothing of the kind.

        ``read`` was read by another thread, and is in memory now.
        """
        log = self._state.find(wish.group, wish.topic, wish.consumer)
        if log is None:
            return False
        for _ in range(AGAIN_LOOKS_MAX):
            known = log.known_to(wish.held, wish.held_life)
            run = log.first_behind(known) if log.pulled > known else None
            if run is None:
                return False
            if not self._take_run(wish, taken, log, run, read):
                return taken.count > 0 or taken.cold is not None
        taken.unfinished = True
        return True

    def _take_run(self, wish: ShareWish, taken: ShareTaken, log: PullLog, first: Run, read: ColdPlace | None) -> bool:
        """Add a run and those behind it; True if some of it was deleted and is confirmed now: try again."""
        expected = first.first
        for run in [first, *log.behind(first.last)[: AGAIN_RUNS_MAX - 1]]:
            if run.first != expected or run.life != first.life or taken.count >= wish.count_max:
                break
            found = self._read(wish, taken, run.queue_id, run.offset, run.count, read)
            if found is None:
                break
            if found.status is not GetStatus.FOUND or not found.count:
                if taken.count:
                    break
                self._confirm_deleted(wish, log, run, found)
                return True
            if found.next_offset - run.offset != found.count:
                # Some of it is gone.
                offsets = offsets_of(found.buffers)
                whole = sum([one == run.offset + number for number, one in enumerate(offsets)])
                if not whole and not taken.count:
                    gone = offsets[0] - run.offset
                    self._give_up(wish, run.first, run.first + gone - 1, gone)
                    return True
                found = self._read(wish, taken, run.queue_id, run.offset, whole, read) if whole else None
                if found is None:
                    break
            if taken.count and taken.body_bytes + found.body_bytes > wish.bytes_max:
                break
            if not taken.count:
                taken.first, taken.life, taken.is_again = run.first, run.life, True
            taken.buffers += found.buffers
            taken.count += found.count
            taken.body_bytes += found.body_bytes
            if found.count < run.count:
                break
            expected = run.last + 1
        if taken.count and wish.due_ms:
            # Its time begins again: the consumer has not seen it before.
            last = taken.first + taken.count - 1
            hold = Hold(wish.group, wish.topic, wish.consumer, taken.first, last, wish.due_ms)
            taken.end_offset = self._do(hold).end_offset
        return False

    def _confirm_deleted(self, wish: ShareWish, log: PullLog, run: Run, found: GetResult) -> None:
        """Confirm what retention has deleted, of all that the consumer holds; at least some of a run of which nothing
        could be read."""
        deleted = log.deleted(lambda queue_id: self._store.min_offset(wish.topic, queue_id))
        if not deleted:
            gone = min(max(found.next_offset - run.offset, 1), run.count)
            deleted = [(run.first, run.first + gone - 1, gone)]
        for first, last, count in deleted:
            self._give_up(wish, first, last, count)

    def _give_up(self, wish: ShareWish, first: int, last: int, count: int) -> None:
        self._do(Ack(wish.group, wish.topic, wish.consumer, first, last))
        self._keys.release(wish.group, wish.topic, wish.consumer, first, last)
        self._expired(count)

    # --- New ones --------------------------------------------------------------------------------------------------

    def take_new(self, wish: ShareWish, taken: ShareTaken, queue_count: int, *, read: ColdPlace | None = None) -> None:
        """Give a consumer the next messages of a topic with so many queues.

        A pull begins behind the queue that was the first for the last one, whichever consumer that was for: all queues
        have the same part. It ends at the first queue with something that it has no room for: what other queues have is
        not looked at.
        """
        state = self._state
        place = state.places.get((wish.group, wish.topic))
        if place is None or place.begun_queues < queue_count:
            place = self._begin(wish, queue_count)
        log = place.consumers.get(wish.consumer)
        room = wish.held_max - (log.held if log is not None else 0)
        if room <= 0:
            taken.is_full = True
            return
        if wish.ordered != place.is_ordered and (wish.ordered or place.key not in self._keys.by_place):
            # Members say with each pull what they are. The first one of a term decides, and one that keeps the order.
            self._do(Cursors(wish.group, wish.topic, [], wish.ordered))
        keys = self._keys.of(place) if place.is_ordered else None
        if keys is not None and keys.unread:
            taken.is_unread = True
            return
        gathered = _HandedOut()
        # An administrator may leave a topic no queue to read.
        first = place.next_queue = place.next_queue % max(queue_count, 1)
        for number in range(first, first + queue_count):
            queue_id = number % queue_count
            start, end = place.cursors[queue_id], self._store.max_offset(wish.topic, queue_id)
            if start == end:
                continue
            count_max = min(wish.count_max - taken.count, room - taken.count)
            is_full = count_max <= 0 or taken.body_bytes >= wish.bytes_max or taken.cold is not None
            if is_full or not gathered.scans:
                taken.unfinished |= not is_full
                taken.rest += max(end - start, 0)
                break
            if place.next_queue == first:
                place.next_queue = queue_id + 1
            self._take_queue(wish, taken, gathered, place, queue_id, count_max, keys, read)
        self._hand_out(wish, taken, gathered, keys)

    def _begin(self, wish: ShareWish, queue_count: int) -> Place:
        """Where the group begins is noted, so that what comes between two pulls that find nothing is not left out."""
        place = self._state.places.get((wish.group, wish.topic))
        cursors = []
        for queue_id in range(queue_count):
            if place is None or queue_id not in place.cursors:
                offset = self._offsets.get(wish.group, wish.topic, queue_id)
                if offset < 0:
                    offset = start_offset(self._store, wish.topic, queue_id, from_last=wish.from_last)
                cursors.append((queue_id, offset))
        if cursors or place is None:
            self._do(Cursors(wish.group, wish.topic, cursors))
            place = self._state.places[wish.group, wish.topic]
        place.begun_queues = queue_count
        return place

    def _take_queue(
        self,
        wish: ShareWish,
        taken: ShareTaken,
        gathered: _HandedOut,
        place: Place,
        queue_id: int,
        count_max: int,
        keys: KeyHolders | None,
        read: ColdPlace | None,
    ) -> None:
        start = place.cursors[queue_id]
        while gathered.scans:
            found = self._read(wish, taken, queue_id, start, count_max, read, is_new=True)
            if found is None:
                return
            if found.status is GetStatus.FOUND:
                if taken.count and taken.body_bytes + found.body_bytes > wish.bytes_max:
                    break
                offsets: Sequence[int] = range(start, found.next_offset)
                if len(offsets) != found.count:
                    offsets = offsets_of(found.buffers)
                if keys is None:
                    gathered.add(queue_id, offsets)
                    taken.buffers += found.buffers
                    taken.count += found.count
                    taken.body_bytes += found.body_bytes
                    next_offset = found.next_offset
                else:
                    next_offset = self._sort_keys(wish, taken, gathered, place, keys, queue_id, found)
                gathered.cursors[queue_id] = next_offset
                taken.rest += max(found.max_offset - next_offset, 0)
                return
            gathered.scans -= 1
            start = found.next_offset
            if found.status in (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL):
                # The queue begins or ends elsewhere by now: retention, or a topic made anew.
                if found.status is GetStatus.OFFSET_TOO_SMALL:
                    self._expired(start - place.cursors[queue_id])
                self._do(Cursors(wish.group, wish.topic, [(queue_id, start)]))
            else:
                # Noted with the next action; until then a crash only has them looked at again.
                place.cursors[queue_id] = start
            if start >= found.max_offset:
                return
            if wish.is_over is not None and wish.is_over():
                break
        taken.unfinished = True
        taken.rest += max(self._store.max_offset(wish.topic, queue_id) - start, 0)

    def _read(
        self,
        wish: ShareWish,
        taken: ShareTaken,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        read: ColdPlace | None,
        *,
        is_new: bool = False,
    ) -> GetResult | None:
        """What a queue has there; None if it must be read by another thread first."""
        is_read = read is not None and (read.queue_id, read.queue_offset) == (queue_id, queue_offset)
        if is_read and read is not None:
            count_max = min(count_max, read.count)
        found = self._store.get(
            wish.topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=max(wish.bytes_max - taken.body_bytes, 1),
            matches=wish.matches if is_new else None,
            accepts=wish.accepts if is_new else None,
            is_over=wish.is_over if is_new else None,
            leave_cold=not is_read,
        )
        if found.cold is None:
            return found
        if not taken.count:
            taken.cold = ColdPlace(queue_id, queue_offset, max(found.next_offset - queue_offset, 1), found.cold)
        return None

    def _hand_out(self, wish: ShareWish, taken: ShareTaken, gathered: _HandedOut, keys: KeyHolders | None) -> None:
        # What others get comes first, and the cursors last: a crash in between repeats, and loses nothing.
        for consumer, stretches in gathered.others.items():
            first = self._next_number(wish.group, wish.topic, consumer)
            runs, names = stretches.runs, stretches.keys
            self._do(Pull(wish.group, wish.topic, consumer, first, self._life, wish.due_ms, runs, []))
            taken.others.append(consumer)
            if keys is not None:
                keys.note(consumer, first, names)
        own, cursors = gathered.own, sorted(gathered.cursors.items())
        if not own.runs:
            if gathered.others:
                taken.end_offset = self._do(Cursors(wish.group, wish.topic, cursors)).end_offset
            return
        first = self._next_number(wish.group, wish.topic, wish.consumer)
        action = Pull(wish.group, wish.topic, wish.consumer, first, self._life, wish.due_ms, own.runs, cursors)
        taken.end_offset = self._do(action).end_offset
        taken.first, taken.life = first, self._life
        if keys is not None:
            keys.note(wish.consumer, first, own.keys)

    # --- A key at a time --------------------------------------------------------------------------------------------

    def _sort_keys(
        self,
        wish: ShareWish,
        taken: ShareTaken,
        gathered: _HandedOut,
        place: Place,
        keys: KeyHolders,
        queue_id: int,
        found: GetResult,
    ) -> int:
        """Who gets which of the messages; returns the queue offset up to which all were given to some consumer."""
        for record, queue_offset in records_in(found.buffers):
            key = key_in(record)
            holder = wish.consumer
            if key:
                holder = gathered.holders.get(key) or keys.holder(key) or wish.consumer
                gathered.holders[key] = holder
            if holder == wish.consumer:
                gathered.own.add(queue_id, queue_offset, key)
                taken.buffers.append(record)
                taken.count += 1
                taken.body_bytes += len(record)
                continue
            stretches, log = gathered.others.get(holder), place.consumers.get(holder)
            count = stretches.count if stretches is not None else 0
            if count + (log.held if log is not None else 0) >= UNSEEN_MAX:
                # It is slow: what comes behind in this queue waits for it.
                self._keys.blocked.add(place.key)
                return queue_offset
            if stretches is None:
                stretches = gathered.others[holder] = _Stretches()
            stretches.add(queue_id, queue_offset, key)
        return found.next_offset


class _Stretches:
    """What one consumer gets in one pull, and the keys."""

    __slots__ = ("count", "keys", "runs")

    def __init__(self) -> None:
        self.runs: list[Stretch] = []
        self.keys: list[str] = []
        self.count = 0

    def add(self, queue_id: int, queue_offset: int, key: str) -> None:
        self.keys.append(key)
        self._add(queue_id, queue_offset, 1)

    def add_all(self, queue_id: int, offsets: Sequence[int]) -> None:
        if len(offsets) == offsets[-1] - offsets[0] + 1:
            self._add(queue_id, offsets[0], len(offsets))
            return
        start = 0
        for number, (one, other) in enumerate(pairwise(offsets), 1):
            if other != one + 1:
                self._add(queue_id, offsets[start], number - start)
                start = number
        self._add(queue_id, offsets[start], len(offsets) - start)

    def _add(self, queue_id: int, offset: int, count: int) -> None:
        self.count += count
        if self.runs:
            last_queue, last_offset, last_count = self.runs[-1]
            if last_queue == queue_id and last_offset + last_count == offset:
                self.runs[-1] = queue_id, last_offset, last_count + count
                return
        self.runs.append((queue_id, offset, count))


class _HandedOut:
    """What one pull hands out."""

    __slots__ = ("cursors", "holders", "others", "own", "scans")

    def __init__(self) -> None:
        self.own = _Stretches()
        self.others: dict[str, _Stretches] = {}
        #: By key, who gets it in this pull.
        self.holders: dict[str, str] = {}
        self.cursors: dict[int, int] = {}
        #: Stretches that may still be looked through.
        self.scans = SCANS_MAX

    def add(self, queue_id: int, offsets: Sequence[int]) -> None:
        self.own.add_all(queue_id, offsets)
