"""The action log in the store: written action by action, folded when a term begins, kept short by checkpoints (R1).

What a master knows lies in its log, nothing of it in files of its own: a slave that takes over, and a member of a Raft
group that is elected, have the records, and fold them. Why that is enough: an action lies *behind* the messages that it
is about. When retention deletes the action, it has deleted the messages, too. Only cursors of groups that were idle for
days would be forgotten, and for these (and to have little to read) there are checkpoints: all that is known, written
again at the end. The group ``CID_RMQ_SYS_TERNMQ_SHARE`` notes where the last complete one begins, once it is safe. A
note that is missing or wrong costs time, not messages: the fold then begins with the first record that is left.

Only the broker writes here. A record that cannot be one of its own is left out, and counted in one line of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol

from ternmq import names
from ternmq.env import Clock
from ternmq.errors import RemoteProtocolError
from ternmq.share.actions import Mark, ShareAction, decode, encode
from ternmq.share.state import ShareState
from ternmq.store.durable.safety import Lowest
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.read.query import GetResult
from ternmq.store.read.records import queue_records

log = logging.getLogger(__name__)

_QUEUE: Final = 0
#: After so many actions a checkpoint is due: a start has no more to read than these and the checkpoint.
CHECKPOINT_ACTIONS: Final = 20_000
#: … or so many times the records of a checkpoint, if that is more.
_CHECKPOINT_SHARE: Final = 4
#: … or after so many bytes of the log, or so long: retention must not delete the last one.
CHECKPOINT_BYTES: Final = 256 << 20
CHECKPOINT_S: Final = 3_600.0
#: Records of a checkpoint that are written in one turn of the loop.
TURN_RECORDS: Final = 32


class ActionStore(Protocol):
    """What the action log needs of the message store."""

    def put(self, draft: Draft) -> Placed: ...

    def get(self, topic: str, queue_id: int, queue_offset: int, *, count_max: int) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    @property
    def safe(self) -> Lowest: ...

    @property
    def written(self) -> int: ...


class NotedOffsets(Protocol):
    """What it needs of the groups' offsets; -1 where there is none."""

    def get(self, group: str, topic: str, queue_id: int) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None: ...


class ShareLog:
    """All methods belong to the broker's loop; writing raises ``StoreError`` or ``NotRunning``."""

    def __init__(
        self,
        store: ActionStore,
        offsets: NotedOffsets,
        *,
        host: bytes,
        clock: Clock,
        checkpoint_actions: int = CHECKPOINT_ACTIONS,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._host = host
        self._clock = clock
        self._checkpoint_actions = checkpoint_actions
        self._is_stopped = False
        #: Actions since the last checkpoint began, where the log ended then, and when that was.
        self._count = 0
        self._mark_at = 0
        self._mark_s = clock.monotonic()

    def stop(self) -> None:
        """The term is over: what becomes safe from now on is not noted any more."""
        self._is_stopped = True

    def fold(self) -> ShareState:
        """All that the log says. Call it once, when a term begins."""
        state = ShareState()
        first = self._store.min_offset(names.SHARE_TOPIC, _QUEUE)
        end = self._store.max_offset(names.SHARE_TOPIC, _QUEUE)
        noted = self._offsets.get(names.SHARE_GROUP, names.SHARE_TOPIC, _QUEUE)
        start = noted if first < noted < end and self._is_mark(noted) else first
        left_out, why = 0, ""
        for _, record in queue_records(self._store, names.SHARE_TOPIC, _QUEUE, start) if start < end else ():
            if record is None:
                continue
            self._count += 1
            try:
                state.apply(decode(record.body))
            except RemoteProtocolError as error:
                left_out += 1
                why = why or f"the one at log offset {record.log_offset}: {error}"
        if left_out:
            log.warning(f"skipped {left_out} invalid records of {names.SHARE_TOPIC}, {why}")
        self._mark_at = self._store.written
        return state

    def write(self, action: ShareAction) -> Placed:
        """Append an action. It counts when this returns, and not before."""
        draft = Draft(
            topic=names.SHARE_TOPIC,
            queue_id=_QUEUE,
            body=encode(action),
            properties="",
            born_time_ms=self._clock.now_ms(),
            born_host=self._host,
        )
        placed = self._store.put(draft)
        self._count += 1
        return placed

    def is_due(self, state: ShareState) -> bool:
        """Whether a checkpoint should be written."""
        least = max(self._checkpoint_actions, _CHECKPOINT_SHARE * (len(state.places) + state.consumer_count))
        return self._count >= least or (
            bool(state.places)
            and (
                self._store.written - self._mark_at >= CHECKPOINT_BYTES
                or self._clock.monotonic() - self._mark_s >= CHECKPOINT_S
            )
        )

    def checkpoint(self, state: ShareState) -> Iterator[None]:
        """Write all that is known; yields between pieces, so that others get their turn. Raises what writing raises."""
        self._mark_at, self._mark_s = self._store.written, self._clock.monotonic()
        mark = self.write(Mark(self._clock.now_ms()))
        self._count = 0
        end_offset = mark.end_offset
        for number, actions in enumerate(state.checkpoint(), 1):
            for action in actions:
                end_offset = self.write(action).end_offset
            if not number % TURN_RECORDS:
                yield
        self._count = 0

        def note() -> None:
            if not self._is_stopped:
                self._offsets.commit(names.SHARE_GROUP, names.SHARE_TOPIC, _QUEUE, mark.queue_offset)

        self._store.safe.call_when(end_offset, note)

    def _is_mark(self, queue_offset: int) -> bool:
        for _, record in queue_records(self._store, names.SHARE_TOPIC, _QUEUE, queue_offset):
            try:
                return record is not None and isinstance(decode(record.body), Mark)
            except RemoteProtocolError:
                return False
        return False
