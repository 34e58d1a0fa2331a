"""Requests that find or write records of other topics than they name, with keys that lack the permission (N1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ternmq.broker.broker import Broker
from ternmq.message import Outcome
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.clients import Heartbeat, ProducerData
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.transactions import OpenTransactions
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Fields, Reply, Request, header_type
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import Sysflag, unpack_record
from ternmq.wire.requests import CheckTransaction, EndTransaction, SendReply, UpdateOffset
from ternmq.wire.requests_admin import (
    CloneGroupOffset,
    ConsumeStatsQuery,
    DelayedStats,
    Group,
    KvKey,
    ListTransactions,
    PutKv,
)
from tests.auth.accounts import ACCOUNTS, BILLING, BOSS, GUEST, SHOP, acl_in, dialled
from tests.auth.test_users import broker_with_users, change_policies
from tests.broker.calls import Caller, settings, small_store, v1, v2

OK, DENIED, FAILED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR


def guarded(tmp_path: Path, **changes: Any) -> Broker:
    """A broker with the accounts of ``tests.auth.accounts``."""
    config = settings(acl_enable=True, acl_path=acl_in(tmp_path / "conf"), **changes)
    return Broker(config, small_store(tmp_path / "store"))


async def half(caller: Caller, topic: str) -> SendReply:
    properties = {"UNIQ_KEY": f"K-{topic}", "TRAN_MSG": "true", "PGROUP": "shop"}
    return await caller.sent(topic, b"paid", properties=properties, sysflag=Sysflag.PREPARED, producer_group="shop")


def ending(sent: SendReply, outcome: Outcome, topic: str | None) -> EndTransaction:
    return EndTransaction(
        producer_group="shop",
        queue_offset=sent.queue_offset,
        log_offset=parse_offset_id(sent.message_id)[2],
        decision=outcome,
        topic=topic,
    )


async def test_a_reply_is_no_way_to_send_to_a_topic_that_an_account_may_only_read(tmp_path: Path) -> None:
    """324 and 325 need only some permission on their topic, and store the reply there."""
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            await boss.sent("orders", b"1")
        async with dialled(broker.address, BILLING) as billing:
            replies = [
                (await billing.call(code, header, b"forged")).code
                for code, header in (
                    (Code.SEND_REPLY_MESSAGE, v1("orders", queue_id=0)),
                    (Code.SEND_REPLY_MESSAGE_V2, v2("orders", queue_id=0)),
                    (Code.SEND_REPLY_MESSAGE_V2, v2("any_REPLY_TOPIC", queue_id=0)),
                    # The topic of replies: the requester is missing.
                    (Code.SEND_REPLY_MESSAGE_V2, v2("DefaultCluster_REPLY_TOPIC", queue_id=0)),
                )
            ]
        async with dialled(broker.address, SHOP) as shop:
            by_sender = (await shop.call(Code.SEND_REPLY_MESSAGE_V2, v2("orders", queue_id=0), b"allowed")).code
        async with dialled(broker.address, BOSS) as boss:
            stored = await boss.bodies("orders")

    assert [DENIED, DENIED, DENIED, FAILED] == replies
    assert FAILED == by_sender
    assert b"forged" not in stored


async def test_a_transaction_is_ended_only_by_an_account_that_may_send_to_its_topic(tmp_path: Path) -> None:
    """37 finds the half by its place in the log: the topic that it names, or leaves out, proves nothing."""
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            of_others, own = await half(boss, "payments"), await half(boss, "orders")
        async with dialled(broker.address, SHOP) as shop:
            refused = [
                (await shop.call(Code.END_TRANSACTION, ending(of_others, outcome, topic))).code
                for outcome in (Outcome.COMMIT, Outcome.ROLLBACK)
                for topic in ("orders", None)
            ]
            ended = (await shop.call(Code.END_TRANSACTION, ending(own, Outcome.COMMIT, None))).code
        async with dialled(broker.address, BOSS) as boss:
            answer = await boss.call(Code.LIST_TRANSACTIONS, ListTransactions(queue_offset=0, count_max=10))
            still_open = decode(bytes(answer.body), OpenTransactions).transactions
            stored = await boss.bodies("payments"), await boss.bodies("orders")

    assert [DENIED] * 4 == refused
    assert OK == ended
    assert ["payments"] == [one.topic for one in still_open]
    assert ([], [b"paid"]) == stored


@asynccontextmanager
async def producing(
    address: str, credentials: Credentials
) -> AsyncIterator[tuple[Caller, asyncio.Queue[Request[CheckTransaction]]]]:
    """A client that says it is a producer of the group shop, and the checks that it gets."""
    asked: asyncio.Queue[Request[CheckTransaction]] = asyncio.Queue()

    def take(_peer: Peer, request: Request[CheckTransaction]) -> None:
        asked.put_nowait(request)

    async with Tasks() as tasks:
        routes: dict[int, Route] = {Code.CHECK_TRANSACTION_STATE: Route(take, "client", ANY_CALLER)}
        lanes = Lanes([LaneConfig("client")])
        peer = await connect(address, routes=routes, lanes=lanes, tasks=tasks, credentials=credentials)
        caller = Caller(peer)
        name = f"{credentials.access_key}@1"
        body = encode(Heartbeat(client_id=name, producer_data_set=[ProducerData(group_name="shop")]))
        assert OK == (await caller.call(Code.HEART_BEAT, None, body)).code
        yield caller, asked
        peer.close()
        await peer.closed.wait()


async def test_checks_of_transactions_show_messages_only_to_accounts_that_may_send_them(tmp_path: Path) -> None:
    """Every account can say that it is a producer of a group, and a check has the whole message in it (J2)."""
    async with (
        guarded(tmp_path, transaction_time_out=0, transaction_check_interval=100) as broker,
        producing(broker.address, GUEST) as (_, never),
        producing(broker.address, SHOP) as (shop, asked),
    ):
        await half(shop, "orders")
        for _ in range(4):
            request = await asyncio.wait_for(asked.get(), 60)
            assert b"paid" == bytes(unpack_record(bytes(request.body)).body)
        assert never.empty()


async def test_replies_go_to_the_account_that_had_the_client_id_first(tmp_path: Path) -> None:
    """E7: a client id is no secret, and every account can send a heartbeat with one."""
    taken: asyncio.Queue[str] = asyncio.Queue()

    @asynccontextmanager
    async def waiting(address: str, credentials: Credentials) -> AsyncIterator[None]:
        def take(_peer: Peer, _request: Request[Any]) -> Reply:
            taken.put_nowait(credentials.access_key)
            return Reply()

        async with Tasks() as tasks:
            routes: dict[int, Route] = {Code.PUSH_REPLY_MESSAGE_TO_CLIENT: Route(take, "client", ANY_CALLER)}
            lanes = Lanes([LaneConfig("client")])
            peer = await connect(address, routes=routes, lanes=lanes, tasks=tasks, credentials=credentials)
            beat = Heartbeat(client_id="10.0.0.1@7", producer_data_set=[ProducerData(group_name="shop")])
            assert OK == (await peer.call(Code.HEART_BEAT, None, encode(beat))).code
            yield
            peer.close()
            await peer.closed.wait()

    properties = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "10.0.0.1@7"}
    header = v2("DefaultCluster_REPLY_TOPIC", properties=properties, queue_id=0)
    async with (
        guarded(tmp_path) as broker,
        waiting(broker.address, SHOP),
        waiting(broker.address, GUEST),
        dialled(broker.address, BILLING) as billing,
    ):
        assert OK == (await billing.call(Code.SEND_REPLY_MESSAGE_V2, header, b"four")).code
        async with waiting(broker.address, SHOP):
            # The same client on a new connection, before the old one is known to be lost.
            assert OK == (await billing.call(Code.SEND_REPLY_MESSAGE_V2, header, b"four")).code

    assert ["shop-key", "shop-key"] == [taken.get_nowait() for _ in range(taken.qsize())]


async def test_counts_of_waiting_messages_by_topic_are_for_administrators_and_those_of_the_topic(
    tmp_path: Path,
) -> None:
    """61 and 15001 name the topics of others, 907 the machines of others."""
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, SHOP) as shop:
            of_all = [
                (await shop.call(code, header)).code
                for code, header in (
                    (Code.GET_TIMER_METRICS, None),
                    (Code.GET_DELAYED_STATS, DelayedStats()),
                    (Code.GET_DELAYED_STATS, DelayedStats(topic="payments")),
                    (Code.GET_BROKER_HA_STATUS, None),
                )
            ]
            of_own = (await shop.call(Code.GET_DELAYED_STATS, DelayedStats(topic="orders"))).code
        async with dialled(broker.address, BOSS) as boss:
            by_boss = [
                (await boss.call(code, header)).code
                for code, header in (
                    (Code.GET_TIMER_METRICS, None),
                    (Code.GET_DELAYED_STATS, DelayedStats()),
                    (Code.GET_BROKER_HA_STATUS, None),
                )
            ]

    assert [DENIED] * 4 == of_all
    assert OK == of_own
    assert [OK] * 3 == by_boss


async def test_progress_on_listed_topics_is_for_those_that_may_know_them(tmp_path: Path) -> None:
    """208 lists topics in a field of its own, and an account without any permission learnt where their queues end."""
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            await boss.sent("payments", b"1")
            await boss.sent("orders", b"1")
        async with dialled(broker.address, GUEST) as guest, dialled(broker.address, BILLING) as billing:
            asked = [
                await caller.call(Code.GET_CONSUME_STATS, ConsumeStatsQuery(consumer_group=group, topic_list=topics))
                for caller, group, topics in (
                    (guest, "", "payments"),
                    (billing, "billing", "orders;"),
                    (billing, "billing", "orders;payments"),
                    (billing, "billing", ";nothing;"),
                    (billing, "", "payments"),
                    # A million names would hold the broker for seconds before it refuses.
                    (billing, "billing", "orders;" * 2000),
                )
            ]

    assert [DENIED, OK, DENIED, DENIED, DENIED] == [answer.code for answer in asked[:-1]]
    assert "more than 1000 topics; ask for fewer" in (asked[-1].remark or "")
    assert "payments" not in str(bytes(asked[1].body))


async def test_the_offsets_of_another_group_are_not_cloned_by_a_user_of_the_target(tmp_path: Path) -> None:
    """314: the copy tells which topics the other group reads, and how far it is."""
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, BOSS) as boss:
        await boss.sent("payments", b"1")
        await boss.bodies("payments", consumer_group="banking")
        await change_policies(boss, "guest-key", "Group:mine", ["All"])
        for group in ("banking", "mine"):
            body = encode(SubscriptionGroupConfig(group_name=group))
            assert OK == (await boss.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code
        offset = UpdateOffset(consumer_group="banking", topic="payments", queue_id=0, commit_offset=1)
        assert OK == (await boss.call(Code.UPDATE_CONSUMER_OFFSET, offset)).code
        clone = CloneGroupOffset(source_group="banking", target_group="mine", offline=True)
        async with dialled(broker.address, GUEST) as guest:
            denied = await guest.call(Code.CLONE_GROUP_OFFSET, clone)
            topics = await guest.call(Code.QUERY_TOPICS_BY_CONSUMER, Group(group="mine"))
            await change_policies(boss, "guest-key", "Group:banking", ["Update"])
            allowed = await guest.call(Code.CLONE_GROUP_OFFSET, clone)

    assert (DENIED, OK) == (denied.code, allowed.code), allowed.remark
    assert b"payments" not in bytes(topics.body)


async def test_replies_of_all_accounts_are_not_read_by_the_default(tmp_path: Path) -> None:
    """E7: their topic has answers to requests about topics that an account is denied."""
    reader = "  defaultTopicPerm: SUB\n  defaultGroupPerm: SUB\n  topicPerms: [payments=DENY]\n"
    conf = acl_in(tmp_path / "conf", ACCOUNTS + reader)
    config = settings(acl_enable=True, acl_path=conf)
    async with Broker(config, small_store(tmp_path / "store")) as broker:
        async with dialled(broker.address, BOSS) as boss:
            await boss.call(Code.SEND_REPLY_MESSAGE_V2, v2("DefaultCluster_REPLY_TOPIC", queue_id=0), b"secret")
            replies = await boss.bodies("DefaultCluster_REPLY_TOPIC")
            await boss.sent("orders", b"1")
        async with dialled(broker.address, GUEST) as guest:
            read = [
                (await guest.pull(topic, consumer_group="billing")).code
                for topic in ("orders", "payments", "DefaultCluster_REPLY_TOPIC")
            ]
            reply = await guest.call(
                Code.SEND_REPLY_MESSAGE_V2, v2("DefaultCluster_REPLY_TOPIC", queue_id=0), b"an answer"
            )

    assert [b"secret"] == replies
    assert [OK, DENIED, DENIED] == read
    assert FAILED == reply.code, "it may reply; the requester is missing"


async def test_a_name_server_tells_of_ordered_topics_only_those_that_may_know_them(tmp_path: Path) -> None:
    """The settings of an ordered topic tell that it exists."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", acl_enable=True, acl_path=acl_in(tmp_path))
    async with NameServer(config) as server:
        address = f"127.0.0.1:{server.port}"
        async with dialled(address, BOSS) as boss:
            for namespace, key in (("ORDER_TOPIC_CONFIG", "orders"), ("ORDER_TOPIC_CONFIG", "payments"), ("own", "k")):
                put = PutKv(namespace=namespace, key=key, value="broker-a:4")
                assert OK == (await boss.call(Code.PUT_KV_CONFIG, put)).code
        async with dialled(address, SHOP) as shop:
            codes = [
                (await shop.call(Code.GET_KV_CONFIG, KvKey(namespace=namespace, key=key))).code
                for namespace, key in (
                    ("ORDER_TOPIC_CONFIG", "orders"),
                    ("ORDER_TOPIC_CONFIG", "payments"),
                    ("ORDER_TOPIC_CONFIG", "nothing"),
                    ("own", "k"),
                )
            ]

    assert [OK, DENIED, DENIED, OK] == codes


