"""Dead letters through the admin: listed, found, sent again, put away (H2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from ternmq.admin import Admin
from ternmq.admin.deadletters import DeadLetter, DeadLetterCount, Resent
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NotFound
from ternmq.message import Message, MessageQueue, ReceivedMessage, SendReceipt
from tests.no_delays import NO_DELAYS

GROUP, DEAD, RETRY = "billing", "%DLQ%billing", "%RETRY%billing"


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers=2, settings={"messageDelayLevel": NO_DELAYS}) as cluster:
        yield cluster


class Shop:
    """A topic of one queue on each broker, and the group ``billing`` that fails when told to."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer, admin: Admin) -> None:
        self.name_servers = cluster.name_servers
        self._producer = producer
        self._admin = admin

    async def send(self, body: bytes, *, broker: str = "broker-a", **fields: object) -> SendReceipt:
        queue = MessageQueue("orders", broker, 0)
        return await self._producer.send(Message("orders", body, **fields), queue=queue)  # type: ignore[arg-type]

    async def consume(
        self, count: int, *, fails: Callable[[ReceivedMessage], bool], group: str = GROUP
    ) -> list[ReceivedMessage]:
        """Let a member work until it has had so many messages, in order of their bodies; it tries each once."""
        seen: list[ReceivedMessage] = []
        enough = asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            seen.append(message)
            if len(seen) == count:
                enough.set()
            if fails(message):
                raise ValueError("no")

        config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=0)
        consumer = PushConsumer(group, listener, name_servers=self.name_servers, config=config)
        consumer.subscribe("orders")
        async with consumer:
            await enough.wait()
        return sorted(seen, key=lambda message: message.body)

    async def dead(self, *bodies: bytes, **fields: object) -> list[DeadLetter]:
        """Make dead letters, in this order."""
        for number, body in enumerate(bodies):
            await self.send(body, broker=f"broker-{'ab'[number % 2]}", **fields)
        await self.consume(len(bodies), fails=lambda _: True)
        return await self._admin.dead_letters.all(GROUP)


@pytest.fixture
async def shop(cluster: EmbeddedCluster, admin: Admin) -> AsyncIterator[Shop]:
    await admin.topics.create("orders", queues=1)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield Shop(cluster, producer, admin)


def bodies(letters: list[DeadLetter]) -> list[bytes]:
    return sorted(letter.message.body for letter in letters)


async def test_dead_letters_are_listed_and_counted(shop: Shop, admin: Admin) -> None:
    """H2: over all brokers, with where they came from."""
    assert [] == await admin.dead_letters.groups()
    assert [] == await admin.dead_letters.all("nobody")

    letters = await shop.dead(b"1", b"2", b"3", keys="k", tags="new")

    assert [b"1", b"2", b"3"] == bodies(letters)
    assert {"broker-a", "broker-b"} == {letter.message.broker_name for letter in letters}
    [count] = await admin.dead_letters.groups()
    assert DeadLetterCount(GROUP, 3, 3, max(letter.message.store_time_ms for letter in letters)) == count
    letter = letters[0]
    assert ("orders", 1, "new", ("k",)) == (
        letter.origin_topic,
        letter.attempts,
        letter.message.tags,
        letter.message.keys,
    )
    first = await admin.messages.by_id(letter.origin_id)
    assert (first.body, first.topic) == (letter.message.body, "orders")
    assert letters[:2] == await admin.dead_letters.all(GROUP, count_max=2)
    with pytest.raises(ConfigError, match="invalid count_max 0"):
        await admin.dead_letters.all(GROUP, count_max=0)


async def test_those_that_a_function_chooses_are_sent_again(shop: Shop, admin: Admin) -> None:
    """H2: the mark passes no letter that is left."""
    letters = {letter.message.body: letter.message for letter in await shop.dead(b"1", b"2", b"3")}
    assert {letter.queue: 0 for letter in letters.values()} == await admin.dead_letters.marks(GROUP)

    async def resend(*bodies: bytes) -> list[bytes]:
        done = await admin.dead_letters.resend(GROUP, chosen=lambda letter: letter.message.body in bodies)
        return sorted(one.letter.message.body for one in done)

    last = max((b"1", b"3"), key=lambda body: letters[body].queue_offset)
    assert [last] == await resend(last)
    assert 0 == (await admin.dead_letters.marks(GROUP))[letters[last].queue]
    assert [b"1", b"3"] == await resend(b"1", b"3")
    assert {letters[b"1"].queue: 2, letters[b"2"].queue: 0} == await admin.dead_letters.marks(GROUP)
    with pytest.raises(ConfigError, match="choose dead letters by id or by"):
        await admin.dead_letters.resend(GROUP, [letters[b"1"].message_id], chosen=lambda _: True)


async def test_dead_letters_are_found_by_each_of_their_ids(shop: Shop, admin: Admin) -> None:
    """H2"""
    receipt = await shop.send(b"other")
    letters = await shop.dead(b"1")
    letter = next(letter for letter in letters if letter.message.body == b"1")

    assert [letter] == await admin.dead_letters.find(GROUP, letter.message.message_id)
    assert [letter] == await admin.dead_letters.find(GROUP, letter.message.offset_id)
    for group, name in ((GROUP, receipt.offset_id), (GROUP, "nothing"), ("nobody", letter.message.message_id)):
        with pytest.raises(NotFound, match="has no dead letter"):
            await admin.dead_letters.find(group, name)


