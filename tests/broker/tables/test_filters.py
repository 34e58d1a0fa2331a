"""The table of SQL filters: registration, death, maps, its file; and the tests that subscriptions become (K1–K4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import (
    ALL,
    DEAD_AT_LOAD_MS,
    HEARTBEAT_LENGTH_MAX,
    PROPERTIES_LENGTH_MAX,
    Filters,
    Wanted,
)
from ternmq.errors import (
    CorruptFile,
    FilterMissing,
    FilterOutdated,
    SubscriptionInvalid,
    SubscriptionMissing,
    SubscriptionOutdated,
    SystemFailure,
)
from ternmq.files import TableFile
from ternmq.filter.bloom import BloomFilter
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.queue_ext import Unit
from ternmq.wire.bodies.clients import ConsumerData, SubscriptionData
from ternmq.wire.ids import java_hash
from tests.broker.tables.test_clients import Line
from tests.manual_clock import ManualClock

BIG, SMALL = "amount > 5", "amount < 3"
DAY_S = 24 * 3600


class Table:
    """A table with its file and clock; ``said`` is a heartbeat of a group."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path / "consumerFilter.json"
        self.clock = ManualClock()
        self.clients = Clients(self.clock)
        self._connection = Line("10.0.0.1:1")
        self.filters = self.opened(**settings)

    def opened(self, **settings: Any) -> Filters:
        config = BrokerConfig(broker_name="broker-a", **({"enable_property_filter": True} | settings))
        filters = Filters(TableFile(self.path), self.clock, self.clients, config)
        filters.load()
        self.clients.on_empty = filters.unregister
        return filters

    def said(
        self,
        group: str,
        topic: str,
        expression: str,
        *,
        version: int = 1,
        kind: str = "SQL92",
        filters: Filters | None = None,
    ) -> None:
        data = SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)
        consumer = ConsumerData(group_name=group, subscription_data_set=[data])
        self.clients.add_consumer(consumer, self._connection, "me", language="PYTHON", version=1)
        (filters or self.filters).register({group: [data]})

    def left(self, group: str) -> None:
        self.clients.remove_consumer(group, self._connection)

    def saved(self, topic: str = "orders", group: str = "billing") -> dict[str, Any]:
        """What the file says of a filter."""
        self.filters.save()
        table = json.loads(self.path.read_text())["filterDataByTopic"]
        found: dict[str, Any] = table[topic]["groupFilterData"][group]
        return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def accepts(wanted: Wanted, amount: str) -> bool:
    assert wanted.accepts is not None
    return wanted.accepts(f"amount\x01{amount}\x02")


def may_pass(wanted: Wanted, store_time_ms: int, bits: bytes) -> bool:
    assert wanted.may_pass is not None
    return wanted.may_pass(Unit(0, store_time_ms, bits))


def fact(topic: str, properties: str) -> Fact:
    return Fact(topic, 0, 0, 0, 0, 0, 0, 0, 0, properties)


# --- Registration ---------------------------------------------------------------------------------------------


def test_a_heartbeat_registers_a_filter(table: Table) -> None:
    """K2"""
    table.said("billing", "orders", BIG)
    wanted = table.filters.of_heartbeat("billing", "orders", 1)
    assert (True, False) == (accepts(wanted, "6"), accepts(wanted, "5"))
    assert wanted.matches is None


def test_a_newer_version_changes_it_and_an_older_one_does_not(table: Table) -> None:
    """K2"""
    table.said("billing", "orders", BIG, version=5)
    table.said("billing", "orders", SMALL, version=0)
    table.said("billing", "orders", SMALL, version=5)
    assert BIG == table.saved()["expression"]
    table.clock.advance(1)
    table.said("billing", "orders", SMALL, version=6)
    assert (SMALL, 6, table.clock.now_ms()) == tuple(
        table.saved()[key] for key in ("expression", "clientVersion", "bornTime")
    )


