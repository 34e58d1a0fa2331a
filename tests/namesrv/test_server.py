"""A name server on a real port, asked by a peer (A1–A6)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ternmq.env import Env
from ternmq.errors import ConfigError, NetworkError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net import dial
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import (
    ClusterInfo,
    KvTable,
    MemberGroupAnswer,
    QueueData,
    RegistrationBody,
    TopicRouteBody,
    crc_of,
    encode_registration,
)
from ternmq.wire.bodies.topics import DataVersion, TopicConfig, TopicList, TopicTable
from ternmq.wire.codes import BINARY, JSON, VERSION, RequestCode, ResponseCode
from ternmq.wire.header import Header, Response
from ternmq.wire.requests_admin import (
    AddedReply,
    BrokerHeartbeat,
    BrokerIdentity,
    BrokerNamed,
    DataVersionReply,
    DeleteTopic,
    KvKey,
    KvNamespace,
    KvReply,
    MemberGroupQuery,
    PutKv,
    RegisterBroker,
    RegisterBrokerReply,
    RegisterTopic,
    RouteQuery,
    TopicsOfCluster,
    WipedReply,
)
from tests.manual_clock import ManualClock
from tests.recordings import VERSIONS, requests

LOCAL = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
DATA_VERSION = DataVersion(counter=3, timestamp=7)
IDENTITY = BrokerIdentity(
    broker_name="broker-a", broker_address="10.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
)


class Caller:
    """A peer of a name server."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def call(self, code: int, header: Header | None = None, body: Buffer = b"", *, form: int = JSON) -> Response:
        return await self.peer.call(code, header, body, form=form)

    async def ok(self, code: int, header: Header | None = None, body: Buffer = b"", *, form: int = JSON) -> Response:
        response = await self.call(code, header, body, form=form)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return response

    async def register(
        self, *topics: str, broker_id: int = 0, address: str = "10.0.0.1:10911", body: bytes = b""
    ) -> Response:
        body = body or registration(*topics)
        header = RegisterBroker(
            broker_name="broker-a",
            broker_address=address,
            cluster_name="DefaultCluster",
            ha_address=address + "2",
            broker_id=broker_id,
            body_crc32=crc_of(body),
        )
        return await self.ok(RequestCode.REGISTER_BROKER, header, body)

    async def route(self, topic: str) -> TopicRouteBody | None:
        response = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))
        return decode(response.body, TopicRouteBody) if response.code == ResponseCode.SUCCESS else None

    async def topics(self, code: int, header: Header | None = None) -> TopicList:
        return decode((await self.ok(code, header)).body, TopicList)


def registration(*topics: str) -> bytes:
    table = TopicTable(
        data_version=DATA_VERSION,
        topic_config_table={
            topic: TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4) for topic in topics
        },
    )
    return encode(RegistrationBody(topic_config_serialize_wrapper=table))


@asynccontextmanager
async def calling(name_server: NameServer) -> AsyncIterator[Caller]:
    async with Tasks() as tasks:
        lanes = Lanes([LaneConfig("client")])
        peer = await dial.connect(f"127.0.0.1:{name_server.port}", routes={}, lanes=lanes, tasks=tasks)
        yield Caller(peer)
        peer.close()


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    async with NameServer(LOCAL) as running:
        yield running


@pytest.fixture
async def caller(name_server: NameServer) -> AsyncIterator[Caller]:
    async with calling(name_server) as peer:
        yield peer


# --- Limits (issue 13, points 1 and 6) ----------------------------------------------------------------------------


async def test_an_answer_that_fits_no_frame_is_an_error_and_others_are_served() -> None:
    """Issue 13, point 1: any answer beyond frameMaxLength."""
    config = dataclasses.replace(LOCAL, frame_max_length=1024 * 1024)
    async with NameServer(config) as small, calling(small) as caller:
        for port in range(5):
            await caller.register(*(f"{port}{number:0119}" for number in range(2_000)), address=f"10.0.0.1:{port}")
        answer = await caller.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert ResponseCode.SYSTEM_ERROR == answer.code
        assert "larger than the 1048576 allowed; ask for less" in (answer.remark or "")
        assert await caller.route(f"{0:0120}")


