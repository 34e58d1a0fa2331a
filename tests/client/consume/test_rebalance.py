"""Which member reads which queue, again and again (G1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.allocation import Averagely
from ternmq.client.consume import rebalance
from ternmq.client.consume.push import PushConsumer
from ternmq.client.consume.rebalance import difference
from ternmq.errors import refused
from ternmq.message import MessageQueue
from ternmq.wire.codes import RequestCode, ResponseCode
from tests.client.consumer_script import ConsumerScript
from tests.client.listening import eventually

some_queues = st.sets(st.builds(MessageQueue, st.just("t"), st.sampled_from("ab"), st.integers(0, 9)))


@given(some_queues, some_queues)
def test_the_difference_leads_from_the_old_to_the_new(owned: set[MessageQueue], allocated: set[MessageQueue]) -> None:
    """G1: nothing is let go that is kept, nothing taken up that is there."""
    change = difference(owned, allocated)
    assert allocated == owned - {*change.lost} | {*change.gained}
    assert {*change.lost} <= owned
    assert not {*change.gained} & owned


@given(some_queues)
def test_no_change_is_no_difference(owned: set[MessageQueue]) -> None:
    """G1."""
    change = difference(owned, owned)
    assert not change.lost
    assert not change.gained


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1))
def test_any_sequence_of_joins_and_leaves_ends_with_each_queue_owned_once(history: list[set[int]]) -> None:
    """G1, G2: members with the same member list agree on the queues of each, whatever they had before."""
    queues = [MessageQueue("t", "a", number) for number in range(16)]
    owned: dict[str, set[MessageQueue]] = {}
    for present in history:
        names = {f"member-{number}" for number in present}
        owned = {name: owned.get(name, set()) for name in names}
        for name in names:
            change = difference(owned[name], Averagely().allocate(name, queues, names))
            owned[name] = owned[name] - {*change.lost} | {*change.gained}
        if names:
            assert sorted(queues) == sorted(queue for mine in owned.values() for queue in mine)


# --- The shell -------------------------------------------------------------------------------------------------


@pytest.fixture
async def script() -> AsyncIterator[ConsumerScript]:
    async with ConsumerScript().running() as script:
        script.read_queues = 4
        yield script


async def listener(_: object) -> None: ...


def consumer_of(script: ConsumerScript) -> PushConsumer:
    consumer = PushConsumer("billing", listener, name_servers=script.address)
    consumer.subscribe("orders")
    return consumer


def ids(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues]


async def test_a_new_member_is_given_half_at_once(script: ConsumerScript) -> None:
    """G1: the broker tells (NOTIFY_CONSUMER_IDS_CHANGED 40); no member waits 20 s."""
    async with consumer_of(script) as consumer:
        assert [0, 1, 2, 3] == ids(consumer)
        script.members = [script.heartbeats[-1].client_id, "0.0.0.0@first of all"]
        await script.tell_members_changed("billing")
        await eventually(lambda: [2, 3] == ids(consumer))
        commits = await script.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 2)
    # Stored before the other reads on from there.
    assert {0: 100, 1: 100} == {commit.queue_id: commit.commit_offset for commit in commits}


async def test_when_many_members_start_together_a_round_serves_many_words(script: ConsumerScript) -> None:
    """G1: each of a hundred members is told a hundred times."""
    async with consumer_of(script) as consumer:
        await consumer.ready()
        before = len(script.headers(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        script.members = [script.heartbeats[-1].client_id, "0.0.0.0@first of all"]
        for _ in range(100):
            await script.tell_members_changed("billing")
        await eventually(lambda: [2, 3] == ids(consumer))
        await consumer.ready()
        # One that the first word began, and one for all that came while it ran.
        assert len(script.headers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) - before <= 2


async def test_a_member_that_the_broker_does_not_list_lets_go(script: ConsumerScript) -> None:
    """G1."""
    async with consumer_of(script) as consumer:
        script.members = ["0.0.0.0@another"]
        await script.tell_members_changed("billing")
        await eventually(lambda: [] == ids(consumer))


async def test_without_a_member_list_queues_stay(script: ConsumerScript) -> None:
    """G1: a guess would take queues from others or give up our own."""
    async with consumer_of(script) as consumer:
        asked = len(script.headers(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        script.members = refused(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        await script.tell_members_changed("billing")
        await script.wait_for(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 1)
        assert [0, 1, 2, 3] == ids(consumer)


async def test_a_strategy_that_fails_changes_nothing(script: ConsumerScript) -> None:
    """G2: it is the application's code."""

    class Fails:
        name = "FAILS"
        broken = False

        def allocate(
            self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
        ) -> list[MessageQueue]:
            if self.broken:
                raise RuntimeError("no")
            return sorted(queues)

    strategy = Fails()
    consumer = PushConsumer("billing", listener, name_servers=script.address, allocation=strategy)
    consumer.subscribe("orders")
    async with consumer:
        strategy.broken = True
        asked = len(script.headers(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await script.tell_members_changed("billing")
        await script.wait_for(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 1)
        assert [0, 1, 2, 3] == ids(consumer)


async def test_a_strategy_that_returns_nonsense_ends_no_rounds(
    script: ConsumerScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2."""
    monkeypatch.setattr(rebalance, "RETRY_S", 0.01)
    results: list[Any] = []

    class Odd:
        name = "ODD"

        def allocate(
            self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
        ) -> list[MessageQueue]:
            return results.pop(0) if results else sorted(queues)[:2]

    consumer = PushConsumer("billing", listener, name_servers=script.address, allocation=Odd())
    consumer.subscribe("orders")
    results.append([])
    async with consumer:
        results += [[3], ["orders"]]
        await script.tell_members_changed("billing")
        await eventually(lambda: [0, 1] == ids(consumer))
        assert not results


async def test_a_topic_that_appears_later_is_taken_up(script: ConsumerScript, monkeypatch: pytest.MonkeyPatch) -> None:
    """A4, G1: it is asked for again, at first after a second."""
    monkeypatch.setattr("ternmq.client.consume.rebalance.RETRY_S", 0.001)
    monkeypatch.setattr("ternmq.client.consume.rebalance.GAP_S", 0.001)
    script.topics = set()
    async with consumer_of(script) as consumer:
        assert [] == consumer.queues
        script.topics = {"orders"}
        await consumer.ready()
        assert [0, 1, 2, 3] == ids(consumer)
        await script.wait_for(RequestCode.PULL_MESSAGE)
        # Brokers refuse pulls of topics that no heartbeat has named to them.
        codes = [code for code, _ in script.asked]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.PULL_MESSAGE)


async def test_new_queues_of_a_topic_are_found_with_the_route(script: ConsumerScript) -> None:
    """A4, G1."""
    async with consumer_of(script) as consumer:
        script.read_queues = 6
        member = consumer._consumer
        assert member is not None
        await member.instance.routes.refresh_all()
        await eventually(lambda: [0, 1, 2, 3, 4, 5] == ids(consumer))


async def test_an_unsubscribed_topic_is_let_go_and_brokers_are_told(script: ConsumerScript) -> None:
    """D3, G1."""
    async with consumer_of(script) as consumer:
        consumer.unsubscribe("orders")
        await consumer.ready()
        assert [] == consumer.queues
        (data,) = script.heartbeats[-1].consumer_data_set
    assert ["%RETRY%billing"] == [subscription.topic for subscription in data.subscription_data_set]


async def test_leaving_tells_the_brokers_after_the_progress(script: ConsumerScript) -> None:
    """G1: the next owner asks for it as soon as it hears that we are gone."""
    async with consumer_of(script):
        pass
    codes = [code for code, _ in script.asked]
    assert max(at for at, code in enumerate(codes) if code == RequestCode.UPDATE_CONSUMER_OFFSET) < codes.index(
        RequestCode.UNREGISTER_CLIENT
    )
