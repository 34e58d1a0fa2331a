"""The checks of quiet times see what is wrong: a simulation that can find nothing proves nothing (F7, F8, H1, M2)."""

from __future__ import annotations

import pytest

from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import retry_topic
from ternmq.testing.checkers import Broken
from ternmq.testing.deliveries import Deliveries, Promises
from tests.client.samples import received

ONE = MessageQueue("t", "a", 0)
RETRIES = MessageQueue(retry_topic("g"), "a", 0)


def _message(number: int, *, times: int = 0) -> ReceivedMessage:
    return received(number, b"%d" % number, reconsume_times=times)


class World:
    """Deliveries with a clock to set; all is well since a second."""

    def __init__(self, *, prompt: bool = True, held_back_s: float = 0.0, **limits: int) -> None:
        self.now = 100.0
        self.deliveries = Deliveries(Promises(held_back_s=held_back_s, prompt=prompt, **limits), lambda: self.now)
        self.deliveries.settle()
        self.now += 1

    def send(self, number: int, *, delay_s: float = 0.0) -> ReceivedMessage:
        message = _message(number)
        self.deliveries.sent(message.body, not_before=self.now + delay_s)
        self.deliveries.acknowledged(message.body)
        return message

    def consume(self, message: ReceivedMessage, queue: MessageQueue = ONE) -> None:
        self.deliveries.begin("m", queue, [message])
        self.deliveries.end("m", queue, [message])
        self.deliveries.done("m", queue, [message])

    def fail(self, message: ReceivedMessage, queue: MessageQueue = ONE) -> ReceivedMessage:
        self.deliveries.begin("m", queue, [message])
        self.deliveries.end("m", queue, [message])
        self.deliveries.failed(queue, [message], delay_s=10.0)
        return _message(message.queue_offset, times=message.reconsume_times + 1)


def test_what_is_done_comes_again_only_after_a_disturbance_that_takes_progress() -> None:
    """F7: and what was done long before it never."""
    world = World()
    old = world.send(1)
    world.consume(old)
    world.now += 10
    new = world.send(2)
    world.consume(new)
    with pytest.raises(Broken, match="redelivers 2"):
        world.consume(new)

    world.now += 1
    world.deliveries.disturb(back_s=5)
    world.now += 1
    world.consume(new)
    world.deliveries.settle()
    world.consume(new)
    with pytest.raises(Broken, match=r"redelivers 1, which m finished 12\.0 s ago"):
        world.consume(old)


def test_a_member_that_leaves_in_good_order_takes_no_progress_with_it() -> None:
    """F7."""
    world = World()
    message = world.send(1)
    world.consume(message)
    world.deliveries.disturb(back_s=5, leaving=["m"])
    with pytest.raises(Broken, match="redelivers 1"):
        world.consume(message)


def test_a_listener_that_holds_progress_back_widens_the_excuse() -> None:
    """F7."""
    world = World(held_back_s=10)
    message = world.send(1)
    world.consume(message)
    world.now += 10
    world.deliveries.disturb(back_s=5)
    world.consume(message)


def test_a_message_that_is_late_is_found_unless_something_was_in_its_way() -> None:
    """F8."""
    world = World()
    late, excused = world.send(1), world.send(2)
    world.now += 1.5
    with pytest.raises(Broken, match=r"1\.500 s late"):
        world.consume(late)
    world.deliveries.disturb(back_s=0)
    world.deliveries.settle()
    world.consume(excused)

    patient = World(prompt=False)
    message = patient.send(1)
    patient.now += 9
    patient.consume(message)


def test_a_delayed_message_that_is_early_is_found() -> None:
    """I1."""
    world = World()
    message = world.send(1, delay_s=5)
    world.now += 4
    with pytest.raises(Broken, match=r"1\.000 s early"):
        world.consume(message)
    world.now += 1.5
    world.consume(message)


def test_a_retry_comes_after_its_delay_and_says_how_often_it_was_tried() -> None:
    """H1."""
    world = World()
    again = world.fail(world.send(1))
    world.now += 9
    with pytest.raises(Broken, match=r"1\.000 s early as retry 1"):
        world.consume(again, RETRIES)
    with pytest.raises(Broken, match="is delivered as retry 2, but has not failed as such"):
        world.consume(_message(1, times=2), RETRIES)
    with pytest.raises(Broken, match="is delivered as retry 0"):
        world.consume(_message(1), RETRIES)
    world.now += 3
    with pytest.raises(Broken, match=r"2\.000 s late"):
        world.consume(again, RETRIES)


def test_what_is_tried_again_in_place_counts_its_attempts() -> None:
    """F2."""
    world = World()
    first = world.send(1)
    world.fail(first)
    world.now += 10
    with pytest.raises(Broken, match="its count is wrong"):
        world.consume(first)


def test_more_messages_under_way_than_the_limits_allow_are_found() -> None:
    """M2: of one queue in one member, in number and in span."""
    world = World(count_max=2, span_max=5)
    messages = [world.send(number) for number in range(8)]
    world.deliveries.begin("m", ONE, messages[:2])
    world.deliveries.begin("other", ONE, messages[2:4])
    with pytest.raises(Broken, match="3 messages of t@a:0 in progress; the limit is 2"):
        world.deliveries.begin("m", ONE, messages[2:3])
    world.deliveries.end("m", ONE, messages[1:3])
    with pytest.raises(Broken, match="works on 0 and 7"):
        world.deliveries.begin("m", ONE, messages[7:])
    world.deliveries.died("m")
    world.deliveries.begin("m", ONE, messages[6:])
