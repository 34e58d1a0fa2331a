"""What clients of one loop share: connections, name servers, heartbeats, calls of brokers (A4, A6, B1, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import (
    ConfigError,
    NameServersUnreachable,
    NetworkError,
    NotRunning,
    RequestNotSupported,
)
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.wire.bodies.clients import ClientOffsets, ConsumedDirectly, ConsumerData, RunningInfo, encode_reset
from ternmq.wire.bodies.codec import by_queue, decode
from ternmq.wire.codes import BINARY, RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import (
    ConsumeDirectly,
    ConsumerGroup,
    ConsumerStatus,
    ResetOffset,
    RunningInfoQuery,
    UnregisterClient,
)
from tests.client.consumer_script import record
from tests.client.scripted import ScriptedBroker, scripted_cluster


class Member:
    """A consumer as an instance knows it."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.rebalanced = asyncio.Event()
        self.resets: asyncio.Queue[Mapping[MessageQueue, int]] = asyncio.Queue()

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(group_name=self.group)

    def rebalance_soon(self) -> None:
        self.rebalanced.set()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.put_nowait(offsets)

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 3): 17}

    def running_info(self) -> RunningInfo:
        return RunningInfo(properties={"PROP_CONSUMEORDERLY": "false"})

    async def consume_directly(self, message: ReceivedMessage) -> ConsumedDirectly:
        return ConsumedDirectly(remark=message.body.decode())


# --- Sharing ---------------------------------------------------------------------------------------------------


async def test_equal_configs_share_one_instance_until_the_last_leaves() -> None:
    """D3."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ClientInstance.shared(ClientConfig("127.0.0.1:1")))
        async with ClientInstance.shared(ClientConfig(["127.0.0.1:1"])) as second:
            assert first is second
        async with ClientInstance.shared(ClientConfig("127.0.0.1:2")) as other:
            assert first is not other
            assert first.client_id != other.client_id
        with pytest.raises(NameServersUnreachable):
            await first.routes.of("orders")
    with pytest.raises(NotRunning):
        await first.call("127.0.0.1:1", RequestCode.HEART_BEAT)


async def test_two_consumers_of_one_group_get_two_client_ids() -> None:
    """G1: or rebalancing would take them for one."""
    config = ClientConfig("127.0.0.1:1")
    async with (
        ClientInstance.shared(config, consumer_group="g") as first,
        ClientInstance.shared(config, consumer_group="g") as second,
        ClientInstance.shared(config, consumer_group="h") as third,
    ):
        assert first.client_id != second.client_id
        assert third is first


async def test_a_fixed_instance_name_allows_one_consumer_of_a_group() -> None:
    config = ClientConfig("127.0.0.1:1", instance_name="mine")
    async with ClientInstance.shared(config, consumer_group="g"):
        with pytest.raises(ConfigError, match="give them different names"):
            async with ClientInstance.shared(config, consumer_group="g"):
                pass


async def test_the_client_id_names_address_instance_and_unit() -> None:
    config = ClientConfig("127.0.0.1:1", client_ip="10.0.0.9", instance_name="mine", unit_name="east")
    async with ClientInstance(config) as instance:
        assert "10.0.0.9@mine@east" == instance.client_id


# --- Name servers and calls ------------------------------------------------------------------------------------


async def test_a_dead_name_server_is_passed_over() -> None:
    """A6."""
    async with scripted_cluster() as cluster:
        for name_servers in (f"127.0.0.1:1;{cluster.name_servers}", f"{cluster.name_servers};127.0.0.1:1"):
            async with ClientInstance(ClientConfig(name_servers)) as instance:
                assert 4 == len((await instance.routes.of("orders")).to_write)


async def test_no_name_server_is_an_error_that_names_all_of_them() -> None:
    """A6."""
    async with ClientInstance(ClientConfig("127.0.0.1:1;127.0.0.1:2")) as instance:
        with pytest.raises(NameServersUnreachable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2 .* start one with"):
            await instance.routes.of("orders")


async def test_a_broker_in_the_place_of_a_name_server_is_an_error_that_says_so() -> None:
    """A6."""
    async with (
        scripted_cluster() as cluster,
        ClientInstance(ClientConfig(cluster.broker.address)) as instance,
    ):
        expected = f"{cluster.broker.address} is no name server, it may be a broker .*; give the address of a name"
        with pytest.raises(RequestNotSupported, match=expected):
            await instance.routes.of("orders")


async def test_callers_share_one_connection() -> None:
    """B2."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        await asyncio.gather(*(instance.ask(cluster.broker.address, RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')
                               for _ in range(5)))  # fmt: skip
        assert 1 == len(cluster.broker.peers)


