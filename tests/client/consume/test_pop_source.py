"""The pop loop, against a broker that says what it is told to (F8, F9, M2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.client.consume import source
from ternmq.client.consume.pop import PopConsumer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply
from tests.client.consumer_script import HIDDEN, ConsumerScript, popped, record
from tests.client.listening import Collector, core_of

POP = RequestCode.POP_MESSAGE


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript(pops=True).running() as script:
        yield script


def consumer_of(script: ConsumerScript, listener: Collector | None = None) -> PopConsumer:
    consumer = PopConsumer("billing", listener, name_servers=script.address)
    consumer.subscribe("orders")
    return consumer


@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        ([popped(), popped(), popped()], 3),
        ([Reply(ResponseCode.PULL_NOT_FOUND), popped(), Reply(ResponseCode.POLLING_TIMEOUT)], 3),
        ([popped(record(0)), popped(record(1)), popped()], 1),
    ],
    ids=["success without messages", "nothing in three ways", "messages"],
)
async def test_a_broker_that_answers_at_once_without_messages_is_asked_again_only_after_a_pause(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch, answers: list[Reply], pauses: int
) -> None:
    """F8, M2: a broker that answered with success and no messages was asked thousands of times a second."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def noting(delay: float) -> None:
        made.extend([delay] if delay == 0.00123 else [])
        await sleep(delay)

    monkeypatch.setattr(source, "QUICK_S", 60.0)
    monkeypatch.setattr(source, "QUICK_PAUSE_S", 0.00123)
    monkeypatch.setattr(asyncio, "sleep", noting)
    script.say(POP, *answers)
    async with consumer_of(script, Collector()):
        await script.wait_for(POP, len(answers) + 1)
    assert pauses == len(made)


async def test_a_source_that_has_to_leave_while_it_is_suspended_pops_no_more(script: ConsumerScript) -> None:
    """F1, F9: after ``resume`` the application would get messages of a topic that it has unsubscribed from."""
    consumer = consumer_of(script, Collector())
    consumer.suspend()
    async with consumer, asyncio.timeout(20):
        await consumer.ready()
        consumer.unsubscribe("orders")
        await consumer.ready()
        lefts = core_of(consumer).sources._left
        assert lefts
        consumer.resume()
        await asyncio.wait([left.task for left in lefts])
    assert [] == script.headers(POP)


async def test_an_extended_message_is_acknowledged_by_its_new_handle(script: ConsumerScript) -> None:
    """F9: the old one is not valid any more; an ack that comes before the answer waits for it."""
    answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    script.say(POP, popped(record(4)))
    script.say(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, answer)
    async with consumer_of(script) as consumer:
        message = await anext(aiter(consumer))
        message.extend(60_000)
        (asked,) = await script.wait_for(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        message.ack()
        core_of(consumer).settling.flush()
        await asyncio.sleep(0)
        assert [] == script.headers(RequestCode.ACK_MESSAGE)
        answer.set_result(Reply(header=HIDDEN))
        (ack,) = await script.wait_for(RequestCode.ACK_MESSAGE)
    assert ("0 5000 60000 1 0 broker-a 0 4", 60_000) == (asked.extra_info, asked.invisible_ms)
    assert "4 77000 60000 3 0 broker-a 0 4" == ack.extra_info


async def test_a_message_is_hidden_for_as_long_as_the_application_says(script: ConsumerScript) -> None:
    """F9: in ms, not only by level; only the first word counts."""
    script.say(POP, popped(record(4)))
    async with consumer_of(script) as consumer:
        message = await anext(aiter(consumer))
        message.retry(after_ms=12_345)
        message.ack()
        (asked,) = await script.wait_for(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert 12_345 == asked.invisible_ms
    assert [] == script.headers(RequestCode.ACK_MESSAGE)
