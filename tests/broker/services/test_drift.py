"""Read drift: who is sent where, and that no reader swings (O3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.broker.services.drift import SENT_MAX, ReadDrift, Reader
from ternmq.store.read.query import GetResult, GetStatus
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from tests.broker.calls import settings

FAR: Final = 400
READER: Final[Reader] = ("readers", "orders", 0)


@dataclass(slots=True)
class Copy:
    """A broker as drift sees it: its role, and what replication knows."""

    broker_id: int = 0
    near: set[int] = field(default_factory=lambda: {1})
    is_following: bool = True
    has_beginning: bool = True

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0

    def keeps_up(self, broker_id: int) -> bool:
        return broker_id in self.near


def drift(copy: Copy, *, memory_bytes: int = FAR, config: BrokerConfig | None = None) -> ReadDrift:
    return ReadDrift(config or settings(slave_read_enable=True), role=copy, copies=copy, memory_bytes=memory_bytes)


def found(behind_bytes: int, *, has_more: bool = True, memory_bytes: int = FAR) -> GetResult:
    return GetResult(
        GetStatus.FOUND, 10, 0, 20 if has_more else 10, is_behind=behind_bytes > memory_bytes, behind_bytes=behind_bytes
    )


def group(*, broker_id: int = 0, which_broker_when_consume_slowly: int = 1) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        group_name="readers",
        broker_id=broker_id,
        which_broker_when_consume_slowly=which_broker_when_consume_slowly,
    )


def test_a_master_sends_a_far_reader_to_the_slave_of_its_group() -> None:
    """O3: ``whichBrokerWhenConsumeSlowly``; not without ``slaveReadEnable``, and not at the end of the queue."""
    far, near = found(FAR + 1), found(FAR)
    both = Copy(near={1, 2})
    assert 1 == drift(both).next_broker(READER, group(), far)
    assert 2 == drift(both).next_broker(READER, group(which_broker_when_consume_slowly=2), far)
    assert 0 == drift(both).next_broker(READER, group(which_broker_when_consume_slowly=0), far)
    assert 0 == drift(both).next_broker(READER, group(), near)
    assert 0 == drift(both).next_broker(READER, group(), found(FAR + 1, has_more=False))
    assert 0 == drift(both, config=settings()).next_broker(READER, group(), far)


def test_a_master_suggests_only_a_slave_that_keeps_up() -> None:
    """O3."""
    copy = Copy(near=set())
    one = drift(copy)
    assert 0 == one.next_broker(READER, group(), found(FAR + 1))
    assert 0 == one.next_broker(READER, group(broker_id=1), found(0))
    copy.near = {1}
    assert 1 == one.next_broker(READER, group(), found(FAR + 1))
    assert 1 == one.next_broker(READER, group(broker_id=1), found(0))


def test_a_slave_keeps_a_reader_until_it_is_near_or_at_the_end() -> None:
    """O3: a quarter of what makes a reader far."""
    one = drift(Copy(broker_id=1))
    assert 1 == one.next_broker(READER, group(), found(FAR // 4 + 1))
    assert 0 == one.next_broker(READER, group(), found(FAR // 4))
    assert 0 == one.next_broker(READER, group(), found(FAR * 9, has_more=False))
    assert 0 == drift(Copy(broker_id=1), config=settings()).next_broker(READER, group(), found(FAR * 9))


def test_a_group_that_prefers_a_slave_stays_there_while_the_slave_follows() -> None:
    """O3: ``brokerId`` of the group. A slave that is cut off would let it wait for ever."""
    copy = Copy(broker_id=1)
    one = drift(copy)
    assert 1 == one.next_broker(READER, group(broker_id=1), found(0, has_more=False))
    assert 0 == one.next_broker(READER, group(broker_id=2), found(0, has_more=False))
    copy.is_following = False
    assert 0 == one.next_broker(READER, group(broker_id=1), found(0, has_more=False))


def test_a_reader_that_comes_back_far_behind_is_served_until_it_was_near() -> None:
    """O3: a slave of RocketMQ that refuses readers, say. Others may still be sent there."""
    one = drift(Copy())
    assert 1 == one.next_broker(READER, group(), found(FAR * 2))
    assert [0, 0] == [one.next_broker(READER, group(), found(behind)) for behind in (FAR * 2, FAR // 2)]
    assert 0 == one.next_broker(READER, group(), found(FAR * 2))
    assert 1 == one.next_broker(("readers", "orders", 1), group(), found(FAR * 2))
    assert [0, 1] == [one.next_broker(READER, group(), found(behind)) for behind in (FAR // 4, FAR + 1)]


def test_what_a_master_remembers_is_bounded() -> None:
    """R4."""
    one = drift(Copy())
    for queue_id in range(SENT_MAX + 5):
        assert 1 == one.next_broker(("readers", "orders", queue_id), group(), found(FAR * 2))
    assert SENT_MAX == len(one._sent)


@pytest.mark.parametrize("seed", range(200))
def test_a_reader_at_constant_speed_goes_and_comes_back_once_at_most(seed: int) -> None:
    """O3: whatever the memory of the slave, its lag, the sizes of records, and where the reader begins."""
    random = Random(seed)
    memory, slave_memory = random.choice([(1000, 1000), (1000, 8000), (8000, 1000)])
    lag_max = random.choice((0, 50, 300, 2000))
    written, read = random.choice([(10, 30), (30, 10), (20, 21), (20, 20)])
    copies = {0: drift(Copy(), memory_bytes=memory), 1: drift(Copy(broker_id=1), memory_bytes=slave_memory)}
    ratio: dict[int, Callable[[int], GetResult]] = {
        0: lambda behind: found(behind, memory_bytes=memory),
        1: lambda behind: found(behind, memory_bytes=slave_memory),
    }
    end = random.choice((0, 1500, 20_000))
    at, broker, asked = 0, 0, []
    for _ in range(3000):
        asked.append(broker)
        end += written
        # A record more or less: batches are of different sizes.
        at = min(at + read + random.randrange(-5, 6), end)
        behind = max(0, end - at - (random.randrange(lag_max + 1) if broker else 0))
        result = ratio[broker](behind)
        if not behind:
            result.max_offset = result.next_offset
        broker = copies[broker].next_broker(READER, group(), result)
    changes = [pair for pair in pairwise(asked) if pair[0] != pair[1]]
    assert changes.count((0, 1)) <= 1, changes
    assert changes.count((1, 0)) <= 1, changes
