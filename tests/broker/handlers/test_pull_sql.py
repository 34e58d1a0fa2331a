"""Pulls by SQL over a real connection: what passes, what wakes, what is refused (K2–K4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.env import Env, SystemClock
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import ClientCheck, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullReply, PullSysflag
from tests.broker.calls import FAR_MS, Caller, pull, serving
from tests.broker.popping import held_pop, pop, popped

BIG = "amount > 5 AND region = 'eu'"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path, enable_property_filter=True) as caller:
        yield caller


async def send(broker: Caller, *amounts: int, topic: str = "orders", region: str = "eu") -> None:
    for amount in amounts:
        properties = {"amount": str(amount), "region": region, "TAGS": "new"}
        await broker.sent(topic, b"%d" % amount, properties=properties)


async def by_request(broker: Caller, expression: str | None = BIG, *, kind: str = "SQL92", **fields: Any) -> Response:
    return await broker.pull("orders", subscription=expression, expression_type=kind, **fields)


async def by_heartbeat(broker: Caller, **fields: Any) -> Response:
    given: dict[str, Any] = {"sysflag": 0, "subscription": "", "expression_type": "SQL92"}
    return await broker.pull("orders", **(given | fields))


def bodies(response: Response) -> list[bytes]:
    assert response.code == 0, response.remark
    return [bytes(record.body) for record in unpack_records(response.body)]


async def check(broker: Caller, expression: str, kind: str = "SQL92") -> Response:
    said = SubscriptionData(topic="orders", sub_string=expression, expression_type=kind)
    body = encode(ClientCheck(client_id="me", group="readers", subscription_data=said))
    return await broker.call(RequestCode.CHECK_CLIENT_CONFIG, None, body)


# --- What passes ----------------------------------------------------------------------------------------------


async def test_a_pull_gets_the_messages_that_its_expression_takes(broker: Caller) -> None:
    """K2"""
    await send(broker, 1, 9, 3, 7)
    await send(broker, 8, region="us")

    response = await by_request(broker)

    assert [b"9", b"7"] == bodies(response)
    assert 5 == response.read(PullReply).next_offset


async def test_a_stretch_without_a_match_moves_the_reader_on(broker: Caller) -> None:
    """K2: PULL_RETRY_IMMEDIATELY, with where to go on."""
    await send(broker, 1, 2, 3)

    response = await by_request(broker)

    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE") == (response.code, response.remark)
    assert 3 == response.read(PullReply).next_offset


async def test_a_message_that_cannot_be_compared_does_not_match(broker: Caller) -> None:
    """K2: «abc» is no number; the pull goes on."""
    await broker.sent("orders", b"odd", properties={"amount": "abc"})
    await send(broker, 9)

    assert [b"9"] == bodies(await by_request(broker, "amount > 5"))


async def test_the_heartbeat_rules_when_the_pull_brings_no_expression(broker: Caller) -> None:
    """K2: what Java does, and Go, which says TAG in each pull."""
    await send(broker, 1, 9)
    await broker.heartbeat("readers", {"orders": BIG}, version=5, kind="SQL92")

    assert [b"9"] == bodies(await by_heartbeat(broker, sub_version=5))
    assert [b"9"] == bodies(await by_heartbeat(broker, sub_version=0, expression_type="TAG"))


async def test_a_pull_with_the_expression_of_the_heartbeat_means_its_kind(broker: Caller) -> None:
    """K2: the Go client says TAG for SQL, too, if it is told to send the expression along."""
    await send(broker, 1, 9)
    await broker.heartbeat("readers", {"orders": BIG}, kind="SQL92")

    assert [b"9"] == bodies(await by_request(broker, kind="TAG"))
    assert [b"1", b"9"] == bodies(await by_request(broker, "new", kind="TAG"))


async def test_old_messages_are_filtered_when_they_are_read(tmp_path: Path) -> None:
    """K2, F3: stretch after stretch, until one passes or the end is reached."""
    async with serving(
        tmp_path, store={"access_message_in_memory_max_ratio": 0}, enable_property_filter=True
    ) as broker:
        await send(broker, *[1] * 20, 9, 2, 8, *[1] * 20)

        first = await by_request(broker)
        last = await by_request(broker, queue_offset=23)

    assert [b"9", b"8"] == bodies(first)
    assert 24 == first.read(PullReply).next_offset
    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE") == (last.code, last.remark)
    assert 43 == last.read(PullReply).next_offset


# --- What wakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "in a batch"])
async def test_a_held_pull_wakes_for_a_message_that_matches(broker: Caller, batch: bool) -> None:
    """F8, K2"""
    await send(broker, 9)
    header = pull(
        "orders",
        queue_offset=1,
        subscription=BIG,
        expression_type="SQL92",
        sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
        suspend_timeout_ms=FAR_MS,
    )
    answer = broker.peer.start_call(RequestCode.PULL_MESSAGE, header)
    await send(broker, 1, 2)
    assert not answer.done()

    if batch:
        messages = [(b"%d" % amount, {"amount": str(amount), "region": "eu"}) for amount in (3, 8)]
        assert (await broker.send_batch("orders", messages)).code == 0
    else:
        await send(broker, 8)
    async with asyncio.timeout(5):
        assert [b"8"] == bodies(await answer)


async def test_a_pop_takes_what_its_expression_takes(broker: Caller) -> None:
    """F9, K2: at once, and when it has waited for it; no member of its group pops what it does not want."""
    wish: dict[str, Any] = {"subscription": BIG, "expression_type": "SQL92"}
    await send(broker, 1, 9, 3, 7)

    found = await popped(broker, "orders", **wish)
    answer = held_pop(broker, "orders", poll_ms=FAR_MS, **wish)
    await send(broker, 2)
    assert not answer.done()
    await send(broker, 8)

    assert [b"9", b"7"] == [message.body for message in found]
    async with asyncio.timeout(5):
        assert [b"8"] == bodies(await answer)


# --- Refusals -------------------------------------------------------------------------------------------------


async def test_a_wrong_expression_is_refused_with_its_place(broker: Caller) -> None:
    """K2: 23 at the check and in a pull, 27 for a group whose heartbeat brought it."""
    await send(broker, 9)
    wrong = "amount > 'five'"

    for response in (await check(broker, wrong), await by_request(broker, wrong)):
        assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == response.code
        assert "at character 10" in (response.remark or "")
    await broker.heartbeat("readers", {"orders": wrong}, kind="SQL92")
    response = await by_heartbeat(broker)
    assert ResponseCode.FILTER_DATA_NOT_EXIST == response.code
    assert "at character 10" in (response.remark or "")


async def test_an_empty_expression_or_an_unknown_kind_is_refused(broker: Caller) -> None:
    """K2"""
    await send(broker, 9)

    assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == (await by_request(broker, None)).code
    assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == (await by_request(broker, kind="XPATH")).code
    assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == (await check(broker, "a = 1", "XPATH")).code


async def test_a_pull_that_knows_more_than_the_heartbeat_is_refused(broker: Caller) -> None:
    """K2: 24, 25 and 28, which a new expression that cannot be read leaves behind."""
    await send(broker, 9)
    assert ResponseCode.SUBSCRIPTION_NOT_EXIST == (await by_heartbeat(broker)).code
    await broker.heartbeat("readers", {"others": "*"})
    assert ResponseCode.SUBSCRIPTION_NOT_EXIST == (await by_heartbeat(broker)).code
    await broker.heartbeat("readers", {"orders": BIG}, version=5, kind="SQL92")
    assert ResponseCode.SUBSCRIPTION_NOT_LATEST == (await by_heartbeat(broker, sub_version=6)).code


@pytest.mark.parametrize("kind", ["TAG", ""])
async def test_tags_are_always_understood(broker: Caller, kind: str) -> None:
    """K1"""
    assert ResponseCode.SUCCESS == (await check(broker, "A || B", kind)).code
    assert ResponseCode.SUCCESS == (await check(broker, BIG)).code


async def test_a_broker_without_the_switch_says_which_one(tmp_path: Path) -> None:
    """K2: RocketMQ's default, and its code: SYSTEM_ERROR."""
    async with serving(tmp_path) as broker:
        await send(broker, 9)
        await broker.heartbeat("readers", {"orders": BIG}, kind="SQL92")
        for response in (await check(broker, BIG), await by_request(broker), await by_heartbeat(broker)):
            assert ResponseCode.SYSTEM_ERROR == response.code
            assert "enablePropertyFilter=true" in (response.remark or "")


