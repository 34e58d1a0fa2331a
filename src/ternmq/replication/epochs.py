"""Epochs: which master wrote which part of a log (O1).

Each promotion begins an *epoch*: a number that only grows, and the log offset from which on the new master writes. The
list of them tells what two logs have in common: both have the same bytes up to the end of the last epoch that both
have. There each log ends that epoch where its next one begins, or where it ends itself; the smaller of the two is the
*common end*::

    old master   | 1 ...................................... 1000
    new master   | 1 ............................ 900 | 2 ........ 1500
                                                   ^ common end

The file is RocketMQ's ``epochFileCheckpoint``: the number of epochs, the CRC of what follows (0: it is not checked),
and a line ``epoch-startOffset`` for each. A log without the file has one epoch, 1, from its beginning on: that two logs
have it says nothing about their bytes, which are compared as well (``replication.history``).

An epoch that begins where the log ends, or behind that, has no record yet and does not count.

A number is a *round* and a *node*: ``round * 100 + brokerId``, the id as the settings of the promoted broker have it,
which no promotion changes. Each promotion begins the next round after all that it has heard of. So two brokers that are
promoted at the same time, or out of each other's sight, never begin the same epoch, by force or not: no vote is needed
for that, and the larger number decides which of them stays the master. A store from before this rule has small numbers,
which count as round 0.

Only the newest ``EPOCHS_MAX`` are kept: nodes tell each other all of them in one text (``replication.stream``). A node
that has no epoch in common with its master any more was away for so many promotions, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self
from zlib import crc32

import msgspec

from ternmq.wire.requests import Int64

FILE_NAME: Final = "epochFileCheckpoint"
#: What is kept, and read from a file or another node. With the samples of a log they fit into one text.
EPOCHS_MAX: Final = 100
#: Ids of the brokers of one name that are told apart in the number of an epoch.
NODES_MAX: Final = 100
#: The largest number that is believed of another node. A promotion adds about a hundred. A number that is damaged, or a
#: lie, would be in the files of all nodes, and leave no room for the next one.
HEARD_MAX: Final = 1 << 32
_INT64_MAX: Final = (1 << 63) - 1


class Epoch(msgspec.Struct, frozen=True, rename="camel"):
    """From ``start`` on, a log offset, records were written in this epoch."""

    number: Int64
    start: Int64


@dataclass(slots=True, frozen=True)
class Epochs:
    """The epochs of one log, the oldest first; there is at least one."""

    entries: tuple[Epoch, ...] = (Epoch(1, 0),)

    @classmethod
    def of(cls, entries: Iterable[Epoch]) -> Self:
        """Raises ``ValueError`` if numbers or starts do not grow."""
        found = tuple(entries)
        if not found:
            return cls()
        if found[0].number < 1 or found[0].start < 0:
            raise ValueError("the first epoch is not valid")
        if found[-1].number > _INT64_MAX or found[-1].start > _INT64_MAX:
            raise ValueError(f"the last epoch is larger than {_INT64_MAX}")
        for before, after in pairwise(found):
            if after.number <= before.number or after.start < before.start:
                raise ValueError(f"epoch {after.number} does not follow epoch {before.number}")
        return cls(found[-EPOCHS_MAX:])

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the file. Raises ``ValueError``."""
        count, crc, *lines = data.decode("ascii").split()
        text = "".join(f"{line}\n" for line in lines)
        if int(crc) and int(crc) != _crc(text):
            raise ValueError("its checksum is wrong")
        if int(count) != len(lines):
            raise ValueError(f"it has {len(lines)} epochs instead of {count}")
        pairs = (line.split("-") for line in lines)
        return cls.of(Epoch(int(number), int(start)) for number, start in pairs)

    def format(self) -> bytes:
        """The content of the file."""
        text = "".join(f"{each.number}-{each.start}\n" for each in self.entries)
        return f"{len(self.entries)}\n{_crc(text)}\n{text}".encode()

    @property
    def newest(self) -> int:
        """The largest number that this node has heard of."""
        return self.entries[-1].number

    def within(self, end: int) -> Self:
        """Those that have records in a log that ends at ``end``."""
        return type(self)(tuple(each for each in self.entries if each.start < end) or self.entries[:1])

    def begun(self, end: int, number: int) -> Self:
        """With one more epoch, in which a log that ends at ``end`` goes on."""
        assert number > self.newest, "numbers of epochs grow"
        kept = self.within(end).entries if end else ()
        return type(self)((*kept, Epoch(number, end))[-EPOCHS_MAX:])

    def ends(self, end: int) -> list[tuple[Epoch, int]]:
        """Each with its end, in a log that ends at ``end``."""
        following = [each.start for each in self.entries[1:]] + [end]
        return [(each, min(stop, end)) for each, stop in zip(self.entries, following, strict=True)]


def next_number(newest: int, broker_id: int) -> int:
    """The number of the epoch that a broker begins, which has heard of ``newest``; ``broker_id`` is that of its
    settings."""
    return (newest // NODES_MAX + 1) * NODES_MAX + broker_id % NODES_MAX


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int, *, below: int | None = None) -> int:
    """The log offset up to which two logs are equal as far as epochs tell; 0: they share none.

    Two nodes that have the same id in their settings, and were promoted each without the other, may have an epoch of
    the same number and start with different records. If the bytes before an offset have turned out to differ, ``below``
    asks for the next smaller one: the beginning of an epoch.
    """
    others = {(each.number, each.start): stop for each, stop in theirs.within(their_end).ends(their_end)}
    for each, stop in reversed(ours.within(our_end).ends(our_end)):
        if (each.number, each.start) in others:
            for end in (min(stop, others[each.number, each.start]), each.start):
                if below is None or end < below:
                    return end
    return 0


def _crc(text: str) -> int:
    # RocketMQ keeps the sign bit out.
    return crc32(text.encode()) & 0x7FFFFFFF
