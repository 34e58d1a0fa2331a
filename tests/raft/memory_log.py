"""A log in memory, with a disk below it: what is written, and what of it survives a power cut."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from ternmq.raft.group import Members

#: What one entry counts in windows.
ENTRY_BYTES: Final = 100


class Entry(NamedTuple):
    term: int
    payload: str
    #: Who the members are from this entry on.
    members: Members | None = None


class MemoryLog:
    """``entries[i]`` is entry ``first_index + i``. ``image``: the same as it is on disk."""

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        *,
        first_index: int = 0,
        base: Members | None = None,
        prev_term: int | None = None,
    ) -> None:
        self.first_index = first_index
        self.entries = list(entries)
        #: The entries that name the members; and the members by the newest that was deleted.
        self._named: list[tuple[int, Members]] = []
        self._base = base
        #: The term of the entry before the first one, if it is known.
        self._prev_term = prev_term
        self._look()
        self.image = list(entries)
        #: Up to here the log is on disk.
        self.synced = self.last_index
        #: Grows with each truncation: a sync that began before does not count.
        self.cuts = 0

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def term_of(self, index: int) -> int | None:
        at = index - self.first_index
        if at == -1 and index >= 0:
            return self._prev_term
        return self.entries[at].term if 0 <= at < len(self.entries) else None

    @property
    def members(self) -> Members | None:
        return self._named[-1][1] if self._named else self._base

    @property
    def members_index(self) -> int:
        return self._named[-1][0] if self._named else -1

    def span(self, first_index: int, bytes_max: int) -> tuple[int, int]:
        count = min(max(bytes_max // ENTRY_BYTES, 1), self.last_index - first_index + 1)
        return first_index + count - 1, count * ENTRY_BYTES

    def between(self, first: int, last: int) -> list[Entry]:
        return self.entries[first - self.first_index : last - self.first_index + 1]

    def append(self, first_index: int, entries: Sequence[Entry]) -> None:
        assert first_index == self.last_index + 1, f"entry {first_index} behind {self.last_index}"
        for index, entry in enumerate(entries, first_index):
            if entry.members is not None:
                self._named.append((index, entry.members))
        self.entries.extend(entries)

    def truncate(self, index: int) -> None:
        assert self.first_index <= index <= self.last_index
        del self.entries[index - self.first_index :]
        # At once, as the store does it: a saved commit index would count what came back.
        del self.image[index - self.first_index :]
        self._look()
        self.synced = min(self.synced, index - 1)
        self.cuts += 1

    def sync(self, last_index: int) -> None:
        """What was written up to ``last_index`` is on disk."""
        self.image = self.entries[: last_index - self.first_index + 1]
        self.synced = max(self.synced, last_index)

    def drop_before(self, index: int) -> None:
        """Retention."""
        count = index - self.first_index
        if 0 < count <= len(self.entries):
            self._base = self.members_at(index - 1)
            self._prev_term = self.term_of(index - 1)
            del self.entries[:count]
            del self.image[:count]
            self.first_index = index
            self.synced = max(self.synced, index - 1)
            self._look()

    def cut_power(self, random: Random) -> None:
        """The log as it is found afterwards: what was synced, and any part of what was not."""
        if random.random() < 0.3:
            self.entries = list(self.image)
        else:
            del self.entries[random.randint(len(self.image), len(self.entries)) :]
        self.image = list(self.entries)
        self._look()
        self.synced = self.last_index
        self.cuts += 1

    def members_at(self, index: int) -> Members | None:
        """Who the members were by the entries up to ``index``."""
        return next((members for at, members in reversed(self._named) if at <= index), self._base)

    def _look(self) -> None:
        named = ((index, entry.members) for index, entry in enumerate(self.entries, self.first_index))
        self._named = [(index, members) for index, members in named if members is not None]
