"""Compression of bodies: zlib, LZ4 frames and ZSTD (E1).

A producer compresses, a consumer decompresses; the broker does neither. In the sysflag, bit 0 means that the body is
compressed, and bits 8–10 give the method. If they are 0, it is zlib, as old clients and those in Go and Node send it.
zlib is always available; the other two come with ``pip install ternmq[compress]`` and are imported when they are used
for the first time.

A few hundred bytes can decompress to gigabytes, so each call has a limit in bytes, and decompression stops at this
limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from ternmq.errors import CorruptRecord, TernError
from ternmq.types import Buffer
from ternmq.wire.record import Sysflag

#: Limit of one decompressed body. Producers limit a body before they compress it, by default to 4 MiB.
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
#: RocketMQ's default level (``rocketmq.message.compressLevel``).
LEVEL: Final = 5
#: A block of ZSTD can expand four bytes to 128 KiB, so a piece of this size gives at most 32 MiB, or 2 MiB.
_ZSTD_PIECE_BYTES_MAX: Final = 1024
_ZSTD_PIECE_BYTES_MIN: Final = 64


class CompressionMissing(TernError):
    """The optional package for a kind of compression is not installed."""

    #: The end of the error message.
    CURE: Final = "is not installed; run `pip install ternmq[compress]`"

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(f"the package {package} {self.CURE}")


def compress(body: Buffer, kind: int = Sysflag.ZLIB, *, level: int = LEVEL) -> tuple[bytes, int]:
    """The compressed body, and the bits to set in its sysflag. ``kind`` is one of ``Sysflag``'s three."""
    if kind == Sysflag.LZ4:
        data = _lz4_compress(body, level)
    elif kind == Sysflag.ZSTD:
        data = _zstd_compress(body, level)
    else:
        assert kind == Sysflag.ZLIB, kind
        data = zlib.compress(body, level)
    return data, kind | Sysflag.COMPRESSED


def decompress(body: Buffer, sysflag: int, *, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body as it was before ``compress``; if the sysflag says that it is not compressed, a copy of the body.

    Raises ``CorruptRecord`` for a body that cannot be decompressed, or not within ``bytes_max``.
    """
    if not sysflag & Sysflag.COMPRESSED:
        return bytes(body)
    kind = sysflag & Sysflag.COMPRESSION_MASK
    inflate = _INFLATERS.get(kind)
    if inflate is None:
        raise CorruptRecord(f"the body is compressed in an unknown way (sysflag {sysflag:#x})")
    return inflate(body, bytes_max)


def _unreadable(kind: str, reason: object) -> CorruptRecord:
    return CorruptRecord(f"the {kind} body cannot be decompressed: {reason}")


def _unfinished(kind: str, data_bytes: int, bytes_max: int) -> CorruptRecord:
    if data_bytes < bytes_max:
        return CorruptRecord(f"the {kind} body is cut short")
    return CorruptRecord(f"the {kind} body is larger than the {bytes_max} bytes allowed")


def _zlib_decompress(body: Buffer, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, bytes_max)
    except zlib.error as error:
        raise _unreadable("zlib", error) from None
    if not stream.eof:
        raise _unfinished("zlib", len(data), bytes_max)
    return data


def _lz4_compress(body: Buffer, level: int) -> bytes:
    try:
        import lz4.frame  # type: ignore[import-untyped]  # it has no types
    except ImportError:
        raise CompressionMissing("lz4") from None
    # Java's reader (lz4-java) refuses frames whose blocks refer to each other, and its consumer drops the message.
    data: bytes = lz4.frame.compress(body, compression_level=level, block_linked=False)
    return data


def _lz4_decompress(body: Buffer, bytes_max: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise CompressionMissing("lz4") from None
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        data: bytes = stream.decompress(body, max_length=bytes_max)
    except RuntimeError as error:
        raise _unreadable("LZ4", error) from None
    if not stream.eof:
        raise _unfinished("LZ4", len(data), bytes_max)
    return data


def _zstd_compress(body: Buffer, level: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise CompressionMissing("zstandard") from None
    return zstandard.ZstdCompressor(level=level).compress(body)


def _zstd_decompress(body: Buffer, bytes_max: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise CompressionMissing("zstandard") from None
    # Frames of Java's writer do not contain their size, so a plain call cannot read them. A stream object reads them,
    # but has no limit. So it gets pieces (smaller ones for a smaller limit), and the sum is checked after each piece.
    piece_bytes = min(max(bytes_max // 32_768, _ZSTD_PIECE_BYTES_MIN), _ZSTD_PIECE_BYTES_MAX)
    stream = zstandard.ZstdDecompressor().decompressobj()
    view = memoryview(body)
    pieces: list[bytes] = []
    total_bytes = 0
    try:
        for at in range(0, len(view), piece_bytes):
            pieces.append(stream.decompress(view[at : at + piece_bytes]))
            total_bytes += len(pieces[-1])
            if stream.eof or total_bytes > bytes_max:
                break
    except zstandard.ZstdError as error:
        raise _unreadable("ZSTD", error) from None
    if not stream.eof or total_bytes > bytes_max:
        raise _unfinished("ZSTD", total_bytes, bytes_max)
    return b"".join(pieces)


_INFLATERS: Final[dict[int, Callable[[Buffer, int], bytes]]] = {
    0: _zlib_decompress,
    Sysflag.ZLIB: _zlib_decompress,
    Sysflag.LZ4: _lz4_decompress,
    Sysflag.ZSTD: _zstd_decompress,
}