def test_a_newer_version_of_the_same_expression_keeps_its_birth(table: Table) -> None:
    """K3: the maps made since then still tell."""
    table.said("billing", "orders", BIG, version=5)
    born_ms = table.clock.now_ms()
    table.clock.advance(1)
    table.said("billing", "orders", BIG, version=6)
    assert (born_ms, 6) == (table.saved()["bornTime"], table.saved()["clientVersion"])


def test_an_expression_that_cannot_be_read_removes_the_old_one(table: Table) -> None:
    """K2: pulls are told where it is wrong."""
    table.said("billing", "orders", BIG, version=5)
    table.said("billing", "orders", "amount >", version=6)
    with pytest.raises(FilterMissing, match="at character 9"):
        table.filters.of_heartbeat("billing", "orders", 6)


def test_pulls_must_not_know_more_than_heartbeats(table: Table) -> None:
    """K2"""
    with pytest.raises(SubscriptionMissing):
        table.filters.of_heartbeat("billing", "orders", 0)
    table.said("billing", "orders", BIG, version=5)
    with pytest.raises(SubscriptionOutdated):
        table.filters.of_heartbeat("billing", "orders", 6)
    # Another broker's table was restored in place of ours: the group's data are newer than its filter.
    later = table.opened()
    with pytest.raises(FilterMissing, match="since this broker started"):
        later.of_heartbeat("billing", "orders", 5)
    later.register(
        {"billing": [SubscriptionData(topic="orders", sub_string=BIG, sub_version=4, expression_type="SQL92")]}
    )
    with pytest.raises(FilterOutdated):
        later.of_heartbeat("billing", "orders", 5)


# --- Death and expiry -----------------------------------------------------------------------------------------


def test_a_filter_dies_with_the_last_member_and_comes_back_with_the_next(table: Table) -> None:
    """K4: as old as it was."""
    table.said("billing", "orders", BIG)
    born_ms = table.clock.now_ms()
    table.clock.advance(10)
    table.left("billing")
    assert (True, born_ms + 10_000) == (table.saved()["dead"], table.saved()["deadTime"])

    table.clock.advance(10)
    table.said("billing", "orders", BIG)
    assert (False, 0, born_ms) == tuple(table.saved()[key] for key in ("dead", "deadTime", "bornTime"))


def test_a_topic_that_is_not_subscribed_any_more_buries_its_filter(table: Table) -> None:
    """K4: also one that is subscribed by tags now."""
    table.said("billing", "orders", BIG)
    table.said("billing", "others", BIG)
    assert table.saved()["dead"]
    assert not table.saved("others")["dead"]
    table.said("billing", "others", "*", version=2, kind="TAG")
    assert table.saved("others")["dead"]


def test_a_dead_filter_is_kept_for_a_day(table: Table) -> None:
    """K4: filterDataCleanTimeSpan."""
    table.said("billing", "orders", BIG)
    table.left("billing")
    table.clock.advance(DAY_S - 1)
    assert table.saved()["dead"]
    table.clock.advance(1)
    table.filters.save()
    assert {} == json.loads(table.path.read_text())["filterDataByTopic"]


# --- Maps -----------------------------------------------------------------------------------------------------


def test_a_map_has_the_bits_of_the_groups_that_want_the_message(table: Table) -> None:
    """K3: dead groups, too, which may come back; a topic without groups has no map."""
    bloom = BloomFilter.sized(error_percent=20, names=32)
    for group, expression in (("rich", BIG), ("poor", SMALL), ("gone", "amount = 7")):
        table.said(group, "orders", expression)
    table.left("gone")

    rich, gone = bloom.positions("rich#orders"), bloom.positions("gone#orders")
    assert bloom.bits([rich, gone]) == table.filters.bits(fact("orders", "amount\x017\x02"))
    assert bloom.bits([rich]) == table.filters.bits(fact("orders", "amount\x019\x02"))
    assert bytes(14) == table.filters.bits(fact("orders", "amount\x01abc\x02"))
    assert b"" == table.filters.bits(fact("others", "amount\x019\x02"))


