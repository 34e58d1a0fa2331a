"""Columns that compiled kernels make of records, against those of NumPy and Python (U1, C1, C8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property
from ternmq.spark.source import properties, records
from ternmq.spark.source.columns import Batches, Rows, spark_schema
from ternmq.spark.source.properties import Properties
from ternmq.spark.source.records import Records, find_starts
from tests.spark.source.test_columns import PROPERTIES, QUEUE, RECORDS, packed

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

NAMES_MAX = 64


@contextmanager
def pure() -> Iterator[None]:
    """Records and properties as they are read without compiled kernels."""
    with mock.patch.object(records, "HAS_NATIVE", False), mock.patch.object(properties, "HAS_NATIVE", False):
        yield


def batch_of(data: bytes) -> pa.RecordBatch:
    found = Records(data)
    found.check_bodies()
    batch = Batches(spark_schema()).of(Rows(found, QUEUE))
    batch.validate(full=True)
    return batch


def of_properties(texts: list[bytes]) -> list[pa.Array]:
    """Arrays of some properties, and of all."""
    found = Properties(Records(b"".join(packed(properties=text) for text in texts)))
    made = [found.values_of(name) for name in (Property.KEYS, Property.UNIQUE_KEY, "A", "größe")]
    made.append(found.maps())
    for array in made:
        array.validate(full=True)
    return made


@given(RECORDS)
def test_a_batch_is_the_same(made: list[bytes]) -> None:
    """U1: hosts of both kinds, long topics, properties of any form."""
    data = b"".join(made)
    with pure():
        expected = batch_of(data)

    assert expected == batch_of(data)


@given(st.lists(PROPERTIES, max_size=20))
def test_properties_are_the_same(texts: list[bytes]) -> None:
    """C1: names that occur twice, empty values, separators in values, no separator at the end, what is not UTF-8."""
    with pure():
        expected = of_properties(texts)

    assert expected == of_properties(texts)


@pytest.mark.parametrize("count", [NAMES_MAX, NAMES_MAX + 1, 3_000])
def test_many_names_are_read(count: int) -> None:
    """U1, bounds: above a limit by Python, as the kernel compares each name with all others."""
    text = b"".join(b"%d\x01v\x02" % number for number in range(count)) + b"0\x01last\x02"
    data = packed(properties=text)
    found = Records(data)

    made = native.property_pairs(found.data, found.properties_at, found.properties_bytes)

    assert (made is not None) == (count <= NAMES_MAX)
    (pairs,) = Properties(found).maps().to_pylist()
    assert (count, ("0", "last"), (str(count - 1), "v")) == (len(pairs), pairs[0], pairs[-1])


@given(RECORDS.filter(bool), st.data())
def test_damage_is_found_by_both(made: list[bytes], data: st.DataObject) -> None:
    """C8: the same starts, or none by the kernel where Python has an error; the same bodies are wrong."""
    octets = bytearray(b"".join(made))
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    begin = data.draw(st.just(0) | st.integers(0, len(octets)))
    end = data.draw(st.just(len(octets)) | st.integers(begin, len(octets)))

    starts = native.record_starts(octets, begin, end)

    try:
        expected = records._find_starts(octets, begin, end)
    except CorruptRecord:
        assert starts is None
        with pytest.raises(CorruptRecord):
            find_starts(octets, begin, end)
        return
    assert starts is not None
    assert expected.tolist() == find_starts(octets, begin, end).tolist()
    try:
        found = Records(octets, starts=expected)
    except CorruptRecord:
        return
    with pure():
        wrong = Records(octets, starts=expected).wrong_bodies()
    assert wrong.tolist() == found.wrong_bodies().tolist()


@pytest.mark.parametrize(
    ("at", "sizes"),
    [([0], [11]), ([10], [1]), ([-1], [1]), ([0], [-1]), ([2**63 - 1], [2**63 - 1]), ([0, 1], [1]), ([11], [0])],
)
def test_parts_that_are_not_inside_are_refused(at: list[int], sizes: list[int]) -> None:
    """U1: positions are of Python, but the file may have changed."""
    data, places, lengths = b"0123456789", np.array(at, np.int64), np.array(sizes, np.int64)

    assert native.part_crcs(data, places, lengths) is None
    assert native.property_values(data, places, lengths, [b"A"]) is None
    assert native.property_pairs(data, places, lengths) is None


def test_other_arrays_than_of_8_bytes_are_refused() -> None:
    """Nothing is read as something else."""
    places = np.zeros(4, np.int64)
    for odd in (np.zeros(4, np.int32), np.zeros(4, np.float64), places[::2]):
        with pytest.raises((BufferError, ValueError)):
            native.part_crcs(b"0123", places[: len(odd)], odd)
