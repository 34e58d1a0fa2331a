"""Derived parts: files that are folded from the log on every node, beside queues and index (C5).

A part names the topics whose records it needs. The store resolves that once for each queue, so records of other topics
cost nothing. A part also hears of *closing records*: records of any topic that close an earlier record, for example the
delivery of a delayed message, which closes the record that waited. The life of a part::

    load ── fold, fold_closing … ── cut ──▶ open ── fold … ─┬─ write_out ─ sync ─ synced ─┬─▶ close: write_out ─ sync ─
            (recovery)                                      └──── each flush pass ────────┘   synced, all of it twice

Rules that the store keeps:

- Records arrive in log order, and each one once. Recovery starts with the smallest ``load()`` of all parts. A part gets
  only records that lie at its own ``load()`` or behind it.
- Only confirmed records are folded. They are never taken back while the store is open.
- The deletion of a topic does not concern parts: a fold of the log must give the same before and after it.
- Retention deletes a segment only when each part has its records on the disk (``synced``). If ``load()`` lies before
  the log's beginning, the missing records were either synced by the part, or the part is new in this directory. So the
  fold starts where the log begins, and this is no error.

Rules for a part:

- It uses its own files through ``Disk`` only. It uses no loop, timer, clock or network, because recovery folds on
  another thread. It never appends to the log.
- A part that sees no record for a long time cannot know how far the log has come. So it keeps the offset of the last
  ``synced`` and writes it to its files with the next ``write_out``; then ``load`` can return it. A store that closes
  calls both twice, so it has nothing to fold afterwards.
- What its files have of one record is found whole after a crash, or not at all. A part cannot ask for a record again
  that it has synced: the log may have deleted it.
- A fold that cannot write raises ``StoreError`` and keeps what it got in memory. The store then takes no more messages
  until ``write_out`` succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ternmq.errors import StoreError
from ternmq.store.derived.fact import Fact
from ternmq.store.disk.base import Disk
from ternmq.store.log.draft import FIRST
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES


class Closings(NamedTuple):
    """Records that were appended one behind the other, and close others."""

    #: 16 bytes for each: its log offset, and that of the closed one.
    marks: bytes
    #: Log offset behind the last one.
    end_offset: int
    #: How many of them have which topic.
    topics: dict[str, int]
    #: For delayed messages: the hour of the closed records (``delay.hour_files``).
    hour: int


class Derived(Protocol):
    """A part that is derived from the log. All calls come from the store's thread, or from the one that opens it."""

    #: Where its files are: a directory below that of the store, and of no other part.
    directory: Path

    @property
    def topics(self) -> Collection[str]:
        """The records of these topics are folded. Always the same."""
        ...

    def load(self) -> int:
        """Read the files and return the log offset up to which they are complete. Changes no file.

        What the files have behind that offset must be ignored: it is folded again. It may be called once more while
        the log is empty, when the files came from another node.
        """
        ...

    def fold(self, fact: Fact, record: memoryview) -> None:
        """Take in the next record of one of ``topics``; ``record`` is valid during the call only. Must be quick."""
        ...

    def fold_run(self, entries: bytes, data: memoryview, begin: int) -> int:
        """``fold`` for many at once, by their queue entries; ``data`` has the log from ``begin`` on, during the call.

        Returns how many were taken in, from the first on; ``fold`` gets the next one, and 0 leaves all to it. Raises
        ``StoreError`` before it has taken in any.
        """
        ...

    def fold_closing(self, fact: Fact, closed: int) -> None:
        """A record of any topic closes the record at log offset ``closed``, which may be unknown to this part.

        A record that also belongs to ``topics`` is given to ``fold`` first.
        """
        ...

    def fold_closings(self, closings: Closings) -> None:
        """``fold_closing`` for many at once, none of which belongs to ``topics``."""
        ...

    def cut(self, log_offset: int) -> None:
        """Forget what came from ``log_offset`` on: the log ends there. Only during recovery.

        The store calls ``write_out`` and syncs before another record can be appended there.
        """
        ...

    def write_some(self) -> bool:
        """Write a part of what is in memory to the files: some ms of work, so that others get their turn in between.

        False if more is left; ``write_out`` follows when it is not. Raises ``StoreError``, and may be called again.
        """
        ...

    def write_out(self) -> Sequence[Path]:
        """Write what is in memory to the files; return those to sync. Raises ``StoreError``, and may be called again.

        Names of new files are synced, too, up to the store's directory.
        """
        ...

    def synced(self, log_offset: int) -> None:
        """What was folded from records before ``log_offset`` is on the disk: retention may delete these records.

        Raises ``StoreError`` if the part cannot do without them yet.
        """
        ...

    def files(self) -> Sequence[Path]:
        """What an empty replica copies first. Files only grow, except for the last one, which makes them count."""
        ...


