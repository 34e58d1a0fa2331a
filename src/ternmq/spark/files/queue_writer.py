"""Writes the files of queues from runs of entries, in log order (U4, C2).

It uses the broker's own queues (``store.derived.queues``), with their rules for irregular cases: a queue that starts
again at 0, missing queue offsets, a record that cannot belong to its queue. A regular run is added unchanged, with all
its entries at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ternmq.spark.files.queues import ENTRIES
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES


class QueueWriter:
    """Writes queues to an empty directory. Raises ``StoreError``."""

    def __init__(self, directory: Path, *, file_bytes: int) -> None:
        self._queues = ConsumeQueues(FileDisk(), directory, file_bytes=file_bytes)

    def add(self, topic: str, queue_id: int, queue_offset: int, data: bytes) -> None:
        """Add the next run of a queue: its first queue offset, and its entries."""
        entries = np.frombuffer(data, ENTRIES)
        for number in range(len(entries)):
            log_offset, size, tags_code = entries[number].tolist()
            queue = self._queues.get(topic, queue_id)
            if queue is not None and queue.next_offset == queue_offset + number and queue.log_end <= log_offset:
                last = entries[-1]
                queue.extend(data[number * ENTRY_BYTES :], int(last["log_offset"]) + int(last["size"]))
                return
            # Sysflag 0: records without an entry are not part of the run.
            self._queues.fold(Fact(topic, queue_id, queue_offset + number, log_offset, size, 0, 0, tags_code, 0, ""))

    def close(self) -> list[tuple[str, int]]:
        """Sync all files; returns the queues."""
        self._queues.close()
        return list(self._queues.table)
