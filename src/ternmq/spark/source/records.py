"""Many records at once: their fields are found by NumPy, without a Python object for each (U1, U3).

``Records`` is a buffer with contiguous records, as in a pull's reply or a CommitLog, and the position of each. The
heads of all records (the bytes before their bodies) are gathered with one instruction; a field is a column of them. The
layout is that of ``wire.record``. An IPv6 host shifts the following fields by 12 bytes, for that record only; if there
is one, the fields after it are read individually at their positions.

Variable parts (bodies, properties) are not copied one by one, either: an Arrow array is a buffer and positions in it,
so the records' own buffer, with the positions where parts begin and end, *is* an array of alternating parts and gaps;
``take`` selects the parts.

Invariants, as in ``wire.record``: each record is inside the buffer, its lengths add up to its size, and (if checked)
its body matches its CRC; otherwise ``CorruptRecord`` is raised.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.types import Buffer
from ternmq.wire.record import (
    CRC_MASK,
    FIELDS_V4,
    FIXED_V4_BYTES,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    V6_MORE_BYTES,
    Sysflag,
    field_at,
    unpack_head,
)

try:
    # For bodies of some hundred bytes and more, four times as fast as zlib's.
    from isal.isal_zlib import crc32
except ImportError:  # there is no wheel for this machine
    from zlib import crc32

Int64s: TypeAlias = npt.NDArray[np.int64]

#: This many consecutive records of one size are rarely a coincidence.
_ALIKE_MIN: Final = 8
_INT: Final = np.dtype(">i4")
_SHORT: Final = np.dtype(">i2")
_BYTE: Final = np.dtype("u1")
#: A record up to its body, with IPv4 hosts: address and port as one number, to distinguish them.
_HEAD: Final = np.dtype(
    [(name, f">{'u' if name.endswith('_host') else 'i'}{length_bytes}") for name, length_bytes in FIELDS_V4]
)
_FIELDS: Final = dict(_HEAD.fields or {})


class Records:
    """Contiguous records in ``data``, or records at the positions ``starts``, in any order.

    Raises ``CorruptRecord`` at once if they are invalid.
    """

    def __init__(self, data: Buffer, *, starts: Int64s | None = None) -> None:
        self.data = data
        self.starts = find_starts(data, 0, len(data)) if starts is None else starts
        self._check()

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: npt.NDArray[np.bool_]) -> Records:
        """Only some of the records, without copying bytes."""
        return self if chosen.all() else Records(self.data, starts=self.starts[chosen])

    # --- Fields, each computed when first used ----------------------------------------------------------------

    @cached_property
    def sizes(self) -> Int64s:
        """Bytes of each record."""
        return self._of_heads("size")

    @cached_property
    def queue_ids(self) -> Int64s:
        return self._of_heads("queue_id")

    @cached_property
    def queue_offsets(self) -> Int64s:
        return self._of_heads("queue_offset")

    @cached_property
    def log_offsets(self) -> Int64s:
        return self._of_heads("log_offset")

    @cached_property
    def sysflags(self) -> Int64s:
        return self._of_heads("sysflag")

    @cached_property
    def born_times_ms(self) -> Int64s:
        return self._of_heads("born_time")

    @cached_property
    def store_times_ms(self) -> Int64s:
        return self._behind_hosts("store_time", self._after_born)

    @cached_property
    def reconsume_times(self) -> Int64s:
        return self._behind_hosts("reconsume_times", self._after_store)

    @cached_property
    def body_bytes(self) -> Int64s:
        return self._behind_hosts("body_bytes", self._after_store)

    @cached_property
    def body_at(self) -> Int64s:
        return self._after_store + FIXED_V4_BYTES

    @cached_property
    def bodies(self) -> pa.Array:
        """The bodies as they were sent, compressed or not."""
        return self._parts(self.body_at, self.body_bytes)

    @cached_property
    def topics(self) -> pa.Array:
        return self._parts(self.topic_at, self.topic_bytes)

    @cached_property
    def properties(self) -> pa.Array:
        """The texts of properties."""
        return self._parts(self.properties_at, self.properties_bytes)

    def born_hosts(self) -> list[bytes]:
        """The born host of each record, in the form of ``wire.record.unpack_host``."""
        return self._hosts(self.starts + field_at("born_host"), Sysflag.BORN_V6)

    def store_hosts(self) -> list[bytes]:
        return self._hosts(self._after_born + field_at("store_host"), Sysflag.STORE_V6)

    def distinct_born_hosts(self) -> tuple[list[bytes], npt.NDArray[np.intp]] | None:
        """The distinct IPv4 hosts, and which one each record has: few clients send many messages. None with IPv6."""
        if (self.sysflags & Sysflag.BORN_V6).any():
            return None
        hosts = self._heads["born_host"]
        if (hosts == hosts[:1]).all():
            distinct, which = hosts[:1], np.zeros(len(hosts), np.intp)
        else:
            distinct, which = np.unique(hosts, return_inverse=True)
        return [int(host).to_bytes(8, "big") for host in distinct], which

    # --- Checks ------------------------------------------------------------------------------------------------

    def wrong_bodies(self) -> npt.NDArray[np.bool_]:
        """Which bodies do not match their CRC. As in Java, that of an empty body is not checked."""
        wrong: npt.NDArray[np.bool_] = (self._crcs() & CRC_MASK != self._of_heads("body_crc")) & (self.body_bytes > 0)
        return wrong

    def _crcs(self) -> Int64s:
        """The CRC of each body."""
        made = native.part_crcs(self.data, self.body_at, self.body_bytes) if HAS_NATIVE else None
        if made is not None:
            return np.frombuffer(made, np.uint32).astype(np.int64)
        # Half the cost of reading bodies, so no step is in Python; Arrow splits a column of them fastest.
        return np.fromiter(map(crc32, self.bodies.to_pylist()), np.int64, len(self))

    def check_bodies(self) -> None:
        """Raise ``CorruptRecord`` for a body that does not match its CRC."""
        wrong = self.wrong_bodies()
        if wrong.any():
            raise self._corrupt(wrong, "has a body that does not match its CRC")

    def _check(self) -> None:
        if not len(self):
            self.topic_at = self.topic_bytes = self.properties_at = self.properties_bytes = self.starts
            return
        magics = self._of_heads("magic")
        is_v1 = magics == MAGIC_V1
        if (wrong := ~is_v1 & (magics != MAGIC_V2)).any():
            raise self._corrupt(wrong, "has no magic of a record")
        ends = self.starts + self.sizes
        topic_at = self.body_at
        if (wrong := topic_at + 3 > ends).any():
            raise self._corrupt(wrong, "is too short for its IPv6 hosts")
        lengths = self.body_bytes
        topic_at = topic_at + lengths
        # The lengths of the topic, one or two bytes, and of the properties, two bytes, must follow the body.
        length_bytes = np.where(is_v1, 1, 2)
        if (wrong := (lengths < 0) | (topic_at + length_bytes + 2 > ends)).any():
            raise self._lengths_differ(wrong)
        topic_bytes = self._field(_BYTE, topic_at)
        if not is_v1.all():
            topic_bytes = np.where(is_v1, topic_bytes, self._field(_SHORT, topic_at))
        too_long = is_v1 & (topic_bytes > TOPIC_V1_BYTES_MAX)
        properties_at = topic_at + length_bytes + topic_bytes + 2
        if (wrong := too_long | (topic_bytes < 0) | (properties_at > ends)).any():
            raise self._lengths_differ(wrong)
        properties_bytes = self._field(_SHORT, properties_at - 2)
        if (wrong := properties_at + properties_bytes != ends).any():
            raise self._lengths_differ(wrong)
        self.topic_at = topic_at + length_bytes
        self.topic_bytes = topic_bytes
        self.properties_at = properties_at
        self.properties_bytes = properties_bytes

    def _lengths_differ(self, wrong: npt.NDArray[np.bool_]) -> CorruptRecord:
        return self._corrupt(wrong, "has lengths that do not add up to its size")

    def _corrupt(self, wrong: npt.NDArray[np.bool_], what: str) -> CorruptRecord:
        first = int(np.argmax(wrong))
        log_offset = int(self.log_offsets[first])
        return CorruptRecord(f"the record at log offset {log_offset} {what}", log_offset=log_offset)

    # --- Bytes -------------------------------------------------------------------------------------------------

    @cached_property
    def _heads(self) -> npt.NDArray[np.void]:
        # As plain bytes: picking out fields one by one takes five times as long.
        return self._view(np.dtype(f"V{_HEAD.itemsize}"))[self.starts].view(_HEAD)

    def _of_heads(self, name: str) -> Int64s:
        return self._heads[name].astype(np.int64)

    def _behind_hosts(self, name: str, shifted: Int64s) -> Int64s:
        """A field of heads that an IPv6 host may have shifted, to ``shifted`` instead of ``starts``."""
        if shifted is self.starts:
            return self._of_heads(name)
        kind, at, *_ = _FIELDS[name]
        return self._field(kind, shifted + at)

    @cached_property
    def _after_born(self) -> Int64s:
        """Where records would start if their born host were always IPv4."""
        v6 = self.sysflags & Sysflag.BORN_V6
        return self.starts + (v6 != 0) * V6_MORE_BYTES if v6.any() else self.starts

    @cached_property
    def _after_store(self) -> Int64s:
        v6 = self.sysflags & Sysflag.STORE_V6
        return self._after_born + (v6 != 0) * V6_MORE_BYTES if v6.any() else self._after_born

    def _view(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """A number of this type at every byte: overlapping, unaligned, without a copy."""
        return np.ndarray((max(0, len(self.data) - kind.itemsize + 1),), kind, buffer=self.data, strides=(1,))

    def _field(self, kind: np.dtype[Any], at: Int64s) -> Int64s:
        return self._view(kind)[at].astype(np.int64)

    def _hosts(self, at: Int64s, v6_flag: int) -> list[bytes]:
        view = memoryview(self.data)
        widths = np.where(self.sysflags & v6_flag, HOST_V4_BYTES + V6_MORE_BYTES, HOST_V4_BYTES)
        return [bytes(view[begin : begin + width]) for begin, width in zip(at.tolist(), widths.tolist(), strict=True)]

    @cached_property
    def _order(self) -> npt.NDArray[np.intp] | None:
        """The order of the records in ``data``, if it differs from their own."""
        return np.argsort(self.starts) if (self.starts[1:] < self.starts[:-1]).any() else None

    def _parts(self, at: Int64s, sizes: Int64s) -> pa.Array:
        """The part of each record that begins ``at`` a position, as one array of bytes."""
        if not len(at):
            return pa.array([], pa.binary())
        chosen = np.arange(0, 2 * len(at), 2)
        if self._order is not None:
            # Positions in an Arrow array grow, so the parts are in that order there; ``take`` restores the wanted one.
            chosen[self._order] = chosen.copy()
            at, sizes = at[self._order], sizes[self._order]
        places = np.empty(2 * len(at), np.int32)
        places[0::2] = at
        places[1::2] = at + sizes
        buffers = [None, pa.py_buffer(places), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(places) - 1, buffers).take(pa.array(chosen))


def find_starts(data: Buffer, begin: int, end: int) -> Int64s:
    """The start of each record between two positions: each record contains its size. Raises ``CorruptRecord``."""
    made = native.record_starts(data, begin, end) if HAS_NATIVE else None
    return np.frombuffer(made, np.int64) if made is not None else _find_starts(data, begin, end)


def _find_starts(data: Buffer, begin: int, end: int) -> Int64s:
    """The same without a kernel, which does not know the errors."""
    found: list[Int64s] = []
    single: list[int] = []
    at = begin
    last_size = alike = 0
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            raise CorruptRecord(f"{end - at} bytes at {at} are too few for a record")
        size, _ = unpack_head(data, at)
        if size < RECORD_BYTES_MIN or size > end - at:
            raise CorruptRecord(f"the record at {at} claims {size} bytes where {end - at} are left")
        single.append(at)
        at += size
        if size != last_size:
            last_size, alike = size, 0
        elif (alike := alike + 1) == _ALIKE_MIN:
            # Data of a sensor, for example: many records of one size are found with one instruction.
            alike, run_end = 0, at + _run_bytes(data, at, end, size)
            found += np.array(single, np.int64), np.arange(at, run_end, size)
            single, at = [], run_end
    return np.concatenate((*found, np.array(single, np.int64)))


def _run_bytes(data: Buffer, at: int, end: int, size: int) -> int:
    """How far consecutive records of one ``size`` extend from ``at``."""
    sizes = np.ndarray(((end - at) // size,), _INT, buffer=data, offset=at, strides=(size,))
    others = np.flatnonzero(sizes != size)
    return size * int(others[0] if len(others) else len(sizes))
