"""The five tables of a name server (A1–A5), by plain calls."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ternmq.errors import InvalidParameter
from ternmq.namesrv.registry import SILENCE_MAX_S, MasterAddresses, Registrant, Registry
from ternmq.wire.bodies.routes import QueueData, TopicRouteBody, decode_registration
from ternmq.wire.bodies.topics import DataVersion, TopicConfig, TopicTable
from ternmq.wire.codes import RequestCode
from tests.recordings import VERSIONS, requests


@dataclass
class Broker:
    """One broker with its own version of its topics."""

    name: str = "broker-a"
    broker_id: int = 0
    address: str = "10.0.0.1:10911"
    cluster: str = "c"
    topics: dict[str, int] = field(default_factory=dict)
    counter: int = 0
    state_version: int | None = None
    enable_acting_master: bool | None = None
    silence_max_s: float | None = None

    @property
    def who(self) -> Registrant:
        return Registrant(
            self.cluster,
            self.name,
            self.broker_id,
            self.address,
            ha_address=self.address + "1",
            enable_acting_master=self.enable_acting_master,
            silence_max_s=self.silence_max_s,
        )

    @property
    def version(self) -> DataVersion:
        return DataVersion(counter=self.counter, timestamp=1, state_version=self.state_version)

    def create(self, topic: str, queues: int = 4) -> None:
        self.topics[topic] = queues
        self.counter += 1

    def table(self, *only: str) -> TopicTable:
        topics = only or tuple(self.topics)
        return TopicTable(
            data_version=self.version,
            topic_config_table={
                topic: TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
                for topic in topics
                for count in [self.topics[topic]]
            },
        )


def broker(*topics: str, **what: object) -> Broker:
    made = Broker(**what)  # type: ignore[arg-type]  # test values
    for topic in topics or ("t", "u"):
        made.create(topic)
    return made


def register(
    registry: Registry, who: Broker, *only: str, connection: object = None, now: float = 0.0
) -> MasterAddresses | None:
    return registry.register(who.who, who.table(*only), None, connection or who.address, now)


@pytest.fixture
def registry() -> Registry:
    return Registry()


def route(registry: Registry, topic: str) -> TopicRouteBody:
    found = registry.route(topic)
    assert found is not None
    return found


# --- Registration and routes (A2, A4) ---------------------------------------------------------------------------


def test_a_route_names_the_queues_and_addresses_of_all_brokers_of_a_topic(registry: Registry) -> None:
    """A4."""
    register(registry, broker("t", "u"))
    register(registry, broker("t", "v", name="broker-b", address="10.0.0.2:10911"))

    found = route(registry, "t")

    assert [(data.broker_name, data.read_queue_nums, data.perm) for data in found.queue_datas] == [
        ("broker-a", 4, 6),
        ("broker-b", 4, 6),
    ]
    assert {data.broker_name: data.broker_addrs for data in found.broker_datas} == {
        "broker-a": {0: "10.0.0.1:10911"},
        "broker-b": {0: "10.0.0.2:10911"},
    }
    assert [data.broker_name for data in route(registry, "v").queue_datas] == ["broker-b"]


def test_the_end_of_a_connection_looks_at_each_topic_once(registry: Registry) -> None:
    """A3, issue 13, 5: one that brought thousands of brokers looked at all topics for each of them."""
    topics = Counted({f"t{number}": {} for number in range(100)})
    registry._topics = topics
    for number in range(50):
        registry.register(Broker(name=f"b{number}", address=f"10.0.0.1:{number}").who, None, None, "line", 0.0)

    assert 50 == len(registry.connection_closed("line"))
    assert topics.looks == 1
    assert not registry.cluster_info().broker_addr_table


def test_forged_brokers_fill_no_table() -> None:
    """Issue 13, 6: any program that reaches the port can register. What is refused changes nothing."""
    small = Registry(brokers_max=2, bytes_max=5_000)
    register(small, broker("t"))
    register(small, broker("t", name="broker-b", address="10.0.0.2:10911"))
    before = (small.cluster_info(), small.topics())
    for refused, reason in (
        (broker("t", name="broker-c", address="10.0.0.3:10911"), "maxBrokers allows 2"),
        (broker("t", *(f"u{number}" for number in range(12))), "maxTopicBytes allows 5000"),
        (broker("t", cluster="c" * 256), "256 characters"),
        (broker("t", name="n" * 300), "300 characters"),
    ):
        with pytest.raises(InvalidParameter, match=reason):
            register(small, refused)
        assert before == (small.cluster_info(), small.topics())
    with pytest.raises(InvalidParameter, match="65 filter servers"):
        small.register(broker("t").who, None, ["10.0.0.9:1"] * 65, "line", 0.0)


def test_topics_that_go_make_room_for_others() -> None:
    """Issue 13, 6: the estimate returns to nothing, whichever way topics go."""
    small = Registry(bytes_max=5_000)
    for _ in range(3):
        one = broker(*(f"t{number}" for number in range(10)))
        register(small, one)
        register(small, one)
        small.delete_topic("t0")
        small.unregister(one.name, one.broker_id, one.address)
    assert 0 == small._bytes


class Counted(dict[str, dict[str, QueueData]]):
    """A table that counts how often all of it is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> ItemsView[str, dict[str, QueueData]]:  # type: ignore[override]  # the type of a dict's has no name
        self.looks += 1
        return super().items()


