"""Messages that go back (H1), and what happens when no broker takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.errors import refused
from ternmq.message import ReceivedMessage
from ternmq.wire import properties
from ternmq.wire.codes import RequestCode, ResponseCode
from tests.client.consumer_script import ConsumerScript, pulled, record

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
PROPERTIES = "UNIQ_KEY\x01ID1\x02KEYS\x01k\x02DELAY\x015\x02TRAN_MSG\x01true\x02"


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript().running() as script:
        script.topics = {"orders", "%RETRY%billing"}
        script.say(RequestCode.PULL_MESSAGE, None, pulled(ResponseCode.SUCCESS, 8, record(7, properties=PROPERTIES)))
        yield script


def consumer_of(script: ConsumerScript, times: list[int], *, succeeds_at: int = 99) -> PushConsumer:
    async def listener(message: ReceivedMessage, context: ConsumeContext) -> None:
        times.append(message.reconsume_times)
        context.delay_level = 2
        if message.reconsume_times < succeeds_at:
            raise ValueError("no")

    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=9)
    consumer = PushConsumer("billing", listener, name_servers=script.address, config=config)
    consumer.subscribe("orders")
    return consumer


async def test_only_the_offset_travels_back(script: ConsumerScript) -> None:
    """H1."""
    async with consumer_of(script, []):
        (back,) = await script.wait_for(BACK)
    assert (7000, "billing", 2, "ID1", "orders", 9) == (
        back.log_offset,
        back.group,
        back.delay_level,
        back.origin_message_id,
        back.origin_topic,
        back.max_reconsume_times,
    )
    # It is the retry topic's now, so it is done here.
    commits = {commit.topic: commit.commit_offset for commit in script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)}
    assert 8 in commits.values()


async def test_a_message_that_its_broker_cannot_copy_is_sent_as_a_whole(script: ConsumerScript) -> None:
    """H1: to the retry topic, one level further than the times it was consumed."""
    script.say(BACK, refused(ResponseCode.SYSTEM_ERROR, "look message by offset failed"))
    async with consumer_of(script, []):
        (send,) = await script.wait_for(SEND)
    assert ("%RETRY%billing", 1, 9) == (send.topic, send.reconsume_times, send.max_reconsume_times)
    kept = properties.parse(send.properties)
    assert {
        "UNIQ_KEY": "ID1",
        "KEYS": "k",
        "DELAY": "3",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "ID1",
    } == kept


async def test_a_message_that_no_broker_takes_back_is_tried_again_here(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: it stays undone until it is done, and so does the progress."""
    monkeypatch.setattr("ternmq.client.consume.settle.LOCAL_RETRY_S", 0.001)
    script.say(BACK, *[refused(ResponseCode.SYSTEM_ERROR, "no")] * 2)
    script.say(SEND, *[refused(ResponseCode.MESSAGE_ILLEGAL, "no")] * 2)
    times: list[int] = []
    async with consumer_of(script, times, succeeds_at=2), asyncio.timeout(20):
        while len(times) < 3:
            assert all(commit.commit_offset < 8 for commit in script.headers(RequestCode.UPDATE_CONSUMER_OFFSET))
            await asyncio.sleep(0.001)
    assert [0, 1, 2] == times
    assert 8 in [commit.commit_offset for commit in script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)]
