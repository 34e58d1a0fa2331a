"""The log as another node writes it: raw bytes come in, and their records are dispatched in short steps (C5).

``append_raw`` takes bytes that are cut anywhere; ``follow`` dispatches the records among them that are whole and
confirmed. From the first byte on, the store takes no messages of its own, until ``stop_following`` has dispatched the
rest.

What happens at a log offset on the other node happens here when dispatch has reached that offset, not before and not
after: the deletion of a topic, a copied table (``when_dispatched``). Dispatch stops there, makes the call, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ternmq.env import Clock
from ternmq.errors import CorruptFile, StoreError
from ternmq.store.derived.follower import Follower
from ternmq.store.durable.watermark import Watermark
from ternmq.store.loading import LoadedStore
from ternmq.types import Buffer

#: Seconds of folding at a time where nothing else has to be done in between.
_FOLLOW_S: Final = 1.0


class Replica:
    """What a store takes from other nodes: bytes, and the word that records are confirmed. On the store's thread."""

    def __init__(self, loaded: LoadedStore, clock: Clock) -> None:
        self._loaded = loaded
        self._log = loaded.log
        self._pending = loaded.pending
        self._clock = clock
        #: Folds bytes of another node, while such come.
        self._follower: Follower | None = None
        #: What ``confirm`` was last told.
        self._confirmed = 0
        #: Callers that wait until dispatch has come that far. It follows where dispatch is not part of a put.
        self._reached = Watermark(self._pending.dispatched)

    def when_dispatched(self, log_offset: int, callback: Callable[[], object]) -> int:
        """Call ``callback`` when all records before ``log_offset`` are dispatched and none behind it; now if they are.

        A truncation does not concern it: the log will come to that offset again. Returns a ticket for ``forget``.
        """
        self.tell()
        return self._reached.call_when(log_offset, callback)

    def forget(self, ticket: int) -> None:
        """Do not make that call; one that was made is no error."""
        self._reached.forget(ticket)

    def tell(self) -> None:
        """Make the calls that are due. To be called now and then while messages are put."""
        self._reached.advance(self._pending.dispatched)

    def confirm(self, log_offset: int) -> None:
        """The records that end at ``log_offset`` or before are confirmed."""
        self._confirmed = max(self._confirmed, log_offset)
        while (stop := self._reached.first) is not None and stop < log_offset:
            self._pending.confirm(stop)
            if self._pending.dispatched < stop:
                break
            self.tell()
        self._pending.confirm(log_offset)
        self.tell()

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes of another node's log where ours ends. Raises ``StoreError`` or ``NotRunning``."""
        if self._follower is None:
            loaded = self._loaded
            self._follower = Follower(
                self._log,
                loaded.queues,
                loaded.index,
                loaded.deleted,
                loaded.dispatcher,
                position=self._log.end,
                check_crc=loaded.config.check_crc_on_recover,
                tells_arrivals=True,
            )
            self._pending.follow(self._follower)
        self._log.append_raw(log_offset, data)

    def follow(self, budget_s: float) -> bool:
        """Dispatch records that came, as far as they are whole and confirmed, for about ``budget_s``.

        False if there are more. Raises ``CorruptFile`` if the bytes are not those of a log.
        """
        follower = self._follower
        if follower is None:
            return True
        confirmed = self._log.end if self._log.confirms_at_once else min(self._confirmed, self._log.end)
        deadline = self._clock.monotonic() + budget_s

        def is_over() -> bool:
            return self._clock.monotonic() >= deadline

        while True:
            stop = self._reached.first
            until = confirmed if stop is None or stop <= follower.position else min(stop, confirmed)
            is_done = follower.step(until, is_over)
            if is_done and follower.position < until < confirmed:
                # No record ends there: the call is made behind the one that goes over it.
                until = confirmed
                is_done = follower.step(until, is_over)
            if follower.trouble:
                path = str(self._log.directories.writable[0])
                raise CorruptFile(f"{path} has bytes of another node that are no log: {follower.trouble}", path=path)
            self.tell()
            if until == confirmed or is_over():
                break
        if follower.position >= self._log.end:
            self._log.seal(self._log.end, follower.store_time_ms)
        return is_done and until == confirmed

    def stop_following(self) -> None:
        """Take messages again: all that came is dispatched, or waits to be confirmed.

        Raises ``StoreError`` if it ends with half a record: a truncation takes that away.
        """
        follower = self._follower
        if follower is None:
            return
        while not self.follow(_FOLLOW_S):
            pass
        if follower.position > self._log.end:
            # Only the beginning of a blank has come. The rest of the segment means nothing, and is not written to.
            self._log.append_raw(self._log.end, bytes(follower.position - self._log.end))
            self._log.seal(self._log.end, follower.store_time_ms)
        unconfirmed, end = follower.look_ahead()
        if end < self._log.end:
            raise StoreError(f"the log ends with half a record at {end}; take it back before messages are taken")
        if unconfirmed:
            self._log.seal(self._log.end, unconfirmed[-1].store_time_ms)
        self._pending.stop_following(unconfirmed)
        self._follower = None

    def cut(self, log_offset: int) -> None:
        """The log was truncated there."""
        self._pending.truncate(log_offset)
        if self._follower is not None:
            self._follower.cut(log_offset)

    def forget_queues(self) -> None:
        """Some queues were removed."""
        if self._follower is not None:
            self._follower.forget_queues()