def test_an_unknown_topic_has_no_route(registry: Registry) -> None:
    """A4."""
    register(registry, broker())

    assert registry.route("nowhere") is None


def test_a_registration_of_one_topic_is_added_to_the_others(registry: Registry) -> None:
    """A2: a topic that was just created comes alone."""
    who = broker("t", "u")
    register(registry, who)
    who.create("new", 2)

    register(registry, who, "new")

    assert set(registry.topics()) == {"t", "u", "new"}
    assert not registry.is_outdated(who.address, who.version, 0.0)


def test_a_broker_that_registers_without_a_topic_takes_it_back_where_that_is_wanted(registry: Registry) -> None:
    """Issue 13, 15: deleteTopicWithBrokerRegistration; queues of other brokers stay."""
    who, other = broker("t", "u"), broker("t", "u", name="broker-b", address="10.0.0.2:10911")
    register(registry, who)
    register(registry, other)
    del who.topics["u"]
    who.create("new")

    register(registry, who)
    assert ["broker-a", "broker-b"] == [data.broker_name for data in route(registry, "u").queue_datas]
    who.create("new")
    registry.register(who.who, who.table(), None, who.address, 0.0, takes_back=True)
    assert ["broker-b"] == [data.broker_name for data in route(registry, "u").queue_datas]
    assert ["broker-a", "broker-b"] == [data.broker_name for data in route(registry, "t").queue_datas]
    del other.topics["u"]
    other.create("new")
    registry.register(other.who, other.table(), None, other.address, 0.0, takes_back=True)
    assert registry.route("u") is None


def test_a_changed_topic_replaces_its_queues(registry: Registry) -> None:
    who = broker("t", "u")
    register(registry, who)
    who.create("t", 16)

    register(registry, who)

    assert route(registry, "t").queue_datas[0].write_queue_nums == 16


def test_a_slave_learns_where_its_master_is_and_describes_no_queues(registry: Registry) -> None:
    """A2: the reply is for slaves."""
    master = broker("t", "u")
    slave = broker("t", "odd", broker_id=1, address="10.0.0.9:10911")

    assert register(registry, slave) is None
    assert register(registry, master) is None
    assert register(registry, slave) == MasterAddresses(master.address, master.address + "1")
    assert registry.route("odd") is None
    assert route(registry, "t").broker_datas[0].broker_addrs == {0: master.address, 1: slave.address}


def test_a_slave_that_may_act_as_master_describes_queues_to_read(registry: Registry) -> None:
    """A2, O5: RocketMQ 5's acting master; no client writes there."""
    register(registry, broker("t", "u", broker_id=2, enable_acting_master=True))

    assert route(registry, "t").queue_datas[0].perm == 4


def test_a_slave_that_becomes_master_has_one_address(registry: Registry) -> None:
    slave = broker("t", "u", broker_id=1)
    register(registry, slave)
    slave.broker_id = 0

    register(registry, slave)

    assert route(registry, "t").broker_datas[0].broker_addrs == {0: slave.address}


def test_of_two_masters_of_one_name_the_higher_state_version_wins(registry: Registry) -> None:
    """A2: of equals the later."""
    old = broker("t", "u", state_version=1, address="10.0.0.1:1")
    new = broker("t", "u", state_version=2, address="10.0.0.2:2")
    register(registry, old)
    register(registry, new)
    register(registry, old)
    assert route(registry, "t").broker_datas[0].broker_addrs == {0: new.address}

    later = broker("t", "u", state_version=2, address="10.0.0.3:3")
    register(registry, later)
    assert route(registry, "t").broker_datas[0].broker_addrs == {0: later.address}


def test_a_first_registration_of_one_topic_is_not_taken_for_the_whole_table(registry: Registry) -> None:
    """A2: its version would otherwise keep the rest from being sent."""
    who = broker("t", "u", "new")
    register(registry, who, "new")

    assert registry.is_outdated(who.address, who.version, 0.0)
    register(registry, who)
    assert not registry.is_outdated(who.address, who.version, 0.0)
    assert set(registry.topics()) == {"t", "u", "new"}


