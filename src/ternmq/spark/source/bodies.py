"""The bodies of a slice: checked, decompressed; and messages whose body cannot be read (U1).

Any producer can send a body that is marked as compressed but is not, and a few hundred bytes can decompress to
gigabytes. One such message must not stop all reads of its queue, so the user decides (``options.BadMessages``), and
each body has a limit. All bodies of a batch together have a limit, too: a chunk of records may become several batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from ternmq.errors import CorruptRecord
from ternmq.message import MessageQueue
from ternmq.spark.source.columns import Rows
from ternmq.spark.source.options import BadMessages
from ternmq.spark.source.records import Records
from ternmq.wire.compress import decompress
from ternmq.wire.record import Sysflag

log = logging.getLogger(__name__)

#: Decompressed bodies of a batch; above this limit a new batch begins.
BATCH_BYTES: Final = 64 << 20

_WRONG_CRC: Final = "its body does not match its CRC"


class BodyReader:
    """Executor: makes rows from the records of one slice."""

    def __init__(self, queue: MessageQueue, bad: BadMessages, *, bytes_max: int, decompresses: bool) -> None:
        """``queue`` is the name for rows and errors. Without ``decompresses`` no column needs the bodies."""
        self._queue = queue
        self._bad = bad
        self._bytes_max = bytes_max
        self._decompresses = decompresses
        self._skipped = 0
        self._first_skipped = ""

    def rows(self, records: Records) -> Iterator[Rows]:
        """The rows of these records. Raises ``CorruptRecord`` for a bad message, if the user has chosen that."""
        wrong = records.wrong_bodies()
        packed = (records.sysflags & Sysflag.COMPRESSED) != 0 if self._decompresses else np.zeros_like(wrong)
        if not wrong.any() and not packed.any():
            yield Rows(records, self._queue)
            return
        begin, batch_bytes = 0, 0
        bodies: list[bytes | None] = []
        problems: list[str | None] = []
        for number, stored in enumerate(records.bodies.to_pylist()):
            body, problem = stored, None
            if wrong[number]:
                body, problem = None, _WRONG_CRC
            elif packed[number]:
                body, problem = self._decompressed(stored, int(records.sysflags[number]))
            if problem is not None:
                self._note(int(records.queue_offsets[number]), problem)
            bodies.append(body)
            problems.append(problem)
            batch_bytes += len(body or b"")
            if batch_bytes >= BATCH_BYTES:
                yield self._batch(records, begin, bodies, problems)
                begin, batch_bytes, bodies, problems = number + 1, 0, [], []
        if bodies:
            yield self._batch(records, begin, bodies, problems)

    def close(self) -> None:
        """The slice is done: log what was skipped."""
        if self._skipped:
            log.warning(
                "skipped %d messages of %s, because badMessages is skip; the first: %s",
                self._skipped,
                self._queue,
                self._first_skipped,
            )

    def _decompressed(self, stored: bytes, sysflag: int) -> tuple[bytes | None, str | None]:
        try:
            return decompress(stored, sysflag, bytes_max=self._bytes_max), None
        except CorruptRecord as error:
            return None, str(error)

    def _note(self, queue_offset: int, problem: str) -> None:
        what = f"the message at queue offset {queue_offset} of {self._queue} cannot be read: {problem}"
        match self._bad:
            case BadMessages.FAIL:
                raise CorruptRecord(
                    f"{what}; set the option badMessages to skip or null to continue without it, or maxBodyBytes "
                    "to allow larger bodies"
                )
            case BadMessages.SKIP:
                self._first_skipped = self._first_skipped or what
                self._skipped += 1
            case BadMessages.NULL:
                pass

    def _batch(self, records: Records, begin: int, bodies: list[bytes | None], problems: list[str | None]) -> Rows:
        starts = records.starts[begin : begin + len(bodies)]
        if self._bad is BadMessages.SKIP:
            kept = [number for number, problem in enumerate(problems) if problem is None]
            starts = starts[kept]
            bodies = [bodies[number] for number in kept]
            problems = [None] * len(kept)
        return Rows(
            Records(records.data, starts=starts),
            self._queue,
            bodies=pa.array(bodies, pa.binary()),
            problems=pa.array(problems, pa.string()),
        )
