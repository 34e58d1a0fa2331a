"""Retention: old segments of the log are deleted, and what is derived from them follows (C9).

Every 10 s one look at the disk decides, by the age of the oldest segments and by the water marks::

    disk in use            up to 75 %                 above             above 85 %                   above 90 %
    segments are deleted   in the hours of            at any hour,      whatever their age,          the same
                           deleteWhen, if old         if old            until 85 % is reached
    messages are           taken                      taken             taken                        refused

*Old* means not written to for ``fileReservedTime`` hours, by the file's own time, so a copy of a directory that does
not keep times starts them anew. Consumed or not makes no difference. The oldest go first, ten after one look, and never
the last. (Above 85 % RocketMQ deletes ten, we as many as it takes.) Refused messages are taken again when 85 % is
reached, not at the first free byte: a disk that hovers around one mark should not refuse every other send.

No request waits for a deletion. Looking at the disk and removing a GiB (80 ms here, and 30 more to unmap it) is done on
the chores thread; views in replies on their way keep their mapping alive. The store's thread only decides and forgets::

    tick ─▶ (chores) look ─▶ decide: forget segments ─▶ (chores) remove their files
         ─▶ queues, 64 at a time: new minimum, files that lie before it ─▶ index files

So a read may find an entry whose record is gone (MESSAGE_WAS_REMOVING) until its queue's turn has come. A crash in
between leaves queues and index behind; the first look after a start lets them follow again. They never go ahead: a
file that cannot be removed is part of the log again after a start, and everything in it is found.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from ternmq.env import Clock
from ternmq.errors import StoreError
from ternmq.files import Work
from ternmq.names import is_system_topic
from ternmq.store.config import StoreConfig
from ternmq.store.derived.index import Index
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.base import Disk, DiskUsage
from ternmq.store.durable.mailbox import StoreJob
from ternmq.store.log.protocol import Log

log = logging.getLogger(__name__)

#: Seconds after the start at which the first look comes: recovery and the first sends have the disk to themselves.
FIRST_LOOK_S: Final = 60.0
#: How many looks an administrator's order holds for (RocketMQ's ``MANUAL_DELETE_FILE_REPEAT_TIMES``).
ROUNDS_ASKED: Final = 20
#: Queues, and files of queues, dealt with in one go on the store's thread: 1 or 2 ms.
QUEUES_AT_ONCE: Final = 64
FILES_AT_ONCE: Final = 8

_HOUR_MS: Final = 3_600_000
_END: Final = object()


class Look(NamedTuple):
    """What the disk looks like."""

    #: The directory on the fullest disk, and how full that is.
    path: Path
    usage: DiskUsage
    #: When the oldest segments were last written to, oldest first.
    modified_ms: list[int]
    #: Directories of the log on disks above the middle mark.
    full: frozenset[Path] = frozenset()


class Marks(NamedTuple):
    """The water marks, in percent, and whether the middle one may delete what is not old."""

    clean: int
    force: int
    refuse: int
    may_force: bool


def is_full(percent: int, marks: Marks, *, was_full: bool) -> bool:
    """Whether messages are refused: from the last mark on, and then until the one before is reached."""
    return percent > (min(marks.force, marks.refuse) if was_full else marks.refuse)


def count_to_delete(
    look: Look, marks: Marks, *, is_time: bool, now_ms: int, reserved_ms: int, segment_bytes: int
) -> int:
    """How many of the oldest segments go; ``is_time``: the hour has come, or an administrator wants it."""
    percent = look.usage.percent
    old = 0
    if is_time or percent > marks.clean:
        fresh = (number for number, each in enumerate(look.modified_ms) if each + reserved_ms > now_ms)
        old = next(fresh, len(look.modified_ms))
    forced = 0
    if percent > marks.force and marks.may_force:
        used_bytes, free_bytes = look.usage
        excess_bytes = used_bytes - (used_bytes + free_bytes) * marks.force // 100
        forced = min(-(-excess_bytes // segment_bytes), len(look.modified_ms))
    return max(old, forced)


class Retention:
    """Keeps one store's directories from filling up. Methods belong to the store's thread.

    ``chores`` runs what may wait for the disk, ``post`` brings a call back to the store's thread. ``needed`` is the log
    offset from which on records must stay, ``hurry`` asks for it to move on.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        disk: Disk,
        commit_log: Log,
        queues: ConsumeQueues,
        index: Index | None,
        needed: Callable[[], int | None],
        hurry: Callable[[], object],
        chores: Callable[[Work], object],
        post: Callable[[StoreJob], object],
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._needed = needed
        self._hurry = hurry
        self._chores = chores
        self._post = post
        self.apply(config)
        self._due_at = clock.monotonic() + FIRST_LOOK_S
        self._is_looking = False
        self._rounds_asked = 0
        #: Files of segments that the log has forgotten, oldest first. Both threads, one at each end.
        self._undeleted: deque[Path] = deque()
        #: Log minimum that queues and index have followed to, and the steps of a pass over them that is under way.
        self._followed = -1
        self._steps: Iterator[None] | None = None
        self._closed = False
        #: Whether a log line has told that the disk fills up and nothing can be done.
        self._has_warned = False
        #: Why messages are refused; empty while they are taken.
        self.refusal = ""

    def apply(self, config: StoreConfig) -> None:
        """Take settings; they count from the next look on."""
        self._marks = Marks(
            config.clean_percent, config.force_percent, config.refuse_percent, config.clean_file_forcibly_enable
        )
        self._hours = config.delete_hours
        #: How old a segment must be before it may be deleted.
        self.reserved_ms = config.file_reserved_time * _HOUR_MS
        self._batch_max = config.delete_file_batch_max
        self._interval_s = config.clean_resource_interval / 1000

    def tick(self) -> None:
        """Look, if it is time to; to be called every second or so."""
        now = self._clock.monotonic()
        if now < self._due_at or self._is_looking or self._closed:
            return
        self._due_at = now + self._interval_s
        self._is_looking = True
        oldest = self._log.oldest(self._batch_max)
        self._chores(lambda: self._look(oldest))

    def ask(self) -> None:
        """Delete what is old now, whatever the hour; and again at the next looks, if one is not enough."""
        self._rounds_asked = ROUNDS_ASKED
        self._due_at = self._clock.monotonic()

    def close(self) -> None:
        """Do nothing any more, also when a look or a pass comes back."""
        self._closed = True

    # --- The chores thread ----------------------------------------------------------------------------------------

    def _look(self, oldest: list[Path]) -> None:
        try:
            self._remove_undeleted()
            in_logs = [(self._disk.usage(path), path) for path in self._log.directories.writable]
            # Of several log directories the emptiest counts, as new segments can go there.
            in_log = min(in_logs, key=_percent)
            in_queues = self._disk.usage(self._queues.directory), self._queues.directory
            usage, path = max(in_log, in_queues, key=_percent)
            full = frozenset(path for usage, path in in_logs if usage.percent > self._marks.force)
            look = Look(path, usage, [self._disk.modified_ms(path) for path in oldest], full)
        except StoreError as error:
            log.warning("the disk could not be looked at; nothing is deleted", extra={"error": str(error)})
            self._post(self._end_look)
        else:
            self._post(lambda: self._decide(look))

    def _remove_and_tell(self) -> None:
        self._remove_undeleted()
        self._post(self._begin_to_follow)

    def _ask_for_more(self) -> None:
        self._post(self._continue)

    def _remove_undeleted(self) -> None:
        """Remove files in order, each for good before the next: a log with a gap would not open."""
        while self._undeleted:
            path = self._undeleted[0]
            try:
                self._disk.remove(path)
                self._disk.sync_names(path.parent)
            except StoreError as error:
                log.warning("a segment could not be deleted; tried again", extra={"error": str(error)})
                return
            self._undeleted.popleft()

    def _remove_index_file(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except StoreError as error:
            # The next start finds it, and the first look after that removes it.
            log.warning("an index file could not be deleted", extra={"error": str(error)})

    # --- Deciding -------------------------------------------------------------------------------------------------

    def _end_look(self) -> None:
        self._is_looking = False

    def _decide(self, look: Look) -> None:
        self._is_looking = False
        if self._closed:
            return
        self._log.directories.full = look.full
        self._judge(look)
        now_ms = self._clock.now_ms()
        count = count_to_delete(
            look,
            self._marks,
            is_time=self._rounds_asked > 0 or time.localtime(now_ms // 1000).tm_hour in self._hours,
            now_ms=now_ms,
            reserved_ms=self.reserved_ms,
            segment_bytes=self._log.segment_bytes,
        )
        self._rounds_asked = max(self._rounds_asked - 1, 0)
        deleted = self._delete(count)
        percent = look.usage.percent
        if deleted:
            extra = {"segments": deleted, "log_begins": self._log.begin, "disk_percent": percent}
            log.info("old segments deleted", extra=extra)
        elif percent > self._marks.force and not self._has_warned:
            log.warning("the disk fills up and no segment can go", extra={"path": str(look.path), "percent": percent})
        self._has_warned = not deleted and percent > self._marks.force
        self._begin_to_follow()

    def _judge(self, look: Look) -> None:
        was_full, percent = bool(self.refusal), look.usage.percent
        extra = {"path": str(look.path), "percent": percent}
        if not is_full(percent, self._marks, was_full=was_full):
            self.refusal = ""
            if was_full:
                log.info("messages are taken again", extra=extra)
            return
        refuse, again = self._marks.refuse, min(self._marks.force, self._marks.refuse)
        self.refusal = (
            f"the disk of {look.path} is {percent} % full: no message is taken above {refuse} %, until it is down to "
            f"{again} %; free some space there, lower fileReservedTime, or give the store a larger disk"
        )
        # The next append has to ask for room, and hears of it.
        self._log.window.shut()
        if not was_full:
            log.error("no more messages are taken", extra=extra)

    def _delete(self, count: int) -> int:
        """Forget the oldest segments, as far as they are not needed, and have their files removed; returns how many."""
        commit_log, needed = self._log, self._needed()
        if needed is not None:
            free = max(needed - commit_log.begin, 0) // commit_log.segment_bytes
            if free < min(count, len(commit_log.oldest(count))):
                self._hurry()
            count = min(count, free)
        count = min(count, len(commit_log.oldest(count)))
        for _ in range(count):
            self._undeleted.append(commit_log.drop_first())
        if count:
            self._chores(self._remove_and_tell)
        return count

    # --- Following ------------------------------------------------------------------------------------------------

    def _gone_until(self) -> int:
        """Log offset before which no file is left: where the log would begin if it were opened now."""
        try:
            return min(self._log.begin, int(self._undeleted[0].name))
        except IndexError:
            return self._log.begin

    def _begin_to_follow(self) -> None:
        if not self._closed and self._steps is None and self._followed != self._gone_until():
            self._steps = self._follow()
            self._continue()

    def _continue(self) -> None:
        """One step of the pass; the next comes when others had their turn."""
        steps, self._steps = self._steps, None
        if self._closed or steps is None:
            return
        if next(steps, _END) is not _END:
            self._steps = steps
            self._chores(self._ask_for_more)

    def _follow(self) -> Iterator[None]:
        """Let queues and index forget what the log has forgotten; each step is short."""
        log_min = self._gone_until()
        files = 0
        for number, queue in enumerate(list(self._queues), 1):
            try:
                queue.raise_min(log_min)
                while queue.drop_old_file():
                    files += 1
                    if files % FILES_AT_ONCE == 0:
                        yield
            except StoreError as error:
                log.warning("a queue could not follow the log", extra={"error": str(error)})
            if number % QUEUES_AT_ONCE == 0:
                yield
        if self._index is not None:
            for path in self._index.drop_before(log_min):
                self._chores(partial(self._remove_index_file, path))
        self._followed = log_min

    def drop_expired_queues(self) -> None:
        """Delete the files of queues that have no record any more, but for those of system topics.

        Their numbering goes on as long as the store is open; after that they begin with 0, as in RocketMQ.
        """
        running = self._steps
        self._steps = chain(running or (), self._drop_expired())
        if running is None:
            self._continue()

    def _drop_expired(self) -> Iterator[None]:
        log_min = self._gone_until()
        for number, queue in enumerate(list(self._queues), 1):
            if 0 < queue.log_end <= log_min and not is_system_topic(queue.topic):
                extra = {"topic": queue.topic, "queue_id": queue.queue_id}
                try:
                    queue.begin_at(queue.next_offset)
                    self._queues.files.remove(queue.directory)
                except StoreError as error:
                    log.warning("an expired queue could not be deleted", extra=extra | {"error": str(error)})
                else:
                    log.info("an expired queue was deleted", extra=extra)
            if number % FILES_AT_ONCE == 0:
                yield


def _percent(use: tuple[DiskUsage, Path]) -> int:
    return use[0].percent