def test_a_map_counts_if_it_was_made_after_the_filters_birth_and_has_its_size(table: Table) -> None:
    """K3: all else is for the expression to decide."""
    table.said("billing", "orders", BIG)
    born_ms = table.clock.now_ms()
    wanted = table.filters.of_heartbeat("billing", "orders", 1)
    with_bits = table.filters.bits(fact("orders", "amount\x017\x02"))

    assert not may_pass(wanted, born_ms + 1, bytes(14))
    assert may_pass(wanted, born_ms + 1, with_bits)
    assert may_pass(wanted, born_ms, bytes(14))
    assert may_pass(wanted, born_ms + 1, b"")
    assert may_pass(wanted, born_ms + 1, bytes(15))


# --- The file -------------------------------------------------------------------------------------------------


def test_the_file_has_rocketmqs_shape(table: Table) -> None:
    """K4"""
    table.said("g", "t", BIG, version=7)
    table.filters.save()
    expected = {
        "filterDataByTopic": {
            "t": {
                "topic": "t",
                "groupFilterData": {
                    "g": {
                        "consumerGroup": "g",
                        "topic": "t",
                        "expression": BIG,
                        "expressionType": "SQL92",
                        "bornTime": table.clock.now_ms(),
                        "deadTime": 0,
                        "dead": False,
                        "bloomFilterData": {"bitPos": [22, 87, 58], "bitNum": 112},
                        "clientVersion": 7,
                    }
                },
            }
        }
    }
    assert expected == json.loads(table.path.read_text())


def test_filters_are_loaded_dead_since_half_a_minute_but_not_before_their_birth(table: Table) -> None:
    """K4: their members have to come back."""
    table.said("billing", "orders", BIG)
    born_ms = table.clock.now_ms()
    table.filters.save()

    assert born_ms == _loaded_dead_time(table)
    table.clock.advance(100)
    assert table.clock.now_ms() - DEAD_AT_LOAD_MS == _loaded_dead_time(table)
    again = table.opened()
    table.said("billing", "orders", BIG, filters=again)
    assert accepts(again.of_heartbeat("billing", "orders", 1), "6")


def _loaded_dead_time(table: Table) -> int:
    return table.opened().body().filter_data_by_topic["orders"].group_filter_data["billing"].dead_time


def test_other_sizes_of_maps_drop_all_that_was_saved(table: Table) -> None:
    """K3: the maps in the store are of no use then, and births must say so."""
    table.said("billing", "orders", BIG)
    table.filters.save()
    assert {} == table.opened(expect_consumer_num_use_filter=64).body().filter_data_by_topic


def test_rocketmqs_own_file_is_read(table: Table) -> None:
    """K4: as fastjson writes it; an expression that cannot be read is left out."""
    live = (
        '{"bloomFilterData":{"bitNum":112,"bitPos":[22,87,58]},"bornTime":5,"clientVersion":9,"consumerGroup":"g",'
        '"dead":false,"deadTime":0,"expression":"a > 5","expressionType":"SQL92","topic":"t"}'
    )
    table.path.write_text(f'{{"filterDataByTopic":{{"t":{{"groupFilterData":{{"g":{live}}},"topic":"t"}}}}}}')
    filters = table.opened()
    assert ["g"] == list(filters.body().filter_data_by_topic["t"].group_filter_data)

    table.path.write_text(table.path.read_text().replace("a > 5", "a >"))
    assert {} == table.opened().body().filter_data_by_topic


def test_an_unreadable_file_stops_the_start(table: Table) -> None:
    """K4"""
    table.path.write_text("{")
    with pytest.raises(CorruptFile):
        table.opened()


def test_nothing_is_written_while_nothing_changes(table: Table) -> None:
    """K4"""
    table.said("billing", "orders", BIG)
    table.filters.save()
    table.path.unlink()
    table.said("billing", "orders", BIG)
    table.filters.save()
    assert not table.path.exists()


# --- Requests -------------------------------------------------------------------------------------------------


