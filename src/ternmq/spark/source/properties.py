"""The properties of many records at once (U1, U3).

Each record has one text, ``name \\x01 value \\x02``, repeated. All texts of a batch are processed as one: NumPy finds
the separators, and names and values are parts of it, as bodies are parts of a log (``records``). If a text is not
regular (an empty value, a name twice, a value with \\x01 in it, bytes that are not UTF-8), the batch is parsed text by
text by ``wire.properties``, whose rules apply to all ways.

A compiled kernel does the same in one pass, for the columns that are asked for, and knows those rules; only texts that
are not UTF-8, or have very many names, are left to Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property
from ternmq.spark.source.records import Int64s, Records
from ternmq.types import Buffer
from ternmq.wire import properties as property_texts

_NAME_END: Final = 1
_PAIR_END: Final = 2
#: Of a position in an Arrow array.
_OFFSET_BYTES: Final = 4
#: Columns of a topic have these; one pass finds all of them.
_USUAL: Final = (Property.KEYS, Property.TAGS, Property.UNIQUE_KEY)


class Properties:
    """The properties of some records; each part is read when it is first asked for."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._values: dict[str, pa.Array] = {}

    def values_of(self, name: str) -> pa.Array:
        """The values of one property, null if a record does not have it."""
        if name not in self._values:
            names = _USUAL if name in _USUAL else (name,)
            self._values.update(zip(names, self._find(names), strict=True))
        return self._values[name]

    def maps(self) -> pa.Array:
        """All properties of each record."""
        records = self._records
        made = None
        if HAS_NATIVE:
            made = native.property_pairs(records.data, records.properties_at, records.properties_bytes)
        if made is None:
            return self._pairs.maps()
        name_ends, names, value_ends, values, ends = made
        count = len(name_ends) // _OFFSET_BYTES - 1
        offsets = pa.Array.from_buffers(pa.int32(), len(records) + 1, [None, pa.py_buffer(ends)])
        return pa.MapArray.from_arrays(offsets, _texts(count, name_ends, names), _texts(count, value_ends, values))

    def _find(self, names: tuple[str, ...]) -> list[pa.Array]:
        records = self._records
        made = None
        if HAS_NATIVE:
            wanted = [name.encode() for name in names]
            made = native.property_values(records.data, records.properties_at, records.properties_bytes, wanted)
        if made is None:
            return [self._pairs.values_of(name) for name in names]
        return [_texts(len(records), ends, values, valid, nulls) for ends, values, valid, nulls in made]

    @cached_property
    def _pairs(self) -> Pairs:
        return pairs_of(self._records.properties)