async def test_what_is_too_large_is_refused_with_the_setting(broker: Caller) -> None:
    """Issue 13, 4: 20,000 ORs held the broker for 28 s."""
    await send(broker, 9)
    many = " OR ".join(["amount=9"] * 800)

    for response in (
        await check(broker, many),
        await by_request(broker, many),
        await pop(broker, "orders", **sql(many)),
    ):
        assert ResponseCode.SUBSCRIPTION_PARSE_FAILED == response.code
        assert "more than 1024 terms" in (response.remark or "")
        assert "maxFilterExpressionTerms" in (response.remark or "")
    await broker.heartbeat("readers", {"orders": many}, kind="SQL92")
    response = await by_heartbeat(broker)
    assert ResponseCode.FILTER_DATA_NOT_EXIST == response.code
    assert "maxFilterExpressionTerms" in (response.remark or "")


# --- A filter that takes long (issue 13, 4) -------------------------------------------------------------------


class PassingClock(SystemClock):
    """Time that passes with each look at it: 0.4 ms, so that a filter's 1 ms is over at the third."""

    def __init__(self) -> None:
        self._passed_s = 0.0

    def monotonic(self) -> float:
        self._passed_s += 0.000_4
        return self._passed_s


#: What a filter sees in that time: 24 messages, and the one at which the time was over is the last.
SEEN = 24


