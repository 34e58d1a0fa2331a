"""A record before it has a place in the log, and the place that it got."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from ternmq.types import Buffer
from ternmq.wire.record import Sysflag

#: In ``Draft.closes`` and ``Fact.closes``: the record at log offset 0. No record begins at log offset 1.
FIRST: Final = 1


class Draft(msgspec.Struct, gc=False):
    """What is to be stored. The store adds offsets, store time and store host."""

    topic: str
    queue_id: int
    body: Buffer
    properties: str
    born_time_ms: int
    born_host: bytes
    flag: int = 0
    sysflag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def closes(self) -> int:
        """The log offset of the record that this one closes; 0 if it closes none.

        For a record that is not part of a transaction: there the prepared transaction offset has this meaning. So the
        delivery of a delayed message and the mark that it was delivered are one record, and every fold of the log sees
        both or none (``store.derived.parts``). The first record of a log, at log offset 0, is closed by ``FIRST``.
        """
        return 0 if self.sysflag & Sysflag.TRANSACTION_MASK else self.prepared_transaction_offset

    @closes.setter
    def closes(self, log_offset: int) -> None:
        assert not self.sysflag & Sysflag.TRANSACTION_MASK, "in a transaction the field names the prepared half"
        self.prepared_transaction_offset = log_offset or FIRST


class Placed(NamedTuple):
    """Where a record lies. (A tuple, because a frozen dataclass takes 1 µs to make, a fifth of a ``put``.)"""

    log_offset: int
    #: Log offset behind the record: what to wait for in ``flushed``.
    end_offset: int
    queue_offset: int
    store_time_ms: int
