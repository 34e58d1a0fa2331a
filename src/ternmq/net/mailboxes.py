"""The jobs of one lane, a mailbox for each key (R4). Pure: no loop, no clock.

A key is the group that a request belongs to. Jobs of one key run in the order of arrival; of several keys, the one that
has used the least time is next (``choose``), and is charged for what its jobs took (``put_back``). Jobs without a key
share one mailbox, ``plain``, which takes part like any other. A lane without keys (sends) never touches the heap.

Time used is counted from a common level: a key that comes back from idleness starts level with the key that is being
served, so it can neither spend what it saved nor pay for what it used when the lane had nothing else to do. What a key
used beyond the level is remembered while the lane has work; when it ends a turn without any, all start again.

QMQ orders its actors by the time of their last run instead, because by total time a burst of a group that was quiet
for long would own all threads. Starting at the level avoids that, too, and still charges a group for slow requests.

**Topics take turns within their group.** A group has one mailbox, and in it a row of jobs for each topic. A slice
serves one row, which then goes behind the others: a request for a small urgent topic waits for one slice of a huge one,
and a group that consumes many topics still has the part of one group. Rows are not charged, as a slice is bounded in
time. They last only while they have jobs, and a group with one topic has one row.

A full lane takes the request of a group that has few waiting, and gives up the newest one of the group that has the
most (``victim``), or, where its bytes are too many, the most bytes (``heaviest``): a storm of one group pushes back
that group only.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, Final, TypeAlias

#: Keys whose use is remembered while they have no jobs; those beyond start level, as new ones do, and so do longer
#: ones: they come from outside, as long as a header may be, and no group that can be served has such a name.
PAST_MAX: Final = 10_000
PAST_KEY_LENGTH_MAX: Final = 255

#: Worker, request, when it arrived, and its bytes. A plain tuple: one is made for each request.
Job: TypeAlias = tuple[Any, Any, float, int]


class Mailbox:
    """Jobs of one key, by topic."""

    __slots__ = ("_behind", "_rows", "_topic", "jobs", "key", "longest", "queued_bytes", "used")

    def __init__(self, key: str | None) -> None:
        self.key = key
        #: The row whose turn it is, oldest first; it is empty only if all rows are, or while the mailbox is served.
        self.jobs: deque[Job] = deque()
        #: Of its jobs, if it has a key.
        self.queued_bytes = 0
        #: Seconds of work done, counted from the level at which it started.
        self.used = 0.0
        #: The row that had the most jobs when one was added last.
        self.longest = self.jobs
        self._topic: str | None = None
        #: Rows of other topics, in the order of their turns, and their jobs. Some may be empty.
        self._rows: dict[str | None, deque[Job]] = {}
        self._behind = 0

    @property
    def count(self) -> int:
        """Jobs of all rows."""
        return len(self.jobs) + self._behind

    def add(self, topic: str | None, job: Job) -> None:
        """Put a job at the end of the row of its topic."""
        if topic != self._topic and (self.jobs or self._rows):
            row = self._rows.get(topic)
            if row is None:
                row = self._rows[topic] = deque()
            self._behind += 1
        else:
            row, self._topic = self.jobs, topic
        row.append(job)
        if len(row) > len(self.longest):
            self.longest = row

    def turn(self) -> None:
        """The row had its turn: the next one with jobs has it now."""
        rows = self._rows
        while rows:
            row, topic = self.jobs, self._topic
            self._topic = next(iter(rows))
            self.jobs = rows.pop(self._topic)
            self._behind -= len(self.jobs)
            if row:
                rows[topic] = row
                self._behind += len(row)
            if self.jobs:
                return

    def take(self) -> Job:
        """Take the newest job out of the row that has the most, or of the one whose turn it is."""
        row = self.longest or self.jobs
        if row is not self.jobs:
            self._behind -= 1
        job = row.pop()
        if not self.jobs:
            self.turn()
        return job

    def oldest(self) -> float | None:
        """When the job arrived that waits longest; None without one."""
        return min((row[0][2] for row in (self.jobs, *self._rows.values()) if row), default=None)


class Mailboxes:
    """All methods are plain calls. The caller takes jobs out of mailboxes to run them, and tells ``done``."""

    __slots__ = (
        "_by_key",
        "_heaviest",
        "_level",
        "_longest",
        "_number",
        "_past",
        "has_keys",
        "jobs",
        "keyed",
        "keyed_bytes",
        "plain",
        "ready",
        "spent",
    )

    def __init__(self) -> None:
        #: Jobs with a key that wait, and their bytes.
        self.keyed = 0
        self.keyed_bytes = 0
        #: Whether there was a job with a key since the lane was last empty.
        self.has_keys = False
        #: Jobs without a key, for the hot path of lanes that have no others.
        self.plain = Mailbox(None)
        self.jobs = self.plain.jobs
        #: Mailboxes with keys that have jobs: time used, a number that keeps the order among equals, mailbox.
        self.ready: list[tuple[float, int, Mailbox]] = []
        #: By key: seconds of work in all, and slices. For operators; the longest names and too many are left out.
        self.spent: dict[str, tuple[float, int]] = {}
        self._by_key: dict[str, Mailbox] = {}
        #: By key without jobs: its time used.
        self._past: dict[str, float] = {}
        self._longest = self.plain
        self._heaviest = self.plain
        self._level = 0.0
        self._number = 0

    @property
    def count(self) -> int:
        """Jobs in all mailboxes."""
        return len(self.jobs) + self.keyed

    def find(self, key: str) -> Mailbox | None:
        """The mailbox of a key that has jobs, or is being served."""
        return self._by_key.get(key)

    def add(self, key: str, job: Job, topic: str | None = None) -> None:
        """Queue a job of a key, in the row of its topic."""
        box = self._by_key.get(key)
        if box is None:
            box = self._by_key[key] = Mailbox(key)
            if not self.has_keys:
                # Until now nothing was compared with the jobs without a key.
                self.has_keys = True
                self._level = self.plain.used
            box.used = max(self._past.pop(key, 0.0), self._level)
            self._push(box)
        box.add(topic, job)
        self.keyed += 1
        size = job[3]
        if size:
            self.keyed_bytes += size
            box.queued_bytes += size
            if box.queued_bytes > self._heaviest.queued_bytes:
                self._heaviest = box
        if box.count > self._longest.count:
            self._longest = box

    def done(self, box: Mailbox, count: int, size: int) -> None:
        """Jobs of ``size`` bytes were taken out of a mailbox with a key."""
        self.keyed -= count
        self.keyed_bytes -= size
        box.queued_bytes -= size

    def level_plain(self) -> None:
        """The first job without a key comes while jobs with keys wait: start level with them."""
        self.plain.used = max(self.plain.used, self._level)

    def take(self, box: Mailbox) -> Job:
        """Take the newest job out of a mailbox that has several: it is not run."""
        job = box.take()
        if box is not self.plain:
            self.done(box, 1, job[3])
        return job

    def next(self) -> Mailbox:
        """The mailbox that is next: the one that has used the least time. There must be a job."""
        ready, plain = self.ready, self.plain
        return plain if not ready or (plain.jobs and plain.used <= ready[0][0]) else ready[0][2]

    def choose(self) -> Mailbox:
        """Take the mailbox that is next; it must be given to ``put_back`` if it has a key. There must be a job."""
        box = self.next()
        self._level = box.used
        if box is not self.plain:
            heapq.heappop(self.ready)
        return box

    def put_back(self, box: Mailbox, used: float) -> None:
        """Charge a mailbox with a key for its jobs, and let it wait for its next turn if it has more."""
        box.used += used
        key = box.key
        assert key is not None
        self._spend(key, used)
        box.turn()
        if box.jobs:
            self._push(box)
            return
        del self._by_key[key]
        self._remember(key, box.used)

    def charge(self, key: str, used: float) -> None:
        """Charge a key for a job that had no place in a mailbox, as there was no other one."""
        if not self.has_keys:
            self.has_keys = True
            self._level = self.plain.used
        self._level = max(self._past.pop(key, 0.0), self._level)
        self._spend(key, used)
        self._remember(key, self._level + used)

    def _spend(self, key: str, used: float) -> None:
        spent = self.spent.get(key)
        if spent is not None:
            self.spent[key] = spent[0] + used, spent[1] + 1
        elif len(key) <= PAST_KEY_LENGTH_MAX:
            if len(self.spent) >= PAST_MAX:
                self.spent.clear()
            self.spent[key] = used, 1

    def _remember(self, key: str, used: float) -> None:
        """A key has no more jobs."""
        if len(key) > PAST_KEY_LENGTH_MAX:
            return
        if len(self._past) >= PAST_MAX:
            self._past = {key: used for key, used in self._past.items() if used > self._level}
            if len(self._past) >= PAST_MAX:
                self._past.clear()
        self._past[key] = used

    def rest(self) -> None:
        """Nothing waits, and some had keys: all start again."""
        self.has_keys = False
        self.plain.used = self._level = 0.0
        self._past.clear()
        self._longest = self._heaviest = self.plain

    def victim(self, key: str | None) -> Mailbox | None:
        """The mailbox whose newest job is to make room for one of ``key``; None if ``key`` itself has the most."""
        longest = self._longest if self._longest.count > self.plain.count else self.plain
        own = self.plain if key is None else self._by_key.get(key)
        return longest if longest.count > (own.count if own is not None else 0) + 1 else None

    def heaviest(self, key: str | None, size: int, plain_bytes: int) -> Mailbox | None:
        """The same by bytes, for a job of ``size``; ``plain_bytes`` are those of the jobs without a key. Only a mailbox
        with several jobs gives one up."""
        by_key = self._by_key
        if self._heaviest.queued_bytes * len(by_key) < self.keyed_bytes:
            # It has been served since, and has less than others now.
            self._heaviest = max(by_key.values(), key=_queued_bytes)
        own = by_key.get(key) if key is not None else self.plain
        own_bytes = 0 if own is None else plain_bytes if own is self.plain else own.queued_bytes
        box, most = self._heaviest, self._heaviest.queued_bytes
        if plain_bytes > most:
            box, most = self.plain, plain_bytes
        return box if most > own_bytes + size and box.count > 1 else None

    def oldest(self) -> float | None:
        """When the job arrived that waits longest; None without one."""
        arrived = [box.oldest() for box in (self.plain, *self._by_key.values())]
        return min((at for at in arrived if at is not None), default=None)

    def _push(self, box: Mailbox) -> None:
        self._number += 1
        heapq.heappush(self.ready, (box.used, self._number, box))


def _queued_bytes(box: Mailbox) -> int:
    return box.queued_bytes