@pytest.mark.parametrize("separator", ["", "\x02"])
async def test_no_property_sends_a_message_to_another_topic(tmp_path: Path, separator: str) -> None:
    """Where a message waits, its properties say where it goes: what a client writes there must not count."""
    elsewhere = f"REAL_TOPIC\x01payments\x02REAL_QID\x010{separator}"
    async with guarded(tmp_path) as broker, dialled(broker.address, SHOP) as shop:
        count = 0
        for waits in ("DELAY\x011\x02", "TIMER_DELAY_MS\x0110\x02", "TIMER_OUT_MS\x0110\x02TIMER_DELAY_MS\x0110\x02"):
            for text in (f"{waits}{elsewhere}", f"{elsewhere}\x02{waits}{elsewhere}", f"{waits}A\x01{elsewhere}"):
                await shop.sent("orders", b"later", properties=text)
                count += 1
        text = f"UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02{elsewhere}"
        sent = await shop.sent("orders", b"half", properties=text, sysflag=Sysflag.PREPARED, producer_group="shop")
        assert OK == (await shop.call(Code.END_TRANSACTION, ending(sent, Outcome.COMMIT, "orders"))).code
        async with dialled(broker.address, BOSS) as boss:
            async with asyncio.timeout(60):
                found = [bytes(record.body) for record in await boss.arrived("orders", count + 1)]
            forged = await boss.bodies("payments")

    assert {b"later", b"half"} == set(found)
    assert [] == forged


