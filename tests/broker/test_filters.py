"""The table of SQL filters: registration, death, maps, its file; and the tests that subscriptions become (K1–K4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.clients import Clients
from ternmq.broker.config import BrokerConfig
from ternmq.broker.filters import ALL, DEAD_AT_LOAD_MS, Filters, Wanted
from ternmq.errors import (
    CorruptFile,
    FilterMissing,
    FilterOutdated,
    SubscriptionInvalid,
    SubscriptionMissing,
    SubscriptionOutdated,
)
from ternmq.files import TableFile
from ternmq.filter.bloom import BloomFilter
from ternmq.store.dispatch import Fact
from ternmq.store.queue_ext import Unit
from ternmq.wire.bodies.clients import ConsumerData, SubscriptionData
from ternmq.wire.ids import java_hash
from tests.broker.test_clients import Line
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
        self.clients.add_consumer(
            ConsumerData(group_name=group, subscription_data_set=[data]),
            self._connection,
            "me",
            language="PYTHON",
            version=1,
        )
        (filters or self.filters).register(group, [data])

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
    table.filters.register("billing", [SubscriptionData(topic="orders", sub_string=SMALL, expression_type="SQL92")])
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
    table.said("billing", "orders", BIG, version=4, filters=later)
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
    """K3: dead groups, too, which may come back; nobody's topic has no map."""
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