class _Feed:
    """A part, and how far it has come."""

    __slots__ = ("folded", "part", "synced", "topics")

    def __init__(self, part: Derived) -> None:
        self.part = part
        self.topics = frozenset(part.topics)
        #: Log offsets up to which records were folded, and up to which the part's files are on the disk.
        self.folded = 0
        self.synced = 0


class Parts:
    """The derived parts of one store."""

    __slots__ = ("_disk", "_feeds", "_on_trouble", "_root", "_unsynced", "_view", "topics")

    def __init__(
        self,
        parts: Sequence[Derived],
        *,
        disk: Disk,
        root: Path,
        view: Callable[[int, int], memoryview | None],
        on_trouble: Callable[[StoreError], object],
    ) -> None:
        """``root`` is the store's directory, in which the parts have their files. ``view`` gives the bytes of a record.
        ``on_trouble`` is told when a fold could not write: the log should take no more for now.
        """
        self._feeds: Final = [_Feed(part) for part in parts]
        self._disk = disk
        self._root = root
        self._view = view
        self._on_trouble = on_trouble
        #: Files that were written to and not synced, in order.
        self._unsynced: dict[Path, None] = {}
        #: The topics that some part folds.
        self.topics: Final = frozenset(topic for feed in self._feeds for topic in feed.topics)

    def __len__(self) -> int:
        return len(self._feeds)

    # --- Recovery ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        for feed in self._feeds:
            feed.folded = feed.synced = feed.part.load()

    @property
    def folded(self) -> tuple[int, ...]:
        """For each part, the log offset up to which it has folded the log, as far as records concerned it."""
        return tuple(feed.folded for feed in self._feeds)

    def cut(self, log_end: int) -> None:
        """Let no part know more than the log, durably: other records will stand there. Raises ``StoreError``."""
        ahead = [feed for feed in self._feeds if feed.folded > log_end]
        for feed in ahead:
            feed.part.cut(log_end)
            self._add_unsynced(feed.part.write_out())
        self._sync()
        for feed in ahead:
            feed.folded = feed.synced = log_end
            feed.part.synced(log_end)

    # --- Records ----------------------------------------------------------------------------------------------

    def view(self, log_offset: int, length_bytes: int) -> memoryview:
        """Bytes of the log: of one record, or of several that were appended at once."""
        view = self._view(log_offset, length_bytes)
        assert view is not None, "a record that is dispatched can be read"
        return view

    def fold(self, fact: Fact, record: memoryview | None = None) -> None:
        """Give a record to the parts that need it and do not have it yet.

        Without ``record`` its bytes are read from the log.
        """
        topic, log_offset, size = fact.topic, fact.log_offset, fact.size
        closed = fact.closes if fact.prepared_transaction_offset else 0
        for feed in self._feeds:
            is_folded = topic in feed.topics
            if not (is_folded or closed) or log_offset < feed.folded:
                continue
            feed.folded = log_offset + size
            if is_folded:
                view = record[:] if record is not None else self.view(log_offset, size)
                try:
                    # A part that keeps the view finds out at once.
                    with view:
                        feed.part.fold(fact, view)
                except StoreError as error:
                    self._on_trouble(error)
            if closed:
                try:
                    feed.part.fold_closing(fact, closed if closed != FIRST else 0)
                except StoreError as error:
                    self._on_trouble(error)

    def fold_run(self, topic: str, entries: bytes, data: memoryview, begin: int) -> int:
        """Give records of a topic to the parts that need them, by their queue entries. ``data`` has the log from
        ``begin`` on. Returns how many of them need not be given to ``fold``, from the first on."""
        count = done = len(entries) // ENTRY_BYTES
        for feed in self._feeds:
            if topic not in feed.topics:
                continue
            had = 0
            while had < count and ENTRY.unpack_from(entries, had * ENTRY_BYTES)[0] < feed.folded:
                had += 1
            taken = 0
            if had < count:
                try:
                    taken = feed.part.fold_run(entries[had * ENTRY_BYTES :], data, begin)
                except StoreError as error:
                    self._on_trouble(error)
            if taken:
                log_offset, size, _ = ENTRY.unpack_from(entries, (had + taken - 1) * ENTRY_BYTES)
                feed.folded = log_offset + size
            done = min(done, had + taken)
        return done

    def fold_closings(self, closings: Closings) -> None:
        """Give records that were just appended to all parts."""
        for feed in self._feeds:
            feed.folded = closings.end_offset
            try:
                feed.part.fold_closings(closings)
            except StoreError as error:
                self._on_trouble(error)

    # --- Disk -------------------------------------------------------------------------------------------------

    def write_some(self) -> bool:
        """Let the parts write a part of what they have in memory; False if more is left. Raises ``StoreError``."""
        return all(feed.part.write_some() for feed in self._feeds)

    def write_out(self) -> None:
        """Let the parts write to their files. Raises ``StoreError``."""
        for feed in self._feeds:
            self._add_unsynced(feed.part.write_out())

    def _add_unsynced(self, paths: Sequence[Path]) -> None:
        self._unsynced |= dict.fromkeys(paths)

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """Files to sync, and directories whose names must be synced after that."""
        paths = list(self._unsynced)
        self._unsynced.clear()
        names: dict[Path, None] = {}
        # Thousands of files are in a few directories, and all parents of a path take 10 µs.
        for parent in dict.fromkeys(path.parent for path in paths):
            for directory in (parent, *parent.parents):
                names[directory] = None
                if directory == self._root:
                    break
        return paths, list(names)

    def synced(self, log_offset: int) -> None:
        """What ``take_unsynced`` returned is synced; it was folded from all records before ``log_offset``."""
        for feed in self._feeds:
            try:
                feed.part.synced(log_offset)
            except StoreError as error:
                # It could not note how far it is: then its records stay in the log.
                self._on_trouble(error)
            else:
                feed.synced = log_offset

    def save(self, log_offset: int) -> None:
        """Have all that was folded on the disk, and that it is complete up to ``log_offset``. Raises ``StoreError``."""
        self.write_out()
        self._sync()
        self.synced(log_offset)
        # Now they can note that offset, and what has changed since an unfinished pass has written them out.
        self.write_out()
        self._sync()
        self.synced(log_offset)

    def _sync(self) -> None:
        paths, names = self.take_unsynced()
        for path in paths:
            self._disk.sync_file(path)
        for directory in names:
            self._disk.sync_names(directory)

    @property
    def needed(self) -> int | None:
        """Log offset from which on some part does not have the records on the disk; None without parts."""
        return min((feed.synced for feed in self._feeds), default=None)

    def files(self) -> list[Sequence[Path]]:
        """The files of each part."""
        return [feed.part.files() for feed in self._feeds]

    @property
    def directories(self) -> list[Path]:
        return [feed.part.directory for feed in self._feeds]
