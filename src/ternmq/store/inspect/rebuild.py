"""Queues and index made anew from the log (C5).

They are built aside, with the same folds that a broker uses, and take the place of the old ones when they are whole and
on the disk (``fresh_parts``, for the code that builds them)::

    DIR/rebuild.tmp/consumequeue  ─┐  first the old ones go to DIR/replaced.tmp, then the new ones come,
    DIR/rebuild.tmp/index         ─┴▶ then the old ones are removed

The log is not touched. Damaged places in it are passed over, and queue offsets that are lost there are left out, so
that all later messages keep theirs. A queue of which the log has no record any more keeps its end, or else its next
message would get a queue offset that consumers have behind them. Deleted topics stay deleted: those that TernMQ has
noted, and those that neither ``topics.json`` knows nor a queue exists of. Entries of a Raft group that are not known to
be committed are left out: the broker dispatches them when they are.

Further parts (``rebuild(derived=…)``) are made along with them; the schedule of delayed messages is one.

Files that TernMQ does not write (RocketMQ's batch queues) stay. The bit maps beside queue entries (C3) go, since
nothing leads to them any more; filters then look at each message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.env import Clock
from ternmq.errors import StoreError
from ternmq.store.config import StoreConfig
from ternmq.store.derived.dispatch import Dispatcher
from ternmq.store.derived.follower import Follower
from ternmq.store.derived.index import Index
from ternmq.store.derived.parts import Derived, Parts
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.derived.trouble import raise_it
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.scan import Damaged, LogScan
from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.queue_entry import FILLER_SIZE

log = logging.getLogger(__name__)

_PARTS: Final = ("consumequeue", "index")
_GONE: Final = ("consumequeue_ext",)
#: Stay as they are unless they are made anew: the log alone cannot bring back all that they have.
_KEPT: Final = ("schedule",)
_FRESH: Final = "rebuild.tmp"
_REPLACED: Final = "replaced.tmp"


@dataclass(slots=True, frozen=True)
class Rebuilt:
    """What was made."""

    records: int
    log_bytes: int
    queues: int
    #: Places in the log that hold no records although some follow.
    damages: list[Damaged]


def rebuild(
    root: Path,
    config: InspectConfig | None = None,
    *,
    out: Path | None = None,
    clock: Clock,
    derived: Sequence[Callable[[StoreView, Path], Derived | None]] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Rebuilt:
    """Make queues and index anew, in place, or in an empty directory ``out``; then nothing in ``root`` is changed.

    ``derived`` make further parts, which get the records of the log: for a store, in a directory for its new files;
    None if the store does not have that part. If they leave a directory of their own there, it takes the place of the
    one of that name.

    Raises ``StoreLocked`` while a broker holds the directory that is to be changed, other ``StoreError``s for what
    cannot be read or written; then the old files are as they were.
    """
    with fresh_parts(root, config, out=out) as (view, fresh):
        return _build(view, FileDisk(), fresh, clock, derived, progress)


@contextmanager
def fresh_parts(
    root: Path, config: InspectConfig | None = None, *, out: Path | None = None
) -> Iterator[tuple[StoreView, Path]]:
    """A store, and an empty directory for its new ``consumequeue`` and ``index``. At the end of the block they take the
    place of the old ones, or become ``out``; if it raises, nothing is left of them.

    Raises as ``rebuild``.
    """
    view = StoreView(root, config, on_corrupt=lambda _: None)
    disk = FileDisk()
    if out is not None and (out.is_file() or (out.is_dir() and disk.list(out))):
        raise StoreError(f"{out} exists and is not empty; name a new directory for what is made")
    fresh = out.with_name(f"{out.name}.tmp") if out is not None else root / _FRESH
    with ExitStack() as stack:
        if out is None:
            # Another process that looks at the lock, broker or second rebuild, stays out.
            stack.callback(disk.lock(root / "lock").release)
            for name in _KEPT:
                if not (root / name).exists() and (root / _REPLACED / name).exists():
                    # A rebuild was killed between two steps.
                    disk.move(root / _REPLACED / name, root / name)
        disk.remove(fresh)
        try:
            yield view, fresh
        except BaseException:
            disk.remove(fresh)
            raise
        if out is None:
            _swap(disk, root)
        elif fresh.exists():
            disk.move(fresh, out)


def index_sizes(view: StoreView) -> tuple[int, int]:
    """Slots and entries of an index file. Raises ``StoreError`` if that is not known."""
    slots, entries = view.sizes.index_slots, view.sizes.index_entries
    if slots is None or entries is None:
        raise StoreError(
            f"nothing in {view.root} shows how large its index files are; give both numbers of the broker's settings "
            "with --set maxHashSlotNum=… --set maxIndexNum=…"
        )
    return slots, entries


def queue_file_bytes(view: StoreView) -> int:
    """Bytes of a queue file. Raises ``StoreError`` if nothing shows it: a broker would not read files of another size.
    With segments of the default size, the default is taken for both, with a warning."""
    sizes = view.sizes
    if not sizes.is_queue_file_assumed:
        return sizes.queue_file
    if sizes.segment != StoreConfig().mapped_file_size_commit_log:
        raise StoreError(
            f"nothing in {view.root} shows how large its queue files are; give the broker's setting with --set "
            "mappedFileSizeConsumeQueue=…"
        )
    log.warning(
        "nothing in %s shows how large its queue files are; they get RocketMQ's default of %d bytes. If the broker has "
        "another mappedFileSizeConsumeQueue, give it with --set",
        view.root,
        sizes.queue_file,
    )
    return sizes.queue_file


def _build(
    view: StoreView,
    disk: FileDisk,
    fresh: Path,
    clock: Clock,
    derived: Sequence[Callable[[StoreView, Path], Derived | None]],
    progress: Callable[[int, int], object] | None,
) -> Rebuilt:
    sizes = view.sizes
    slots, entries = index_sizes(view)
    parts = Parts(
        [part for make in derived if (part := make(view, fresh)) is not None],
        disk=disk,
        root=fresh,
        view=view.log.view,
        on_trouble=raise_it,
    )
    queues = ConsumeQueues(disk, fresh / "consumequeue", file_bytes=queue_file_bytes(view), folded_topics=parts.topics)
    queues.foreign = left_out(view)
    queues.has_light = view.queues.has_light
    index = Index(
        disk,
        fresh / "index",
        slots=slots,
        entries=entries,
        file_bytes=sizes.index_file,
        now_ms=clock.now_ms,
    )
    dispatcher = Dispatcher(queues, index, view.deleted, delays_ms=view.delays_ms, parts=parts)
    begin = view.log.begin
    damages: list[Damaged] = []
    follower = Follower(view.log, queues, index, view.deleted, dispatcher, position=begin, check_crc=True)

    def tell(_done: int, _total: int) -> None:
        if progress is not None:
            progress(follower.position - begin, len(view.log.starts) * sizes.segment)

    try:
        while True:
            follower.run(tell, until=view.confirmed)
            # Not a record, but perhaps not the end either.
            scan = LogScan(view.log, follower.position, next_data=view.next_data)
            following = next(iter(scan), None)
            if following is None or (view.confirmed is not None and following.log_offset >= view.confirmed):
                break
            damages += scan.damages
            position = following.log_offset - view.log.form_at(following.log_offset).lead
            assert position > follower.position, "both agree on what a record is"
            follower.position = position
        keep_numbers(view, queues)
        if follower.count:
            index.ensure_file()
        queues.close()
        index.close()
        parts.save(follower.position)
    finally:
        queues.files.close()
    return Rebuilt(follower.count, follower.position - begin, len(queues), damages)


@dataclass(slots=True, frozen=True)
class LeftOut:
    """Topics that get no queues: RocketMQ's with queues of another kind, and deleted ones."""

    foreign: frozenset[str]
    #: Topics that exist; None if that is not known.
    known: frozenset[str] | None

    def __contains__(self, topic: object) -> bool:
        return topic in self.foreign or (self.known is not None and topic not in self.known)


