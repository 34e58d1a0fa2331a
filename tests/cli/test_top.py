"""``tern top``: the screen as a function, and the real one in a terminal (T1)."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable

from ternmq.admin.loads import BrokerLoad, GroupLoad, TopicLoad, broker_load
from ternmq.cli.busiest import Busiest
from ternmq.cli.top_screen import Snapshot, SortOrder, draw, group_rows, topic_rows
from tests.cli.conftest import Serving
from tests.cli.terminal import terminal

Tern = Callable[..., subprocess.CompletedProcess[str]]


def snapshot(topics: int = 3, brokers: int = 2) -> Snapshot:
    return Snapshot(
        "12:00:00",
        [
            BrokerLoad("c", f"broker-{number}", 0, "h:1", in_s=1.5, out_s=2.0, memory_bytes=64 << 20, disk_ratio=0.5)
            for number in range(brokers)
        ],
        [
            TopicLoad(f"topic-{number}", ("a",), 4, in_s=float(number), messages=100 - number)
            for number in range(topics)
        ],
        [GroupLoad("fast", 2, out_s=9.0, lag=1), GroupLoad("slow", 1, out_s=0.5, lag=700)],
    )


def test_the_order_is_by_rate_by_size_or_by_name() -> None:
    """T1: ``s`` goes through them."""
    orders = {
        order: (
            [row["topic"] for row in topic_rows(snapshot(), order)],
            [row["group"] for row in group_rows(snapshot(), order)],
        )
        for order in SortOrder
    }

    assert (["topic-2", "topic-1", "topic-0"], ["fast", "slow"]) == orders[SortOrder.RATE]
    assert (["topic-0", "topic-1", "topic-2"], ["slow", "fast"]) == orders[SortOrder.SIZE]
    assert (["topic-0", "topic-1", "topic-2"], ["fast", "slow"]) == orders[SortOrder.NAME]
    assert [SortOrder.SIZE, SortOrder.NAME, SortOrder.RATE] == [order.next() for order in SortOrder]


def test_a_screen_is_never_larger_than_the_terminal() -> None:
    """T1: hundreds of topics and brokers, small terminals."""
    for width, height in ((140, 40), (80, 24), (40, 10)):
        lines = draw(snapshot(topics=300, brokers=20), order=SortOrder.RATE, width=width, height=height)
        bare = [line.removeprefix("\x1b[1m").removeprefix("\x1b[7m").removesuffix("\x1b[0m") for line in lines]

        assert len(lines) <= height
        assert max(map(len, bare)) <= width


def test_groups_have_their_part_of_a_full_screen() -> None:
    """T1"""
    text = "\n".join(draw(snapshot(topics=300), order=SortOrder.RATE, width=140, height=40))

    assert "slow" in text
    assert "topic-299" in text


def test_the_load_of_a_broker_of_rocketmq_has_gaps() -> None:
    """T1: it tells neither its memory nor its clock, and writes GiB."""
    table = {
        "putTps": "12.5 10.0 9.0",
        "getTransferedTps": "3.0 2.0 1.0",
        "commitLogDiskRatio": "0.25",
        "commitLogDirCapacity": "Total : 50.0 GiB, Free : 40.0 GiB.",
        "brokerVersionDesc": "V4_9_4",
    }

    load = broker_load(table, cluster="c", broker="b", broker_id=0, address="h:1")

    assert (12.5, 3.0, 0.25, "V4_9_4") == (load.in_s, load.out_s, load.disk_ratio, load.version)
    assert (None, None, None, None) == (load.memory_bytes, load.time_ms, load.disk_free_bytes, load.connections)


def busiest(count_max: int) -> Busiest[TopicLoad]:
    return Busiest(count_max, lambda one: one.topic, lambda one: (one.in_s, one.messages))


def test_all_are_asked_for_if_they_are_few() -> None:
    """T1"""
    assert ["a", "b"] == busiest(10).choose(["a", "b"])


def test_the_busiest_are_asked_for_in_each_round_and_the_others_in_turn() -> None:
    """T1: whatever their names; and one that is gone is forgotten."""
    names = [f"topic-{number:03}" for number in range(100)]
    rates = dict.fromkeys(names, 0.0) | {"topic-097": 9.0, "topic-098": 8.0}
    rounds = busiest(10)

    def look(present: list[str]) -> list[str]:
        asked = rounds.choose(present)
        rounds.learn(TopicLoad(name, ("a",), 4, in_s=rates[name], messages=1) for name in asked)
        return asked

    seen: set[str] = set()
    for _ in range(20):
        asked = look(names)
        assert len(asked) == len(set(asked)) <= 10
        seen |= set(asked)
    assert set(names) == seen
    assert ["topic-097", "topic-098"] == look(names)[:2]

    rates["topic-005"] = 99.0  # found when its turn comes
    for _ in range(20):
        look(names)
    assert "topic-005" == look(names)[0]
    assert "topic-005" not in look([name for name in names if name != "topic-005"])
    assert 99 == len(rounds.known)


def test_the_head_says_how_many_were_seen() -> None:
    """T1"""
    part = Snapshot("12:00:00", [], snapshot().topics, [], topic_count=700, group_count=0)
    assert "3 of 700 topics, 0 groups" in draw(part, order=SortOrder.RATE, width=140, height=40)[0]


def test_csv_is_one_table(on_cluster: Tern) -> None:
    """T1: a program reads it with one heading."""
    on_cluster("topic", "create", "topped-csv", "--queues", "1")
    rows = list(csv.DictReader(on_cluster("top", "--output", "csv").stdout.splitlines()))

    assert ["broker-a", "broker-b"] == [row["name"] for row in rows if row["kind"] == "broker"]
    assert ["0"] == [row["messages"] for row in rows if row["name"] == "topped-csv"]
    assert {"broker", "topic", "group"} >= {row["kind"] for row in rows}


def test_a_pipe_gets_the_tables_once(on_cluster: Tern) -> None:
    """T1: and JSON has all fields."""
    on_cluster("topic", "create", "topped", "--queues", "1")
    on_cluster("send", "topped", "x")

    text = on_cluster("top").stdout
    fields = json.loads(on_cluster("top", "--json").stdout)

    assert "broker\tid\tin_s\tout_s\tmemory\tdisk\tconnections\tstate" in text.splitlines()
    assert ["broker-a", "broker-b"] == [one["broker"] for one in fields["brokers"]]
    assert all(one["memory_bytes"] > 0 and one["time_ms"] > 0 for one in fields["brokers"])
    assert 1 == next(one["messages"] for one in fields["topics"] if one["topic"] == "topped")


def test_keys_sort_pause_and_quit(cluster: Serving) -> None:
    """T1: in a terminal, which is as before afterwards."""
    with terminal("top", "--every", "0.2", name_server=cluster.name_server) as screen:
        screen.until("sorted by rate", times=2)
        screen.type("s")
        screen.until("sorted by size")
        screen.type("p")
        screen.until("PAUSED")
        screen.type("q")
        code = screen.end()

    assert (0, True, True) == (code, "broker-b" in screen.text, screen.raw.rstrip().endswith("\x1b[?1049l"))
