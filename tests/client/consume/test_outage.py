"""Poison against outage: what is down costs no message a retry (S1, H1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from ternmq import (
    Admin,
    EmbeddedCluster,
    Message,
    Outage,
    PopConfig,
    PopConsumer,
    Producer,
    PushConfig,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
    breaker,
)
from ternmq.client.consume.outage import Outages
from ternmq.errors import ConfigError
from tests.no_delays import NO_DELAYS

COUNT = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as running:
        yield running


class Database:
    """What the listener needs for each message: it is down for the first attempts, and one message is poison."""

    def __init__(self, *, failures: int) -> None:
        self.failures = failures
        self.attempts = 0
        self.done: list[bytes] = []
        self.times: Counter[bytes] = Counter()
        self.reconsumed: Counter[int] = Counter()
        self.complete = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def save(self, message: ReceivedMessage) -> None:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise Outage("the database is down")
        self.times[message.body] += 1
        if message.body == b"poison":
            raise ValueError("this can never succeed")
        self.done.append(message.body)
        self.reconsumed[message.reconsume_times] += 1
        if len(self.done) >= COUNT:
            self._loop.call_soon_threadsafe(self.complete.set)


async def fill(cluster: EmbeddedCluster, topic: str, *, poison: bool) -> None:
    async with Producer("p", name_servers=cluster.name_servers) as producer:
        for number in range(COUNT):
            await producer.send(Message(topic, b"%d" % number))
            if poison and number == 5:
                await producer.send(Message(topic, b"poison"))


async def dead_letters(cluster: EmbeddedCluster, group: str, count: int) -> list[bytes]:
    async with Admin(cluster.name_servers) as admin:
        async with asyncio.timeout(60):
            while len(letters := await admin.dead_letters.all(group)) < count:
                await asyncio.sleep(0.1)
        return [letter.message.body for letter in letters]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
async def test_an_outage_costs_no_retry_and_poison_becomes_a_dead_letter(
    cluster: EmbeddedCluster, orderly: bool, is_async: bool
) -> None:
    """S1: with one retry, five failures of a database would bury every message."""
    name = f"outage-{orderly}-{is_async}".lower()
    await fill(cluster, name, poison=True)
    database = Database(failures=5)

    async def save_async(message: ReceivedMessage) -> None:
        database.save(message)

    config = PushConfig(
        start=StartPosition.FIRST,
        orderly=orderly,
        threads=4,
        max_reconsume_times=1,
        orderly_retry_ms=10,
        outage_retry_ms=10,
        outage_retry_max_ms=40,
    )
    listener = save_async if is_async else database.save
    consumer = PushConsumer(name, listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe(name)
    async with consumer, asyncio.timeout(60):
        await database.complete.wait()
        assert [b"poison"] == await dead_letters(cluster, name, 1)

    assert {b"%d" % number for number in range(COUNT)} == set(database.done)
    assert Counter({0: COUNT}) == database.reconsumed
    # The first attempt and one retry.
    assert 2 == database.times[b"poison"]


async def test_popped_messages_stay_hidden_in_an_outage(cluster: EmbeddedCluster) -> None:
    """S1, F9: an outage that lasts longer than the invisible time costs popped messages no retry either."""
    await fill(cluster, "outage-pop", poison=False)
    # 5 s invisible, and the third trial comes after 1 + 2 + 4 s.
    database = Database(failures=3)

    async def save(message: ReceivedMessage) -> None:
        database.save(message)

    config = PopConfig(start=StartPosition.FIRST, invisible_ms=5_000, threads=1, max_reconsume_times=1)
    consumer = PopConsumer("outage-pop", save, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("outage-pop")
    async with consumer, asyncio.timeout(60):
        await database.complete.wait()

    assert COUNT == len(database.done) == len(set(database.done))
    assert Counter({0: COUNT}) == database.reconsumed


async def test_a_consumer_stops_during_an_outage_and_another_gets_the_messages(cluster: EmbeddedCluster) -> None:
    """S1: what is held counts as undone; progress does not pass it."""
    await fill(cluster, "outage-stop", poison=False)
    down = asyncio.Event()

    async def fail(message: ReceivedMessage) -> None:
        down.set()
        raise Outage("down for ever")

    config = PushConfig(start=StartPosition.FIRST, outage_retry_ms=3_600_000, outage_retry_max_ms=3_600_000)
    consumer = PushConsumer("outage-stop", fail, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("outage-stop")
    async with consumer, asyncio.timeout(60):
        await down.wait()

    database = Database(failures=0)
    after = PushConsumer("outage-stop", database.save, name_servers=cluster.name_servers, start=StartPosition.FIRST)
    after.subscribe("outage-stop")
    async with after, asyncio.timeout(60):
        await database.complete.wait()

    assert Counter({0: COUNT}) == database.reconsumed


async def test_the_back_off_doubles_up_to_its_bound() -> None:
    """S1: only trials count; calls that were running when the outage began do not."""
    outages = Outages("g", first_ms=100, max_ms=350)
    reason = Outage("down")

    assert 0.1 == outages.down(reason, now=0.0, is_trial=False)
    assert None is outages.down(reason, now=0.0, is_trial=False)
    assert [0.2, 0.35, 0.35] == [outages.down(reason, now=1.0, is_trial=True) for _ in range(3)]
    assert not outages.flowing.is_set()

    outages.over(worked=False)
    assert outages.flowing.is_set()
    assert 0.35 == outages.down(reason, now=9.0, is_trial=False)
    outages.over(worked=True)
    assert 0.1 == outages.down(reason, now=10.0, is_trial=False)


async def test_a_breaker_makes_an_outage_of_failures_in_a_row() -> None:
    """S1: N failures of the given types, plain and async; others are left alone, and a success starts anew."""
    errors: list[Exception | None] = []

    def plain(message: object) -> str:
        if (error := errors.pop(0)) is not None:
            raise error
        return "done"

    async def asynchronous(message: object) -> str:
        return plain(message)

    broken = breaker(2, on=(OSError, TimeoutError))(plain)
    broken_async = breaker(2, on=OSError)(asynchronous)
    told = []
    errors += [OSError(), None, OSError(), ValueError(), OSError(), OSError(), None, OSError()]
    while errors:
        try:
            told.append(broken(None))
        except Exception as error:
            told.append(type(error).__name__)
    assert ["OSError", "done", "OSError", "ValueError", "Outage", "Outage", "done", "OSError"] == told
    errors += [OSError("a"), OSError("b")]
    with pytest.raises(OSError, match="a"):
        await broken_async(None)
    with pytest.raises(Outage, match="2 failures in a row, the last one: b"):
        await broken_async(None)

    class Billing:
        async def __call__(self, message: object) -> str:
            return plain(message)

    errors += [OSError("c")]
    with pytest.raises(Outage, match="1 failures in a row, the last one: c"):
        await breaker(1, on=OSError)(Billing())(None)


async def test_one_message_whose_outage_never_ends_does_not_stop_the_others(cluster: EmbeddedCluster) -> None:
    """S1: after each back-off another message is tried."""
    await fill(cluster, "outage-of-one", poison=True)
    database = Database(failures=0)

    async def save(message: ReceivedMessage) -> None:
        if message.body == b"poison":
            raise Outage("that is what it always says")
        database.save(message)

    config = PushConfig(start=StartPosition.FIRST, threads=1, outage_retry_ms=1, outage_retry_max_ms=2)
    consumer = PushConsumer("outage-of-one", save, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("outage-of-one")
    async with consumer, asyncio.timeout(60):
        await database.complete.wait()
    assert Counter({0: COUNT}) == database.reconsumed


def test_bad_settings_are_refused() -> None:
    """S1."""
    with pytest.raises(ConfigError, match="invalid failures 0 of the breaker: expected a number from 1"):
        breaker(0, on=OSError)
    with pytest.raises(ConfigError, match="expected classes of exceptions"):
        breaker(1, on=())
    with pytest.raises(ConfigError, match="invalid outage_retry_ms 0"):
        PushConfig(outage_retry_ms=0)
    with pytest.raises(ConfigError, match="the first not above the second"):
        PopConfig(outage_retry_ms=10, outage_retry_max_ms=9)
