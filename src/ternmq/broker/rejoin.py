"""How a broker comes back after a promotion: in the role that it was given, and with a log that was cut (O1).

A slave whose log has records that its master does not have is closed, cut and opened again (``Broker``). The store
brings back what is derived from the log. Tables that are written first-hand are corrected here: no offset of a consumer
and no progress of a delay level lies behind the new end of its queue.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from typing import Final

from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.delay.progress import DelayProgress
from ternmq.files import TableFiles
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.memory import Memory
from ternmq.store.config import StoreConfig
from ternmq.store.cut import cut_log, tables_corrected, tables_to_correct
from ternmq.store.disk.base import Disk
from ternmq.store.store import MessageStore
from ternmq.tasks import to_its_end

log = logging.getLogger(__name__)

_NO_END: Final = 1 << 62


def standing(memory: Memory, settings: ReplicationConfig, broker_id: int) -> tuple[ReplicationConfig, int]:
    """The role and id of a broker: those of its settings, unless a promotion gave it others."""
    given = memory.given
    if given is None:
        return settings, broker_id
    if (given.role, given.broker_id) != (settings.broker_role, broker_id):
        log.warning(
            "this broker is %s with id %d since a promotion; brokerRole=%s and brokerId=%d of the settings do not "
            "count. To undo this, stop it and remove %s",
            given.role.value,
            given.broker_id,
            settings.broker_role.value,
            broker_id,
            memory.role_path,
        )
    return dataclasses.replace(settings, broker_role=given.role), given.broker_id


async def cut_store(disk: Disk, config: StoreConfig, log_offset: int) -> None:
    """Let the log of a closed store end at ``log_offset``. The caller holds its lock. Raises ``StoreError``."""
    await to_its_end(
        partial(
            cut_log,
            disk,
            config.store_path_root_dir,
            config.log_paths,
            segment_bytes=config.mapped_file_size_commit_log,
            log_offset=log_offset,
        )
    )


async def correct_tables(
    disk: Disk, store: MessageStore, offsets: Offsets, delivered: DelayProgress, files: TableFiles
) -> None:
    """Let no table know more than a log that was cut, also by ``tern store cut``."""
    root = store.config.store_path_root_dir
    if not tables_to_correct(disk, root):
        return
    count = offsets.cut(store.max_offset) + delivered.cut()
    offsets.save()
    delivered.save()
    await files.settle()
    tables_corrected(disk, root)
    log.warning("corrected %d offsets of consumers and delays to the end of the log, which was cut", count)


def correct_offsets(store: MessageStore, offsets: Offsets, topics: Topics) -> None:
    """Let no consumer be behind the end of its queue after a crash of a master.

    A power cut takes messages that were not flushed, while their consumption may be on the disk. Others get their
    queue offsets, and would be skipped.
    """

    def end_of(topic: str, queue_id: int) -> int:
        # Queues of the other kind are not ours to read.
        return _NO_END if topics.is_batch(topic) else store.max_offset(topic, queue_id)

    if count := offsets.cut(end_of):
        log.warning("corrected %d offsets of consumers to the ends of their queues, which lost messages", count)
