"""Invisible messages, which must not be delivered (F9): a checker for simulations of pop.

A popped message is hidden from the rest of its group for its invisible time, a ``Span``; in ordered pops, its whole
queue is hidden, too. A *key* is what is hidden, the message or the queue. No pop may begin while its key is hidden.
A consumer that settles a message ends its span early (``release``), as soon as it sends the request, because the time
when the broker receives it is unknown.

Times are those of the broker's clock, in milliseconds. Replies may arrive in another order than they were sent.
"""

from __future__ import annotations

from collections.abc import Hashable

from ternmq.testing.checkers import Broken


class Span:
    """The time in which something is hidden."""

    __slots__ = ("begin_ms", "end_ms")

    def __init__(self, begin_ms: int, end_ms: int) -> None:
        self.begin_ms = begin_ms
        self.end_ms = end_ms

    def release(self, now_ms: int) -> None:
        """It may be visible from now on."""
        self.end_ms = min(self.end_ms, max(self.begin_ms, now_ms))


class Hidden:
    """All popped messages of one group."""

    def __init__(self) -> None:
        self._spans: dict[Hashable, list[Span]] = {}
        self._done_ms: dict[Hashable, int] = {}

    def take(self, key: Hashable, begin_ms: int, end_ms: int) -> Span:
        """A pop hides this; raises ``Broken`` if it was already hidden, or done."""
        done_ms = self._done_ms.get(key)
        if done_ms is not None and done_ms < begin_ms:
            raise Broken(f"{key!r} is delivered, although it was acknowledged {begin_ms - done_ms} ms before")
        for other in self._spans.get(key, ()):
            if max(begin_ms, other.begin_ms) < min(end_ms, other.end_ms):
                raise Broken(f"{key!r} is delivered twice within {abs(begin_ms - other.begin_ms)} ms")
        return self.hide(key, begin_ms, end_ms)

    def hide(self, key: Hashable, begin_ms: int, end_ms: int) -> Span:
        """The same pop hides it for another message, too; or its consumer hides it for longer."""
        span = Span(begin_ms, end_ms)
        self._spans.setdefault(key, []).append(span)
        return span

    def done(self, key: Hashable, now_ms: int) -> None:
        """A broker has confirmed an acknowledgement that arrived in time: the message must never be delivered again."""
        self._done_ms[key] = now_ms
