"""Replies on their way to those who wait for them (E7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import Heartbeat, ProducerData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import BINARY, JSON, RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request, Response
from ternmq.wire.properties import join, parse
from ternmq.wire.requests import PushReply, SendReply
from tests.broker.calls import Caller, dialled, settings, small_store, v1, v2

REPLIES = "DefaultCluster_REPLY_TOPIC"
ADDRESSED = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.1@7", "TTL": "3000", "MSG_TYPE": "reply"}


@asynccontextmanager
async def waiting(address: str, *, answer: int = 0) -> AsyncIterator[asyncio.Queue[tuple[PushReply, bytes]]]:
    """A producer with the client id ``10.0.0.1@7`` that takes replies, and answers with this code."""
    taken: asyncio.Queue[tuple[PushReply, bytes]] = asyncio.Queue()

    def take(_peer: Peer, request: Request[PushReply]) -> Reply:
        taken.put_nowait((request.fields, bytes(request.body)))
        return Reply(answer)

    async with Tasks() as tasks:
        routes: dict[int, Route] = {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: Route(take, "client", ANY_CALLER)}
        peer = await connect(address, routes=routes, lanes=Lanes([LaneConfig("client")]), tasks=tasks)
        beat = Heartbeat(client_id="10.0.0.1@7", producer_data_set=[ProducerData(group_name="shop")])
        assert (await peer.call(RequestCode.HEART_BEAT, None, encode(beat))).code == 0
        yield taken
        peer.close()
        await peer.closed.wait()


@asynccontextmanager
async def broker(
    path: Path, *, store: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[tuple[str, Caller]]:
    async with (
        Broker(settings(**changes), small_store(path, **(store or {}))) as running,
        dialled(running.address) as caller,
    ):
        yield running.address, caller


async def reply(caller: Caller, body: bytes = b"four", *, queue_id: int = 0, **properties: str) -> Response:
    header = v2(REPLIES, properties=ADDRESSED | properties, queue_id=queue_id, born_time_ms=5, flag=3)
    return await caller.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, body)


async def test_a_reply_reaches_the_client_that_waits_and_is_kept(tmp_path: Path) -> None:
    """E7: as it was sent, with where it came from."""
    async with broker(tmp_path) as (address, caller), waiting(address) as taken:
        answer = await reply(caller, 城市="杭州")
        pushed, body = taken.get_nowait()
        [record] = await caller.records(REPLIES)

    assert (ResponseCode.SUCCESS, b"four") == (answer.code, body)
    properties = parse(pushed.properties or "")
    assert int(properties.pop("PUSH_REPLY_TIME")) == pushed.store_time_ms
    assert ADDRESSED | {"城市": "杭州"} == properties
    assert (REPLIES, 0, 3, 5) == (pushed.topic, pushed.queue_id, pushed.flag, pushed.born_time_ms)
    assert (caller.peer.local_address, address) == (pushed.born_host, pushed.store_host)
    stored = answer.read(SendReply)
    assert (0, 0, b"four") == (stored.queue_id, stored.queue_offset, bytes(record.body))
    assert stored.message_id.endswith(f"{record.log_offset:016X}")
    assert ADDRESSED.items() <= parse(record.properties).items()


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_the_long_names_of_the_header_do_as_well(tmp_path: Path, form: int) -> None:
    """E7, B1: SEND_REPLY_MESSAGE 324; a queue id below 0 lets the broker choose."""
    async with broker(tmp_path) as (address, caller), waiting(address) as taken:
        header = v1(REPLIES, properties=join(ADDRESSED), queue_id=-1)
        answer = await caller.call(RequestCode.SEND_REPLY_MESSAGE, header, b"four", form=form)
        pushed, body = taken.get_nowait()
    assert (ResponseCode.SUCCESS, 0, b"four") == (answer.code, pushed.queue_id, body)


async def test_a_reply_without_a_requester_is_an_error_and_kept_all_the_same(tmp_path: Path) -> None:
    """E7: the replier learns that no requester waits any more."""
    async with broker(tmp_path) as (_, caller):
        gone = await reply(caller)
        without_requester = await reply(caller, REPLY_TO_CLIENT="")
        kept = await caller.bodies(REPLIES)
    assert (ResponseCode.SYSTEM_ERROR, [b"four", b"four"]) == (gone.code, kept)
    assert "channel of 10.0.0.1@7 not found" in (gone.remark or "")
    assert ResponseCode.SYSTEM_ERROR == without_requester.code
    assert "REPLY_TO_CLIENT is null" in (without_requester.remark or "")


async def test_a_requester_that_refuses_its_reply_fails_the_replier(tmp_path: Path) -> None:
    """E7."""
    async with broker(tmp_path) as (address, caller), waiting(address, answer=1) as taken:
        answer = await reply(caller)
        assert 1 == taken.qsize()
    assert (ResponseCode.SYSTEM_ERROR, True) == (answer.code, "it answered 1" in (answer.remark or ""))


async def test_a_requester_that_has_left_gets_nothing(tmp_path: Path) -> None:
    """E7, D3: a client is known by its connection."""
    async with broker(tmp_path) as (address, caller):
        async with waiting(address):
            pass
        answer = await reply(caller)
    assert ResponseCode.SYSTEM_ERROR == answer.code


async def test_replies_need_not_be_kept(tmp_path: Path) -> None:
    """E7: ``storeReplyMessageEnable``; the answer has zeros, as RocketMQ's clients expect."""
    async with broker(tmp_path, store_reply_message_enable=False) as (address, caller), waiting(address) as taken:
        answer = await reply(caller)
        assert [] == await caller.bodies(REPLIES)
        assert 1 == taken.qsize()
    stored = answer.read(SendReply)
    assert ("0", 0, 0) == (stored.message_id, stored.queue_id, stored.queue_offset)


async def test_a_reply_that_cannot_be_stored_has_still_arrived(tmp_path: Path) -> None:
    """E7: too large for the store, but not for the requester."""
    async with broker(tmp_path, store={"max_message_size": 1000}) as (address, caller), waiting(address) as taken:
        answer = await reply(caller, b"x" * 2000)
        assert (ResponseCode.SUCCESS, "0") == (answer.code, answer.read(SendReply).message_id)
        assert b"x" * 2000 == taken.get_nowait()[1]


async def test_a_reply_to_a_topic_that_is_not_there_is_refused_before_it_is_passed_on(tmp_path: Path) -> None:
    """E7, D1."""
    async with broker(tmp_path, auto_create_topic_enable=False) as (address, caller), waiting(address) as taken:
        header = v2("no-such-topic", properties=ADDRESSED, queue_id=0)
        answer = await caller.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"four")
        assert (ResponseCode.TOPIC_NOT_EXIST, 0) == (answer.code, taken.qsize())
