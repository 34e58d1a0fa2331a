"""Messages that know how to be settled (F1, H1)."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ternmq.client.consume.claimed import After, Claimed
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeContext, Listener
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.env import Env
from ternmq.errors import refused
from ternmq.message import ReceivedMessage
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.stored import read_answer
from tests.client.consumer_script import ConsumerScript, pulled, record
from tests.client.listening import core_of, pull_sources
from tests.manual_clock import ManualClock

PULL, BACK, STORE = RequestCode.PULL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript().running() as script:
        script.say(PULL, pulled(ResponseCode.SUCCESS, 7, record(5), record(6)))
        yield script


def consumer_of(script: ConsumerScript, listener: Listener | None = None, env: Env | None = None) -> PushConsumer:
    config = PushConfig(start=StartPosition.FIRST)
    consumer = PushConsumer("billing", listener, name_servers=script.address, config=config, env=env)
    consumer.subscribe("orders")
    return consumer


@pytest.mark.parametrize(
    ("after", "level"),
    [
        (After(), 0),
        (After(4), 4),
        (After(-1), -1),
        (After(0, 1), 1),
        (After(0, 1_001), 2),
        (After(0, 30_000), 4),
        (After(0, 10**9), 18),
    ],
)
def test_a_time_is_rounded_up_to_a_delay_level(after: After, level: int) -> None:
    """H1: brokers that are pulled from know levels only."""
    assert level == after.delay_level


async def test_a_message_is_delivered_again_after_the_time_that_the_application_says(script: ConsumerScript) -> None:
    """H1."""
    async with consumer_of(script) as consumer:
        message = await anext(aiter(consumer))
        message.retry(after_ms=50_000)
        (back,) = await script.wait_for(BACK)
    assert (5_000, 5) == (back.log_offset, back.delay_level)


async def test_a_delay_that_is_no_number_is_an_error_of_the_caller(script: ConsumerScript) -> None:
    """H1: it is not found later, by a task; the message can still be settled. A fraction of a ms is dropped."""
    async with consumer_of(script) as consumer:
        message = await anext(aiter(consumer))
        for wrong in ({"after_ms": "soon"}, {"after_ms": math.nan}, {"delay_level": 2.5}, {"delay_level": None}):
            with pytest.raises((TypeError, ValueError)):
                message.retry(**wrong)
        with pytest.raises(ValueError, match="NaN"):
            message.extend(math.nan)  # type: ignore[arg-type]
        assert not message.is_settled
        message.retry(after_ms=50_000.5)  # type: ignore[arg-type]
        (back,) = await script.wait_for(BACK)
    assert (5_000, 5) == (back.log_offset, back.delay_level)


async def test_messages_can_be_settled_in_any_thread(script: ConsumerScript) -> None:
    """F1: a thread of the application's own; progress moves on the loop."""
    async with consumer_of(script) as consumer:
        messages = aiter(consumer)
        for message in [await anext(messages), await messages._outlet.take()]:
            await asyncio.to_thread(message.ack)
    assert 7 == script.headers(STORE)[-1].commit_offset


async def test_what_a_listener_has_settled_its_result_does_not_change(script: ConsumerScript) -> None:
    """F1, H1: one is done though the listener raises, the other comes again though it returns."""
    both = asyncio.Event()

    async def listener(message: Claimed) -> None:
        if message.queue_offset == 5:
            message.ack()
            raise ValueError("after the ack")
        message.retry(2)
        both.set()

    async with consumer_of(script, listener):
        await both.wait()
        await script.wait_for(BACK)
    assert [(6_000, 2)] == [(one.log_offset, one.delay_level) for one in script.headers(BACK)]
    assert 7 == script.headers(STORE)[-1].commit_offset