@pytest.fixture
async def slow_broker(tmp_path: Path) -> AsyncIterator[Caller]:
    switches: dict[str, Any] = {"enable_property_filter": True, "max_filter_time_per_pull": 1}
    async with serving(tmp_path, env=Env(clock=PassingClock()), **switches) as caller:
        yield caller


async def test_a_pull_whose_filter_takes_long_is_answered_with_what_it_has(slow_broker: Caller) -> None:
    """Issue 13, 4: and with the offset of the first message that the filter has not seen."""
    await send(slow_broker, 9, *[1] * (SEEN - 1), 8, *[1] * SEEN, 7)

    first = await by_request(slow_broker, count_max=1_000)
    second = await by_request(slow_broker, queue_offset=SEEN, count_max=1_000)
    third = await by_request(slow_broker, queue_offset=2 * SEEN, count_max=1_000)

    assert [[b"9"], [b"8"], [b"7"]] == [bodies(response) for response in (first, second, third)]
    assert [SEEN, 2 * SEEN, 2 * SEEN + 2] == [
        response.read(PullReply).next_offset for response in (first, second, third)
    ]


async def test_a_pull_that_has_found_nothing_in_its_time_is_to_go_on(slow_broker: Caller) -> None:
    """Issue 13, 4: PULL_RETRY_IMMEDIATELY; the client loses no message."""
    await send(slow_broker, *[1] * SEEN, 9)

    first = await by_request(slow_broker)
    then = await by_request(slow_broker, queue_offset=first.read(PullReply).next_offset)

    assert ResponseCode.PULL_RETRY_IMMEDIATELY == first.code
    assert SEEN == first.read(PullReply).next_offset
    assert [b"9"] == bodies(then)


async def test_old_messages_are_left_to_the_next_pull_as_well(tmp_path: Path) -> None:
    """Issue 13, 4: those that the filter has not seen, though they were read."""
    switches: dict[str, Any] = {"enable_property_filter": True, "max_filter_time_per_pull": 1}
    store = {"access_message_in_memory_max_ratio": 0}
    async with serving(tmp_path, store=store, env=Env(clock=PassingClock()), **switches) as broker:
        await send(broker, *[1] * SEEN, 9, 1, 8)
        many: dict[str, Any] = {"count_max": 1_000, "bytes_max": 100_000}

        first = await by_request(broker, **many)
        then = await by_request(broker, queue_offset=first.read(PullReply).next_offset, **many)

    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, SEEN) == (first.code, first.read(PullReply).next_offset)
    assert [b"9", b"8"] == bodies(then)
    assert SEEN + 3 == then.read(PullReply).next_offset


class DeletingClock(PassingClock):
    """At the third look at the time, the oldest segment of ``store`` is dropped, as retention does it."""

    def __init__(self) -> None:
        super().__init__()
        self.store: MessageStore | None = None
        self._looks = 0

    def monotonic(self) -> float:
        if self.store is not None:
            self._looks += 1
            if self._looks == 3:
                self.store._log.drop_first()
        return super().monotonic()


