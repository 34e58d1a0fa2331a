"""A key at a time: which consumer holds messages of which key, where a group keeps their order (R1).

Where one consumer at a time may hold messages of a key, a message whose key another consumer holds goes into *its* pull
log: it finds it there with its next pull, as it finds what it never saw. So keys stay together without a table of
owners, and a pull passes by what others must get (``take``).

Which keys are held is in memory only. For what was held before, in an earlier term or in a time without order, the keys
are read from the records: one slice with the first pull, which is enough for most groups, and others by the term's
runner (``read``). Until all are known there is nothing new for the group, and its pulls wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from ternmq.message import Property
from ternmq.share.actions import LOST
from ternmq.share.pull_log import Run
from ternmq.share.state import Place, PlaceKey, ShareState
from ternmq.share.wish import ColdPlace, records_in
from ternmq.store.read.taking import TakeStore
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.record import peek_properties

#: Characters of a key that are kept as they are. A key may have 32 KB, and there is one for each held message.
_KEY_MAX: Final = 64
#: What the key of a held message takes in memory, about.
_KEY_BYTES: Final = 300
#: Held messages whose keys are read in one turn of the loop, and their bytes; the last one may go beyond. Runs and
#: consumers count as messages do.
KEYS_MAX: Final = 256
KEYS_BYTES_MAX: Final = 1024 * 1024


class KeyHolders:
    """Of one place: which consumer holds messages of which key, and how many."""

    __slots__ = ("_by_key", "_of", "count", "unread")

    def __init__(self, unread: dict[str, int]) -> None:
        """``unread``: consumers whose keys are not all known, and the number up to which they are."""
        self.unread = unread
        #: Messages with a key that are held.
        self.count = 0
        self._by_key: dict[str, tuple[str, int]] = {}
        #: By consumer and number, the key.
        self._of: dict[str, dict[int, str]] = {}

    def holder(self, key: str) -> str | None:
        held = self._by_key.get(key)
        return held[0] if held is not None else None

    def add(self, consumer: str, number: int, key: str) -> None:
        self.count += 1
        self._of.setdefault(consumer, {})[number] = key
        held = self._by_key.get(key)
        self._by_key[key] = consumer, 1 if held is None else held[1] + 1

    def remove(self, consumer: str, first: int, last: int) -> list[tuple[int, str]]:
        """Forget numbers; returns those of them that have a key, in order, and their keys."""
        numbers = self._of.get(consumer)
        if numbers is None:
            return []
        if last - first < len(numbers):
            meant = [number for number in range(first, last + 1) if number in numbers]
        else:
            # A range may span all that the consumer was ever given.
            meant = sorted([number for number in numbers if first <= number <= last])
        removed = [(number, numbers.pop(number)) for number in meant]
        for _, key in removed:
            holder, count = self._by_key.pop(key)
            if count > 1:
                self._by_key[key] = holder, count - 1
        self.count -= len(removed)
        if not numbers:
            del self._of[consumer]
        return removed

    def note(self, consumer: str, first: int, keys: Sequence[str]) -> None:
        """A consumer was given messages with these keys ("": none), numbered from ``first`` on."""
        for number, key in enumerate(keys, first):
            if key:
                self.add(consumer, number, key)


class ShareKeys:
    """Of one term, all places where order is kept. All methods belong to the broker's loop."""

    def __init__(self, *, store: TakeStore, state: ShareState) -> None:
        self._store = store
        self._state = state
        self.by_place: dict[PlaceKey, KeyHolders] = {}
        #: Those of them where messages wait for a consumer that has too many.
        self.blocked: set[PlaceKey] = set()

    @property
    def memory_bytes(self) -> int:
        """About what the keys take in memory."""
        return sum([keys.count for keys in self.by_place.values()]) * _KEY_BYTES

    def of(self, place: Place) -> KeyHolders:
        """The keys of a place; of what is held from before, those of a first slice."""
        keys = self.by_place.get(place.key)
        if keys is None:
            unread = {name: -1 for name, log in place.consumers.items() if log.runs and name != LOST}
            keys = self.by_place[place.key] = KeyHolders(unread)
            self.read(place.key)
        return keys

    def unread(self) -> list[PlaceKey]:
        """Places whose keys are not all known."""
        return [key for key, keys in self.by_place.items() if keys.unread]

    def read(self, place_key: PlaceKey, *, read: ColdPlace | None = None) -> ColdPlace | None:
        """Read the keys of some more held messages of a place; returns what another thread must read before.

        All is found by the state of now: between two calls messages may be confirmed, or another consumer's.
        """
        place, keys = self._state.places.get(place_key), self.by_place.get(place_key)
        if place is None or keys is None:
            return None
        count_left, bytes_left = KEYS_MAX, KEYS_BYTES_MAX
        while keys.unread and count_left > 0 and bytes_left > 0:
            consumer, known = next(iter(keys.unread.items()))
            log = place.consumers.get(consumer)
            run = log.first_behind(known) if log is not None else None
            if run is None:
                del keys.unread[consumer]
                count_left -= 1
                continue
            is_read = read is not None and (read.queue_id, read.queue_offset) == (run.queue_id, run.offset)
            count = min(run.count, count_left)
            found = self._store.get(
                place.topic,
                run.queue_id,
                run.offset,
                count_max=min(count, read.count) if is_read and read is not None else count,
                bytes_max=bytes_left,
                leave_cold=not is_read,
            )
            if found.cold is not None:
                return ColdPlace(run.queue_id, run.offset, max(found.next_offset - run.offset, 1), found.cold)
            for record, queue_offset in records_in(found.buffers):
                key = key_in(record)
                if key and queue_offset < run.offset + run.count:
                    keys.add(consumer, run.first + queue_offset - run.offset, key)
            # Where nothing can be read, retention has deleted the messages, or the topic was made anew.
            step = min(found.next_offset - run.offset, run.count)
            keys.unread[consumer] = run.first + step - 1 if step > 0 else run.last
            count_left -= max(found.count, 1)
            bytes_left -= found.body_bytes
        return None

    def release(self, group: str, topic: str, consumer: str, first: int, last: int) -> None:
        """Numbers of a consumer are confirmed: their keys are free."""
        keys = self.by_place.get((group, topic))
        if keys is not None:
            keys.remove(consumer, first, last)

    def moved(self, group: str, topic: str, runs: Sequence[Run], consumer: str, to: str, at: int) -> None:
        """Runs of a consumer are another's now, numbered from ``at`` on."""
        keys = self.by_place.get((group, topic))
        if keys is None:
            return
        if keys.unread:
            # Perhaps not all of them are known: they are read as the other's.
            keys.unread.setdefault(to, at - 1)
        for run in runs:
            for number, key in keys.remove(consumer, run.first, run.last):
                if to not in keys.unread:
                    keys.add(to, at + number - run.first, key)
            at += run.count

    def forget(self, key: PlaceKey) -> None:
        """A place is gone."""
        self.by_place.pop(key, None)
        self.blocked.discard(key)


def key_of(properties: str) -> str:
    """The key whose messages must not be held by two consumers: the sharding key, else the keys; "" without one."""
    key = props.find(properties, Property.SHARDING_KEY) or props.find(properties, Property.KEYS) or ""
    return key if len(key) <= _KEY_MAX else f"#{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def key_in(record: Buffer) -> str:
    """The same, of a record."""
    return key_of(peek_properties(record, 0, len(record)) or "")