async def test_a_lost_connection_is_made_anew() -> None:
    """B2."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        address = cluster.broker.address
        for _ in range(2):
            await instance.ask(address, RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')
            peer = await instance.connections.to(address)
            peer.abort()
            await peer.closed.wait()
        assert 2 == len(cluster.broker.heartbeats)


async def test_a_refusal_is_an_answer_for_call_and_an_error_for_ask() -> None:
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        address = cluster.broker.address
        assert 3 == (await instance.call(address, 9999)).code
        with pytest.raises(RequestNotSupported, match=f"{address} refused"):
            await instance.ask(address, 9999)


async def test_a_brokers_name_finds_its_address_once_a_route_names_it() -> None:
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        with pytest.raises(NetworkError, match="no route contains broker 'broker-a'"):
            await instance.call_broker("broker-a", 9999)
        await instance.routes.of("orders")
        assert 3 == (await instance.call_broker("broker-a", 9999)).code


async def test_headers_go_out_in_the_form_configured() -> None:
    """B1."""
    forms: list[tuple[int, int]] = []

    def handle(_: Peer, request: Request[Any]) -> Reply:
        forms.append((request.code, request.serial))
        return Reply()

    routes = {code: Route(handle, "work", ANY_CALLER) for code in (9001, 210_000)}
    async with Server.running(routes, [LaneConfig("work")]) as server:
        address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        async with ClientInstance(ClientConfig(address, serialization="ROCKETMQ")) as instance:
            await instance.ask(address, 9001)
            # Codes of more than 16 bits, such as pop's, do not fit the binary form.
            await instance.ask(address, 210_000)
    assert [(9001, BINARY), (210_000, 0)] == forms


async def test_the_second_port_of_a_broker_is_two_below() -> None:
    """B5."""
    async with ClientInstance(ClientConfig("127.0.0.1:1", vip_channel=True)) as instance:
        assert "10.0.0.1:10909" == instance.fast_address("10.0.0.1:10911")


# --- Heartbeats ------------------------------------------------------------------------------------------------


async def test_a_broker_hears_of_a_group_at_once_and_of_its_end() -> None:
    """D3."""
    async with scripted_cluster() as cluster:
        broker = cluster.broker
        async with ClientInstance(ClientConfig(cluster.name_servers)) as instance:
            instance.register_producer("shop")
            instance.register_producer("shop")
            await instance.routes.of("orders")
            await cluster.bell.until(lambda: broker.heartbeats)
            await instance.unregister_producer("shop")
            assert [] == broker.left
            await instance.unregister_producer("shop")
        (left,) = broker.left
        assert (instance.client_id, "shop", None) == (left.client_id, left.producer_group, left.consumer_group)
        assert ["shop"] == [group.group_name for group in broker.heartbeats[0].producer_data_set]


async def test_producers_tell_masters_and_consumers_tell_all() -> None:
    """D3."""
    slave = ScriptedBroker("slave")
    async with scripted_cluster() as cluster, slave.running():
        cluster.slaves["broker-a"] = slave.address
        async with ClientInstance(ClientConfig(cluster.name_servers)) as instance:
            instance.register_producer("shop")
            await instance.routes.of("orders")
            await instance.heartbeat()
            assert (True, False) == (bool(cluster.broker.heartbeats), bool(slave.heartbeats))
            instance.register_consumer("readers", Member("readers"))
            await instance.heartbeat()
            await instance.unregister_consumer("readers")
        assert ["readers"] == [group.group_name for group in slave.heartbeats[-1].consumer_data_set]
        assert ["readers"] == [left.consumer_group for left in slave.left]


async def test_a_new_connection_begins_with_a_heartbeat() -> None:
    """D3: a broker forgets its clients with their connection."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        broker = cluster.broker
        instance.register_producer("shop")
        await instance.routes.of("orders")
        await instance.heartbeat()
        peer = await instance.connections.to(broker.address)
        peer.abort()
        await peer.closed.wait()
        broker.codes.clear()

        await instance.ask(broker.address, RequestCode.UNREGISTER_CLIENT, UnregisterClient(client_id="c"))

        assert [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT] == broker.codes


