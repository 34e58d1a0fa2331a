"""The pull loop, against a broker that says what it is told to (F6, F8, M2, O3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.client.consume import source
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import FlowLimits, PushConfig
from ternmq.client.consume.listener import Listener
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.pull_source import PullSource
from ternmq.client.consume.push import PushConsumer
from ternmq.env import Env
from ternmq.errors import ConfigError, refused
from ternmq.message import ReceivedMessage
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply
from ternmq.wire.requests import OffsetReply, PullMessage, PullSysflag
from tests.client.consumer_script import ConsumerScript, pulled, record
from tests.client.samples import QUEUE, messages
from tests.manual_clock import ManualClock

PULL = RequestCode.PULL_MESSAGE
FOUND, NOT_FOUND, NO_MATCH, MOVED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript().running() as script:
        yield script


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ERROR_PAUSE_S", 0.0)
    monkeypatch.setattr(source, "BUSY_PAUSE_S", 0.0)


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.topics: list[str] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.offsets.append(message.queue_offset)
        self.topics.append(message.topic)


def consumer_of(
    script: ConsumerScript, listener: Listener | None = None, start: StartPosition = StartPosition.FIRST
) -> PushConsumer:
    consumer = PushConsumer("billing", listener or Seen(), name_servers=script.address, start=start)
    consumer.subscribe("orders", "A || B")
    return consumer


@pytest.mark.parametrize(
    ("limits", "asked"),
    [(FlowLimits(), 256), (FlowLimits(count=10), 10), (FlowLimits(topic_count=7), 7), (FlowLimits(total_count=5), 5)],
)
async def test_a_pull_asks_for_no_more_than_the_queue_may_hold(
    script: ConsumerScript, limits: FlowLimits, asked: int
) -> None:
    """M2: half of what is held comes by the last pull, at most."""
    consumer = PushConsumer(
        "billing", Seen(), name_servers=script.address, config=PushConfig(limits=limits, start=StartPosition.FIRST)
    )
    consumer.subscribe("orders")
    async with consumer:
        (pull,) = await script.wait_for(PULL)
    assert asked == pull.count_max


async def test_a_pull_is_held_by_the_broker_and_names_the_subscription(script: ConsumerScript) -> None:
    """F8: as RocketMQ's push consumer asks."""
    async with consumer_of(script):
        (pull,) = await script.wait_for(PULL)
    assert ("billing", "orders", 0, 0, 256) == (
        pull.consumer_group,
        pull.topic,
        pull.queue_id,
        pull.queue_offset,
        pull.count_max,
    )
    assert (PullSysflag.SUSPEND, 15_000, None, "TAG") == (
        pull.sysflag,
        pull.suspend_timeout_ms,
        pull.subscription,
        pull.expression_type,
    )
    (subscription, retries) = script.heartbeats[-1].consumer_data_set[0].subscription_data_set
    assert ("A || B", ["A", "B"], [65, 66]) == (
        subscription.sub_string,
        subscription.tags_set,
        subscription.code_set,
    )
    assert pull.sub_version == subscription.sub_version > 0
    assert ("%RETRY%billing", "*") == (retries.topic, retries.sub_string)


async def test_progress_rides_along_with_the_next_pull(script: ConsumerScript) -> None:
    """D4: and what the broker skipped counts as done once nothing before it is undone."""
    script.say(PULL, pulled(FOUND, 7, record(5, properties="TAGS\x01A\x02")))
    script.say(PULL, pulled(NOT_FOUND, 7), pulled(NO_MATCH, 20))
    seen = Seen()
    async with consumer_of(script, seen):
        pulls = await script.wait_for(PULL, 4)
    assert [5] == seen.offsets
    assert [0, 7, 7, 20] == [pull.queue_offset for pull in pulls]
    assert (20, True) == (pulls[-1].commit_offset, bool(pulls[-1].sysflag & PullSysflag.COMMIT_OFFSET))
    assert 20 == script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].commit_offset


