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

Queues or index that were thrown away are folded again from the log's beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ternmq.errors import CorruptRecord
from ternmq.store.checkpoint import Checkpoint
from ternmq.store.commitlog import CommitLog
from ternmq.store.deleted import DeletedTopics
from ternmq.store.dispatch import Dispatcher
from ternmq.store.index import Index
from ternmq.store.light import LIGHT_PREFIX
from ternmq.store.queues import ConsumeQueues
from ternmq.store.replay import Progress, Replay
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


def recover(
    commit_log: CommitLog,
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
    on_progress: Progress | None = None,
) -> Recovered:
    """Bring a loaded store into a state in which it can be used. Nothing was changed on disk before.

    ``lost_pages``: the machine may have lost pages that were written and not synced.
    """
    starts = commit_log.starts
    if not starts:
        return _empty(commit_log, queues, index, dispatcher)
    # Queues or index that were thrown away are folded from the log's beginning.
    folds_all = not len(queues) or (index is not None and not len(index))
    vouched = _vouched(commit_log, queues) if was_closed else None
    if vouched is not None and not folds_all:
        start, store_time_ms = vouched
        # Whoever closed it, and may have left no offsets, has synced everything.
        checkpoint.log_offset = checkpoint.derived_offset = start
    else:
        start, store_time_ms = starts[0], 0
        if not folds_all:
            start = _trusted_start(commit_log, checkpoint, was_closed=was_closed)
        checkpoint.take_back(start, max(commit_log.store_time(start), 0) if start > starts[0] else 0)
        save_checkpoint()
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
    floor = vouched[0] if vouched is not None else start
    for derived in dispatcher.deriveds:
        start = min(start, max(starts[0], derived.folded))

    replay = Replay(commit_log, queues, index, deleted, dispatcher, position=start, check_crc=check_crc)
    replay.run(on_progress)
    if replay.position < floor:
        # Queues serve what lies behind. What was to be folded anew lacks it.
        log.error("records behind a damaged one are left out", extra={"trouble": replay.trouble, "cure": _CURE})
        replay.position = floor
        replay.run(on_progress)
    end = replay.position
    if not was_closed:
        # A process that died left records in the page cache only. Nobody would sync them after those to come.
        commit_log.sync(start, end)
    checkpoint.cut(end)
    queues.cut(end)
    for derived in dispatcher.deriveds:
        if derived.folded > end:
            derived.cut(end)
    commit_log.begin(end, replay.store_time_ms if replay.count else store_time_ms)
    queues.raise_min(commit_log.min_offset)
    if not commit_log.min_offset:
        queues.forget_numbers()
    return Recovered(start, end, replay.count, replay.trouble)


def _empty(commit_log: CommitLog, queues: ConsumeQueues, index: Index | None, dispatcher: Dispatcher) -> Recovered:
    """Without a log there is nothing to derive anything from."""
    queues.remove_topics({queue.topic for queue in queues})
    if index is not None:
        index.cut(0, commit_log.store_time)
    for derived in dispatcher.deriveds:
        derived.cut(0)
    commit_log.begin(0, 0)
    return Recovered(0, 0, 0, "")


def _vouched(commit_log: CommitLog, queues: ConsumeQueues) -> tuple[int, int] | None:
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


def _trusted_start(commit_log: CommitLog, checkpoint: Checkpoint, *, was_closed: bool) -> int:
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