async def test_a_letter_sent_again_goes_to_its_group_only(shop: Shop, admin: Admin) -> None:
    """H2: as what it was, with all its attempts before it; others that have done it are not bothered."""
    await shop.dead(b"1", keys="k", tags="new", properties={"city": "Paris"})
    await shop.consume(1, fails=lambda _: False, group="audit")
    [letter] = await admin.dead_letters.all(GROUP)

    [resent] = await admin.dead_letters.resend(GROUP)

    assert (letter, RETRY, None) == (resent.letter, resent.topic, resent.earlier)
    [message] = await shop.consume(1, fails=lambda _: False)
    assert (b"1", "orders", "new", ("k",), "Paris", 0) == (
        message.body,
        message.topic,
        message.tags,
        message.keys,
        message.properties["city"],
        message.reconsume_times,
    )
    assert letter.message.message_id == message.message_id
    await shop.send(b"2")
    assert [b"2"] == [message.body for message in await shop.consume(1, fails=lambda _: False, group="audit")]


async def test_a_letter_sent_to_its_topic_goes_to_all_groups(shop: Shop, admin: Admin) -> None:
    """H2: to the queue of its key, if it has one."""
    letters = await shop.dead(b"1", b"2", sharding_key="order-7")

    done = await admin.dead_letters.resend(GROUP, to_topic=True)

    assert {letter.message.message_id for letter in letters} == {one.receipt.message_id for one in done if one.receipt}
    queues = {one.receipt.queue for one in done if one.receipt}
    assert (1, {"orders"}) == (len(queues), {queue.topic for queue in queues})
    # Two of the first time, two that were sent again.
    messages = await shop.consume(4, fails=lambda _: False, group="audit")
    assert [b"1", b"1", b"2", b"2"] == [message.body for message in messages]
    for message in messages:
        assert not {"RETRY_TOPIC", "REAL_TOPIC", "DELAY"} & message.properties.keys()


@pytest.mark.parametrize("to_topic", [True, False])
async def test_a_letter_is_sent_again_once_unless_told_otherwise(shop: Shop, admin: Admin, to_topic: bool) -> None:
    """H2: whichever way it went the first time."""
    [letter] = await shop.dead(b"1")
    names = [letter.message.message_id]
    [first] = await admin.dead_letters.resend(GROUP, names, to_topic=to_topic)
    assert first.receipt is not None

    for other in (True, False):
        [second] = await admin.dead_letters.resend(GROUP, names, to_topic=other)
        assert second.receipt is None
        assert second.earlier is not None
        assert first.receipt.offset_id == second.earlier.offset_id
    [third] = await admin.dead_letters.resend(GROUP, names, again=True)
    assert third.receipt is not None


async def test_a_letter_that_fails_again_is_a_new_one(shop: Shop, admin: Admin) -> None:
    """H2: and can be sent again as well."""
    [first] = await shop.dead(b"1")
    await admin.dead_letters.resend(GROUP)
    await shop.consume(1, fails=lambda _: True)

    [second] = await admin.dead_letters.all(GROUP)

    assert first.message.offset_id != second.message.offset_id
    assert [first, second] == await admin.dead_letters.find(GROUP, first.message.message_id)
    [resent] = await admin.dead_letters.resend(GROUP)
    assert (second, True) == (resent.letter, resent.receipt is not None)


async def test_what_was_sent_again_is_dealt_with(shop: Shop, admin: Admin) -> None:
    """H2: as far as no letter before it is left; the rest is shown when asked for."""
    letters = [letter for letter in await shop.dead(b"1", b"2", b"3", b"4") if letter.message.broker_name == "broker-a"]
    first, second = sorted(letters, key=lambda letter: letter.message.queue_offset)

    await admin.dead_letters.resend(GROUP, [second.message.message_id])
    assert 4 == len(await admin.dead_letters.all(GROUP))
    planned = await admin.dead_letters.resend(GROUP, dry_run=True)
    assert 4 == len(await admin.dead_letters.all(GROUP))
    told: list[Resent] = []
    done = await admin.dead_letters.resend(GROUP, on_resent=told.append)

    assert [] == await admin.dead_letters.all(GROUP)
    assert 4 == len(await admin.dead_letters.all(GROUP, handled=True))
    assert [(GROUP, 0, 4)] == [(one.group, one.waiting, one.total) for one in await admin.dead_letters.groups()]
    assert told == done
    assert [second] == [one.letter for one in done if one.earlier] == [one.letter for one in planned if one.earlier]
    assert first in [one.letter for one in done if one.receipt]