async def test_the_listener_has_its_turn_before_the_next_pull_is_made(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8: a message that arrives for an idle listener waits for nothing else that its source does."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")), pulled(FOUND, 7, record(6)))
    events: list[str] = []
    make_question = PullSource._question

    def question(source: PullSource, held: ProcessQueue[Claimed], *, is_of_master: bool) -> PullMessage:
        if source.queue.topic == "orders":
            events.append("pull")
        return make_question(source, held, is_of_master=is_of_master)

    async def listener(message: ReceivedMessage) -> None:
        events.append(f"message {message.queue_offset}")

    monkeypatch.setattr(PullSource, "_question", question)
    consumer = PushConsumer("billing", listener, name_servers=script.address, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with consumer:
        await script.wait_for(PULL, 3)
    assert ["pull", "message 5", "pull", "message 6", "pull"] == events[:5]


async def test_an_undone_message_holds_progress_back(script: ConsumerScript) -> None:
    """F7."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")), pulled(NO_MATCH, 30))
    hang = asyncio.Event()

    async def listener(_: ReceivedMessage) -> None:
        await hang.wait()

    async with consumer_of(script, listener):
        pulls = await script.wait_for(PULL, 3)
        hang.set()
    assert [0, 5, 5] == [pull.commit_offset for pull in pulls]


async def test_a_queue_starts_afresh_where_the_broker_says(script: ConsumerScript) -> None:
    """F6, C9: the offset was deleted or reset; what is in flight from before counts no more."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")), pulled(MOVED, 500))
    hang = asyncio.Event()

    async def listener(_: ReceivedMessage) -> None:
        await hang.wait()

    async with consumer_of(script, listener):
        pulls = await script.wait_for(PULL, 3)
        (commit,) = await script.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET)
        hang.set()
    assert (500, 500, 500) == (pulls[-1].queue_offset, pulls[-1].commit_offset, commit.commit_offset)
    assert 500 == script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].commit_offset


async def test_a_broker_that_sends_us_where_we_are_is_asked_again_only_after_a_pause(script: ConsumerScript) -> None:
    """F6."""
    script.say(PULL, pulled(MOVED, 0))
    async with consumer_of(script):
        pulls = await script.wait_for(PULL, 2)
    assert [0, 0] == [pull.queue_offset for pull in pulls]


@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        ([pulled(FOUND, 0), pulled(NOT_FOUND, 0), pulled(NO_MATCH, 0)], ["quick"] * 3),
        ([pulled(FOUND, 0, record(0, properties="TAGS\x01A\x02")) for _ in range(3)], ["quick"] * 2),
        ([pulled(MOVED, 100), pulled(MOVED, 0), pulled(MOVED, 100)], ["error"] * 2),
        ([pulled(MOVED, 100), pulled(NO_MATCH, 101), pulled(MOVED, 0)], []),
    ],
)
async def test_a_broker_that_answers_at_once_and_leads_nowhere_is_asked_again_only_after_a_pause(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch, answers: list[Reply], pauses: list[str]
) -> None:
    """Issue 13, client parts: such a broker was asked two thousand times a second, by each of its readers."""
    names = {0.00123: "quick", 0.00321: "error"}
    made: list[str] = []
    sleep = asyncio.sleep

    async def noting(delay: float) -> None:
        made.extend([names[delay]] if delay in names else [])
        await sleep(delay)

    monkeypatch.setattr(source, "QUICK_S", 60.0)
    monkeypatch.setattr(source, "QUICK_PAUSE_S", 0.00123)
    monkeypatch.setattr(source, "ERROR_PAUSE_S", 0.00321)
    monkeypatch.setattr(asyncio, "sleep", noting)
    script.say(PULL, *answers)
    async with consumer_of(script):
        await script.wait_for(PULL, len(answers) + 1)
    assert pauses == made


async def test_a_slave_is_read_when_the_broker_suggests_it_and_gets_no_progress(script: ConsumerScript) -> None:
    """O3."""
    script.say(PULL, pulled(NO_MATCH, 5, broker_id=1))
    async with ConsumerScript().running() as slave:
        script.slave_address = slave.address
        slave.say(PULL, pulled(NO_MATCH, 9, broker_id=0))
        async with consumer_of(script):
            (from_slave,) = await slave.wait_for(PULL)
            back = (await script.wait_for(PULL, 2))[-1]
    assert (5, PullSysflag.SUSPEND, 0) == (from_slave.queue_offset, from_slave.sysflag, from_slave.commit_offset)
    assert (9, 9) == (back.queue_offset, back.commit_offset)


