"""Sets of messages, as spans of queue offsets (U4)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence

from ternmq.message import MessageQueue

#: Queue offsets from the first to before the second.
OffsetSpan = tuple[int, int]


class Covered:
    """A set of queue offsets: for each queue, ordered spans that neither overlap nor touch."""

    def __init__(self, spans: Mapping[MessageQueue, Sequence[OffsetSpan]] | None = None) -> None:
        self._spans: dict[MessageQueue, list[OffsetSpan]] = {}
        for queue, some in (spans or {}).items():
            for span in some:
                self.add(queue, span)

    def __iter__(self) -> Iterator[tuple[MessageQueue, OffsetSpan]]:
        return ((queue, span) for queue, spans in sorted(self._spans.items()) for span in spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Covered) and self._spans == other._spans

    __hash__ = None  # type: ignore[assignment]

    def add(self, queue: MessageQueue, span: OffsetSpan) -> None:
        """Add a span; it may overlap existing ones."""
        start, end = span
        if start >= end:
            return
        apart: list[OffsetSpan] = []
        for known in self._spans.get(queue, ()):
            if known[1] < start or end < known[0]:
                apart.append(known)
            else:
                start, end = min(start, known[0]), max(end, known[1])
        insort(apart, (start, end))
        self._spans[queue] = apart

    def overlaps(self, found: Mapping[MessageQueue, OffsetSpan]) -> bool:
        return any(start < span[1] and span[0] < end for queue, span in found.items() for start, end in self.of(queue))

    def of(self, queue: MessageQueue) -> Sequence[OffsetSpan]:
        return self._spans.get(queue, ())

    def first_missing(self, queue: MessageQueue, *, since: int) -> int:
        """The first offset at or after ``since`` that is not in the set."""
        return next((end for start, end in self.of(queue) if start <= since < end), since)
