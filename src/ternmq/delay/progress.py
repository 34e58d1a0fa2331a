"""Progress of each delay level (I1): ``config/delayOffset.json``.

By level, from 1 on, the queue offset of the next waiting message; all messages before it are delivered. The table is
saved every 10 s (``flushDelayOffsetInterval``) and when the broker stops, so a broker that was killed delivers again at
most what it delivered since. On disk, as RocketMQ 5 writes it (4.9 without the version; integer keys unquoted)::

    {"dataVersion":{…},"offsetTable":{"3":17,"4":2}}

The file must never be ahead of the log. A copy that was delivered but is not yet on disk is lost in a power cut. If the
file had counted it, the message itself would be lost, although it had been safe in the log before. Therefore the saved
offsets are those of one moment, written when the log is on disk up to that moment.
"""

from __future__ import annotations

from functools import partial

from ternmq.env import Clock
from ternmq.files import TableFile
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.stats import DelayOffsets
from ternmq.wire.bodies.topics import DataVersion


class DelayProgress:
    """All methods belong to the broker's loop."""

    def __init__(self, file: TableFile, store: MessageStore, clock: Clock) -> None:
        self._file = file
        self._store = store
        self._clock = clock
        self._version = DataVersion()
        self._offsets: dict[int, int] = {}
        self._is_changed = False
        #: End of the log when a message was last delivered.
        self._log_end = 0
        self._ticket: int | None = None

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, DelayOffsets))
        if saved is not None:
            self._offsets = dict(saved.offset_table)
            self._version = saved.data_version or DataVersion()

    def get(self, level: int) -> int:
        """Queue offset of the next message of a level."""
        return self._offsets.get(level, 0)

    def move(self, level: int, queue_offset: int, *, log_end: int = 0) -> None:
        """Note that all messages of a level before ``queue_offset`` are delivered, the last as a copy that ends at
        ``log_end``."""
        self._offsets[level] = queue_offset
        self._log_end = max(self._log_end, log_end)
        self._is_changed = True

    def save(self) -> None:
        """Write the file as soon as the log is on disk, if the table has changed since the last time."""
        if not self._is_changed:
            return
        self._is_changed = False
        counter, state = self._version.counter + 1, self._version.state_version or 0
        self._version = DataVersion(counter=counter, timestamp=self._clock.now_ms(), state_version=state)
        copy = partial(encode, self.body())
        safe = self._store.safe
        if self._ticket is not None:
            # One that still waits for a slow disk is out of date now.
            safe.forget(self._ticket)
        self._ticket = safe.call_when(self._log_end, lambda: self._file.save(lambda: copy))

    def copy(self, offsets: DelayOffsets) -> None:
        """Have the progress of a master (O4)."""
        if offsets.offset_table != self._offsets:
            self._offsets = dict(offsets.offset_table)
            self._is_changed = True

    def cut(self) -> int:
        """Let no level be further than its queue: the log was cut (O1). Returns how many were."""
        ends = {level: self._store.max_offset(SCHEDULE_TOPIC, level - 1) for level in self._offsets}
        ahead = [level for level, end in ends.items() if self._offsets[level] > end]
        for level in ahead:
            self._offsets[level] = ends[level]
            self._is_changed = True
        return len(ahead)

    def body(self) -> DelayOffsets:
        """The table in its wire form, as it is now (for the file, and for slaves)."""
        return DelayOffsets(data_version=self._version, offset_table=dict(self._offsets))