async def test_errors_are_followed_by_another_pull(script: ConsumerScript) -> None:
    """F1: busy, unknown, nonsense: none of them ends the loop."""
    script.say(
        PULL,
        refused(ResponseCode.SYSTEM_ERROR, "no"),
        refused(ResponseCode.FLOW_CONTROL, "slowly"),
        pulled(FOUND, 9, b"no record at all, but bytes"),
        Reply(FOUND),
        pulled(FOUND, 6, record(5, properties="TAGS\x01B\x02")),
    )
    seen = Seen()
    async with consumer_of(script, seen):
        await script.wait_for(PULL, 6)
    assert [5] == seen.offsets


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    ],
)
async def test_a_broker_that_forgot_the_subscription_gets_a_heartbeat(script: ConsumerScript, code: int) -> None:
    """D3, K2."""
    script.say(PULL, refused(code, "who are you?"))
    async with consumer_of(script):
        await script.wait_for(PULL)
        before = len(script.headers(RequestCode.HEART_BEAT))
        await script.wait_for(RequestCode.HEART_BEAT, before + 1)


async def test_a_broken_connection_is_made_again(script: ConsumerScript) -> None:
    """B2: with a heartbeat first, as the broker forgot us with the connection."""
    async with consumer_of(script):
        await script.wait_for(PULL)
        assert script.server is not None
        asked = len(script.asked)
        for peer in list(script.server.peers):
            peer.abort()
        await script.wait_for(PULL, 2)
    codes = [code for code, _ in script.asked[asked:]]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(PULL)


async def test_a_pull_that_never_ends_is_made_again(script: ConsumerScript) -> None:
    """M2: after two minutes; what is in flight of the queue still counts."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")))
    hang = asyncio.Event()

    async def listener(_: ReceivedMessage) -> None:
        await hang.wait()

    clock = ManualClock()
    consumer = PushConsumer(
        "billing", listener, name_servers=script.address, start=StartPosition.FIRST, env=Env(clock=clock)
    )
    consumer.subscribe("orders", "A || B")
    async with consumer:
        await script.wait_for(PULL, 2)
        member = consumer._consumer
        assert member is not None
        clock.advance(120)
        member.expire()
        await asyncio.sleep(0)
        assert 2 == len(script.headers(PULL))
        clock.advance(1)
        member.expire()
        (_, _, pull) = await script.wait_for(PULL, 3)
        member.expire()  # the new one has its own time
        hang.set()
    assert (6, 5) == (pull.queue_offset, pull.commit_offset)
    assert 3 == len(script.headers(PULL))


async def test_a_listener_that_hangs_is_reported_and_its_message_sent_back(
    script: ConsumerScript, caplog: pytest.LogCaptureFixture
) -> None:
    """F1, M2: after a quarter of an hour, at the level of 10 s; so progress goes on, and what it says later is lost."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")))
    began, hang = asyncio.Event(), asyncio.Event()

    async def listener(_: ReceivedMessage) -> None:
        began.set()
        await hang.wait()

    clock = ManualClock()
    consumer = PushConsumer(
        "billing", listener, name_servers=script.address, start=StartPosition.FIRST, env=Env(clock=clock)
    )
    consumer.subscribe("orders", "A || B")
    async with consumer:
        await began.wait()
        member = consumer._consumer
        assert member is not None
        clock.advance(15 * 60)
        member.expire()
        assert "is too slow with message" not in caplog.text
        clock.advance(1)
        member.expire()
        member.expire()
        (back,) = await script.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
        hang.set()
    assert (5_000, 3) == (back.log_offset, back.delay_level)
    assert 1 == len(script.headers(RequestCode.CONSUMER_SEND_MSG_BACK))
    assert 1 == caplog.text.count("is too slow with message")
    assert 6 == script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].commit_offset


@pytest.mark.parametrize(
    ("start", "expected"),
    [(StartPosition.LAST, 100), (StartPosition.FIRST, 0), (StartPosition.at(1_700_000_000_000), 50)],
)
async def test_a_group_without_progress_starts_where_it_is_told(
    script: ConsumerScript, start: StartPosition, expected: int
) -> None:
    """F6."""
    async with consumer_of(script, start=start):
        (pull,) = await script.wait_for(PULL)
    assert expected == pull.queue_offset


@pytest.mark.parametrize("start", [StartPosition.LAST, StartPosition.FIRST, StartPosition.at(1_700_000_000_000)])
async def test_retries_start_with_the_oldest(script: ConsumerScript, start: StartPosition) -> None:
    """F6: a group's own messages are never skipped for being old, as Java's clients do that start at a time."""
    script.topics = {"%RETRY%billing"}
    async with consumer_of(script, start=start):
        (pull,) = await script.wait_for(PULL)
    assert ("%RETRY%billing", 0) == (pull.topic, pull.queue_offset)


