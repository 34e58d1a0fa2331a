"""Who is connected, and as what (D3)."""

from __future__ import annotations

import pytest

from ternmq.broker.clients import Clients
from ternmq.errors import NetworkError
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ConsumerData, ConsumeType, Heartbeat, MessageModel, SubscriptionData
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Header, Response
from tests.manual_clock import ManualClock
from tests.recordings import VERSIONS, requests


class Line:
    """A connection that goes nowhere."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None: ...

    async def call(
        self, code: int, header: Header | None = None, body: Buffer = b"", *, timeout_ms: int = 0
    ) -> Response:
        raise NetworkError(f"{self.address} goes nowhere")

    def close(self) -> None: ...


class Table:
    """A table that lists the groups whose members were told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients = Clients(self.clock)
        self.told: list[str] = []
        self.clients.on_members = self.told.append

    def consume(self, line: Line, client_id: str, *topics: str, group: str = "g", sub_version: int = 1) -> None:
        data = ConsumerData(
            group_name=group,
            subscription_data_set=[SubscriptionData(topic=topic, sub_version=sub_version) for topic in topics],
        )
        self.clients.add_consumer(data, line, client_id, language="JAVA", version=401)

    def produce(self, line: Line, client_id: str, group: str = "pg") -> None:
        self.clients.add_producer(group, line, client_id, language="JAVA", version=401)


@pytest.fixture
def table() -> Table:
    return Table()


ONE, TWO = Line("10.0.0.1:1"), Line("10.0.0.2:2")


def test_members_are_told_when_one_joins_but_not_at_each_heartbeat(table: Table) -> None:
    """D3."""
    table.consume(ONE, "b", "t")
    table.consume(ONE, "b", "t")
    table.consume(TWO, "a", "t")

    assert table.told == ["g", "g"]
    assert table.clients.consumer_ids("g") == ["a", "b"]
    assert table.clients.peers_of("g") == [ONE, TWO]


def test_members_are_told_when_the_topics_of_the_group_change(table: Table) -> None:
    table.consume(ONE, "a", "t")
    table.consume(ONE, "a", "t", "u")
    table.consume(ONE, "a", "u")

    assert table.told == ["g"] * 3
    assert table.clients.subscription("g", "t") is None
    assert table.clients.subscription("g", "u") is not None


def test_an_older_subscription_does_not_replace_a_newer(table: Table) -> None:
    table.consume(ONE, "a", "t", sub_version=5)
    table.consume(TWO, "b", "t", sub_version=4)

    known = table.clients.subscription("g", "t")
    assert known is not None
    assert known.sub_version == 5


def test_a_member_that_unregisters_or_hangs_up_has_left_and_the_rest_is_told(table: Table) -> None:
    """D3: at once, not after two minutes."""
    three = Line("10.0.0.3:3")
    for line in (ONE, TWO, three):
        table.consume(line, line.address, "t")
        table.produce(line, line.address)
    table.told.clear()

    table.clients.remove_consumer("g", ONE)
    table.clients.on_close(TWO)

    assert table.told == ["g", "g"]
    assert table.clients.consumer_ids("g") == [three.address]
    assert [member.client_id for member in table.clients.producer_members("pg")] == [ONE.address, three.address]


def test_a_group_without_members_is_not_there(table: Table) -> None:
    table.consume(ONE, "a", "t")
    table.produce(ONE, "a")

    table.clients.on_close(ONE)

    assert table.clients.group_info("g") is None
    assert table.clients.consumer_ids("g") == []
    assert table.clients.producer_peers("pg") == []
    assert table.clients.producer_groups() == []
    assert table.told == ["g"]  # when it came; nobody is left to hear of the end


def test_a_silent_client_is_forgotten_after_two_minutes(table: Table) -> None:
    """D3: 120 s."""
    table.consume(ONE, "a", "t")
    table.produce(ONE, "a")
    table.clock.advance(60)
    table.consume(TWO, "b", "t")
    table.clock.advance(60)
    assert table.clients.scan() == []
    table.clock.advance(0.1)
    table.told.clear()

    assert table.clients.scan() == [ONE]
    assert table.clients.consumer_ids("g") == ["b"]
    assert table.clients.producer_peers("pg") == []
    assert table.told == ["g"]


def test_a_client_that_is_silent_about_one_group_only_keeps_its_connection(table: Table) -> None:
    table.consume(ONE, "a", "t")
    table.clock.advance(121)
    table.produce(ONE, "a")

    assert table.clients.scan() == []
    assert table.clients.group_info("g") is None
    assert table.clients.producer_peers("pg") == [ONE]


def test_two_connections_of_one_client_are_one_member(table: Table) -> None:
    """A client that reconnects comes over its new connection before the old one is seen to close."""
    table.consume(ONE, "a", "t")
    table.consume(TWO, "a", "t")

    assert table.clients.consumer_ids("g") == ["a"]
    table.clients.on_close(ONE)
    assert table.clients.consumer_ids("g") == ["a"]


def test_a_producer_is_found_by_its_client_id(table: Table) -> None:
    """E7."""
    table.produce(ONE, "a")

    assert table.clients.find_producer("a") is ONE
    assert table.clients.find_producer("b") is None


def test_a_producer_is_found_by_its_id_while_it_is_in_any_group(table: Table) -> None:
    """E7: on the connection of its last heartbeat."""
    table.produce(ONE, "a", "pg")
    table.produce(ONE, "a", "other")
    table.clients.remove_producer("pg", ONE)
    assert table.clients.find_producer("a") is ONE
    table.produce(TWO, "a", "pg")
    table.clients.on_close(ONE)
    assert table.clients.find_producer("a") is TWO
    table.produce(TWO, "b", "pg")
    assert (None, TWO) == (table.clients.find_producer("a"), table.clients.find_producer("b"))
    table.clients.on_close(TWO)
    assert table.clients.find_producer("b") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_heartbeats_are_understood(table: Table, version: str) -> None:
    """D3, V1: of both header forms."""
    for request in requests(version, RequestCode.HEART_BEAT):
        said = decode(request.body, Heartbeat)
        line = Line(said.client_id)
        for producer in said.producer_data_set:
            table.produce(line, said.client_id, producer.group_name)
        for consumer in said.consumer_data_set:
            table.clients.add_consumer(consumer, line, said.client_id, language="JAVA", version=request.version)

    push = table.clients.group_info("golden_push")
    assert push is not None
    assert (push.consume_type, push.message_model) == (ConsumeType.PASSIVELY, MessageModel.CLUSTERING)
    assert push.subscriptions.keys() >= {"GoldenTopic", "%RETRY%golden_push"}
    broadcast = table.clients.group_info("golden_broadcast")
    assert broadcast is not None
    assert broadcast.message_model is MessageModel.BROADCASTING
    assert "CLIENT_INNER_PRODUCER" in table.clients.producer_groups()
    assert "golden_push" in table.clients.consumer_groups("GoldenTopic")
