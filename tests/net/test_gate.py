"""Admission: refused before anything is told, and handled as it was checked (issue 14, N1)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER, Action, CallingPeer, Gate, Need, Resource, ResourceKind, Rule, Validator
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.tasks import Tasks
from ternmq.wire.bodies.codec import Queue, decode
from ternmq.wire.codes import BINARY, JSON, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Fields, Header, Reply, Request, Response
from ternmq.wire.requests import QueryOffset

LANES: Final = [LaneConfig("work")]
#: A code with a typed header, one without, one without a body, and one that names its topic in the body.
TYPED, FREE, BODILESS, IN_BODY = RequestCode.QUERY_CONSUMER_OFFSET, 9001, 9002, 9003
OFFSET: Final = QueryOffset(consumer_group="billing", topic="orders", queue_id=3)


class Servant:
    """Notes what reaches its handlers."""

    def __init__(self) -> None:
        self.handled: list[Any] = []
        self.bodies: list[bytes] = []

    def handle(self, _peer: Peer, request: Request[Any]) -> Reply:
        self.handled.append(request.header)
        self.bodies.append(bytes(request.body))
        return Reply()

    @property
    def routes(self) -> dict[int, Route]:
        named = Rule(Action.SUB, topic="topic", group="consumerGroup")
        return {
            TYPED: Route(self.handle, "work", named),
            FREE: Route(self.handle, "work", ANY_CALLER),
            BODILESS: Route(self.handle, "work", named, takes_body=False),
            IN_BODY: Route(self.handle, "work", Rule(Action.PUB, in_body=named_in_body)),
        }


def named_in_body(body: memoryview) -> list[Resource]:
    return [Resource(ResourceKind.TOPIC, decode(body, Queue).topic)]


class Seen:
    """Lets everything pass and notes it."""

    def __init__(self) -> None:
        self.fields: list[Fields] = []
        self.bodies: list[bytes] = []
        self.callers: list[str] = []

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule) -> None:
        self.fields.append(dict(fields))
        self.bodies.append(bytes(request.body))
        self.callers.append(caller.address)


def only_any(_caller: CallingPeer, _request: Request[Any], _fields: Fields, rule: Rule) -> None:
    if rule.action is not Action.ANY:
        raise NoPermission("no permission for topic:orders; ask the administrator for SUB on it")


def looks_at_needs(_caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule) -> None:
    rule.needs(fields, request.body)


@asynccontextmanager
async def asking(servant: Servant, *validators: Validator) -> AsyncIterator[Peer]:
    """A connection to a server with these validators."""
    async with Server.running(servant.routes, LANES, gate=Gate(validators)) as server, Tasks() as tasks:
        port = await server.listen("127.0.0.1", 0)
        peer = await connect(f"127.0.0.1:{port}", routes={}, lanes=Lanes(LANES), tasks=tasks)
        yield peer
        peer.close()
        await peer.closed.wait()


async def asked(peer: Peer, code: int, header: Header | None = None, body: bytes = b"", **options: Any) -> Response:
    return await peer.call(code, header, body, timeout_ms=60_000, **options)


async def test_a_request_that_is_not_admitted_is_answered_with_the_reason() -> None:
    servant = Servant()
    async with asking(servant, only_any) as peer:
        refused = await asked(peer, TYPED, OFFSET)
        others = await asked(peer, FREE)

    assert (ResponseCode.NO_PERMISSION, "no permission for topic:orders; ask the administrator for SUB on it") == (
        refused.code,
        refused.remark,
    )
    assert ResponseCode.SUCCESS == others.code
    assert [{}] == servant.handled


async def test_a_oneway_request_that_is_not_admitted_is_dropped() -> None:
    servant = Servant()
    async with asking(servant, only_any) as peer:
        peer.call_oneway(TYPED, OFFSET)
        assert ResponseCode.SUCCESS == (await asked(peer, FREE)).code

    assert [{}] == servant.handled


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_only_an_admitted_caller_is_told_what_is_wrong_with_a_request(form: int) -> None:
    wrong = {"topic": "orders", "queueId": "three"}
    servant = Servant()

    async with asking(servant, only_any) as peer:
        refused = await asked(peer, TYPED, form=form, more_fields=wrong)
    async with asking(servant, Seen()) as peer:
        told = await asked(peer, TYPED, form=form, more_fields=wrong)

    assert ResponseCode.NO_PERMISSION == refused.code
    assert "queueId" not in (refused.remark or "")
    assert ResponseCode.SYSTEM_ERROR == told.code
    assert "QueryOffset cannot be read" in (told.remark or "")
    assert [] == servant.handled


@pytest.mark.parametrize("form", [JSON, BINARY])
@pytest.mark.parametrize("code", [TYPED, FREE, BODILESS])
async def test_validators_see_all_fields_and_the_body(form: int, code: int) -> None:
    """A signature covers what no typed header has, and the body of a request that needs none."""
    servant, seen = Servant(), Seen()
    async with asking(servant, seen) as peer:
        more = {"AccessKey": "RocketMQ", "OnsChannel": "ALIYUN"}
        answer = await asked(peer, code, OFFSET, b"hi", form=form, more_fields=more)
        here = peer.local_address

    assert ResponseCode.SUCCESS == answer.code
    assert [OFFSET.to_fields() | more] == seen.fields
    assert [b"hi"] == seen.bodies
    assert [here] == seen.callers
    assert [OFFSET if code == TYPED else OFFSET.to_fields() | more] == servant.handled
    assert [b"" if code == BODILESS else b"hi"] == servant.bodies


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_a_signature_of_rocketmq_can_be_checked(form: int) -> None:
    """N1, with the vector of protocol/features.md: values by key, then the body, HMAC-SHA1."""

    def signed(_caller: CallingPeer, request: Request[Any], fields: Fields, _rule: Rule) -> None:
        values = "".join(value for name, value in sorted(fields.items()) if name != "Signature")
        token = hmac.digest(b"12345678", values.encode() + bytes(request.body), hashlib.sha1)
        if base64.b64encode(token).decode() != fields.get("Signature"):
            raise NoPermission("the signature is wrong; check the secret key")

    fields = {"topic": "T", "queueId": "0", "AccessKey": "RocketMQ", "Signature": "dJue2dJSl/TBygHPbqrM4/as1Mk="}
    async with asking(Servant(), signed) as peer:
        right = await asked(peer, FREE, body=b"hi", form=form, more_fields=fields)
        other_body = await asked(peer, FREE, body=b"ho", form=form, more_fields=fields)
        other_field = await asked(peer, FREE, body=b"hi", form=form, more_fields=fields | {"queueId": "1"})

    assert [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION] == [
        right.code,
        other_body.code,
        other_field.code,
    ]


async def test_what_is_handled_is_what_was_checked() -> None:
    """A header may have a member twice: validator and handler must not take one each."""
    ext = b'{"consumerGroup":"a","topic":"mine","queueId":"0"},"extFields":{"consumerGroup":"a","topic":"x","topic":"y"'
    head = b'{"code":14,"extFields":%b,"queueId":0}}' % ext
    servant, seen = Servant(), Seen()
    async with Server.running(servant.routes, LANES, gate=Gate([seen])) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
        writer.write((4 + len(head)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head)
        async with asyncio.timeout(60):
            size = await reader.readexactly(4)
            frame = size + await reader.readexactly(int.from_bytes(size, "big"))
        writer.close()
        await writer.wait_closed()

    [answer] = FrameDecoder().feed(frame)
    assert ResponseCode.SUCCESS == answer.code
    [fields], [header] = seen.fields, servant.handled
    assert (fields["topic"], fields["consumerGroup"]) == (header.topic, header.consumer_group)


async def test_a_validator_that_fails_admits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_caller: CallingPeer, _request: Request[Any], _fields: Fields, _rule: Rule) -> None:
        raise ZeroDivisionError("a bug")

    servant = Servant()
    async with asking(servant, broken) as peer:
        answer = await asked(peer, FREE)

    assert ResponseCode.SYSTEM_ERROR == answer.code
    assert [] == servant.handled
    assert "the handler of " in caplog.text


async def test_the_first_objection_of_a_row_of_validators_counts() -> None:
    servant, before, behind = Servant(), Seen(), Seen()
    async with asking(servant, before, only_any, behind) as peer:
        assert ResponseCode.NO_PERMISSION == (await asked(peer, TYPED, OFFSET)).code

    assert (1, 0) == (len(before.fields), len(behind.fields))


async def test_a_body_that_does_not_tell_its_resources_is_not_admitted() -> None:
    servant = Servant()
    async with asking(servant, looks_at_needs) as peer:
        refused = await asked(peer, IN_BODY, body=b'{"topic":')

    assert ResponseCode.NO_PERMISSION == refused.code
    assert "in its body cannot be read" in (refused.remark or "")
    assert [] == servant.handled


async def test_groups_take_turns_behind_a_gate_as_well() -> None:
    """R4: the group is taken from the fields, as the header is not typed before admission."""
    order: list[str] = []

    def handle(_peer: Peer, request: Request[QueryOffset]) -> Reply:
        order.append(request.fields.consumer_group)
        return Reply()

    rule = Rule(Action.SUB, topic="topic", group="consumerGroup")
    routes: dict[int, Route] = {TYPED: Route(handle, "work", rule, key="consumer_group")}
    crowd = [QueryOffset(consumer_group="crowd", topic="orders", queue_id=number) for number in range(500)]
    async with Server.running(routes, LANES, gate=Gate([Seen()])) as server, Tasks() as tasks:
        port = await server.listen("127.0.0.1", 0)
        peer = await connect(f"127.0.0.1:{port}", routes={}, lanes=Lanes(LANES), tasks=tasks)
        calls = [peer.start_call(TYPED, header) for header in crowd]
        single = peer.start_call(TYPED, QueryOffset(consumer_group="single", topic="orders", queue_id=0))
        async with asyncio.timeout(60):
            await asyncio.gather(single, *calls)
        peer.close()
        await peer.closed.wait()

    assert 501 == len(order)
    assert order.index("single") < 500, "it does not wait for the whole crowd"


# --- Rules ------------------------------------------------------------------------------------------------------


def need(action: Action, kind: ResourceKind, name: str) -> Need:
    return Need(action, Resource(kind, name))


def test_a_rule_names_the_resources_of_fields_and_body() -> None:
    rule = Rule(Action.SUB, topic="t", group="g", cluster="c", in_body=named_in_body)
    body = memoryview(b'{"brokerName":"b","queueId":0,"topic":"of the body"}')

    assert [
        need(Action.SUB, ResourceKind.GROUP, "billing"),
        need(Action.SUB, ResourceKind.TOPIC, "orders"),
        need(Action.SUB, ResourceKind.CLUSTER, "west"),
        need(Action.SUB, ResourceKind.TOPIC, "of the body"),
    ] == rule.needs({"t": "orders", "g": "billing", "c": "west"}, body)


def test_a_resource_that_is_not_named_is_not_needed() -> None:
    assert [] == Rule(Action.SUB, topic="topic", group="group").needs({"topic": ""}, memoryview(b""))


def test_a_body_that_cannot_be_read_is_an_error_of_the_request() -> None:
    with pytest.raises(RemoteProtocolError):
        Rule(Action.SUB, in_body=named_in_body).needs({}, memoryview(b"{"))


@pytest.mark.parametrize("action", [Action.PUB, Action.SUB])
def test_retries_of_a_group_need_to_consume_for_it(action: Action) -> None:
    """N1: RocketMQ stores a group's permission under its retry topic; consumers send to it, too."""
    needs = Rule(action, topic="topic").needs({"topic": "%RETRY%billing"}, memoryview(b""))

    assert [need(Action.SUB, ResourceKind.GROUP, "billing")] == needs


def test_a_retry_topic_that_may_be_of_another_group_needs_that_one_too() -> None:
    """N1: group billing and topic orders, or group billing_orders: a member of the first must not read the second's."""
    rule = Rule(Action.SUB, topic="topic", group="consumerGroup")

    needs = rule.needs({"topic": "%RETRY%billing_orders", "consumerGroup": "billing"}, memoryview(b""))

    assert [
        need(Action.SUB, ResourceKind.GROUP, "billing"),
        need(Action.SUB, ResourceKind.TOPIC, "orders"),
        need(Action.SUB, ResourceKind.GROUP, "billing_orders"),
    ] == needs


@pytest.mark.parametrize(("topic", "is_of_popped"), [("%RETRY%billing_orders", True), ("%RETRY%billing+orders", False)])
def test_retries_of_popped_messages_need_their_group_and_topic(topic: str, is_of_popped: bool) -> None:
    rule = Rule(Action.SUB, topic="topic", group="consumerGroup", is_of_popped=is_of_popped)

    needs = rule.needs({"topic": topic, "consumerGroup": "billing"}, memoryview(b""))

    assert [need(Action.SUB, ResourceKind.GROUP, "billing"), need(Action.SUB, ResourceKind.TOPIC, "orders")] == needs
