"""What tools ask a group's members, by way of the broker (D6, F10)."""

from __future__ import annotations

import pytest

from ternmq.broker.handlers import relay
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import ClientOffsets, GroupOffsets
from ternmq.wire.bodies.codec import by_key, by_queue, decode, encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply
from ternmq.wire.ids import offset_id
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import ConsumeDirectly, ConsumerStatus, RunningInfoQuery, SendMessage, SendReply
from tests.broker.handlers.conftest import Client, Connect

RUNNING_INFO, DIRECTLY = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS, STATUS_OF_ONE = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_a_question_reaches_the_member_and_its_answer_the_tool(client: Client, connect: Connect) -> None:
    """F10: one of two members, with its refusals too."""
    one, two = await connect(), await connect()
    await one.consume("a", "g", "orders")
    await two.consume("b", "g", "orders")
    two.answers[RUNNING_INFO] = Reply(body=b'{"jstack":"it"}')

    query = RunningInfoQuery(consumer_group="g", client_id="b", jstack_enable=True)
    response = await client.ok(RUNNING_INFO, query)

    assert b'{"jstack":"it"}' == bytes(response.body)
    assert ([], [query]) == (one.asked, [request.header for request in two.asked])
    two.answers[RUNNING_INFO] = Reply(ResponseCode.SYSTEM_BUSY, remark="not now")
    response = await client.call(RUNNING_INFO, query)
    assert (ResponseCode.SYSTEM_BUSY, "not now") == (response.code, response.remark)


async def test_a_message_travels_to_the_member_that_shall_consume_it(client: Client, connect: Connect) -> None:
    """F10: the record as it is stored, and the name of its broker."""
    member = await connect()
    await member.consume("a", "g", "orders")
    member.answers[DIRECTLY] = Reply(body=b'{"consumeResult":"CR_SUCCESS"}')
    sent = await client.ok(RequestCode.SEND_MESSAGE, SendMessage(topic="orders", queue_id=0), b"it")

    header = ConsumeDirectly(consumer_group="g", client_id="a", message_id=sent.read(SendReply).message_id)
    response = await client.ok(DIRECTLY, header)

    assert b'{"consumeResult":"CR_SUCCESS"}' == bytes(response.body)
    (request,) = member.asked
    assert (b"it", "broker-a") == (bytes(unpack_record(request.body).body), request.fields.broker_name)


@pytest.mark.parametrize("message_id", ["nonsense", offset_id(b"\x7f\0\0\1\0\0\x2a\x9f", 999_999)])
async def test_a_message_that_is_not_here_is_not_asked_for(client: Client, connect: Connect, message_id: str) -> None:
    """F10, L1."""
    member = await connect()
    await member.consume("a", "g", "orders")
    response = await client.call(DIRECTLY, ConsumeDirectly(consumer_group="g", client_id="a", message_id=message_id))
    assert response.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
    assert [] == member.asked


async def test_members_that_are_away_silent_or_gone_are_told_apart(
    client: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F10: 1 and 207, as RocketMQ's tools expect."""
    monkeypatch.setattr(relay, "TIMEOUT_MS", 20)
    query = RunningInfoQuery(consumer_group="g", client_id="a")
    assert ResponseCode.SYSTEM_ERROR == (await client.call(RUNNING_INFO, query)).code
    member = await connect()
    await member.consume("a", "g", "orders")
    response = await client.call(RUNNING_INFO, query)
    assert ResponseCode.CONSUME_MSG_TIMEOUT == response.code
    assert "no answer in 20 ms" in (response.remark or "")


async def test_each_member_tells_how_far_it_is(client: Client, connect: Connect) -> None:
    """F10: those that refuse are left out; one alone by its client id."""
    offsets = {"a": 3, "b": 5}
    for client_id, offset in offsets.items():
        member = await connect()
        await member.consume(client_id, "g", "orders")
        member.answers[STATUS_OF_ONE] = Reply(body=encode(ClientOffsets(message_queue_table=by_key({QUEUE: offset}))))
    refusing = await connect()
    await refusing.consume("c", "g", "orders")
    refusing.answers[STATUS_OF_ONE] = Reply(ResponseCode.SYSTEM_ERROR)

    async def told(client_id: str | None) -> dict[str, dict[MessageQueue, int]]:
        header = ConsumerStatus(topic="orders", group="g", client_address=client_id)
        table = decode((await client.ok(STATUS, header)).body, GroupOffsets).consumer_table
        return {name: by_queue(one) for name, one in table.items()}

    assert {"a": {QUEUE: 3}, "b": {QUEUE: 5}} == await told(None)
    assert {"b": {QUEUE: 5}} == await told("b")


async def test_a_group_without_members_cannot_tell(client: Client) -> None:
    """F10."""
    response = await client.call(STATUS, ConsumerStatus(topic="orders", group="g"))
    assert ResponseCode.SYSTEM_ERROR == response.code
