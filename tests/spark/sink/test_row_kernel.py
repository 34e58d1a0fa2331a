"""Chunks that a compiled kernel packs, against those of Python (U2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.errors import InvalidMessage
from ternmq.kernels import HAS_NATIVE, native
from ternmq.spark.sink import rows
from ternmq.spark.sink.rows import ROW_PROPERTIES_BYTES_MAX, Chunk
from tests.spark.sink.test_rows import packed

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")


@contextmanager
def pure() -> Iterator[None]:
    with mock.patch.object(rows, "HAS_NATIVE", False):
        yield


def chunks_or_error(batches: list[pa.RecordBatch], chunk_bytes: int, namespace: str) -> list[Chunk] | str:
    try:
        return packed(batches, chunk_bytes=chunk_bytes, namespace=namespace)
    except InvalidMessage as error:
        return str(error)


#: Most rows can be sent; an error names the row, and ends the task.
GOOD = st.sampled_from([None, "", "a", "größe", "k1 k2", "𝄞" * 20])
TEXTS = st.lists(GOOD, min_size=1, max_size=30) | st.lists(
    st.one_of(GOOD, GOOD, GOOD, st.sampled_from(["a\x01b", "\x02", "a||b", "x" * ROW_PROPERTIES_BYTES_MAX])),
    min_size=1,
    max_size=30,
)
BODIES = st.binary(min_size=1, max_size=60)


@given(
    bodies=st.lists(BODIES, min_size=30, max_size=30)
    | st.lists(st.none() | st.binary(max_size=9), min_size=30, max_size=30),
    tags=TEXTS,
    keys=TEXTS,
    chunk_bytes=st.integers(60, 3_000),
    namespace=st.sampled_from(["", "shop"]),
    of_text=st.booleans(),
    cut=st.integers(0, 30),
)
@example([b"x"] * 30, ["a"], ["b"], 1_000, "", False, 0)
def test_chunks_are_the_same(
    bodies: list[bytes | None],
    tags: list[str | None],
    keys: list[str | None],
    chunk_bytes: int,
    namespace: str,
    of_text: bool,
    cut: int,
) -> None:
    """U2: the same bytes, ids and checksums, or the same error; a slice, whose buffers begin elsewhere, is Python's."""
    count = min(len(tags), len(keys))
    body = pa.array(bodies[:count], pa.binary())
    if of_text:
        body = pa.array([None if one is None else one.hex() for one in bodies[:count]], pa.string())
    columns = {"body": body, "tags": pa.array(tags[:count], pa.string()), "keys": pa.array(keys[:count], pa.string())}
    batch = pa.record_batch(columns | {"queue_offset": pa.array(range(count))})
    batches = [batch, batch.slice(0, cut), batch.slice(cut), batch.select(["body"])]
    with pure():
        expected = chunks_or_error(batches, chunk_bytes, namespace)

    assert expected == chunks_or_error(batches, chunk_bytes, namespace)


def test_the_kernel_takes_all_rows_but_the_first_of_a_chunk() -> None:
    """U2: or this file would compare Python with itself."""
    taken: list[int] = []

    class Counting:
        @staticmethod
        def pack_rows(*args: object, **options: object) -> tuple[bytes, int, int]:
            made: tuple[bytes, int, int] = native.pack_rows(*args, **options)  # type: ignore[arg-type]
            taken.append(made[1])
            return made

    batch = pa.record_batch({"body": [b"x" * 100] * 1_000, "tags": ["a"] * 1_000})
    with mock.patch.object(rows, "native", Counting):
        chunks = packed([batch, batch], chunk_bytes=50_000)

    assert 2_000 == sum(chunk.rows for chunk in chunks) == sum(taken) + len(chunks)


def test_a_chunk_that_python_began_is_continued() -> None:
    """U2: batches of one task may have other columns."""
    odd = pa.record_batch({"body": [b"a"], "keys": [["k1", "k2"]]})
    plain = pa.record_batch({"body": [b"b", b"c"]})
    with pure():
        expected = packed([odd, plain, odd, plain])

    assert expected == packed([odd, plain, odd, plain])


def test_a_chunk_has_no_more_rows_than_its_ids_can_count() -> None:
    """U2: rows have four digits."""
    batch = pa.record_batch({"body": [b"x"] * 0xFFFF})
    with pure():
        expected = packed([batch, batch], chunk_bytes=1 << 30)

    assert [0xFFFF, 0xFFFF] == [chunk.rows for chunk in expected]
    assert expected == packed([batch, batch], chunk_bytes=1 << 30)


@pytest.mark.parametrize("offsets", [[0], [0, 4], [3, 1], [-1, 2], [0, 2**31 - 1], [-(2**31), 0]])
def test_columns_that_lie_are_not_read(offsets: list[int]) -> None:
    """U2, bounds."""
    places = b"".join(at.to_bytes(4, "little", signed=True) for at in offsets)

    made = native.pack_rows(
        (places, b"abc", None),
        None,
        None,
        0,
        1,
        chunk_id="C",
        number=0,
        always="",
        topic_crc=0,
        room_bytes=1 << 20,
        body_bytes_max=1 << 20,
        properties_bytes_max=1 << 10,
    )

    assert (b"", 0, 0) == made