def _texts(count: int, ends: bytes, data: bytes, valid: Buffer | None = None, nulls: int = 0) -> pa.Array:
    """An array of strings from the parts that a kernel has made."""
    bits = pa.py_buffer(valid) if nulls else None
    return pa.Array.from_buffers(pa.string(), count, [bits, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


@dataclass(slots=True, frozen=True)
class Pairs:
    """The properties of all records, one after the other. ``ends[i]`` pairs belong to records 0 … i."""

    names: pa.Array
    values: pa.Array
    ends: Int64s
    #: The distinct names, and the name of each pair.
    distinct: Mapping[str, int]
    which: npt.NDArray[Any]

    def values_of(self, name: str) -> pa.Array:
        """The values of one property, null if a record does not have it."""
        number = self.distinct.get(name)
        if number is None:
            return pa.nulls(len(self.ends), pa.string())
        found = np.flatnonzero(self.which == number)
        if len(found) == len(self.ends):
            return self.values.take(pa.array(found))
        owners = np.searchsorted(self.ends, found, side="right")
        places = np.zeros(len(self.ends), np.int64)
        places[owners] = found
        missing = np.ones(len(self.ends), np.bool_)
        missing[owners] = False
        return self.values.take(pa.array(places, mask=missing))

    def maps(self) -> pa.Array:
        offsets = np.zeros(len(self.ends) + 1, np.int32)
        offsets[1:] = self.ends
        return pa.MapArray.from_arrays(pa.array(offsets), self.names, self.values)


def pairs_of(texts: pa.Array) -> Pairs:
    """The properties in these texts, an array of bytes."""
    return _regular_pairs(texts) or _parsed_pairs(texts)


def _regular_pairs(texts: pa.Array) -> Pairs | None:
    """The pairs of all texts at once; None if one of them is not regular."""
    try:
        # Separators are ASCII: the parts between them are UTF-8 if the whole text is.
        _, offset_buffer, data = texts.cast(pa.string()).buffers()
    except pa.ArrowInvalid:
        return None
    text_ends: Int64s = np.frombuffer(offset_buffer, np.int32)[1 : len(texts) + 1].astype(np.int64)
    size = int(text_ends[-1]) if len(texts) else 0
    octets = np.frombuffer(data, np.uint8)[:size] if size else np.zeros(0, np.uint8)
    pair_ends: Int64s = np.flatnonzero(octets == _PAIR_END)
    name_ends = np.flatnonzero(octets == _NAME_END)
    # Before RocketMQ 5.2 the last pair of a text was not terminated.
    starts = np.concatenate(([0], text_ends[:-1])) if len(texts) else text_ends
    is_open = (text_ends > starts) & (octets[text_ends - 1] != _PAIR_END) if size else np.zeros(0, np.bool_)
    if is_open.any():
        pair_ends = np.sort(np.concatenate((pair_ends, text_ends[is_open])))
        closed = (octets[np.minimum(pair_ends, size - 1)] == _PAIR_END) & ~np.isin(pair_ends, text_ends[is_open])
        behind_pairs = pair_ends + closed
    else:
        behind_pairs = pair_ends + 1
    if len(name_ends) != len(pair_ends):
        return None
    pair_starts = np.concatenate(([0], behind_pairs[:-1])) if len(pair_ends) else pair_ends
    if ((name_ends <= pair_starts) | (name_ends + 1 >= pair_ends)).any():
        return None
    # name, \x01, value, \x02: four parts per pair, and one more position for the end of the last one.
    places = np.zeros(4 * len(pair_ends) + 1, np.int32)
    for number, part_starts in enumerate((pair_starts, name_ends, name_ends + 1, pair_ends)):
        places[number:-1:4] = part_starts
    if len(pair_ends):
        places[-1] = behind_pairs[-1]
    pieces = pa.Array.from_buffers(pa.string(), len(places) - 1, [None, pa.py_buffer(places), data])
    names = pieces.take(pa.array(np.arange(0, len(pieces), 4)))
    values = pieces.take(pa.array(np.arange(2, len(pieces), 4)))
    return _pairs(names, values, np.searchsorted(pair_starts, text_ends))


def _parsed_pairs(texts: pa.Array) -> Pairs:
    """The same, text by text."""
    parsed = [property_texts.parse(str(text, "utf-8", "replace")) for text in texts.to_pylist()]
    names = pa.array([name for pairs in parsed for name in pairs], pa.string())
    values = pa.array([value for pairs in parsed for value in pairs.values()], pa.string())
    made = _pairs(names, values, np.cumsum(list(map(len, parsed)), dtype=np.int64))
    assert made is not None, "a dict has no name twice"
    return made


def _pairs(names: pa.Array, values: pa.Array, ends: Int64s) -> Pairs | None:
    """None if a record has a name twice: then the last one counts, which takes more work to find."""
    repeated = _repeated(names, ends)
    if repeated is not None:
        distinct = {name: number for number, name in enumerate(repeated)}
        which: npt.NDArray[Any] = np.broadcast_to(np.arange(len(repeated)), (len(ends), len(repeated))).ravel()
        return Pairs(names, values, ends, distinct, which) if len(distinct) == len(repeated) else None
    encoded = names.dictionary_encode()
    which = encoded.indices.to_numpy(zero_copy_only=False)
    distinct = {name: number for number, name in enumerate(encoded.dictionary.to_pylist())}
    owners = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    if len(owners) and np.bincount(owners * len(distinct) + which).max() > 1:
        return None
    return Pairs(names, values, ends, distinct, which)


def _repeated(names: pa.Array, ends: Int64s) -> list[str] | None:
    """The names of one record, if all others have the same, as usual if one program sends all messages."""
    count = int(ends[0]) if len(ends) else 0
    if not count or (ends != count * np.arange(1, len(ends) + 1)).any():
        return None
    _, offset_buffer, data = names.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(names) + 1]
    sizes = np.diff(offsets).reshape(-1, count)
    octets = np.frombuffer(data, np.uint8)[: offsets[-1]]
    is_same = (sizes == sizes[0]).all() and (octets.reshape(len(ends), -1) == octets[: offsets[count]]).all()
    return names[:count].to_pylist() if is_same else None
