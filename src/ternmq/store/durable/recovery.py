"""Recovery: find the log's end, cut what is torn, and bring everything derived up to it (C8).

A store that was closed has its last record vouched for by a queue entry. Recovery checks that one record and walks
on from there; usually nothing follows. A store that was not closed (``abort`` exists) is trusted only up to the
checkpoint::

    … | segment | segment | segment            the newest segment whose first record was stored 3 s or more
                ^ start                        before the checkpoint's time; without one, the first segment
                  cut queues and index here, then walk: each record is checked (lengths, its own log offset, CRC)
                  and folded again; the first that is none is the log's end, and what lies behind is cut off

So a torn tail disappears, and every whole record is served again, whatever the queues and the index had of it.
A record may thus come back that no producer got an answer for. That is what «at least once» means.

Queues or index that were thrown away are folded again from the log's beginning. So are queues that begin with fillers
although the log has lost nothing: RocketMQ 5.2.0 with DLedger, killed and started again, leaves out the records that it
dispatched before. The walk starts further back where a
derived part needs it (``store.derived.parts``): its files are complete up to a log offset that it knows itself.

A log that confirms records late (``store.log.protocol``) is folded only up to what is known to be confirmed. The
records behind that are checked in the same way, and wait for their confirmation as they did before
(``store.log.pending``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ternmq.errors import CorruptRecord
from ternmq.store.derived.dispatch import Dispatcher
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.follower import Follower, OnProgress
from ternmq.store.derived.index import Index
from ternmq.store.derived.light import LIGHT_PREFIX
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.log.protocol import Log
from ternmq.wire.record import unpack_record

log = logging.getLogger(__name__)

#: RocketMQ's safety margin between the checkpoint's time and the records trusted by it.
MARGIN_MS = 3_000

_CURE = "stop the broker and run `tern store rebuild` on its directory"


@dataclass(slots=True, frozen=True)
class Recovered:
    """What recovery did, for the log and for tests."""

    start: int
    end: int
    records: int
    trouble: str
    #: Position up to which records are confirmed and folded, the store time of the last of them, and those behind it.
    confirmed: int = 0
    confirmed_time_ms: int = 0
    unconfirmed: Sequence[Fact] = ()


def recover(
    commit_log: Log,
    queues: ConsumeQueues,
    index: Index | None,
    deleted: DeletedTopics,
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
    save_checkpoint: Callable[[], None],
    *,
    was_closed: bool,
    lost_pages: bool,
    check_crc: bool,
    on_progress: OnProgress | None = None,
) -> Recovered:
    """Bring a loaded store into a state in which it can be used. Nothing was changed on disk before.

    ``lost_pages``: the machine may have lost pages that were written and not synced.
    """
    starts = commit_log.starts
    if not starts:
        return _empty(commit_log, queues, index, dispatcher)
    # Of a log that confirms late: up to where it has for certain. What the checkpoint has as dispatched was confirmed.
    known = commit_log.known_confirmed
    if known is not None:
        known = max(known, checkpoint.derived_offset or 0, starts[0])
    # Queues or index that were thrown away are folded from the log's beginning.
    folds_all = not len(queues) or (index is not None and not len(index))
    hollow = queues.hollow() if not starts[0] else []
    folds_all = folds_all or bool(hollow)
    vouched = _vouched(commit_log, queues) if was_closed else None
    if vouched is not None and not folds_all:
        start, store_time_ms = vouched
        # The process that closed it has synced everything, also if it left no offsets.
        checkpoint.log_offset = checkpoint.derived_offset = start
    else:
        start, store_time_ms = starts[0], 0
        if not folds_all:
            start = _trusted_start(commit_log, checkpoint, was_closed=was_closed)
        first_ms = max(commit_log.store_time(start + commit_log.form_at(start).lead), 0) if start > starts[0] else 0
        checkpoint.take_back(start, first_ms)
        if known is not None:
            # Behind this records may be whole and not dispatched.
            checkpoint.derived_offset = min(start, known)
        save_checkpoint()
    # Not before: a process that dies in between leaves a checkpoint that vouches for nothing.
    for queue in hollow:
        queue.remove()
    if vouched is None:
        if was_closed or lost_pages:
            queues.cut(start, distrust=True)
            if index is not None:
                index.cut(start, commit_log.store_time, distrust=lost_pages)
        else:
            queues.resume(start)
            if index is not None:
                index.resume(start, commit_log.store_time)
    # Nothing before this ends the log: it was closed behind it, or the checkpoint vouches for it.
    floor = max(vouched[0] if vouched is not None else start, min(commit_log.closed, commit_log.end))
    folded = dispatcher.parts.folded if dispatcher.parts is not None else ()
    start = min(start, *(max(starts[0], each) for each in folded), start)

    until = None
    if known is not None:
        until = max(known, _shown_confirmed(commit_log, queues, index), *folded, known)
        start, floor = min(start, until), min(floor, until)
    follower = Follower(commit_log, queues, index, deleted, dispatcher, position=start, check_crc=check_crc)
    follower.run(on_progress, until=until)
    if follower.position < floor:
        # Queues serve what lies behind. What was to be folded anew lacks it.
        log.error("records behind a damaged one are left out", extra={"trouble": follower.trouble, "cure": _CURE})
        follower.position = floor
        follower.run(on_progress, until=until)
    confirmed, confirmed_time_ms = follower.position, follower.store_time_ms if follower.count else store_time_ms
    unconfirmed = follower.run_unfolded(on_progress) if until is not None else []
    found = end = follower.position
    if not was_closed:
        # A process that died left records in the page cache only. No later flush would sync them.
        commit_log.sync(start, end)
    checkpoint.cut(end)
    queues.cut(end)
    if dispatcher.parts is not None:
        dispatcher.parts.cut(end)
    commit_log.open_at(end, follower.store_time_ms if follower.count else store_time_ms)
    end = commit_log.end
    checkpoint.cut(end)
    if confirmed == found:
        # The log may end behind a blank that it has just written, or before one without a record behind it.
        confirmed = end
    queues.raise_min(commit_log.begin)
    if not commit_log.begin:
        queues.forget_numbers()
    return Recovered(start, end, follower.count, follower.trouble, confirmed, confirmed_time_ms, unconfirmed)


def _empty(commit_log: Log, queues: ConsumeQueues, index: Index | None, dispatcher: Dispatcher) -> Recovered:
    """Without a log there is nothing to derive anything from. One that is to be copied from another node may begin
    later than at 0; what derived parts have of the records before is all that is left of them."""
    end = commit_log.end
    queues.remove_topics({queue.topic for queue in queues})
    if index is not None:
        index.cut(0, commit_log.store_time)
    if dispatcher.parts is not None:
        dispatcher.parts.cut(end)
    commit_log.open_at(end, 0)
    return Recovered(end, end, 0, "", end)


def _shown_confirmed(commit_log: Log, queues: ConsumeQueues, index: Index | None) -> int:
    """Position up to which queues and index show that records were confirmed: only those are ever dispatched."""
    shown = max((queue.log_end for queue in queues), default=0)
    if index is not None and index.end_offset >= 0:
        record = commit_log.record(index.end_offset)
        if record is not None:
            shown = max(shown, index.end_offset + len(record))
    return shown


def _vouched(commit_log: Log, queues: ConsumeQueues) -> tuple[int, int] | None:
    """End and store time of the last record that a queue knows, if it is whole and where the queue says."""
    # The last entry of a light queue is of a record that has its own queue elsewhere.
    own = (queue for queue in queues if not queue.topic.startswith(LIGHT_PREFIX))
    newest = max(own, key=lambda queue: queue.log_end, default=None)
    entry = newest.entry(newest.next_offset - 1) if newest is not None else None
    record_bytes = commit_log.record(entry[0]) if entry is not None else None
    if record_bytes is None:
        return None
    try:
        record = unpack_record(record_bytes)
    except CorruptRecord:
        return None
    if newest is None or (record.topic, record.queue_id, record.queue_offset) != (
        newest.topic,
        newest.queue_id,
        newest.next_offset - 1,
    ):
        return None
    return record.log_offset + record.size, record.store_time_ms


def _trusted_start(commit_log: Log, checkpoint: Checkpoint, *, was_closed: bool) -> int:
    """Start of the newest segment whose first record is older than what the checkpoint vouches for.

    After a clean stop, where the checkpoint vouches for everything and yet the end is damaged: the third last one.
    """
    if was_closed:
        return commit_log.starts[-3:][0]
    until_ms, until = checkpoint.trusted_time_ms - MARGIN_MS, checkpoint.trusted_offset
    starts = commit_log.starts
    for start in reversed(starts):
        if until is not None and start > until:
            continue
        record = next(iter(commit_log.walk(start)), None)
        if record is not None and 0 < record.store_time_ms <= until_ms:
            return start
    return starts[0]
