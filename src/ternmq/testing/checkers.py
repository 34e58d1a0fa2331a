"""Invariants that always hold: a ``Journal`` of sends and deliveries, and checks on it (F1, F2, F7, G1).

The journal is kept by the workload, outside of all nodes, so that no crash affects it. Each check raises ``Broken``
with the messages or queues concerned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ternmq.message import MessageQueue


class Broken(AssertionError):
    """An invariant does not hold; the seed reproduces it."""


@dataclass(slots=True)
class Journal:
    """Sent and consumed messages; each is identified by a key that the workload chooses, such as its body."""

    #: Messages that a broker has acknowledged, with their queue and offset.
    acknowledged: dict[bytes, tuple[MessageQueue, int]] = field(default_factory=dict)
    #: How often a listener finished a message, and how often it failed.
    consumed: Counter[bytes] = field(default_factory=Counter)
    failed: Counter[bytes] = field(default_factory=Counter)

    @property
    def missing(self) -> list[bytes]:
        """Acknowledged, and not consumed yet."""
        return [key for key in self.acknowledged if not self.consumed[key]]

    def check_consumed(self) -> None:
        """F1: each acknowledged message is consumed at least once. Call it at the end, when the cluster is quiet."""
        if self.missing:
            places = [(key, *self.acknowledged[key]) for key in self.missing]
            raise Broken(f"{len(places)} of {len(self.acknowledged)} messages were not consumed: {places[:10]}")

    def check_progress(self, queue: MessageQueue, committed: int) -> None:
        """F7: no message before the committed offset is unfinished. Call it at any time."""
        for key, (place, queue_offset) in self.acknowledged.items():
            is_passed = place == queue and queue_offset < committed
            if is_passed and not self.consumed[key] and not self.failed[key]:
                raise Broken(
                    f"{queue} is committed up to {committed}, but {key!r} at {queue_offset} was never delivered"
                )

    def check_order(self, queue: MessageQueue, queue_offset: int, *, but_for: Collection[bytes] = ()) -> None:
        """F2: when a call with this message begins, all messages before it are done, except those in ``but_for``, which
        the member has taken and not committed.

        For orderly listeners, at the start of each call.
        """
        for key, (place, before) in self.acknowledged.items():
            if place == queue and before < queue_offset and not self.consumed[key] and key not in but_for:
                raise Broken(f"{queue_offset} of {queue} is begun, but {key!r} at {before} was never done")


class Calls:
    """F2: which member works on which queue; two members must not do so at the same time while locks are valid."""

    def __init__(self, *, trusted_s: float) -> None:
        """A call that began longer ago than ``trusted_s`` may have lost its lock, so another one may begin."""
        self._trusted_s = trusted_s
        self._running: dict[MessageQueue, dict[str, float]] = {}

    def begin(self, member: str, queue: MessageQueue, now: float) -> None:
        running = self._running.setdefault(queue, {})
        for other, since in running.items():
            if now - since < self._trusted_s:
                raise Broken(f"{member} begins to work on {queue} {now - since:.3f} s after {other}, which is not done")
        running[member] = now

    def end(self, member: str, queue: MessageQueue) -> None:
        self._running.get(queue, {}).pop(member, None)

    def died(self, member: str) -> None:
        """All its calls have ended."""
        for running in self._running.values():
            running.pop(member, None)


def check_owned_once(owned: Mapping[str, Iterable[MessageQueue]], queues: Collection[MessageQueue]) -> None:
    """G1, G2: each queue belongs to exactly one member; ``owned`` has the queues by the member's name."""
    owners: dict[MessageQueue, list[str]] = {queue: [] for queue in queues}
    for name, theirs in owned.items():
        for queue in theirs:
            owners.setdefault(queue, []).append(name)
    wrong = {str(queue): names for queue, names in owners.items() if len(names) != 1 or queue not in queues}
    if wrong:
        raise Broken(f"queues that do not have exactly one owner: {wrong}")
