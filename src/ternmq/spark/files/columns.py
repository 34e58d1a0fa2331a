"""The columns of a log (those of a topic and some more), and the rows of damaged places (U3).

Records of all topics are mixed, so topics are texts of the records here. A row of ``damage`` has what is known about a
place: all columns if only the body is wrong, else position and length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ternmq.errors import CorruptRecord, StoreError
from ternmq.message import MessageQueue
from ternmq.spark.source.columns import COLUMNS, Column, Rows, int_column, text_column
from ternmq.spark.source.options import MAX_BODY_BYTES
from ternmq.spark.source.records import Records
from ternmq.store.inspect.scan import Damage, Damaged
from ternmq.wire.compress import decompress
from ternmq.wire.record import Sysflag

#: Kinds of damage that leave the record readable: only the bytes of body, or of topic and properties, are wrong.
_READABLE: Final = frozenset({Damage.CRC, Damage.TORN})


class LogRows(Rows):
    """Rows of one segment. ``damage`` is the damage of all of them, if there is any."""

    def __init__(
        self,
        records: Records,
        *,
        segment: str,
        broker: str = "",
        damage: str = "",
        keep_unreadable: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        super().__init__(records, MessageQueue("", broker, 0))
        self.segment = segment
        self.damage = damage
        self._keep_unreadable = keep_unreadable
        self._max_body_bytes = max_body_bytes

    @cached_property
    def encoded_topics(self) -> pa.DictionaryArray:
        records = self.records
        return records.topics.dictionary_encode()

    def topics(self) -> pa.Array:
        encoded = self.encoded_topics
        return self.topic_names.take(encoded.indices)

    @cached_property
    def topic_names(self) -> pa.Array:
        """The distinct topics."""
        return self.encoded_topics.dictionary.cast(pa.string())

    def of_topics(self, selects: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which rows belong to the selected topics."""
        chosen = np.array([selects(topic) for topic in self.topic_names.to_pylist()], np.bool_)
        which: npt.NDArray[np.bool_] = chosen[self.encoded_topics.indices.to_numpy(zero_copy_only=False)]
        return which

    def brokers(self) -> pa.Array:
        return self.same(self.queue.broker_name or None)

    def same(self, text: str | None) -> pa.Array:
        """One text for all rows."""
        return pa.repeat(pa.scalar(text, pa.string()), len(self.records))

    def bodies(self) -> pa.Array:
        records = self.records
        packed = (records.sysflags & Sysflag.COMPRESSED) != 0
        if not packed.any():
            return super().bodies()
        bodies = records.bodies.to_pylist()
        for number in np.flatnonzero(packed).tolist():
            bodies[number] = self._inflated(number, bodies[number])
        return pa.array(bodies, pa.binary())

    def _inflated(self, number: int, body: bytes) -> bytes | None:
        try:
            return decompress(body, int(self.records.sysflags[number]), bytes_max=self._max_body_bytes)
        except CorruptRecord as error:
            if self._keep_unreadable:
                return None
            raise StoreError(
                f"the record at log offset {self.records.log_offsets[number]} in {self.segment} is as it was sent, but "
                f"{error}; set the option onCorrupt to skip or keep to get it without a body"
            ) from None


def damage_rows(damaged: Damaged, data: bytes, *, segment: str, broker: str) -> LogRows | None:
    """The row of a record with the bytes ``data``, if its fields are readable in spite of the damage."""
    if damaged.kind not in _READABLE:
        return None
    try:
        records = Records(data, starts=np.zeros(1, np.int64))
        rows = LogRows(records, segment=segment, broker=broker, damage=damaged.kind.value, keep_unreadable=True)
        rows.topics()
    except (CorruptRecord, pa.ArrowInvalid):
        return None
    return rows


def damage_batch(damaged: Damaged, schema: pa.Schema, *, segment: str, broker: str) -> pa.RecordBatch:
    """One row for a place whose content is unknown."""
    known = {
        "broker": broker or None,
        "log_offset": damaged.begin,
        "record_bytes": damaged.end - damaged.begin,
        "segment": segment,
        "damage": damaged.kind.value,
    }
    arrays = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _log_rows(rows: Rows) -> LogRows:
    assert isinstance(rows, LogRows), "these columns belong to a log"
    return rows


LOG_COLUMNS: Final[Mapping[str, Column]] = {
    **COLUMNS,
    "sysflag": int_column(lambda records: records.sysflags),
    "record_bytes": int_column(lambda records: records.sizes),
    "segment": text_column(lambda rows: _log_rows(rows).same(_log_rows(rows).segment)),
    "damage": text_column(lambda rows: _log_rows(rows).same(_log_rows(rows).damage or None)),
}