def left_out(view: StoreView) -> LeftOut:
    """The topics of a store that get no queues."""
    topics = view.known_topics()
    known = frozenset(topics | {topic for topic, _ in view.queues.table}) if topics is not None else None
    return LeftOut(view.foreign_topics, known)


def keep_numbers(view: StoreView, queues: ConsumeQueues) -> None:
    """Let queues that the log has no record of go on with the queue offset that is next."""
    for key, old in view.queues.table.items():
        if key not in queues.table and old.next_offset > 0:
            queue = queues.make(*key)
            queue.begin_at(old.next_offset - 1)
            last = old.entry(old.next_offset - 1)
            # Its last entry, if that is of a record that the log has forgotten, as in any queue that is not written to.
            # A filler at the end would tell RocketMQ that queues are ahead of the log, and it would dispatch nothing.
            queue.append(*last if last is not None and last[0] < view.log.begin else (0, FILLER_SIZE, 0))


def _swap(disk: FileDisk, root: Path) -> None:
    fresh, replaced = root / _FRESH, root / _REPLACED
    disk.remove(replaced)
    made = [name for name in _KEPT if (fresh / name).exists()]
    for name in (*_PARTS, *_GONE, *made):
        if (root / name).exists():
            disk.move(root / name, replaced / name)
        if (fresh / name).exists():
            disk.move(fresh / name, root / name)
    disk.remove(fresh)
    disk.remove(replaced)