async def test_retention_beside_a_slow_filter_of_old_messages_skips_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13, 4, C9: the records are read, the filter's time is over, and the first of them are deleted meanwhile."""
    stores: list[MessageStore] = []

    class FoundStore(MessageStore):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            stores.append(self)

    monkeypatch.setattr("ternmq.broker.broker.MessageStore", FoundStore)
    clock = DeletingClock()
    store = {"access_message_in_memory_max_ratio": 0, "mapped_file_size_commit_log": 16_384}
    switches: dict[str, Any] = {"enable_property_filter": True, "max_filter_time_per_pull": 1}
    async with serving(tmp_path, store=store, env=Env(clock=clock), **switches) as broker:
        await broker.sent("orders", bytes(14_000), properties={"amount": "1"})
        await send(broker, *[1] * 20, 9, 1, 8)
        clock.store = stores[0]

        first = await by_request(broker, count_max=1_000, bytes_max=100_000)
        seen = first.read(PullReply).next_offset
        then = await by_request(broker, queue_offset=seen, count_max=1_000, bytes_max=100_000)

    assert 16_384 == stores[0]._log.begin
    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, 21) == (first.code, seen)
    assert [b"9", b"8"] == bodies(then)


async def test_a_held_pull_that_wakes_has_the_same_time(slow_broker: Caller) -> None:
    """Issue 13, 4, F8: a batch that arrives wakes it, and it looks at a part of it."""
    await send(slow_broker, 1)
    header = pull(
        "orders",
        queue_offset=1,
        sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
        suspend_timeout_ms=FAR_MS,
        **sql(BIG),
    )
    answer = slow_broker.peer.start_call(RequestCode.PULL_MESSAGE, header)
    await slow_broker.pull("orders")

    messages = [(b"%d" % amount, {"amount": str(amount), "region": "eu"}) for amount in (*[1] * SEEN, 9)]
    assert (await slow_broker.send_batch("orders", messages)).code == 0

    async with asyncio.timeout(5):
        response = await answer
    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, 1 + SEEN) == (response.code, response.read(PullReply).next_offset)


async def test_a_pop_whose_filter_takes_long_goes_on_after_others(slow_broker: Caller) -> None:
    """Issue 13, 4, F9: held, it looks at a part in each turn of the loop; not held, the client pops again."""
    await send(slow_broker, *[1] * 10 * SEEN, 9, 1, 8)

    assert ResponseCode.POLLING_TIMEOUT == (await pop(slow_broker, "orders", **sql(BIG))).code
    async with asyncio.timeout(5):
        found = await popped(slow_broker, "orders", poll_ms=FAR_MS, **sql(BIG))

    assert [b"9", b"8"] == [message.body for message in found]


def sql(expression: str) -> dict[str, Any]:
    return {"subscription": expression, "expression_type": "SQL92"}


# --- Bloom maps, retries --------------------------------------------------------------------------------------


async def test_maps_beside_the_queue_change_nothing_but_the_time(tmp_path: Path) -> None:
    """K3, C3: messages from before the filter, with another group's bits, and with its own."""
    switches: dict[str, Any] = {"enable_property_filter": True, "enable_calc_filter_bit_map": True}
    async with serving(tmp_path, store={"enable_consume_queue_ext": True}, **switches) as broker:
        await send(broker, 9, 1)
        await broker.heartbeat("others", {"orders": "amount < 5"}, kind="SQL92")
        await send(broker, 2, 8)
        await broker.heartbeat("readers", {"orders": BIG}, kind="SQL92")
        await send(broker, 3, 7)

        assert [b"9", b"8", b"7"] == bodies(await by_heartbeat(broker))


@pytest.mark.parametrize(("switch", "expected"), [(False, [b"1", b"9"]), (True, [b"9"])])
async def test_retries_are_filtered_by_the_original_topic(tmp_path: Path, switch: bool, expected: list[bytes]) -> None:
    """K4: if filterSupportRetry is on; RETRY_TOPIC names that topic."""
    async with serving(tmp_path, enable_property_filter=True, filter_support_retry=switch) as broker:
        retries = "%RETRY%readers"
        await broker.heartbeat("readers", {"orders": BIG}, kind="SQL92")
        for amount in (1, 9):
            properties = {"RETRY_TOPIC": "orders", "amount": str(amount), "region": "eu"}
            await broker.sent(retries, b"%d" % amount, properties=properties)

        assert expected == await broker.bodies(retries)