#: What an account without a permission on payments and banking may write into the fields of topics and groups.
TOPICS = (
    None,
    "",
    "orders",
    "payments",
    "%RETRY%billing_payments",
    "%RETRY%billing+payments",
    "%DLQ%banking",
    "%RETRY%",
)
GROUPS = (None, "", "billing", "banking")


def guesses_of(code: int) -> list[Fields]:
    """Requests of a code, well-formed as far as their types go; further fields name what belongs to others."""
    kind = header_type(code)
    names = [field.encode_name for field in msgspec.structs.fields(kind)] if kind is not None else []
    found: list[Fields] = []
    for topic in TOPICS:
        for group in GROUPS:
            fields: Fields = {}
            for name in names:
                value: str | None = "0"
                if name in ("topic", "b"):
                    value = topic
                elif name in ("srcGroup", "filterGroups"):
                    value = "banking"
                elif "roup" in name:
                    value = group
                elif "opic" in name:
                    value = "payments"
                elif name in ("key", "subscription"):
                    value = {"key": "secret-key", "subscription": "*"}[name]
                elif name in ("maxMsgNums", "maxNum"):
                    value = "32"
                if value is not None:
                    fields[name] = value
            if fields not in found:
                found.append(fields)
    return found


@pytest.mark.parametrize("has_users", [False, True])
async def test_no_request_tells_an_account_what_belongs_to_others(tmp_path: Path, has_users: bool) -> None:
    """N1: every code, with empty, missing and foreign names. 28 named the busiest groups."""
    told: list[tuple[str, Fields]] = []
    async with broker_with_users(tmp_path) if has_users else guarded(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            await boss.sent("payments", b"secret-body", properties={"KEYS": "secret-key", "UNIQ_KEY": "U"})
            await boss.sent("payments", b"secret-body", properties={"TIMER_DELAY_SEC": "600", "UNIQ_KEY": "V"})
            await half(boss, "payments")
            assert [b"secret-body"] == await boss.bodies("payments", consumer_group="banking")
            runtime = await boss.call(Code.GET_BROKER_RUNTIME_INFO)
        for account in (GUEST, BILLING):
            async with dialled(broker.address, account) as caller:
                for code in Code:
                    for fields in guesses_of(code):
                        answer = await caller.call(code, None, b"", more_fields=fields, timeout_ms=60_000)
                        text = f"{bytes(answer.body)!r} {answer.fields}"
                        if any(secret in text for secret in ("payments", "banking", "secret")):
                            told.append((code.name, fields))

    assert b"pullTimeMs_banking" in bytes(runtime.body)
    assert [] == told