async def test_what_is_delivered_again_here_is_not_done_by_the_end_of_the_first_delivery(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1, H1: only the first ``ack`` or ``retry`` counts, also when no broker takes the message back: a block that goes
    on after its ``retry``, and ends when the message waits here for its second delivery, does not make it done."""
    monkeypatch.setattr("ternmq.client.consume.settle.LOCAL_RETRY_S", 0.001)
    script.say(BACK, refused(ResponseCode.SYSTEM_ERROR, "no"))
    script.say(RequestCode.SEND_MESSAGE_V2, refused(ResponseCode.MESSAGE_ILLEGAL, "no"))
    async with consumer_of(script) as consumer:
        messages = aiter(consumer)
        first, second = await anext(messages), await messages._outlet.take()
        with first:
            first.retry()
            again = await messages._outlet.take()
        second.ack()
        assert (5, 6, 5, 1) == (first.queue_offset, second.queue_offset, again.queue_offset, again.reconsume_times)
        assert (first.body, first.message_id, False) == (again.body, again.message_id, again.is_settled)
        core_of(consumer).settling.flush()
        (held,) = [message for source in pull_sources(consumer) for message in source.in_hand()]
        assert held is again  # what is looked at for taking too long
    assert 5 == script.headers(STORE)[-1].commit_offset


async def test_a_message_whose_return_fails_in_any_way_is_delivered_again(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: here with a delay that is no number; else its queue would wait for ever."""
    monkeypatch.setattr("ternmq.client.consume.settle.LOCAL_RETRY_S", 0.001)
    async with consumer_of(script) as consumer, asyncio.timeout(20):
        messages = aiter(consumer)
        first, second = await anext(messages), await messages._outlet.take()
        first.is_settled = True
        first.lot.told(first, After(0, "soon"))  # type: ignore[arg-type]
        again = await messages._outlet.take()
        again.ack()
        second.ack()
    assert 7 == script.headers(STORE)[-1].commit_offset


async def test_a_listener_that_spoils_its_context_does_not_end_the_worker(script: ConsumerScript) -> None:
    """F1: its messages are sent back when they have taken too long, and the others are consumed."""
    seen: list[int] = []
    both = asyncio.Event()

    async def listener(messages: list[Claimed], context: ConsumeContext) -> None:
        seen.extend(message.queue_offset for message in messages)
        if len(seen) == 2:
            assert isinstance(context.messages, list)
            context.messages.clear()
            script.say(PULL, pulled(ResponseCode.SUCCESS, 9, record(7), record(8)))
        else:
            both.set()

    config = PushConfig(start=StartPosition.FIRST, batch_max=2, threads=1)
    consumer = PushConsumer("billing", listener, name_servers=script.address, config=config)
    consumer.subscribe("orders")
    async with consumer, asyncio.timeout(20):
        await both.wait()
    assert [5, 6, 7, 8] == seen
    assert 5 == script.headers(STORE)[-1].commit_offset


async def test_an_extended_message_is_sent_back_later(script: ConsumerScript) -> None:
    """F1: a quarter of an hour, or as long as the application asks for."""
    clock = ManualClock()
    async with consumer_of(script, env=Env(clock=clock)) as consumer:
        message = await anext(aiter(consumer))
        clock.advance(14 * 60)
        message.extend(10 * 60_000)
        clock.advance(10 * 60)
        core_of(consumer).expire()
        assert not message.is_settled
        clock.advance(1)
        core_of(consumer).expire()
        assert message.is_settled
        (back,) = await script.wait_for(BACK)
    assert (5_000, 3) == (back.log_offset, back.delay_level)


def test_a_claimed_message_travels_as_a_plain_one() -> None:
    """F1: to another process, say; there it cannot be settled."""
    ((message,), _) = read_answer(record(5, b"it", properties="TAGS\x01A\x02UNIQ_KEY\x01ID\x02"), Claimed, "broker-a")
    sent = pickle.loads(pickle.dumps(message))
    assert (ReceivedMessage, "ID", "A", b"it") == (type(sent), sent.message_id, sent.tags, sent.body)
    assert sent == copy.copy(message)
    changed = replace(message, body=b"other")
    changed.ack()
    assert ("A", b"other", True) == (changed.tags, changed.body, changed.is_settled)
