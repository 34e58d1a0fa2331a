"""What may wait for a majority before messages are refused (P3, M1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ternmq.errors import NotMaster, SystemBusy
from ternmq.raft.core import RaftCore
from ternmq.raft.log import RaftLog
from ternmq.store.durable.safety import Level
from ternmq.store.durable.watermark import Watermark
from ternmq.wire.codes import ResponseCode

#: Records that may wait for a majority. Far fewer than a store can hold: a new leader has to write its first record
#: behind all that its predecessor left.
PENDING_MAX: Final = 20_000
#: And bytes of them: more than a network of 1 Gbit/s takes in the time that a sender waits.
PENDING_BYTES_MAX: Final = 256 << 20


class Backlog:
    """``level`` is what a send waits for, and is refused by. ``core`` is the present one of the member."""

    def __init__(
        self, own_id: str, log: RaftLog, core: Callable[[], RaftCore], committed: int, timeout_ms: int
    ) -> None:
        self._id = own_id
        self._log = log
        self._core = core
        #: The last entry that the store has confirmed.
        self.confirmed = committed
        #: Position up to which a majority has the log. Senders wait for it.
        self.committed: Final = Watermark(log.end_of(committed) or 0)
        self.level: Final = Level(
            self.committed,
            timeout_ms,
            ResponseCode.SYSTEM_ERROR,
            is_required=True,
            check_write=self._check_write,
            room=self._room,
        )

    @property
    def _waiting_bytes(self) -> int:
        return self._log.end - self.committed.value

    def _room(self) -> int:
        """How many messages can be taken now, as far as it depends on a majority."""
        if self._waiting_bytes > PENDING_BYTES_MAX:
            return 0
        return PENDING_MAX + 1 - (self._log.last_index - self.confirmed)

    def _check_write(self) -> None:
        heir = self._core().heir
        if heir is not None:
            raise NotMaster(f"{self._id} hands the leadership over to {heir}; send again")
        waiting = self._log.last_index - self.confirmed
        waiting_bytes = self._waiting_bytes
        if waiting > PENDING_MAX or waiting_bytes > PENDING_BYTES_MAX:
            raise SystemBusy(
                f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {waiting} messages with "
                f"{waiting_bytes} bytes wait for a majority of the group"
            )