async def test_stored_progress_comes_before_the_start_position(script: ConsumerScript) -> None:
    """D4, F6."""
    script.say(RequestCode.QUERY_CONSUMER_OFFSET, Reply(header=OffsetReply(queue_offset=77)))
    async with consumer_of(script, start=StartPosition.LAST):
        (pull,) = await script.wait_for(PULL)
    assert 77 == pull.queue_offset


async def test_progress_that_cannot_be_had_is_not_taken_for_none(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: the queue waits; starting at the end would lose messages."""
    monkeypatch.setattr("ternmq.client.consume.rebalance.RETRY_S", 0.001)
    script.say(
        RequestCode.QUERY_CONSUMER_OFFSET,
        refused(ResponseCode.SYSTEM_ERROR, "not now"),
        Reply(header=OffsetReply(queue_offset=77)),
    )
    async with consumer_of(script, start=StartPosition.LAST):
        (pull,) = await script.wait_for(PULL)
    assert 77 == pull.queue_offset
    assert [] == script.headers(RequestCode.GET_MAX_OFFSET)


async def test_what_a_listener_gets_has_its_original_topic_back(script: ConsumerScript) -> None:
    """H1."""
    script.topics = {"%RETRY%billing"}
    script.say(PULL, pulled(FOUND, 1, record(0, topic="%RETRY%billing", properties="RETRY_TOPIC\x01orders\x02")))
    seen = Seen()
    async with consumer_of(script, seen):
        await script.wait_for(PULL, 2)
    assert ["orders"] == seen.topics


@pytest.mark.parametrize("way", ["tasks", "threads", "orderly", "loop"])
async def test_a_message_tells_the_bounds_of_its_queue_and_when_it_was_taken(script: ConsumerScript, way: str) -> None:
    """Issue 13, point 15: what a listener that sheds a backlog needs."""
    script.say(PULL, pulled(FOUND, 6, record(5, properties="TAGS\x01A\x02")))
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def in_task(message: ReceivedMessage) -> None:
        seen.put_nowait(message)

    def in_thread(message: ReceivedMessage) -> None:
        loop.call_soon_threadsafe(seen.put_nowait, message)

    consumer = PushConsumer(
        "billing",
        {"loop": None, "threads": in_thread}.get(way, in_task),
        name_servers=script.address,
        start=StartPosition.FIRST,
        orderly=way == "orderly",
    )
    consumer.subscribe("orders", "A || B")
    before_ms = Env().clock.now_ms()
    async with consumer:
        if way == "loop":
            async for delivery in consumer:
                seen.put_nowait(delivery)
                break
        message = await seen.get()
    assert (0, 1_000) == (message.min_offset, message.max_offset)
    assert before_ms <= message.consume_start_time_ms <= Env().clock.now_ms()


def test_each_limit_stops_the_fetching() -> None:
    """M2."""

    def held(*offsets: int) -> ProcessQueue[Claimed]:
        queue = ProcessQueue[Claimed](QUEUE, 0)
        queue.put(messages(*offsets), max(offsets) + 1)
        return queue

    def reached(limits: FlowLimits, queue: ProcessQueue[Claimed], topic_queues: int = 1) -> str | None:
        return limits.reached(queue, topic_queues=topic_queues)

    assert None is reached(FlowLimits(), held(0, 1))
    assert "count" == reached(FlowLimits(count=2), held(0, 1))
    assert "body_bytes" == reached(FlowLimits(body_bytes=2), held(0, 1))
    assert "span" == reached(FlowLimits(span=10), held(0, 11))
    assert None is reached(FlowLimits(span=10), held(0, 10))
    # In order, nothing is done behind an undone message, so a span says nothing (F2).
    assert None is FlowLimits(span=10).reached(held(0, 11), topic_queues=1, orderly=True)
    # A topic's limit is divided among its queues, and each may have at least one message.
    assert None is reached(FlowLimits(topic_count=9), held(0, 1), 4 - 1)
    assert "count" == reached(FlowLimits(topic_count=9), held(0, 1), 4)
    assert "count" == reached(FlowLimits(topic_count=1), held(0), 100)
    assert "body_bytes" == reached(FlowLimits(topic_body_bytes=4), held(0, 1), 2)


def test_settings_that_would_stop_everything_are_refused() -> None:
    with pytest.raises(ConfigError, match="invalid count 0: expected 1 or more"):
        FlowLimits(count=0)
    with pytest.raises(ConfigError, match="invalid suspend_ms -1"):
        PushConfig(suspend_ms=-1)
