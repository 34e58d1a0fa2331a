"""The pipeline *reconcile*: sent against stored against consumed (U4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ternmq import Message, MessageQueue, PushConfig, StartPosition, SyncAdmin, SyncProducer, SyncPushConsumer
from ternmq.errors import ConfigError, NotFound
from ternmq.spark.pipelines.reconcile import Reconciled, compare, judge, reconcile
from ternmq.spark.pipelines.reconcile_sides import Sides
from ternmq.spark.runtime.jobs import JobFailed
from tests.spark.topics import Topics
from tests.spark.traces import call, pub, send_traces

NOON = "2026-11-16T12:00:00Z"


def ids_of(result: Reconciled) -> dict[str, list[str]]:
    """The ids of each problem."""
    found: dict[str, list[str]] = {}
    for one in result.differences:
        found.setdefault(f"{one.problem} {one.side}", []).append(one.id)
    return found


def send(names: str, topic: str, keys: list[str]) -> None:
    with SyncProducer("tests", name_servers=names) as producer:
        for key in keys:
            producer.send(Message(topic, b"body", keys=key))


def test_each_side_is_held_against_the_one_before(spark: SparkSession) -> None:
    """U4: known answers for every kind of problem, without a broker."""

    def side(*rows: tuple[str, int | None]) -> DataFrame:
        frame = spark.createDataFrame(list(rows), "id STRING, second INT")
        return frame.selectExpr("id", f"timestamp_seconds(unix_seconds(TIMESTAMP '{NOON}') + second) AS time")

    sent = side(("ok", 0), ("lost", 0), ("young", 95), ("twice", 0), ("slow", 0), ("gone", 0), ("timeless", None))
    rows = [
        ("ok", 1),
        ("twice", 1),
        ("twice", 2),
        ("slow", 50),
        ("stray", 1),
        ("unread", 1),
        ("fresh", 95),
        ("late", 1),
    ]
    place = ("'broker-a' AS broker", "0 AS queue_id", "CAST(0 AS BIGINT) AS queue_offset")
    stored = side(*rows).selectExpr("*", *place)
    consumed = side(
        ("ok", 2), ("ok", 3), ("twice", 2), ("twice", 3), ("slow", 51), ("stray", 2), ("gone", 3), ("late", 40)
    )

    messages = judge(
        compare(stored, sent=sent, consumed=consumed),
        has_sent=True,
        has_consumed=True,
        late_ms=10_000,
        judged_until_ms=1_794_830_400_000 + 90_000,
    )

    found = {
        row["id"]: sorted((one["problem"], one["side"], one["count"]) for one in row["found"])
        for row in messages.collect()
    }
    unexpected = ("unexpected", "stored", 1)
    assert {
        "ok": [("double", "consumed", 1)],
        "lost": [("missing", "stored", 1)],
        "young": [("waiting", "stored", 1)],
        "timeless": [("missing", "stored", 1)],
        "twice": [("double", "stored", 1)],
        "slow": [("late", "stored", 1)],
        "gone": [("gone", "stored", 1)],
        "stray": [unexpected],
        "unread": [("missing", "consumed", 1), unexpected],
        "fresh": [unexpected, ("waiting", "consumed", 1)],
        "late": [("late", "consumed", 1), unexpected],
    } == found


def test_a_file_against_a_topic_against_offsets(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    """U4: keys of a CSV file, one of them lost, one sent twice; a group that has not read everything."""
    names = topics.name_servers
    topics.create("rec-orders", queues=1)
    queue = MessageQueue("rec-orders", "broker-a", 0)
    with SyncProducer("tests", name_servers=names) as producer:
        for key in ["k0", "k1", "k1", "k2", "k4", "", "k5"]:
            producer.send(Message("rec-orders", b"body", keys=key), queue=queue)
    got = 0
    config = PushConfig(start=StartPosition.FIRST)
    with SyncPushConsumer("rec-billing", name_servers=names, config=config) as consumer:
        consumer.subscribe("rec-orders")
        for _ in consumer:
            got += 1
            if got == 7:
                break
    with SyncAdmin(names) as admin:
        admin.offsets.reset("rec-billing", "rec-orders", StartPosition.FIRST)
    (tmp_path / "sent.csv").write_text("number,order\n" + "".join(f"{n},k{n}\n" for n in range(6)))
    sides = Sides(spark, "rec-orders", name_servers=names, by="keys")
    sent = sides.sent(str(tmp_path / "sent.csv"), by="order")
    consumed = sides.consumed("group:rec-billing")

    result = reconcile(
        spark, "rec-orders", sides.stored(), sent=sent, consumed=consumed, late_ms=0, out=str(tmp_path / "differences")
    )

    assert (6, 6, 0, 1) == (result.sent, result.stored, result.consumed, result.nameless)
    assert {
        "missing stored": ["k3"],
        "double stored": ["k1"],
        "missing consumed": ["k0", "k1", "k2", "k4", "k5"],
    } == ids_of(result)
    assert {"missing stored": 1, "double stored": 1, "missing consumed": 6} == result.problems
    assert 7 == result.missing
    assert "broker-a:0:1" == next(one.place for one in result.differences if one.problem == "double")
    written = spark.read.parquet(str(tmp_path / "differences"))
    assert 7 == written.count()
    with pytest.raises(JobFailed, match="already exists"):
        reconcile(spark, "rec-orders", sides.stored(), sent=sent, out=str(tmp_path / "differences"))


def test_traces_and_acknowledgements_are_sides(topics: Topics, spark: SparkSession) -> None:
    """U4: message ids of traces; a topic of acknowledgements with the id in its JSON body; a span of time."""
    names = topics.name_servers
    send(names, "rec-traced", ["a", "b", "c"])
    stored = {str(row["keys"]): row for row in topics.read("rec-traced").collect()}
    ids = {key: str(row["message_id"]) for key, row in stored.items()}
    traces = [pub(ids[key], "rec-traced") + call(ids[key], group="rec-audit") for key in ("a", "b")]
    traces += [call(ids["a"], at=50, group="rec-audit"), pub("NOWHERE", "rec-traced"), pub("X", "rec-other")]
    send_traces(names, "rec-traces", traces)
    with SyncProducer("tests", name_servers=names) as producer:
        for key in ("a", "c"):
            producer.send(Message("rec-acks", json.dumps({"order": key}).encode()))
    sides = Sides(spark, "rec-traced", name_servers=names, trace_topic="rec-traces")
    # The traces are of another day than the messages.
    late_ms = 10**12

    by_trace = reconcile(
        spark,
        "rec-traced",
        sides.stored(),
        sent=sides.sent("trace"),
        consumed=sides.consumed("trace:rec-audit"),
        late_ms=late_ms,
        now_ms=10**13,
    )
    assert {
        "missing stored": ["NOWHERE"],
        "unexpected stored": [ids["c"]],
        "missing consumed": [ids["c"]],
        "double consumed": [ids["a"]],
    } == ids_of(by_trace)

    by_keys = Sides(spark, "rec-traced", name_servers=names, by="keys")
    acks = by_keys.consumed("topic:rec-acks", by="get_json_object(CAST(body AS STRING), '$.order')")
    assert {"missing consumed": ["b"]} == ids_of(
        reconcile(spark, "rec-traced", by_keys.stored(), consumed=acks, now_ms=10**13)
    )
    at_ms = round(stored["c"]["store_time"].timestamp() * 1000)
    before = Sides(spark, "rec-traced", name_servers=names, by="keys", end_ms=at_ms)
    judged = reconcile(spark, "rec-traced", before.stored(), consumed=acks, late_ms=0, end_ms=at_ms)
    assert judged.stored == sum(row["store_time"] < stored["c"]["store_time"] for row in stored.values())


def test_bad_input_is_one_clear_sentence(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    """U4: sides and columns that are not there, in one sentence each; nothing is written."""
    names = topics.name_servers
    topics.create("rec-bad")
    sides = Sides(spark, "rec-bad", name_servers=names)
    (tmp_path / "colours.jsonl").write_text('{"colour": "red", "many": [1]}\n')
    colours = str(tmp_path / "colours.jsonl")
    cases: dict[str, Callable[[], object]] = {
        "has none of the columns id, message_id, key, keys; choose the column that identifies": lambda: sides.sent(
            colours
        ),
        "invalid expression 'shade' for .*colours.jsonl, which has the columns colour, many": lambda: sides.sent(
            colours, by="shade"
        ),
        "'many' of .* has the type array<bigint>": lambda: sides.sent(colours, by="colour", time="many"),
        "cannot read .*does not exist": lambda: sides.sent(str(tmp_path / "nothing.csv")),
        "unknown file type of 'orders.xlsx': expected one of .parquet": lambda: sides.sent("orders.xlsx"),
        "invalid source 'group:g' of the sent messages": lambda: sides.sent("group:g"),
        "expected trace:GROUP": lambda: sides.consumed("trace"),
        "traces contain only message_id and keys": lambda: Sides(
            spark, "rec-bad", name_servers=names, by="tags", trace_topic="rec-bad"
        ).sent("trace"),
        "invalid expression 'colour' for messages of rec-bad": lambda: Sides(
            spark, "rec-bad", name_servers=names, by="colour"
        ).stored(),
        "nothing to compare with": lambda: reconcile(spark, "rec-bad", sides.stored()),
    }
    for match, wrong in cases.items():
        with pytest.raises(ConfigError, match=match):
            wrong()
    with pytest.raises(NotFound, match="group 'rec-nobody' has committed no offsets of 'rec-bad'"):
        sides.consumed("group:rec-nobody")
    missing = Sides(spark, "rec-nowhere", name_servers=names)
    out = tmp_path / "out"
    with pytest.raises(JobFailed, match="there is no topic 'rec-nowhere'"):
        reconcile(
            spark, "rec-nowhere", missing.stored(), sent=sides.sent(colours, by="colour"), late_ms=0, out=str(out)
        )
    assert not list(out.glob("*.parquet"))