async def test_an_idle_broker_gets_a_heartbeat_after_its_connection_broke() -> None:
    """D3, G1: the other members may ask it for the members of the group."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        broker = cluster.broker
        await instance.routes.of("orders")
        instance.register_consumer("readers", Member("readers"))
        await instance.heartbeat()
        count = len(broker.heartbeats)
        peer = await instance.connections.to(broker.address)
        peer.abort()
        await cluster.bell.until(lambda: len(broker.heartbeats) > count)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "nonsense", f"{'x' * 70}:10911", "a\0b:10911", f"127.0.0.1:{'9' * 5_000}"]
)
async def test_a_broker_that_is_down_does_not_stop_the_heartbeats(address: str) -> None:
    """D3; issue 13, point 7: nor does an address that is none."""
    async with scripted_cluster(ScriptedBroker("a"), ScriptedBroker("b")) as cluster:
        down, up = cluster.brokers
        down.address = address
        async with ClientInstance(ClientConfig(cluster.name_servers)) as instance:
            instance.register_producer("shop")
            await instance.routes.of("orders")
            await instance.heartbeat()
            count = len(up.heartbeats)
            instance.heartbeat_soon()
            await cluster.bell.until(lambda: len(up.heartbeats) > count)


async def test_what_a_broker_says_of_a_heartbeat_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 14: this is how a client learns that the members of its group subscribe differently."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        await instance.routes.of("orders")
        instance.register_consumer("readers", Member("readers"))
        await instance.heartbeat()
        assert "with a warning" not in caplog.text
        for remark in ("group readers: c1 and c2 subscribe differently", "another", "another"):
            cluster.broker.remark = remark
            await instance.heartbeat()
    said = [line.getMessage() for line in caplog.records if "with a warning" in line.getMessage()]
    assert [
        f"broker {cluster.broker.address} accepted the heartbeat of {instance.client_id} with a warning: {remark}"
        for remark in ("group readers: c1 and c2 subscribe differently", "another")
    ] == said


async def test_heartbeats_and_routes_go_on_by_themselves() -> None:
    """A4, D3: every 30 s, here every few ms."""
    async with scripted_cluster() as cluster:
        config = ClientConfig(cluster.name_servers, heartbeat_interval_ms=2, poll_name_server_interval_ms=2)
        async with ClientInstance(config) as instance:
            instance.register_producer("shop")
            await instance.routes.of("orders")
            await cluster.bell.until(lambda: len(cluster.broker.heartbeats) > 4 and len(cluster.questions) > 4)


# --- Calls of brokers ------------------------------------------------------------------------------------------


async def test_a_change_of_members_reaches_the_consumer_of_the_group() -> None:
    """D3, G1: NOTIFY_CONSUMER_IDS_CHANGED."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        readers, others = Member("readers"), Member("others")
        instance.register_consumer("readers", readers)
        instance.register_consumer("others", others)
        await instance.routes.of("orders")
        await instance.heartbeat()
        (peer,) = cluster.broker.peers
        peer.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(consumer_group="unknown"))
        peer.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(consumer_group="readers"))

        await readers.rebalanced.wait()
        assert not others.rebalanced.is_set()


async def test_a_reset_reaches_the_consumer_of_the_group() -> None:
    """D4: RESET_CONSUMER_CLIENT_OFFSET, in the form that Java's brokers write."""
    offsets = {MessageQueue("orders", "broker-a", 0): 7, MessageQueue("orders", "broker-a", 1): 0}
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        readers, others = Member("readers"), Member("others")
        instance.register_consumer("readers", readers)
        instance.register_consumer("others", others)
        await instance.routes.of("orders")
        await instance.heartbeat()
        (peer,) = cluster.broker.peers
        for group in ("unknown", "readers"):
            header = ResetOffset(topic="orders", group=group, time_ms=0)
            peer.call_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, encode_reset(offsets))

        assert offsets == await readers.resets.get()
        assert others.resets.empty()


async def test_a_broker_asks_a_member_how_it_is() -> None:
    """F10: its offsets, its state with and without stacks, and what its listener says of a message."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        instance.register_consumer("readers", Member("readers"))
        await instance.connections.to(cluster.broker.address)
        await cluster.bell.until(lambda: cluster.broker.peers)
        (peer,) = cluster.broker.peers

        header = ConsumerStatus(topic="orders", group="readers")
        response = await peer.call(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
        offsets = by_queue(decode(response.body, ClientOffsets).message_queue_table)
        assert {MessageQueue("orders", "broker-a", 3): 17} == offsets

        for stack in (False, True):
            query = RunningInfoQuery(consumer_group="readers", client_id=instance.client_id, jstack_enable=stack)
            response = await peer.call(RequestCode.GET_CONSUMER_RUNNING_INFO, query)
            info = decode(response.body, RunningInfo)
            assert {"PROP_CONSUMEORDERLY": "false"} == info.properties
            assert stack == ("task heartbeats\n" in (info.jstack or ""))

        directly = ConsumeDirectly(consumer_group="readers", broker_name="broker-a")
        response = await peer.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly, record(5, b"it"))
        assert "it" == decode(response.body, ConsumedDirectly).remark


async def test_a_member_that_is_gone_and_an_unknown_code_are_refused() -> None:
    """B3, F10."""
    async with scripted_cluster() as cluster, ClientInstance(ClientConfig(cluster.name_servers)) as instance:
        await instance.connections.to(cluster.broker.address)
        await cluster.bell.until(lambda: cluster.broker.peers)
        (peer,) = cluster.broker.peers
        header = ConsumerStatus(topic="orders", group="readers")
        assert 206 == (await peer.call(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)).code
        assert 3 == (await peer.call(RequestCode.SUSPEND_CONSUMER)).code


async def test_one_instance_has_one_consumer_of_a_group() -> None:
    async with ClientInstance(ClientConfig("127.0.0.1:1")) as instance:
        instance.register_consumer("readers", Member("readers"))
        with pytest.raises(ConfigError, match="a different instance_name"):
            instance.register_consumer("readers", Member("readers"))
