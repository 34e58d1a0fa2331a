"""A file of the simulated disk: its cached and its durable bytes, and which pages have blocks (``testing.disk``).

::

    cached    what processes read and write: the page cache; a segment's ``page`` is a view of it
    clean     what the kernel believes to be on the disk; a page that differs from it is dirty
    durable   what is on the disk

A *page* is written whole or not at all. Its block is *claimed* when it is written, zeroed or reserved. A write
through a mapping to a page without a block would kill a real process on a full disk (``UnreservedStore``).

Invariant: ``cached`` is never replaced, so that views of it stay valid, and grows only while there are no views.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ternmq.types import Buffer


class UnreservedStore(AssertionError):
    """A mapped byte was written whose block was not reserved: on a full disk this kills the process."""


class Image:
    """One file."""

    __slots__ = ("_claimed_durably", "_clean", "_durable", "_page_bytes", "cached", "claimed", "modified_ms")

    def __init__(self, page_bytes: int, data: bytes = b"", claimed: frozenset[int] = frozenset()) -> None:
        """A file with this content, all of it on the disk."""
        self._page_bytes = page_bytes
        self.cached = bytearray(data)
        self._clean = bytes(data)
        self._durable = bytes(data)
        #: Numbers of the pages that have a block.
        self.claimed = set(claimed)
        self._claimed_durably = set(claimed)
        self.modified_ms = 0

    # --- Steps of a process -------------------------------------------------------------------------------------

    def chunks(self, at: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        """The bytes from ``at`` on, page by page: begin and end of each part."""
        end = at + length_bytes
        while at < end:
            page_end = min(end, at - at % self._page_bytes + self._page_bytes)
            yield at, page_end
            at = page_end

    def lacking(self, begin: int, end: int) -> list[int]:
        """Pages of these bytes that have no block."""
        size = self._page_bytes
        return [page for page in range(begin // size, -(-end // size)) if page not in self.claimed]

    def set_length(self, length_bytes: int) -> None:
        """Make the file longer; the new bytes are zero."""
        self.cached.extend(bytes(length_bytes - len(self.cached)))

    def write(self, at: int, data: Buffer) -> None:
        """The caller has claimed the pages."""
        end = at + len(data)
        if end > len(self.cached):
            self.set_length(end)
        self.cached[at:end] = data

    def sync(self) -> None:
        """Write dirty pages, the length and the claims to the disk."""
        durable = bytearray(self._durable.ljust(len(self.cached), b"\0"))
        for _, begin, end in self._dirty():
            durable[begin:end] = self.cached[begin:end]
        self._durable, self._clean = bytes(durable), bytes(self.cached)
        self._claimed_durably = set(self.claimed)

    def fail_to_sync(self) -> None:
        """Mark dirty pages as clean, as Linux does after an error: no later sync writes them."""
        self._clean = bytes(self.cached)

    @property
    def is_dirty(self) -> bool:
        return self._clean != self.cached

    def check_stores(self) -> None:
        """Raises ``UnreservedStore``."""
        size = self._page_bytes
        for begin in range(0, len(self.cached), size):
            if begin // size not in self.claimed and any(self.cached[begin : begin + size]):
                raise UnreservedStore(f"page {begin // size} was written to and never reserved")

    # --- Faults -------------------------------------------------------------------------------------------------

    def write_back(self, random: Random) -> None:
        """The kernel writes some dirty pages at any time."""
        if len(self._durable) != len(self.cached):
            return
        clean, durable = bytearray(self._clean), bytearray(self._durable)
        for page, begin, end in [*self._dirty()]:
            if random.random() < 0.5:
                clean[begin:end] = durable[begin:end] = self.cached[begin:end]
                self._claimed_durably.add(page)
        self._clean, self._durable = bytes(clean), bytes(durable)

    def evict(self) -> None:
        """Drop clean pages, so that the next read gets the bytes on disk: this reveals a failed sync."""
        clean = bytearray(self._clean)
        for begin, end in self.chunks(0, len(self._durable)):
            if clean[begin:end] == self.cached[begin:end] != self._durable[begin:end]:
                self.cached[begin:end] = clean[begin:end] = self._durable[begin:end]
        self._clean = bytes(clean)

    def after_cut(self, random: Random) -> Image:
        """The file as it is found after a power cut."""
        keeps_length = len(self._durable) == len(self.cached) or random.random() < 0.5
        data = bytearray(self._durable.ljust(len(self.cached), b"\0") if keeps_length else self._durable)
        claimed = set(self._claimed_durably)
        for page, begin, end in self._dirty():
            if end <= len(data) and random.random() < 0.5:
                data[begin:end] = self.cached[begin:end]
                claimed.add(page)
        for page in sorted(self.claimed - claimed):
            if page * self._page_bytes < len(data) and random.random() < 0.5:
                claimed.add(page)
        found = Image(self._page_bytes, bytes(data), frozenset(claimed))
        found.modified_ms = self.modified_ms
        return found

    def flip_bit(self, bit: int) -> None:
        """Corrupt one bit, on the disk and in the cache. A hole has no bits to corrupt."""
        at, mask = bit // 8, 1 << bit % 8
        if at // self._page_bytes not in self.claimed:
            return
        self.cached[at] ^= mask
        clean, durable = bytearray(self._clean), bytearray(self._durable)
        for image in (clean, durable):
            if at < len(image):
                image[at] ^= mask
        self._clean, self._durable = bytes(clean), bytes(durable)

    def lose_page(self, at: int) -> None:
        """Read zeros from now on in the page with the byte ``at``, from the disk and the cache."""
        begin = at - at % self._page_bytes
        end = min(begin + self._page_bytes, len(self.cached))
        self.cached[begin:end] = bytes(end - begin)
        self._clean, self._durable = (
            image[:begin] + bytes(len(image[begin:end])) + image[end:] for image in (self._clean, self._durable)
        )

    def copy(self) -> Image:
        return Image(self._page_bytes, bytes(self.cached), frozenset(self.claimed))

    def _dirty(self) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end of each page that differs from what the kernel believes to be on the disk."""
        cached, clean = self.cached, self._clean
        if clean == cached:
            return
        for begin, end in self.chunks(0, len(cached)):
            if cached[begin:end] != clean[begin:end].ljust(end - begin, b"\0"):
                yield begin // self._page_bytes, begin, end
