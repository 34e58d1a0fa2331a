"""Pulls by SQL over a real connection: what passes, what wakes, what is refused (K2–K4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.wire.bodies.clients import ClientCheck, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullReply, PullSysflag
from tests.broker.calls import FAR_MS, Caller, pull, serving
from tests.broker.popping import held_pop, popped

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
    """F9, K2: at once, and when it has waited for it; what it does not want is popped by nobody of its group."""
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


# --- Bloom maps, retries --------------------------------------------------------------------------------------


async def test_maps_beside_the_queue_change_nothing_but_the_time(tmp_path: Path) -> None:
    """K3, C3: messages from before the filter, with another group's bits, and with its own."""
    switches = {"enable_property_filter": True, "enable_calc_filter_bit_map": True}
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