def test_filter_servers_are_kept_until_none_are_named(registry: Registry) -> None:
    """A1: the fifth table."""
    who = broker("t", "u")
    registry.register(who.who, who.table(), ["10.0.0.1:1000"], "conn", 0.0)
    assert route(registry, "t").filter_server_table == {who.address: ["10.0.0.1:1000"]}

    registry.register(who.who, who.table(), [], "conn", 0.0)
    assert route(registry, "t").filter_server_table == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_registrations_make_routes(registry: Registry, version: str) -> None:
    """A2, V1: whole tables and increments of Java brokers, plain or compressed."""
    for number, request in enumerate(requests(version, RequestCode.REGISTER_BROKER)):
        header = request.fields
        said = decode_registration(request.body, version=request.version)
        who = Registrant(header.cluster_name, header.broker_name, header.broker_id, header.broker_address)
        registry.register(who, said.topic_config_serialize_wrapper, said.filter_server_list, "conn", float(number))

    assert route(registry, "TBW102").queue_datas[0].perm == 7
    assert route(registry, "GoldenTopic").queue_datas[0].write_queue_nums == 4
    assert route(registry, "%RETRY%golden_push").queue_datas[0].read_queue_nums == 1
    assert registry.cluster_info().cluster_addr_table == {"DefaultCluster": ["broker-a"]}


# --- Liveness (A3) ----------------------------------------------------------------------------------------------


def test_a_broker_that_is_silent_for_two_minutes_is_dropped(registry: Registry) -> None:
    """A3: 120 s."""
    who = broker("t", "u")
    register(registry, who, connection="conn", now=10.0)

    assert registry.expire(10.0 + SILENCE_MAX_S) == []
    assert registry.expire(10.1 + SILENCE_MAX_S) == [(who.who, "conn")]
    assert registry.route("t") is None
    assert registry.topics() == []
    assert registry.cluster_info().cluster_addr_table == {}


@pytest.mark.parametrize("sign", ["register", "version", "heartbeat"])
def test_any_sign_of_life_keeps_a_broker(registry: Registry, sign: str) -> None:
    """A2, A3: an unchanged version need not resend topics."""
    who = broker("t", "u")
    register(registry, who, now=0.0)

    if sign == "register":
        register(registry, who, now=100.0)
    elif sign == "version":
        assert not registry.is_outdated(who.address, who.version, 100.0)
    else:
        registry.heard_of(who.address, 100.0)

    assert registry.expire(100.0 + SILENCE_MAX_S) == []


def test_a_broker_may_ask_for_another_time_out(registry: Registry) -> None:
    """A3: RocketMQ 5's heartbeatTimeoutMillis."""
    register(registry, broker("t", "u", silence_max_s=10.0))

    assert len(registry.expire(10.5)) == 1


def test_a_question_with_another_version_is_no_sign_of_life(registry: Registry) -> None:
    who = broker("t", "u")
    register(registry, who)
    who.create("new")

    assert registry.is_outdated(who.address, who.version, 100.0)
    assert registry.is_outdated("10.9.9.9:1", who.version, 100.0)
    registry.heard_of("10.9.9.9:1", 100.0)
    assert len(registry.expire(1.0 + SILENCE_MAX_S)) == 1


def test_a_closed_connection_drops_its_broker_at_once(registry: Registry) -> None:
    """A3."""
    who = broker("t", "u")
    register(registry, who, connection="old")

    assert registry.connection_closed("other") == []
    assert registry.connection_closed("old") == [who.who]
    assert registry.route("t") is None


def test_the_end_of_an_old_connection_does_not_drop_a_broker_that_came_back(registry: Registry) -> None:
    """A3: it registered over a new one before the old one was seen to close."""
    who = broker("t", "u")
    register(registry, who, connection="old")
    register(registry, who, connection="new")

    assert registry.connection_closed("old") == []
    assert registry.route("t") is not None


def test_when_the_master_is_gone_the_slave_stays_readable(registry: Registry) -> None:
    """A3."""
    master = broker("t", "u")
    slave = broker("t", "u", broker_id=1, address="10.0.0.9:10911")
    register(registry, master)
    register(registry, slave)

    registry.unregister(master.name, 0, master.address)

    assert route(registry, "t").broker_datas[0].broker_addrs == {1: slave.address}
    assert route(registry, "t").queue_datas[0].perm & 4


def test_unregistering_an_address_that_was_replaced_changes_nothing(registry: Registry) -> None:
    old, new = broker("t", "u", address="10.0.0.1:1"), broker("t", "u", address="10.0.0.2:2")
    register(registry, old)
    register(registry, new)

    registry.unregister(old.name, 0, old.address)
    registry.unregister("nobody", 0, "10.9.9.9:1")

    assert route(registry, "t").broker_datas[0].broker_addrs == {0: new.address}


