"""What must hold, whatever happens: a ``Journal`` of sends and deliveries, and questions to it (F1, F7, G1).

The journal is kept by the workload, outside of all nodes, so that no crash touches it. Each check raises ``Broken``
with the messages or queues concerned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ternmq.message import MessageQueue


class Broken(AssertionError):
    """An invariant does not hold; the seed replays it."""


@dataclass(slots=True)
class Journal:
    """What was sent and consumed; messages are known by a key of the workload's choice, such as their body."""

    #: Messages that a broker has acknowledged, with the place it named.
    acknowledged: dict[bytes, tuple[MessageQueue, int]] = field(default_factory=dict)
    #: How often a listener was done with a message, and how often it failed.
    consumed: Counter[bytes] = field(default_factory=Counter)
    failed: Counter[bytes] = field(default_factory=Counter)

    @property
    def missing(self) -> list[bytes]:
        """Acknowledged, and not consumed yet."""
        return [key for key in self.acknowledged if not self.consumed[key]]

    def check_consumed(self) -> None:
        """F1: each acknowledged message is consumed at least once. For the end, when all is quiet."""
        if self.missing:
            places = [(key, *self.acknowledged[key]) for key in self.missing]
            raise Broken(f"{len(places)} of {len(self.acknowledged)} messages were not consumed: {places[:10]}")

    def check_progress(self, queue: MessageQueue, committed: int) -> None:
        """F7: no message before the committed offset is still to be worked on. At any time."""
        for key, (place, queue_offset) in self.acknowledged.items():
            is_passed = place == queue and queue_offset < committed
            if is_passed and not self.consumed[key] and not self.failed[key]:
                raise Broken(f"{queue} is committed up to {committed}, but nobody has seen {key!r} at {queue_offset}")


def check_owned_once(owned: Mapping[str, Iterable[MessageQueue]], queues: Collection[MessageQueue]) -> None:
    """G1, G2: each queue belongs to exactly one member; ``owned`` is by the member's name."""
    owners: dict[MessageQueue, list[str]] = {queue: [] for queue in queues}
    for name, theirs in owned.items():
        for queue in theirs:
            owners.setdefault(queue, []).append(name)
    wrong = {str(queue): names for queue, names in owners.items() if len(names) != 1 or queue not in queues}
    if wrong:
        raise Broken(f"queues that have not one owner: {wrong}")