def test_tags_become_a_test_of_codes(table: Table) -> None:
    """K1: of their low 32 bits, as RocketMQ has it; «Aa» and «BB» are one to it."""
    matches = table.filters.of_request("g", "t", "TAG", "Aa || C").matches
    assert matches is not None
    assert [True, True, True, False] == [matches(java_hash(tag)) for tag in ("Aa", "BB", "C", "D")]
    assert matches(java_hash("C") + (1 << 32))
    assert not matches(0)
    for expression in ("*", "", None):
        assert ALL == table.filters.of_request("g", "t", None, expression)
    with pytest.raises(SubscriptionInvalid):
        table.filters.of_request("g", "t", "TAG", " || ")


def test_a_request_with_sql_is_tested_without_maps(table: Table) -> None:
    """K2, K3: a map knows registered filters only."""
    wanted = table.filters.of_request("g", "t", "SQL92", BIG)
    assert accepts(wanted, "6")
    assert (None, None) == (wanted.matches, wanted.may_pass)


def test_retries_are_tested_by_the_filter_of_their_own_topic(tmp_path: Path) -> None:
    """K4: those of other topics, or of none, pass."""
    table = Table(tmp_path, filter_support_retry=True)
    table.said("g", "orders", BIG)
    retried = table.filters.of_request("g", "%RETRY%g", "TAG", "*").accepts
    assert retried is not None
    assert [False, True, True, True] == [
        retried(f"{origin}amount\x01{amount}\x02")
        for origin, amount in (
            ("RETRY_TOPIC\x01orders\x02", 1),
            ("RETRY_TOPIC\x01orders\x02", 9),
            ("RETRY_TOPIC\x01others\x02", 1),
            ("", 1),
        )
    ]
    assert ALL == table.filters.of_request("g", "orders", "TAG", "*")


def test_an_expression_is_compiled_once_however_many_bring_it(table: Table) -> None:
    """K2: requests and heartbeats; a refusal is remembered as well."""
    first = table.filters.of_request("g", "t", "SQL92", BIG)
    assert first is table.filters.of_request("h", "u", "SQL92", BIG)
    table.said("g", "t", BIG)
    assert first.accepts is table.filters.of_heartbeat("g", "t", 1).accepts
    for _ in range(2):
        with pytest.raises(SubscriptionInvalid, match="the end"):
            table.filters.of_request("g", "t", "SQL92", "amount >")


# --- Bounds (issue 13, 4) -------------------------------------------------------------------------------------

#: What each of the limits refuses at its default.
TOO_LARGE = {
    "maxFilterExpressionLength": "amount = 1" + " " * 20_000,
    "maxFilterExpressionTerms": " OR ".join(["amount=1"] * 1_000),
    "maxFilterExpressionDepth": "NOT " * 1_000 + "amount",
}


@pytest.mark.parametrize("setting", TOO_LARGE)
def test_what_is_too_large_is_refused_at_each_door_with_the_setting(table: Table, setting: str) -> None:
    """Issue 13, 4"""
    expression = TOO_LARGE[setting]
    with pytest.raises(SubscriptionInvalid, match=setting):
        table.filters.check("SQL92", expression)
    with pytest.raises(SubscriptionInvalid, match=setting):
        table.filters.of_request("g", "t", "SQL92", expression)
    table.said("g", "t", expression)
    with pytest.raises(FilterMissing, match=setting):
        table.filters.of_heartbeat("g", "t", 1)


def test_limits_can_be_set(tmp_path: Path) -> None:
    """Issue 13, 4"""
    table = Table(tmp_path, max_filter_expression_length=10, max_filter_expression_terms=3)
    table.filters.check("SQL92", "a=1 OR b")
    with pytest.raises(SubscriptionInvalid, match="it has 11 characters, more than the 10 that"):
        table.filters.check("SQL92", "a=1 OR b   ")
    with pytest.raises(SubscriptionInvalid, match="more than 3 terms"):
        table.filters.check("SQL92", "a=1 OR b=2")


def test_tags_have_a_length_as_well(table: Table) -> None:
    """Issue 13, 4: a million of them would be hashed for one pull."""
    table.filters.of_request("g", "t", "TAG", "||".join(["tag"] * 3_000))
    with pytest.raises(SubscriptionInvalid, match="it has 4999998 characters, more than the 16384 that maxFilterExp"):
        table.filters.of_request("g", "t", "TAG", "||".join(["tag"] * 1_000_000))