def test_a_broker_started_under_another_name_at_an_address_takes_it_over(registry: Registry) -> None:
    register(registry, broker("t", "u"))
    register(registry, broker("v", "w", name="broker-z"))

    assert registry.route("t") is None
    assert list(registry.cluster_info().broker_addr_table) == ["broker-z"]


# --- Lists and changes (A5) -------------------------------------------------------------------------------------


def test_topics_are_listed_by_cluster(registry: Registry) -> None:
    register(registry, broker("t", "u"))
    register(registry, broker("t", "v", name="broker-b", address="10.0.0.2:1", cluster="d"))

    assert set(registry.topics()) == {"t", "u", "v"}
    assert set(registry.topics("c")) == {"t", "u"}
    assert set(registry.topics("d")) == {"t", "v"}
    assert registry.topics("e") == []
    assert registry.system_topics() == (["c", "d", "broker-a", "broker-b"], "10.0.0.1:10911")


def test_wiped_permissions_last_until_they_are_given_back(registry: Registry) -> None:
    """A5: the routine registration of the same table does not undo them."""
    who = broker("t", "u")
    register(registry, who)
    register(registry, broker("t", "v", name="broker-b", address="10.0.0.2:1"))

    assert registry.wipe_write("broker-a") == 2
    register(registry, who)
    assert [data.perm for data in route(registry, "t").queue_datas] == [4, 6]
    assert registry.add_write("broker-a") == 2
    assert [data.perm for data in route(registry, "t").queue_datas] == [6, 6]
    assert registry.wipe_write("nobody") == 0


def test_a_topic_is_deleted_everywhere_or_in_a_cluster(registry: Registry) -> None:
    """A5."""
    register(registry, broker("t", "u"))
    register(registry, broker("t", "v", name="broker-b", address="10.0.0.2:1", cluster="d"))

    registry.delete_topic("t", "d")
    assert [data.broker_name for data in route(registry, "t").queue_datas] == ["broker-a"]
    registry.delete_topic("t")
    assert registry.route("t") is None
    registry.delete_topic("never-there")


def test_queues_can_be_given_to_a_topic_on_known_brokers_only(registry: Registry) -> None:
    register(registry, broker("t", "u"))

    queues = [QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in ("broker-a", "x")]
    registry.put_queues("new", queues)

    assert [data.broker_name for data in route(registry, "new").queue_datas] == ["broker-a"]


def test_the_members_of_a_name_are_told(registry: Registry) -> None:
    register(registry, broker("t", "u"))

    group = registry.member_group("c", "broker-a")
    assert group is not None
    assert group.broker_addrs == {0: "10.0.0.1:10911"}
    assert registry.member_group("d", "broker-a") is None
    assert registry.member_group("c", "nobody") is None


# --- Any order of events ----------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A1: whatever brokers do, in any order, the tables agree with each other and with who is alive."""

    NAMES = ("a", "b")
    IDS = (0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.now = 0.0
        self.brokers = {
            (name, broker_id): broker(
                "t", f"own-{name}", name=name, broker_id=broker_id, address=f"{name}{broker_id}:1"
            )
            for name in self.NAMES
            for broker_id in self.IDS
        }
        self.seen: dict[tuple[str, int], float] = {}

    @rule(name=st.sampled_from(NAMES), broker_id=st.sampled_from(IDS))
    def registers(self, name: str, broker_id: int) -> None:
        register(self.registry, self.brokers[name, broker_id], now=self.now)
        self.seen[name, broker_id] = self.now

    @rule(name=st.sampled_from(NAMES), broker_id=st.sampled_from(IDS))
    def unregisters(self, name: str, broker_id: int) -> None:
        self.registry.unregister(name, broker_id, f"{name}{broker_id}:1")
        self.seen.pop((name, broker_id), None)

    @rule(name=st.sampled_from(NAMES), broker_id=st.sampled_from(IDS))
    def hangs_up(self, name: str, broker_id: int) -> None:
        self.registry.connection_closed(f"{name}{broker_id}:1")
        self.seen.pop((name, broker_id), None)

    @rule(seconds=st.floats(0.0, 200.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.registry.expire(self.now)
        self.seen = {key: at for key, at in self.seen.items() if self.now - at <= SILENCE_MAX_S}

    @invariant()
    def tables_agree(self) -> None:
        info = self.registry.cluster_info()
        alive = {name: {broker_id for owner, broker_id in self.seen if owner == name} for name, _ in self.seen}
        assert {name: set(data.broker_addrs) for name, data in info.broker_addr_table.items()} == alive
        assert {name for names in info.cluster_addr_table.values() for name in names} == alive.keys()
        for topic in self.registry.topics():
            found = self.registry.route(topic)
            assert found is not None, "a topic that is listed has a route"
            assert {data.broker_name for data in found.queue_datas} <= alive.keys()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
