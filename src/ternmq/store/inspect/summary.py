"""What is in a store directory, at a glance: no record is read but those at the ends (C1, C2, C7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.raft_entry import EntryPlace, unpack_entry_header
from ternmq.wire.layouts.raft_state import Vote, unpack_saved, unpack_vote
from ternmq.wire.record import Record


@dataclass(slots=True, frozen=True)
class QueueSummary:
    """One queue. Times are -1 where there is no message."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_time_ms: int
    last_time_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(slots=True, frozen=True)
class LogSummary:
    """The log. Times are -1 where there is no record."""

    segments: int
    min_offset: int
    end_offset: int
    first_time_ms: int
    last_time_ms: int


@dataclass(slots=True, frozen=True)
class MemberSummary:
    """What a member of a Raft group knows. Indexes are -1 where there is no entry."""

    member: str
    term: int
    voted_for: str | None
    first_index: int
    last_index: int
    last_term: int
    committed_index: int


@dataclass(slots=True, frozen=True)
class TopicSummary:
    """A topic's queues together."""

    topic: str
    queues: int
    messages: int
    last_time_ms: int


def queue_summaries(view: StoreView) -> list[QueueSummary]:
    """All queues, in order."""
    return sorted(
        (_of_queue(view, queue) for queue in view.queues), key=lambda summary: (summary.topic, summary.queue_id)
    )


def by_topic(queues: list[QueueSummary]) -> Iterator[TopicSummary]:
    """Topics, in order."""
    for topic in dict.fromkeys(queue.topic for queue in queues):
        own = [queue for queue in queues if queue.topic == topic]
        messages = sum(queue.messages for queue in own)
        yield TopicSummary(topic, len(own), messages, max(queue.last_time_ms for queue in own))


def log_summary(view: StoreView) -> LogSummary:
    """Where the log begins and ends. Reads on from the last record that a queue knows, or from the last segment."""
    log = view.log
    last = _last_known(view)
    if last is not None:
        end, last_ms = last.log_offset + last.size, last.store_time_ms
    else:
        end, last_ms = _last_begun(view), -1
    walk = log.walk(end, check_crc=False)
    for record in walk:
        last_ms = record.store_time_ms
    first_ms = log.store_time(log.begin + log.form_at(log.begin).lead) if walk.position > log.begin else -1
    return LogSummary(len(log.starts), log.begin, walk.position, first_ms, last_ms)


def member_summary(view: StoreView, log: LogSummary) -> MemberSummary | None:
    """The member of a Raft group that the directory belongs to; None if it belongs to none."""
    home = view.place.home
    if home is None:
        return None
    vote = unpack_vote(view.disk.read(home / "currterm") or b"") or Vote(0, None)
    saved = unpack_saved(view.disk.read(home / "checkpoint") or b"")
    first = next((place for start in view.log.starts if (place := _entry_at(view, start)) is not None), None)
    known = _last_known(view)
    position = known.log_offset - view.log.form_at(known.log_offset).lead if known is not None else _last_begun(view)
    last = None
    while position < log.end_offset:
        place = _entry_at(view, position)
        if place is not None:
            last = place
        # Behind a blank, or a plain segment, comes the next file.
        position = place.end if place is not None else position - position % view.sizes.segment + view.sizes.segment
    return MemberSummary(
        home.name.removeprefix("dledger-"),
        vote.term,
        vote.voted_for,
        first.index if first is not None else -1,
        last.index if last is not None else -1,
        last.term if last is not None else -1,
        saved.committed_index,
    )


def _entry_at(view: StoreView, position: int) -> EntryPlace | None:
    form = view.log.form_at(position)
    header = view.log.view(position, form.lead) if form.is_raft else None
    return unpack_entry_header(header) if header is not None else None


def _of_queue(view: StoreView, queue: ConsumeQueue) -> QueueSummary:
    first = view.first_offset(queue)
    first_ms, last_ms = (_time_of(view, queue, offset) for offset in (first, queue.next_offset - 1))
    return QueueSummary(queue.topic, queue.queue_id, first, queue.next_offset, first_ms, last_ms)


def _time_of(view: StoreView, queue: ConsumeQueue, queue_offset: int) -> int:
    entry = queue.entry(queue_offset)
    return view.log.store_time(entry[0]) if entry is not None else -1


def _last_known(view: StoreView) -> Record | None:
    newest = max(view.queues, key=lambda queue: queue.log_end, default=None)
    entry = newest.entry(newest.next_offset - 1) if newest is not None else None
    return view.record(entry[0]) if entry is not None else None


def _last_begun(view: StoreView) -> int:
    """Start of the last segment that begins with a record; the log's begin if none does."""
    for start in reversed(view.log.starts):
        if view.record(start + view.log.form_at(start).lead) is not None:
            return start
    return view.log.begin
