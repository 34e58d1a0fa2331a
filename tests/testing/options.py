"""What a seed decides for a consumer group before anything happens (F1, F6, G2, M2)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from ternmq.allocation import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from ternmq.client.consume.config import FlowLimits
from ternmq.client.consume.offsets import StartPosition
from ternmq.testing.clock import EPOCH_MS
from ternmq.testing.deliveries import Promises
from ternmq.testing.swarm import Swarm

#: How long one message may keep the progress of its queue: until a listener that hangs is given up, or a slow one ends.
HUNG_S: Final = 45.0
SLOW_S: Final = 4.0


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed, besides the storm."""

    swarm: Swarm
    brokers: int
    name_servers: int
    queues: int
    members: int
    allocation: Allocation
    start: StartPosition
    batch_max: int
    #: Calls at the same time: more than ever wait, or so few that messages wait for each other.
    threads: int
    #: M2: few messages at a time, a short span, or limits that are never reached.
    limits: FlowLimits
    pull_count_max: int
    #: How often a listener takes its time, how often it fails, and how often it never ends.
    slow: float
    failing: float
    hanging: float
    #: Members come and go in good order, too.
    changes: bool

    @classmethod
    def choose(cls, random: Random) -> Options:
        limits, pull_count_max = random.choice(
            ((FlowLimits(), 32), (FlowLimits(), 32), (FlowLimits(count=1), 1), (FlowLimits(count=3, span=3), 2))
        )
        hanging = random.choice((0.0, 0.0, 0.0, 0.02))
        return cls(
            swarm=Swarm.choose(random),
            brokers=random.choice((1, 1, 2, 3)),
            name_servers=random.choice((1, 1, 2)),
            queues=random.choice((1, 2, 4)),
            members=random.choice((1, 2, 3, 5)),
            allocation=random.choice((Averagely(), AveragelyByCircle(), ConsistentHash())),
            start=random.choice((StartPosition.FIRST, StartPosition.LAST, StartPosition.at(EPOCH_MS))),
            batch_max=random.choice((1, 1, 4)),
            # A call that hangs has its task for ever.
            threads=20 if hanging else random.choice((20, 1)),
            limits=limits,
            pull_count_max=pull_count_max,
            slow=random.choice((0.0, 0.0, 0.1, 0.5)),
            failing=random.choice((0.0, 0.0, 0.2)),
            hanging=hanging,
            changes=random.random() < 0.7,
        )

    def promises(self, *, orderly: bool) -> Promises:
        """What may be relied on when all is well."""
        is_swift = not self.slow and not self.failing and not self.hanging
        is_bounded = self.limits != FlowLimits()
        return Promises(
            held_back_s=0.0 if orderly or is_swift else HUNG_S if self.hanging else SLOW_S,
            # A slow listener keeps only those waiting who come behind it in order, or find no room.
            prompt=is_swift or not (orderly or is_bounded or self.hanging or self.threads == 1),
            count_max=self.limits.count - 1 + self.pull_count_max if is_bounded else None,
            span_max=self.limits.span + self.pull_count_max if is_bounded else None,
        )