def test_without_the_switch_nothing_is_compiled_kept_or_loaded(table: Table) -> None:
    """Issue 13, 4: a heartbeat brings an expression that would be refused; the file stays as it is."""
    table.said("billing", "orders", BIG)
    table.filters.save()
    saved = table.path.read_text()

    off = table.opened(enable_property_filter=False)
    table.said("billing", "orders", "amount >", version=2, filters=off)
    table.said("others", "orders", SMALL, filters=off)
    off.save()

    assert {} == off.body().filter_data_by_topic
    assert saved == table.path.read_text()
    with pytest.raises(SystemFailure, match="enablePropertyFilter=true"):
        off.of_heartbeat("others", "orders", 1)


def test_filters_that_do_not_fit_are_refused_once_the_dead_are_gone(tmp_path: Path) -> None:
    """Issue 13, 4: maxFilterBytes; the one that is dead for longest goes first."""
    table = Table(tmp_path, max_filter_bytes=1 << 20)
    expressions = [f"amount = {number} OR region = '{'x' * 1_000}'" for number in range(7)]
    for number in range(4):
        table.said(f"g{number}", "orders", expressions[number])
    for number in (2, 0):
        table.clock.advance(1)
        table.left(f"g{number}")

    table.said("g4", "orders", expressions[4])
    assert {"g0", "g1", "g3", "g4"} == set(table.filters.body().filter_data_by_topic["orders"].group_filter_data)
    table.said("g5", "orders", expressions[5])
    table.said("g6", "orders", expressions[6])

    assert {"g1", "g3", "g4", "g5"} == set(table.filters.body().filter_data_by_topic["orders"].group_filter_data)
    with pytest.raises(FilterMissing, match=r"would need \d+ bytes with it, more than maxFilterBytes \(1048576\)"):
        table.filters.of_heartbeat("g6", "orders", 1)
    table.left("g1")
    table.said("g6", "orders", expressions[6])
    assert accepts(table.filters.of_heartbeat("g6", "orders", 1), "6")


def test_of_saved_filters_those_that_died_last_are_kept(tmp_path: Path) -> None:
    """Issue 13, 4: where ``maxFilterBytes`` is smaller than before; the order in the file does not matter."""
    table = Table(tmp_path)
    expressions = [f"amount = {number} OR region = '{'x' * 1_000}'" for number in range(7)]
    for number, expression in enumerate(expressions):
        table.said(f"g{number}", "orders", expression)
    for number in (6, 0, 5, 1, 4, 2, 3):
        table.clock.advance(1)
        table.left(f"g{number}")
    table.filters.save()

    kept = table.opened(max_filter_bytes=1 << 20).body().filter_data_by_topic["orders"].group_filter_data

    assert {"g1", "g2", "g3", "g4"} == set(kept)


def test_expressions_of_requests_are_kept_up_to_so_many_bytes(tmp_path: Path) -> None:
    """Issue 13, 4: those that were used last; by tags as well."""
    table = Table(tmp_path, max_filter_bytes=1 << 20)
    expressions = [f"amount = {number} OR region = '{'x' * 1_000}'" for number in range(20)]

    def of(kind: str, number: int) -> Wanted:
        return table.filters.of_request("g", "t", kind, expressions[number])

    for kind in ("SQL92", "TAG"):
        first = of(kind, 0)
        for number in range(1, 20):
            newest = of(kind, number)
            assert first is of(kind, 0)
        assert newest is of(kind, 19)
        second = of(kind, 1)
        for number in range(2, 20):
            of(kind, number)
        assert second is not of(kind, 1)