async def test_a_name_server_has_the_limits_of_its_settings() -> None:
    """Issue 13, point 6."""
    config = dataclasses.replace(LOCAL, max_connections_per_address=1)
    async with NameServer(config) as small, calling(small) as caller:
        await caller.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        async with calling(small) as refused:
            with pytest.raises(NetworkError):
                await refused.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        await caller.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)


# --- Routes (A4) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_a_route_is_standard_json_in_the_form_asked(caller: Caller, form: int) -> None:
    """A4, B1: keys of addresses stand in quotes, lists are never null."""
    await caller.register("orders", "other")

    response = await caller.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic="orders"), form=form)

    assert json.loads(bytes(response.body)) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        ],
    }


async def test_an_unknown_topic_is_refused_with_a_clear_remark(caller: Caller) -> None:
    """A4."""
    response = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic="nowhere"))

    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert (response.remark or "").startswith("No topic route info in name server for the topic: nowhere")


async def test_a_request_without_its_fields_is_refused_and_the_connection_lives(caller: Caller) -> None:
    """B5."""
    response = await caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC)

    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (response.remark or "")
    assert (await caller.call(99_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_clusters_and_topics_are_listed(caller: Caller) -> None:
    await caller.register("orders", "other")

    info = decode((await caller.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    everything = await caller.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert everything.topic_list == ["orders", "other"]
    of_cluster = await caller.topics(RequestCode.GET_TOPICS_BY_CLUSTER, TopicsOfCluster(cluster="DefaultCluster"))
    assert of_cluster.topic_list == ["orders", "other"]
    system = await caller.topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert (system.topic_list, system.broker_addr) == (["DefaultCluster", "broker-a"], "10.0.0.1:10911")


# --- Registration and liveness (A2, A3) -------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_registrations_of_java_brokers_are_taken(caller: Caller, version: str) -> None:
    """A2, V1: with their checksums."""
    for request in requests(version, RequestCode.REGISTER_BROKER):
        await caller.ok(RequestCode.REGISTER_BROKER, request.fields, request.body)

    found = await caller.route("GoldenTopic")
    assert found is not None
    assert found.broker_datas[0].cluster == "DefaultCluster"


@pytest.mark.parametrize("said", [True, False])
async def test_a_compressed_registration_is_taken_whether_its_header_says_so_or_not(caller: Caller, said: bool) -> None:
    """A2: brokers of RocketMQ 5 compress without saying so."""
    plain = decode(registration("orders", "other"), RegistrationBody)
    body = encode_registration(plain, compressed=True, version=VERSION)
    header = RegisterBroker(
        broker_name="broker-a",
        broker_address="10.0.0.1:10911",
        cluster_name="c",
        broker_id=0,
        compressed=said,
        body_crc32=crc_of(body),
    )

    await caller.ok(RequestCode.REGISTER_BROKER, header, body)

    assert await caller.route("orders") is not None


async def test_a_damaged_registration_is_refused(caller: Caller) -> None:
    """A2: by its checksum, or because it cannot be read."""
    body = registration("orders", "other")
    header = RegisterBroker(broker_name="a", broker_address="1.1.1.1:1", cluster_name="c", broker_id=0)
    header.body_crc32 = crc_of(body) ^ 1
    response = await caller.call(RequestCode.REGISTER_BROKER, header, body)
    assert (response.code, "crc32 not match" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)

    header.body_crc32 = 0
    for broken in (body[:-5], zlib.compress(b"\x00\x00\x00\x09{}")):
        assert (await caller.call(RequestCode.REGISTER_BROKER, header, broken)).code == ResponseCode.SYSTEM_ERROR
    assert await caller.route("orders") is None


async def test_a_slave_is_told_its_master_and_a_broker_the_ordered_topics(caller: Caller) -> None:
    """A2, A5."""
    await caller.ok(RequestCode.PUT_KV_CONFIG, PutKv(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
    await caller.register("orders", "other")

    response = await caller.register("orders", "other", broker_id=1, address="10.0.0.2:10911")

    reply = response.read(RegisterBrokerReply)
    assert (reply.master_address, reply.ha_address) == ("10.0.0.1:10911", "10.0.0.1:109112")
    assert decode(response.body, KvTable).table == {"orders": "broker-a:4"}


async def test_a_broker_asks_whether_its_version_is_known(caller: Caller) -> None:
    """A2: an unchanged version need not resend topics."""

    async def ask(version: DataVersion) -> tuple[bool, bytes]:
        response = await caller.ok(RequestCode.QUERY_DATA_VERSION, IDENTITY, encode(version))
        return response.read(DataVersionReply).changed, bytes(response.body)

    assert await ask(DATA_VERSION) == (True, b"")
    await caller.register("orders", "other")
    assert await ask(DATA_VERSION) == (False, encode(DATA_VERSION))
    assert (await ask(DataVersion(counter=4, timestamp=9)))[0]


async def test_unregistering_takes_the_routes_away(caller: Caller) -> None:
    """A3."""
    await caller.register("orders", "other")

    await caller.ok(RequestCode.UNREGISTER_BROKER, IDENTITY)

    assert await caller.route("orders") is None


async def test_a_broker_is_dropped_the_moment_its_connection_closes(name_server: NameServer, caller: Caller) -> None:
    """A3."""
    async with calling(name_server) as broker:
        await broker.register("orders", "other")
        assert await caller.route("orders") is not None

    while await caller.route("orders") is not None:
        await asyncio.sleep(0)  # the server sees the end of a connection in one of its next turns


async def test_a_silent_broker_is_dropped_and_hung_up_on() -> None:
    """A3: 120 s, though the connection is still open."""
    clock = ManualClock()
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", scan_not_active_broker_interval=100)
    async with (
        NameServer(config, Env(clock=clock)) as name_server,
        calling(name_server) as broker,
        calling(name_server) as client,
    ):
        await broker.register("orders", "other")
        clock.advance(100)
        await broker.ok(
            RequestCode.BROKER_HEARTBEAT,
            BrokerHeartbeat(broker_name="broker-a", broker_address="10.0.0.1:10911", cluster_name="c"),
        )
        clock.advance(120)
        assert await client.route("orders") is not None
        clock.advance(1)

        await broker.peer.closed.wait()

        assert await client.route("orders") is None


# --- Changes by tools (A5) --------------------------------------------------------------------------------------


async def test_settings_are_put_listed_and_deleted(caller: Caller) -> None:
    """A5."""
    key = KvKey(namespace="n", key="k")
    assert (await caller.call(RequestCode.GET_KV_CONFIG, key)).code == ResponseCode.QUERY_NOT_FOUND

    await caller.ok(RequestCode.PUT_KV_CONFIG, PutKv(namespace="n", key="k", value="值"))
    assert (await caller.ok(RequestCode.GET_KV_CONFIG, key)).read(KvReply).value == "值"
    table = await caller.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace(namespace="n"))
    assert decode(table.body, KvTable).table == {"k": "值"}

    await caller.ok(RequestCode.DELETE_KV_CONFIG, key)
    missing = await caller.call(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespace(namespace="n"))
    assert missing.code == ResponseCode.QUERY_NOT_FOUND


async def test_settings_are_kept_in_their_file(tmp_path: Path) -> None:
    """A5."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=tmp_path / "kvConfig.json")
    async with NameServer(config) as name_server, calling(name_server) as caller:
        await caller.ok(RequestCode.PUT_KV_CONFIG, PutKv(namespace="n", key="k", value="v"))

    async with NameServer(config) as name_server, calling(name_server) as caller:
        assert (await caller.ok(RequestCode.GET_KV_CONFIG, KvKey(namespace="n", key="k"))).read(KvReply).value == "v"


async def test_ordered_topics_are_in_the_route_once_that_is_switched_on(caller: Caller) -> None:
    """A5: the switch can be turned while the server runs, and shows in its settings."""
    await caller.register("orders", "other")
    await caller.ok(RequestCode.PUT_KV_CONFIG, PutKv(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
    before = await caller.route("orders")

    await caller.ok(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\n")

    after = await caller.route("orders")
    assert before is not None
    assert after is not None
    assert (before.order_topic_conf, after.order_topic_conf) == (None, "broker-a:4")
    settings = (await caller.ok(RequestCode.GET_NAMESRV_CONFIG)).body
    assert "orderMessageEnable=true" in str(settings, "utf-8").splitlines()


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort cannot be changed at run time"),
        (b"noSuchThing=1", ResponseCode.INVALID_PARAMETER, "noSuchThing"),
        (b"broker.brokerPermission=4", ResponseCode.INVALID_PARAMETER, "is not a setting of a name server"),
        (b"orderMessageEnable=perhaps", ResponseCode.INVALID_PARAMETER, "true or false"),
        (b"nonsense", ResponseCode.INVALID_PARAMETER, "the request, line 2: invalid line 'nonsense'"),
        (b"\xff\xfe=1", ResponseCode.INVALID_PARAMETER, "UTF-8"),
        (b"orderMessageEnable=true\n" * 3000, ResponseCode.INVALID_PARAMETER, "at most 65536"),
    ],
)
async def test_a_setting_that_cannot_change_is_refused_with_the_reason(
    caller: Caller, line: bytes, code: int, complaint: str
) -> None:
    response = await caller.call(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\n" + line)

    assert response.code == code
    assert complaint in (response.remark or "")
    settings = str((await caller.ok(RequestCode.GET_NAMESRV_CONFIG)).body, "utf-8")
    assert "orderMessageEnable=false" in settings


async def test_a_change_counts_after_a_restart(tmp_path: Path) -> None:
    """T2: it wins over what the start says, until its line is removed; without a file it ends with the program."""
    on = b"namesrv.orderMessageEnable=true\n"
    for path in (tmp_path / "kvConfig.json", None):
        config = dataclasses.replace(LOCAL, kv_config_path=path)
        async with NameServer(config) as name_server, calling(name_server) as caller:
            await caller.ok(RequestCode.UPDATE_NAMESRV_CONFIG, None, on)
        async with NameServer(config) as name_server, calling(name_server) as caller:
            settings = str((await caller.ok(RequestCode.GET_NAMESRV_CONFIG)).body, "utf-8")
        assert f"orderMessageEnable={'true' if path else 'false'}" in settings.splitlines()

    file = tmp_path / "kvConfig.settings.properties"
    comment, line = file.read_text().splitlines()
    assert "orderMessageEnable=true" == line
    # As the comment says, and although there is a backup.
    file.with_name(f"{file.name}.bak").write_text(f"{line}\n")
    file.write_text(f"{comment}\n")
    config = dataclasses.replace(LOCAL, kv_config_path=tmp_path / "kvConfig.json")
    async with NameServer(config) as name_server, calling(name_server) as caller:
        assert "orderMessageEnable=false" in str((await caller.ok(RequestCode.GET_NAMESRV_CONFIG)).body, "utf-8")


async def test_a_line_that_cannot_be_changed_stops_the_start(tmp_path: Path) -> None:
    """T2: the file can be edited by hand."""
    (tmp_path / "kvConfig.settings.properties").write_text("listenPort=1\n")
    with pytest.raises(ConfigError, match="listenPort cannot be changed at run time"):
        async with NameServer(dataclasses.replace(LOCAL, kv_config_path=tmp_path / "kvConfig.json")):
            pass


async def test_topics_of_units_are_listed(caller: Caller) -> None:
    """A5: 311 to 313, by the flags that brokers register: 1 belongs to a unit, 2 is read by groups of one."""
    table = TopicTable(
        data_version=DATA_VERSION,
        topic_config_table={
            f"flags-{flags}": TopicConfig(topic_name=f"flags-{flags}", topic_sys_flag=flags) for flags in range(4)
        },
    )
    await caller.register(body=encode(RegistrationBody(topic_config_serialize_wrapper=table)))

    found = [
        sorted((await caller.topics(code)).topic_list)
        for code in (
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
    ]
    assert [["flags-1", "flags-3"], ["flags-2", "flags-3"], ["flags-2"]] == found


async def test_write_permission_is_wiped_and_given_back(caller: Caller) -> None:
    """A5."""
    await caller.register("orders", "other")
    named = BrokerNamed(broker_name="broker-a")

    wiped = await caller.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, named)
    found = await caller.route("orders")
    assert wiped.read(WipedReply).topic_count == 2
    assert found is not None
    assert found.queue_datas[0].perm == 4

    added = await caller.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, named)
    found = await caller.route("orders")
    assert added.read(AddedReply).topic_count == 2
    assert found is not None
    assert found.queue_datas[0].perm == 6


async def test_a_topic_is_deleted_or_given_queues(caller: Caller) -> None:
    """A5."""
    await caller.register("orders", "other")
    await caller.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopic(topic="orders"))
    assert await caller.route("orders") is None

    queues = TopicRouteBody(queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=1, perm=6)])
    await caller.ok(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopic(topic="orders"), encode(queues))
    assert await caller.route("orders") is not None


async def test_the_node_clients_question_is_not_taken_for_a_topic(caller: Caller) -> None:
    """remoting.md: it uses 217 to ask for a setting."""
    response = await caller.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopic(namespace="n", key="k"))

    assert response.code == ResponseCode.QUERY_NOT_FOUND


async def test_the_members_of_a_broker_name_are_told(caller: Caller) -> None:
    await caller.register("orders", "other")

    async def ask(name: str) -> Any:
        header = MemberGroupQuery(cluster_name="DefaultCluster", broker_name=name)
        return decode((await caller.ok(RequestCode.GET_BROKER_MEMBER_GROUP, header)).body, MemberGroupAnswer)

    assert (await ask("broker-a")).broker_member_group.broker_addrs == {0: "10.0.0.1:10911"}
    assert (await ask("nobody")).broker_member_group is None


# --- The server itself ------------------------------------------------------------------------------------------


async def test_two_name_servers_share_nothing() -> None:
    """A6."""
    async with (
        NameServer(LOCAL) as one,
        NameServer(LOCAL) as two,
        calling(one) as first,
        calling(two) as second,
    ):
        await first.register("orders", "other")

        assert await first.route("orders") is not None
        assert await second.route("orders") is None


async def test_a_port_in_use_is_named(name_server: NameServer) -> None:
    config = NamesrvConfig(listen_port=name_server.port, bind_address="127.0.0.1")

    with pytest.raises(NetworkError, match=f"port {name_server.port} .*in use"):
        async with NameServer(config):
            pass


async def test_settings_never_keep_brokers_from_registering(caller: Caller) -> None:
    """Issue 13, 1 and 6: a broker that registers is told all settings of ordered topics, and they fitted no frame."""
    codes = set()
    for number in range(20):
        header = PutKv(namespace="ORDER_TOPIC_CONFIG", key=str(number), value="x" * 1_000_000)
        codes.add((await caller.call(RequestCode.PUT_KV_CONFIG, header)).code)

    assert {ResponseCode.SUCCESS, ResponseCode.INVALID_PARAMETER} == codes
    await caller.register("orders")
