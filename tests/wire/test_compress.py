"""Compressed bodies."""

from __future__ import annotations

import gzip
import sys
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import CorruptRecord
from ternmq.wire.compress import CompressionMissing, compress, decompress
from ternmq.wire.record import Sysflag

KINDS = {"zlib": Sysflag.ZLIB, "lz4": Sysflag.LZ4, "zstd": Sysflag.ZSTD}
TEXT = b"to be or not to be, " * 50

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@every_kind
@given(body=st.binary(max_size=500))
def test_bodies_round_trip(kind: int, body: bytes) -> None:
    """E1"""
    data, bits = compress(body, kind)
    assert kind | Sysflag.COMPRESSED == bits
    assert body == decompress(data, bits) == decompress(memoryview(data), bits) == decompress(bytearray(data), bits)


@every_kind
def test_a_body_gets_smaller(kind: int) -> None:
    """E1"""
    assert len(compress(TEXT, kind)[0]) < len(TEXT) / 4


@every_kind
def test_a_body_cut_anywhere_is_refused(kind: int) -> None:
    """B5"""
    data, bits = compress(TEXT, kind)
    for length in range(len(data)):
        with pytest.raises(CorruptRecord):
            decompress(data[:length], bits)


@every_kind
def test_a_changed_byte_gives_a_body_or_a_corrupt_record(kind: int) -> None:
    """B5: every byte, every bit."""
    data, bits = compress(TEXT, kind)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with suppress(CorruptRecord):
                decompress(changed, bits)


@every_kind
def test_bytes_after_the_end_are_ignored(kind: int) -> None:
    """B5: the stream itself says where it ends."""
    data, bits = compress(TEXT, kind)
    assert TEXT == decompress(data + b"more", bits)


@every_kind
def test_a_body_may_not_grow_beyond_what_is_allowed(kind: int) -> None:
    """B5: a few bytes could become gigabytes."""
    data, bits = compress(bytes(10_000_000), kind)
    assert 10_000_000 == len(decompress(data, bits, bytes_max=10_000_000))
    with pytest.raises(CorruptRecord, match="larger than the 9999999 bytes allowed"):
        decompress(data, bits, bytes_max=9_999_999)


def test_no_bits_of_a_kind_mean_zlib() -> None:
    """V1: Go and Node send it so."""
    assert TEXT == decompress(zlib.compress(TEXT), Sysflag.COMPRESSED)


def test_zlib_of_java_has_its_own_bits() -> None:
    """V1"""
    assert TEXT == decompress(zlib.compress(TEXT, 5), 0x301)


def test_a_body_that_is_not_compressed_stays() -> None:
    """E1"""
    assert b"plain" == decompress(memoryview(b"plain"), 0)
    assert b"plain" == decompress(b"plain", Sysflag.LZ4)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    """B5"""
    with pytest.raises(CorruptRecord, match=r"in an unknown way \(sysflag 0x401\)"):
        decompress(b"", 0x401)


def test_what_is_compressed_otherwise_is_refused() -> None:
    """B5"""
    with pytest.raises(CorruptRecord, match="the zlib body cannot be decompressed"):
        decompress(gzip.compress(TEXT), Sysflag.COMPRESSED)


def test_blocks_of_an_lz4_frame_stand_alone() -> None:
    """V1: Java's reader refuses others. The third highest bit of the first byte after the magic says so."""
    data, _ = compress(TEXT, Sysflag.LZ4)
    assert (b"\x04\x22\x4d\x18", 0x20) == (data[:4], data[4] & 0x20)


def test_a_zstd_frame_need_not_tell_its_size() -> None:
    """V2: Java's does not."""
    import zstandard

    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(TEXT) + stream.flush()
    assert TEXT == decompress(data, Sysflag.ZSTD | Sysflag.COMPRESSED)


@pytest.mark.parametrize(("kind", "package"), [(Sysflag.LZ4, "lz4"), (Sysflag.ZSTD, "zstandard")])
def test_a_missing_package_is_named_with_its_cure(kind: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """E1"""
    data, bits = compress(TEXT, kind)
    for module in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.setitem(sys.modules, module, None)  # None: it cannot be imported
    cure = rf"{package} is not installed; run `pip install ternmq\[compress\]`"
    for use in (lambda: compress(TEXT, kind), lambda: decompress(data, bits)):
        with pytest.raises(CompressionMissing, match=cure):
            use()
