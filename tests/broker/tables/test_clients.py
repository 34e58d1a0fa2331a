"""Who is connected, and as what (D3)."""

from __future__ import annotations

import sys

import pytest

from ternmq.broker.tables.clients import Clients
from ternmq.errors import InvalidParameter, NetworkError
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ConsumerData, ConsumeType, Heartbeat, MessageModel, SubscriptionData
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Header, Response
from tests.manual_clock import ManualClock
from tests.recordings import VERSIONS, requests


class Line:
    """A connection that goes nowhere."""

    access = None
    proved = ""
    is_full = False

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

    def consume(
        self, line: Line, client_id: str, *topics: str, group: str = "g", sub_version: int = 1, tags: str = "*"
    ) -> None:
        data = ConsumerData(
            group_name=group,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_version=sub_version, sub_string=tags) for topic in topics
            ],
        )
        self.clients.add_consumer(data, line, client_id, language="JAVA", version=401)

    def produce(self, line: Line, client_id: str, group: str = "pg") -> None:
        self.clients.add_producer(group, line, client_id, language="JAVA", version=401)


@pytest.fixture
def table() -> Table:
    return Table()


ONE, TWO, THREE = Line("10.0.0.1:1"), Line("10.0.0.2:2"), Line("10.0.0.3:3")


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


def test_members_that_subscribe_differently_do_not_rebalance_for_ever(table: Table) -> None:
    """Issue 13, 14: a heartbeat that repeats what its member said is no change, whatever others say."""
    for _ in range(10):
        table.consume(ONE, "a", "orders", tags="paid")
        table.consume(TWO, "b", "payments", tags="*", sub_version=2)

    assert ["g", "g"] == table.told
    group = table.clients.group_info("g")
    assert group is not None
    assert {"orders", "payments"} == set(group.subscriptions)
    assert group.difference
    assert ["g"] == table.clients.consumer_groups("orders") == table.clients.consumer_groups("payments")

    table.clients.remove_consumer("g", TWO)
    assert ({"orders"}, "") == (set(group.subscriptions), group.difference)


def test_the_newest_subscription_counts_for_the_group_whichever_member_spoke_last(table: Table) -> None:
    """Issue 13, 14: that of the member that subscribed last, until it leaves."""
    for _ in range(3):
        table.consume(ONE, "a", "orders", tags="new", sub_version=20)
        table.consume(TWO, "b", "orders", tags="old", sub_version=10)
        wanted = table.clients.subscription("g", "orders")
        assert wanted is not None
        assert "new" == wanted.sub_string

    table.clients.on_close(ONE)
    wanted = table.clients.subscription("g", "orders")
    assert wanted is not None
    assert "old" == wanted.sub_string