def test_expressions_that_are_refused_again_leave_their_turn_to_others(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 4: they come with each heartbeat; the groups behind them never got a filter."""
    wrong = [f"a = {'x' * 12_000}{number} !" for number in range(4)]
    subscriptions = [
        SubscriptionData(topic=f"t{number}", sub_string=text, sub_version=1, expression_type="SQL92")
        for number, text in enumerate([*wrong, BIG])
    ]
    groups = {f"g{one.topic}": [one] for one in subscriptions}
    for group, wanted in groups.items():
        consumer = ConsumerData(group_name=group, subscription_data_set=wanted)
        table.clients.add_consumer(consumer, Line("10.0.0.1:1"), "me", language="PYTHON", version=1)

    for _ in range(3):
        table.filters.register(groups)

    assert accepts(table.filters.of_heartbeat("gt4", "t4", 1), "6")
    assert 4 == caplog.text.count(" is refused: ")


def test_one_heartbeat_compiles_so_much_and_the_next_the_rest(table: Table) -> None:
    """Issue 13, 4: of all its groups together; those that are known already take nothing."""
    length = 8_000
    expressions = [f"amount = 1{number:02} OR region = '{'x' * (length - 27)}'" for number in range(20)]
    groups = {
        f"g{number}": [SubscriptionData(topic="t", sub_string=expression, expression_type="SQL92")]
        for number, expression in enumerate(expressions)
    }

    def known() -> int:
        return len(table.filters.body().filter_data_by_topic["t"].group_filter_data)

    table.filters.register(groups)
    first = known()
    table.filters.register(groups)
    second = known()
    table.filters.register(groups)

    at_once = -(-HEARTBEAT_LENGTH_MAX // length)
    assert (5, 10, 15) == (at_once, 2 * at_once, 3 * at_once) == (first, second, known())


def test_a_filter_longer_than_a_heartbeat_may_bring_is_registered_all_the_same(tmp_path: Path) -> None:
    """Issue 13, 4: where the setting allows it."""
    table = Table(tmp_path, max_filter_expression_length=2 * HEARTBEAT_LENGTH_MAX)
    table.said("g", "t", "amount > 5" + " " * (HEARTBEAT_LENGTH_MAX + 1))
    assert accepts(table.filters.of_heartbeat("g", "t", 1), "6")


def test_a_topic_whose_filters_have_many_terms_gets_no_maps(tmp_path: Path) -> None:
    """Issue 13, 4: each message would be tried on all of them; without a map, pulls ask the expression."""
    table = Table(tmp_path, max_filter_terms_per_bit_map=6)
    for group in ("a", "b", "c"):
        table.said(group, "orders", BIG)
    assert table.filters.bits(fact("orders", "amount\x017\x02"))
    assert b"" == table.filters.bits(fact("orders", f"amount\x017\x02x\x01{'x' * PROPERTIES_LENGTH_MAX}\x02"))

    table.said("d", "orders", BIG)
    assert b"" == table.filters.bits(fact("orders", "amount\x017\x02"))
    assert may_pass(table.filters.of_heartbeat("a", "orders", 1), table.clock.now_ms() + 1, b"")

    table.said("d", "others", BIG)
    table.clock.advance(DAY_S)
    table.filters.save()
    assert table.filters.bits(fact("orders", "amount\x017\x02"))


def test_saved_filters_that_are_too_large_are_left_out(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, 4: a file that was written with wider limits, or by RocketMQ, does not stop the start."""
    wide = table.opened(max_filter_expression_length=100_000, max_filter_expression_terms=10_000)
    for number, expression in enumerate(TOO_LARGE.values()):
        table.said(f"g{number}", "orders", expression, filters=wide)
    table.said("billing", "orders", BIG, filters=wide)
    wide.save()

    again = table.opened()

    assert ["billing"] == list(again.body().filter_data_by_topic["orders"].group_filter_data)
    assert "the saved SQL filter of group g0 on topic orders is not loaded" in caplog.text


def test_a_timer_runs_as_long_as_the_setting_says(tmp_path: Path) -> None:
    """Issue 13, 4: maxFilterTimePerPull, by the broker's own clock."""
    table = Table(tmp_path, max_filter_time_per_pull=50)
    is_over = table.filters.timer()
    table.clock.advance(0.049)
    assert not is_over()
    table.clock.advance(0.002)
    assert is_over()
