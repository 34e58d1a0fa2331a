"""What a fold learns of one record (C5). The same whether the record was just appended or is read back from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ternmq.wire.record import Sysflag

if TYPE_CHECKING:
    from ternmq.store.derived.queue import ConsumeQueue

#: A record that was just sealed: its queue, properties, sysflag, log offset, size, queue offset, store time, prepared
#: transaction offset. A plain tuple: it is made in the hottest loop.
Fresh: TypeAlias = "tuple[ConsumeQueue, str, int, int, int, int, int, int]"


class Fact(msgspec.Struct, gc=False):
    """The record itself lies in the log at ``log_offset``."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    sysflag: int
    store_time_ms: int
    tags_code: int
    prepared_transaction_offset: int
    properties: str

    @property
    def end_offset(self) -> int:
        """Log offset behind the record."""
        return self.log_offset + self.size

    @property
    def is_queued(self) -> bool:
        """Whether the record has a queue entry: a prepared half and a rollback, which has that bit, too, have none."""
        return not self.sysflag & Sysflag.PREPARED

    @property
    def is_indexed(self) -> bool:
        return self.sysflag & Sysflag.TRANSACTION_MASK != Sysflag.ROLLBACK

    @property
    def closes(self) -> int:
        """Log offset of the record that this one closes, or ``FIRST``; 0 if it closes none (see ``Draft.closes``)."""
        return 0 if self.sysflag & Sysflag.TRANSACTION_MASK else self.prepared_transaction_offset
