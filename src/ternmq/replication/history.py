"""Whether two logs are copies of each other: samples of one, compared with the other (O1).

RocketMQ's protocol has log offsets only. A node whose log has other records before the same offset would follow
happily, and both logs would differ from then on. So a TernMQ slave sends digests of some ranges of its log, and the
master compares them with its own bytes.

The newest ranges together have ``WINDOW_BYTES``, more than the largest record: so they hold at least one whole record
with its store time, hosts and unique key, by which records of two masters differ. Older ranges are pages at distances
that double, and only say from where on two logs differ.

Behind the blank at the end of a segment anything may stand, and a recovered slave may have zeros there where its master
has remains. So a range ends with its last byte that is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from ternmq.wire.requests import Int64

#: More than a record of 4 MiB and the blank before the next one.
WINDOW_BYTES: Final = 12 << 20
#: Ranges of the window, the newest ones: one per segment, and segments are larger than this unless in a test.
_WINDOW_RANGES_MAX: Final = 8
_PAGE_BYTES: Final = 4096
#: What one slave may ask a master to read.
SAMPLES_MAX: Final = 64
SAMPLED_BYTES_MAX: Final = 2 * WINDOW_BYTES


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """Some bytes of a log: where they are, and a digest of them."""

    log_offset: Int64
    length_bytes: Int64
    digest: str

    @property
    def end(self) -> int:
        return self.log_offset + self.length_bytes


class Comparison(msgspec.Struct, frozen=True):
    """What became of the samples that both logs have."""

    #: How many are equal.
    equal: int = 0
    #: Both logs are equal up to here, as far as the samples tell.
    equal_up_to: int = 0
    #: Start of the oldest sample that differs; -1 if none does.
    differs_at: int = -1


def digest(data: bytes) -> str:
    return digest_of([data])


def digest_of(parts: Iterable[bytes]) -> str:
    """The digest of bytes that come in parts."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def ranges(begin: int, end: int, *, segment_bytes: int) -> list[tuple[int, int]]:
    """Log offset and length of what is worth a sample in a log from ``begin`` to ``end``; the newest first."""
    found: list[tuple[int, int]] = []
    at, low = end, max(begin, end - WINDOW_BYTES)
    while at > low and len(found) < _WINDOW_RANGES_MAX:
        start = max(low, (at - 1) // segment_bytes * segment_bytes)
        found.append((start, at - start))
        at = start
    distance = max(2 * (end - at), _PAGE_BYTES)
    while end - distance > begin and len(found) < SAMPLES_MAX:
        start = end - distance
        found.append((start, min(_PAGE_BYTES, segment_bytes - start % segment_bytes)))
        distance *= 2
    return found


def sample(log_offset: int, data: bytes) -> Sample | None:
    """A sample of the bytes at ``log_offset``; None if all of them are zero."""
    data = data.rstrip(b"\0")
    return Sample(log_offset, len(data), digest(data)) if data else None


def check_bounds(samples: Sequence[Sample], *, segment_bytes: int) -> str:
    """Why a node does not look at these samples of another one; empty if it does."""
    if len(samples) > SAMPLES_MAX or sum(each.length_bytes for each in samples) > SAMPLED_BYTES_MAX:
        return "it sent more samples of its log than are compared"
    for each in samples:
        if each.log_offset < 0 or each.length_bytes <= 0:
            return f"it sent a sample of {each.length_bytes} bytes at log offset {each.log_offset}"
        if each.log_offset // segment_bytes != (each.end - 1) // segment_bytes:
            return f"it sent a sample of two segments at log offset {each.log_offset}"
    return ""


def compare(samples: Sequence[Sample], digest_of: Callable[[Sample], str | None]) -> Comparison:
    """Compare samples of another log with ours; ``digest_of`` gives None for bytes that ours does not have."""
    equal, equal_up_to, differs_at = 0, 0, -1
    for each in sorted(samples, key=lambda each: each.log_offset):
        ours = digest_of(each)
        if ours is None:
            continue
        if ours == each.digest:
            equal += 1
            if differs_at < 0:
                equal_up_to = each.end
        elif differs_at < 0:
            differs_at = each.log_offset
    return Comparison(equal, equal_up_to, differs_at)
