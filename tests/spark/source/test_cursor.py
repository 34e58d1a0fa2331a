"""A slice is taken in order, each message once, whatever a broker's limits are and however wrong the guesses (U1)."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import MessagesLost
from ternmq.message import MessageQueue
from ternmq.spark.source.cursor import END_ASKED_MAX, Cursor, PullParameters, ReplyKind, SliceReply
from ternmq.spark.source.plan import Slice
from ternmq.wire.codes import ResponseCode

QUEUE = MessageQueue("orders", "broker-a", 0)
ALL = PullParameters(tags="*", sql="", fail_on_data_loss=True, retry_timeout_ms=1_000)
SOME = PullParameters(tags="TagA", sql="", fail_on_data_loss=True, retry_timeout_ms=1_000)


class ModelBroker:
    """A queue of messages of given sizes, the first of which are deleted."""

    def __init__(self, sizes: list[int], *, first: int = 0, count_max: int = 10_000, bytes_max: int = 256 * 1024):
        self.ends = list(accumulate(sizes, initial=0))
        self.first = first
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.pulls = 0
        self.bytes = 0

    def pull(self, at: int, count: int) -> SliceReply:
        self.pulls += 1
        end = len(self.ends) - 1
        if not self.first <= at < end:
            next_offset = self.first if at < self.first else end
            return SliceReply(
                at, ResponseCode.PULL_OFFSET_MOVED, next_offset, self.first, 0, is_gone=False, broker_id=0
            )
        after = at + 1
        while after < min(end, at + min(count, self.count_max)):
            if self.ends[after + 1] - self.ends[at] > self.bytes_max:
                break
            after += 1
        size = self.ends[after] - self.ends[at]
        self.bytes += size
        return SliceReply(at, ResponseCode.SUCCESS, after, self.first, size, is_gone=False, broker_id=0)


def read(cursor: Cursor, broker: ModelBroker) -> list[int]:
    """The offsets taken; answers come when they are asked for, those to forgotten pulls never."""
    answers: dict[int, SliceReply] = {}
    found: list[int] = []
    while not cursor.is_done:
        answers |= {at: broker.pull(at, count) for at, count in cursor.to_ask()}
        assert cursor.asked[0] == cursor.at
        pulled = answers[cursor.at]
        if cursor.take(pulled) is ReplyKind.RECORDS:
            found += range(pulled.at, pulled.next_offset)
    return found


@given(
    sizes=st.lists(st.integers(91, 200_000) | st.just(300), min_size=1, max_size=400),
    count_max=st.sampled_from([1, 8, 32, 10_000]),
    ahead_max=st.integers(1, 9),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_each_message_comes_once_and_in_order(
    sizes: list[int], count_max: int, ahead_max: int, ends: tuple[float, float]
) -> None:
    """U1"""
    start, end = sorted(round(part * len(sizes)) for part in ends)
    broker = ModelBroker(sizes, count_max=count_max)

    assert list(range(start, end)) == read(Cursor(Slice(QUEUE, start, end), ALL, ahead_max=ahead_max), broker)


@pytest.mark.parametrize("count_max", [32, 10_000])
def test_sizes_that_differ_do_not_spoil_the_guesses(count_max: int) -> None:
    """U1: what is pulled in vain is little, where brokers count messages (RocketMQ) and where bytes (TernMQ)."""
    sizes = [200 + number * 7919 % 600 for number in range(50_000)]
    broker = ModelBroker(sizes, count_max=count_max)

    assert list(range(50_000)) == read(Cursor(Slice(QUEUE, 0, 50_000), ALL, ahead_max=8), broker)
    assert broker.bytes < 1.1 * sum(sizes)
    assert broker.pulls < 1.1 * max(50_000 / count_max, sum(sizes) / (0.85 * broker.bytes_max))


def test_pulls_go_out_several_at_once() -> None:
    """U1"""
    broker = ModelBroker([300] * 10_000, count_max=32)
    cursor = Cursor(Slice(QUEUE, 0, 10_000), ALL, ahead_max=8)
    groups: list[int] = []
    while not cursor.is_done:
        asked = cursor.to_ask()
        groups.append(len(asked))
        cursor.take(broker.pull(cursor.at, 32))

    assert [1, 1, 2] == groups[:3]
    assert {0, 4} == set(groups[20:-20])


def test_what_was_deleted_is_passed_over_and_what_never_comes_is_given_up() -> None:
    """U1: without a filter the holes show in the records, so the cursor only goes on."""
    broker = ModelBroker([300] * 100, first=40)
    cursor = Cursor(Slice(QUEUE, 10, 120), ALL, ahead_max=8)

    assert list(range(40, 100)) == read(cursor, broker)
    assert cursor.at == 120


def test_a_queue_that_ends_too_early_is_asked_again_and_then_lost() -> None:
    """U1: a slave may lag behind; with a filter, only the broker's words tell that something is missing."""
    broker = ModelBroker([300] * 100)
    cursor = Cursor(Slice(QUEUE, 100, 120), SOME)
    for _ in range(END_ASKED_MAX):
        (asked,) = cursor.to_ask()
        assert ReplyKind.AGAIN is cursor.take(broker.pull(*asked))

    (asked,) = cursor.to_ask()
    with pytest.raises(MessagesLost, match=r"messages 100 to 119 of orders@broker-a:0 were deleted"):
        cursor.take(broker.pull(*asked))