def test_members_that_differ_are_named_once_until_they_agree(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, 14: both sides, with what each of them wants."""
    for _ in range(5):
        table.consume(ONE, "a", "orders", tags="paid")
        table.consume(TWO, "b", "orders", tags="open")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the members of group g have different subscriptions" in warning
    assert "a (10.0.0.1:1) subscribes to orders with TAG 'paid'" in warning
    assert "b (10.0.0.2:2) subscribes to orders with TAG 'open'" in warning

    table.consume(ONE, "a", "orders", tags="open", sub_version=2)
    group = table.clients.group_info("g")
    assert group is not None
    assert "" == group.difference
    table.consume(ONE, "a", "orders", "payments", tags="open", sub_version=3)
    assert 2 == len(caplog.records)
    assert "b (10.0.0.2:2) does not subscribe to payments" in caplog.records[-1].getMessage()


def test_the_end_of_a_connection_costs_what_its_own_groups_cost(table: Table) -> None:
    """Issue 13, 5: a client of many groups held everyone when it hung up, as each was looked for in all."""
    for number in range(2_000):
        table.produce(ONE, "a", f"p{number}")
        table.consume(ONE, "a", "t", group=f"g{number}")
    table.produce(TWO, "b", "p7")

    table.clients.on_close(ONE)

    assert (["p7"], []) == (table.clients.producer_groups(), table.clients.consumer_groups())
    assert table.clients.find_producer("a") is None
    assert table.clients.find_producer("b") is TWO


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
    assert table.told == ["g"]  # when it came; no member is left to hear of the end


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


def test_a_member_costs_what_it_says_however_many_others_there_are() -> None:
    """D3, issue 13: members that come and leave looked at the subscriptions of all others: 200 members with 4,096
    topics each took 20 s of the loop."""

    def looked_at(members: int) -> int:
        table, count = Table(), 0
        lines = [Line(f"10.0.0.1:{number}") for number in range(members)]

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        for number, line in enumerate(lines):
            table.consume(line, f"c{number}", *map(str, range(50)), sub_version=number)
        sys.setprofile(note)
        try:
            # The newest leaves, and comes back.
            table.clients.on_close(lines[-1])
            table.consume(lines[-1], "again", *map(str, range(50)), sub_version=members)
        finally:
            sys.setprofile(None)
        return count

    assert looked_at(200) < 3 * looked_at(10)


def test_the_newest_subscription_of_those_that_are_left_counts(table: Table) -> None:
    """D3: of equal versions that of the member which joined first."""
    table.consume(ONE, "a", "t", sub_version=1, tags="one")
    table.consume(TWO, "b", "t", sub_version=3, tags="two")
    table.consume(THREE, "c", "t", "u", sub_version=3, tags="three")

    def said(topic: str) -> str | None:
        one = table.clients.subscription("g", topic)
        return one.sub_string if one is not None else None

    assert ("two", "three") == (said("t"), said("u"))
    table.clients.on_close(TWO)
    assert "three" == said("t")
    table.consume(THREE, "c", "t", sub_version=0, tags="older")
    assert ("one", None) == (said("t"), said("u"))
    table.clients.on_close(ONE)
    assert "older" == said("t")


def test_what_consumers_say_is_bounded_by_bytes(table: Table) -> None:
    """Issue 13, 6: 10,000 groups of a connection could keep a megabyte each."""
    clients = table.clients = Clients(table.clock, said_bytes_max=1 << 20)
    text = "x" * 50_000
    table.consume(ONE, "a", "t", tags=text, group="g1")
    with pytest.raises(InvalidParameter, match="maxSubscriptionBytes"):
        table.consume(ONE, "a", "t", tags=text, group="g2")
    assert clients.group_info("g2") is None
    # The same again, and less, always fit.
    table.consume(ONE, "a", "t", tags=text, group="g1")
    table.consume(ONE, "a", "t", group="g1")
    lines = [Line(str(number)) for number in range(20)]
    for line in lines:
        table.consume(line, "a", "t", tags=text)
    with pytest.raises(InvalidParameter, match="all consumers"):
        table.consume(TWO, "a", "t", tags=text)
    for line in lines:
        clients.on_close(line)
    table.consume(TWO, "a", "t", tags=text)


def test_the_name_of_a_producer_group_has_a_bound(table: Table) -> None:
    """Issue 13, 6: 10,000 of them are kept for a connection."""
    with pytest.raises(InvalidParameter, match="characters"):
        table.produce(ONE, "a", "g" * 256)
    assert [] == table.clients.producer_groups()


def test_a_connection_that_closes_leaves_none_of_its_client_ids(table: Table) -> None:
    """E7, issue 13: a client that gives each of its groups another id, and comes back with others, filled a table."""
    ids = [str(number) for number in range(5)]
    for client_id in ids:
        table.produce(ONE, client_id, group=f"pg{client_id}")
    assert [ONE] * 5 == [table.clients.find_producer(client_id) for client_id in ids]

    table.clients.on_close(ONE)

    assert [None] * 5 == [table.clients.find_producer(client_id) for client_id in ids]


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
