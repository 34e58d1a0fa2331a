"""Special entries of the schedule log, which RocketMQ leaves, are settled (I2).

There are two kinds (``hour_files.EntryKind``): a record that takes back another by its unique key, and one that was
written again on its way. Both are settled by closing records like everything else: those that are there when an hour is
loaded before it joins the wheel, those that come later between deliveries. All of one slot are settled with one look at
its messages: any client may send thousands of them, and no other message waits for that.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final

from ternmq.delay.entry_records import EntryRecords
from ternmq.delay.hour_files import EntryKind, HourFiles, IndexLine
from ternmq.delay.recalls import RECALLED, SETTLED
from ternmq.delay.wheel import HourWheel
from ternmq.message import Property
from ternmq.wire import properties as props

#: Entries of a slot that are compared with what takes back, before other work gets its turn, and bytes of their
#: records, which are read for that: some 3 ms.
_COMPARED: Final = 500
_COMPARED_BYTES: Final = 1 << 20
#: Characters of keys that are looked for with one look at the messages of a slot.
_WANTED_MAX: Final = 1 << 20
#: Higher than any number of an entry.
_ALL: Final = 1 << 62
#: Of a key in memory, besides its characters.
_KEY_COST: Final = 200

_real_topic = props.getter(Property.REAL_TOPIC)
_unique_key = props.getter(Property.UNIQUE_KEY)
_delete_key = props.getter(Property.TIMER_DELETE_KEY)


class _Turn:
    """How much was done since other work had its turn."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries = self._bytes = 0

    def is_over(self, read_bytes: int = 0) -> bool:
        """Whether another entry, for which so many bytes were read, is the last of this turn."""
        self._entries += 1
        self._bytes += read_bytes
        if self._entries < _COMPARED and self._bytes < _COMPARED_BYTES:
            return False
        self._entries = self._bytes = 0
        return True


class SpecialEntries:
    """What is settled in one term. Belongs to the broker's loop."""

    def __init__(self, records: EntryRecords) -> None:
        self._records = records
        #: By hour, the work that was begun, and the hours for which it was once done.
        self._begun: dict[int, Iterator[None]] = {}
        self._settled: set[int] = set()

    def is_settled(self, hour: int) -> bool:
        """Whether all entries were settled once that an hour had at the beginning."""
        return hour in self._settled

    def forget(self, hour: int) -> None:
        self._begun.pop(hour, None)
        self._settled.discard(hour)

    def go_on(self, files: HourFiles, wheel: HourWheel) -> None:
        """Go on with the special entries of an hour, for one turn."""
        work = self._begun.pop(files.hour, None) or self._settle_hour(files, wheel)
        for _ in work:
            self._begun[files.hour] = work
            return
        self._settled.add(files.hour)

    def _settle_hour(self, files: HourFiles, wheel: HourWheel) -> Iterator[None]:
        """Settle the special entries that are there now, slot by slot; gives way to other work now and then."""
        slots: dict[int, list[int]] = {}
        turn = _Turn()
        for number in list(wheel.special):
            entry = files.entry(number)
            if entry is not None:
                slots.setdefault(entry.slot_ms, []).append(number)
            else:
                del wheel.special[number]
            if turn.is_over():
                yield
        for count, (slot_ms, numbers) in enumerate(slots.items()):
            if count:
                yield
            while numbers:
                yield from self._settle(files, wheel, slot_ms, numbers)

    def _settle(self, files: HourFiles, wheel: HourWheel, slot_ms: int, numbers: list[int]) -> Iterator[None]:
        """Close what special entries of one slot take back or replace: the last of ``numbers``, which are taken out of
        it, as many as have keys of ``_WANTED_MAX``."""
        #: By topic and key: messages with a lower number than this are closed.
        wanted: dict[tuple[str | None, str], int] = {}
        settled: list[tuple[int, IndexLine]] = []
        length, turn = 0, _Turn()
        while numbers and length <= _WANTED_MAX:
            number = numbers.pop()
            entry = files.entry(number)
            read_bytes = 0
            if entry is not None and not wheel.is_closed(number):
                read_bytes = entry.size
                for name in self._settled_names(files, entry):
                    wanted[name] = max(wanted.get(name, 0), _ALL if entry.kind == EntryKind.TAKES_BACK else number)
                    length += len(name[1]) + _KEY_COST
            if entry is not None:
                settled.append((number, entry))
            if turn.is_over(read_bytes):
                yield
        hashes = {entry.topic_hash for _, entry in settled}
        for other in wheel.in_slot(slot_ms) if wanted else ():
            if turn.is_over(self._settle_one(files, wheel, other, slot_ms, hashes, wanted)):
                yield
        for number, entry in settled:
            read_bytes = 0
            if entry.kind == EntryKind.TAKES_BACK and not wheel.is_closed(number):
                read_bytes = entry.size
                self._records.close(entry, self._records.read(files, entry), SETTLED)
                wheel.give_up(number)
            # Not before: a full disk makes it try again.
            wheel.special.pop(number, None)
            if turn.is_over(read_bytes):
                yield

    def _settled_names(self, files: HourFiles, entry: IndexLine) -> Iterator[tuple[str | None, str]]:
        """Topic and key of the messages that a special entry takes back or replaces."""
        record = self._records.read(files, entry)
        if record is None:
            return
        topic = _real_topic(record.properties)
        key = (_delete_key if entry.kind == EntryKind.TAKES_BACK else _unique_key)(record.properties)
        if key:
            yield topic, key
            # RocketMQ 5.3.2 puts the topic in front of the key.
            if key.startswith(f"{topic}+"):
                yield topic, key.removeprefix(f"{topic}+")

    def _settle_one(
        self,
        files: HourFiles,
        wheel: HourWheel,
        number: int,
        slot_ms: int,
        hashes: Container[int],
        wanted: Mapping[tuple[str | None, str], int],
    ) -> int:
        """Close a message if it is wanted; how many bytes were read for that."""
        entry = files.entry(number)
        if (
            entry is None
            or wheel.is_closed(number)
            or entry.slot_ms != slot_ms
            or entry.topic_hash not in hashes
            or entry.kind == EntryKind.TAKES_BACK
        ):
            return 0
        record = self._records.read(files, entry)
        if record is None:
            return entry.size
        below = wanted.get((_real_topic(record.properties), _unique_key(record.properties) or ""))
        if below is not None and number < below:
            self._records.close(entry, record, RECALLED if below == _ALL else SETTLED)
            # At once: the mark is read in a later turn, and another entry may name the same message.
            wheel.give_up(number)
        return entry.size