async def test_letters_of_a_time_are_chosen(shop: Shop, admin: Admin) -> None:
    """H2: both ends belong to it."""
    letters = [*await shop.dead(b"1"), *await shop.dead(b"2")][1:]
    early, late = letters
    times = [letter.message.store_time_ms for letter in letters]
    assert times[0] < times[1]

    assert [early] == await admin.dead_letters.all(GROUP, end=times[0])
    assert [late] == await admin.dead_letters.all(GROUP, begin=times[1])
    assert letters == await admin.dead_letters.all(GROUP, begin=times[0], end=times[1])
    assert [late] == [one.letter for one in await admin.dead_letters.resend(GROUP, begin=times[0] + 1)]
    assert letters == await admin.dead_letters.all(GROUP)
    with pytest.raises(ConfigError, match="not both"):
        await admin.dead_letters.resend(GROUP, ["x"], begin=1)


async def test_letters_are_put_away(shop: Shop, admin: Admin) -> None:
    """H2: all, or those before a time; the log keeps them."""
    await shop.dead(b"1")
    [early, late] = await shop.dead(b"2")

    assert [1] == [one.count for one in await admin.dead_letters.purge(GROUP, before=late.message.store_time_ms)]
    assert [late] == await admin.dead_letters.all(GROUP)
    assert 1 == sum(one.count for one in await admin.dead_letters.purge(GROUP))
    assert 0 == sum(one.count for one in await admin.dead_letters.purge(GROUP))

    assert [] == await admin.dead_letters.all(GROUP)
    assert [early, late] == await admin.dead_letters.all(GROUP, handled=True)
    assert [] == await admin.dead_letters.purge("nobody")


async def test_letters_are_deleted_for_good(shop: Shop, admin: Admin) -> None:
    """H2: with their topic; the next one begins a new."""
    await shop.dead(b"1", b"2", b"3")
    await admin.dead_letters.purge(GROUP)
    with pytest.raises(ConfigError, match="cannot be combined with a time"):
        await admin.dead_letters.purge(GROUP, before=1, for_good=True)

    assert 3 == sum(one.count for one in await admin.dead_letters.purge(GROUP, for_good=True))

    assert [] == await admin.dead_letters.groups()
    assert [] == await admin.dead_letters.all(GROUP, handled=True)
    assert [b"4"] == bodies(await shop.dead(b"4"))


async def test_many_letters_are_sent_again_page_by_page(shop: Shop, admin: Admin) -> None:
    """H2"""
    sent = [b"%03d" % number for number in range(100)]
    letters = await shop.dead(*sent)
    assert sent == bodies(letters)

    done = await admin.dead_letters.resend(GROUP)

    assert sent == sorted(one.letter.message.body for one in done if one.receipt)
    assert [] == await admin.dead_letters.all(GROUP)


async def test_a_group_without_a_retry_topic_gets_one(shop: Shop, admin: Admin) -> None:
    """H2, D1: on the broker of the letter."""
    await shop.dead(b"1", b"2")
    await admin.topics.delete(RETRY)

    done = await admin.dead_letters.resend(GROUP)

    assert {"broker-a", "broker-b"} == {one.receipt.queue.broker_name for one in done if one.receipt}
    assert [b"1", b"2"] == [message.body for message in await shop.consume(2, fails=lambda _: False)]


async def test_a_group_gets_its_retry_topic_where_brokers_create_none_by_themselves() -> None:
    """Issue 13, 12: no route leads to a topic that is not there, not even that of TBW102."""
    settings = {"messageDelayLevel": NO_DELAYS, "autoCreateTopicEnable": False}
    async with (
        EmbeddedCluster(brokers=2, settings=settings) as cluster,
        Admin(cluster.name_servers) as admin,
        Producer("shop", name_servers=cluster.name_servers) as producer,
    ):
        await admin.topics.create("orders", queues=1)
        shop = Shop(cluster, producer, admin)
        await shop.dead(b"1", b"2")
        await admin.topics.delete(RETRY)

        assert 2 == len(await admin.dead_letters.resend(GROUP, dry_run=True))
        assert RETRY not in {topic.name for topic in await admin.topics.all()}
        done = await admin.dead_letters.resend(GROUP)

        assert {"broker-a", "broker-b"} == {one.receipt.queue.broker_name for one in done if one.receipt}
        assert [b"1", b"2"] == [message.body for message in await shop.consume(2, fails=lambda _: False)]


async def test_an_error_in_between_leaves_no_doubt_about_what_was_sent(
    shop: Shop, admin: Admin, cluster: EmbeddedCluster
) -> None:
    """H2: here one that was sent to the dead letters by hand, and so came from nowhere."""
    await shop.dead(b"1")
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        stray = await producer.send(Message(DEAD, b"stray"), queue=MessageQueue(DEAD, "broker-a", 0))
    told: list[Resent] = []

    with pytest.raises(NotFound, match=f"{stray.message_id} does not contain its original topic"):
        await admin.dead_letters.resend(GROUP, to_topic=True, on_resent=told.append)

    assert [b"1"] == [one.letter.message.body for one in told]
    assert [b"stray"] == bodies(await admin.dead_letters.all(GROUP))
    assert [b"stray"] == [one.letter.message.body for one in await admin.dead_letters.resend(GROUP) if one.receipt]
