"""Op records, which close halves (J1): one at once, or those of a turn together.

Together, a kernel packs them where compiled kernels are used. Else they are a batch. Both leave the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ternmq import names
from ternmq.env import Clock
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.log.run import PackedRun, PackingRoom
from ternmq.store.store import MessageStore
from ternmq.transaction import half as halves
from ternmq.transaction.half import QUEUE_ID


class OpWriter:
    """Belongs to the broker's loop."""

    def __init__(self, store: MessageStore, *, clock: Clock, host: bytes) -> None:
        self._store = store
        self._clock = clock
        self._host = host

    def write(self, queue_offset: int) -> int:
        """Close one half; where the log ends then. Raises ``StoreError`` or ``NotRunning``."""
        placed = self._store.put(halves.op_record(queue_offset, now_ms=self._clock.now_ms(), host=self._host))
        return placed.end_offset

    def write_all(self, queue_offsets: Sequence[int]) -> None:
        """Close some halves: all, or none. Raises as ``write``."""
        now_ms = self._clock.now_ms()

        def pack(room: PackingRoom) -> PackedRun | None:
            queue = room.table.get((names.OP_HALF_TOPIC, QUEUE_ID))
            # The first op makes the queue.
            if queue is None or queue.is_special:
                return None
            made = native.store_ops(
                room.page,
                room.at,
                room.end,
                queue_offsets,
                log_offset=room.log_offset,
                lead=room.lead,
                queue_offset=queue.assigned,
                born_time_ms=now_ms,
                born_host=self._host,
                store_time_ms=room.store_time_ms,
                store_host=room.store_host,
                topic_field=queue.topic_part,
            )
            if made is None:
                return None
            last_offset, added = made
            return PackedRun(added[1], last_offset, [(queue, *added)], b"")

        if HAS_NATIVE and self._store.put_packed(pack, answers_at_once=False):
            return
        self._store.put_batch(
            names.OP_HALF_TOPIC,
            QUEUE_ID,
            halves.op_parcels(queue_offsets),
            born_time_ms=now_ms,
            born_host=self._host,
        )
