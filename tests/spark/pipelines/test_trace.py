"""The pipeline *trace*: known answers from traces made by hand, and from Java's clients (U4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq import PullConsumer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NotFound
from ternmq.names import TRACE_TOPIC
from ternmq.spark.pipelines.trace import path, trace
from ternmq.spark.pipelines.trace_report import Percentiles, TraceReport
from tests.interop import jvm
from tests.interop.conftest import java
from tests.interop.java import Java
from tests.no_delays import NO_DELAYS
from tests.spark.topics import Topics
from tests.spark.traces import NOON_MS, call, end_transaction, pub, send_traces

__all__ = ["java"]

LATER = 200_000


def problems_of(report: TraceReport) -> dict[str, list[str]]:
    """The message ids of each problem, as ``group id``."""
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.problem, []).append(f"{finding.group} {finding.message_id}")
    return found


def test_what_is_lost_double_failed_and_slow_is_found(topics: Topics, spark: SparkSession) -> None:
    """U4: two groups of one topic; each message has a story of its own."""
    first = b"".join(pub(f"M{number:02}", at=number, tags="rare" if number == 7 else "often") for number in range(20))
    billing = [f"M{number:02}" for number in range(20) if number != 7]
    calls = b"".join(call(message_id, at=int(message_id[1:]) + 10) for message_id in billing if message_id != "M09")
    stories = [
        # M03 twice with success, M05 at the third time, M09 never.
        call("M03", at=400),
        pub("M20", at=20) + call("M20", at=30, success=False) + call("M20", at=40, success=False, retries=1),
        call("M20", at=60, retries=2),
        call("M09", at=19, success=False),
        # Five seconds to arrive; 3 s in the listener.
        pub("M21", at=21) + call("M21", at=5_021),
        pub("M22", at=22) + call("M22", at=32, cost=3_000),
        # The other group begins with M10, and gets all from there.
        b"".join(call(f"M{number}", at=number + 100, group="audit") for number in range(10, 23)),
        # Not to be judged: late, delayed, a half message without and one with a commit.
        pub("M90", at=LATER - 10),
        pub("M91", at=91, kind=3),
        pub("M92", at=92, kind=1),
        pub("M93", at=93, kind=1) + end_transaction("M93"),
        # The same trace once more: its client had no answer to the first.
        call("M20", at=60, retries=2) + pub("M20", at=20),
        # Tried, and no end yet.
        pub("M94", at=94) + call("M94", at=LATER - 5, success=False),
        # Its origin is unknown; the trace goes on.
        call("UNKNOWN", at=LATER, group="other"),
        b"Pub\x01torn\x02",
    ]
    send_traces(topics.name_servers, "trace-known", [first, calls, *stories])

    report = trace(spark, name_servers=topics.name_servers, trace_topic="trace-known", slow_ms=1_000)

    assert {
        "lost": ["audit M93", "audit M94", "billing M07", "billing M93"],
        "duplicated": ["billing M03"],
        "failed": ["billing M09"],
        "slow": ["billing M21", "billing M22", "billing M94"],
    } == problems_of(report)
    assert [("audit", 17, 13, 2, 2), ("billing", 27, 26, 2, 3)] == [
        (one.group, one.messages, one.calls, one.lost, one.waiting) for one in report.consuming
    ]
    assert (1, ("Pub\x01torn",), 1) == (report.bad, report.bad_samples, report.unknown_calls)
    (sending,) = report.sending
    assert ("orders", "shop", 28, 0, Percentiles(2, 2, 2, 2)) == (
        sending.topic,
        sending.group,
        sending.sent,
        sending.failed,
        sending.cost_ms,
    )
    assert (NOON_MS, NOON_MS + LATER + 5) == (report.begin_ms, report.end_ms)


def test_percentiles_are_those_of_topic_and_group(topics: Topics, spark: SparkSession) -> None:
    """U4: 1 to 100 ms in one group, and half of it in the other; a clock that is behind makes a time negative."""
    body = b"".join(
        pub(f"P{n}", at=n, cost=n, tags="B" if n % 2 else "A")
        + call(f"P{n}", at=2 * n, cost=3 * n)
        + (call(f"P{n}", at=n - 4, cost=1, group="half") if n % 2 else b"")
        for n in range(1, 101)
    )
    send_traces(topics.name_servers, "trace-percentiles", [body])

    report = trace(spark, name_servers=topics.name_servers, trace_topic="trace-percentiles", grace_ms=0, by_tag=True)

    assert Percentiles(50, 95, 99, 100) == report.sending[0].cost_ms
    billing, half = report.consuming
    assert (Percentiles(50, 95, 99, 100), Percentiles(150, 285, 297, 300)) == (
        billing.to_consume_ms,
        billing.consume_ms,
    )
    # Those of tag A are none of the other group's business.
    assert (50, 0, Percentiles(-4, -4, -4, -4)) == (half.messages, half.lost, half.to_consume_ms)


def test_the_path_of_a_message(topics: Topics, spark: SparkSession) -> None:
    """U4, Q2: who, when, where, how long, which result."""
    story = pub("PATH", at=0, cost=3) + call("PATH", at=7, success=False) + call("PATH", at=90, retries=1)
    send_traces(topics.name_servers, "trace-path", [story, pub("OTHER")])

    steps = path(spark, "PATH", name_servers=topics.name_servers, trace_topic="trace-path")

    assert [
        ("send", "shop", 0, 3, "sent"),
        ("consume", "billing", 7, 5, "failed (code 4)"),
        ("consume, retry 1", "billing", 90, 5, "success"),
    ] == [(step.what, step.group, step.since_send_ms, step.cost_ms, step.result) for step in steps]
    assert "orders at 127.0.0.1:10911" == steps[0].where
    with pytest.raises(NotFound, match="trace-path has no trace of message 'NOWHERE'"):
        path(spark, "NOWHERE", name_servers=topics.name_servers, trace_topic="trace-path")


def test_bad_input_is_one_clear_sentence(topics: Topics, spark: SparkSession) -> None:
    """U4."""
    with pytest.raises(NotFound, match=r"there is no trace topic 'nobody-traces' at .*; enable tracing in the Java"):
        trace(spark, name_servers=topics.name_servers, trace_topic="nobody-traces")
    topics.create("trace-empty")
    with pytest.raises(ConfigError, match="slow_ms=-1 or grace_ms=60000: expected 0 or more"):
        trace(spark, name_servers=topics.name_servers, trace_topic="trace-empty", slow_ms=-1)
    empty = trace(spark, name_servers=topics.name_servers, trace_topic="trace-empty")
    assert (0, (), ()) == (empty.records, empty.sending, empty.consuming)


async def traced(name_servers: str, *, sends: int, calls: int) -> None:
    """Wait until so much is traced: clients send it after a while, and what a client had when it stopped is lost."""
    offset, seen = 0, b""
    async with PullConsumer("audit", name_servers=name_servers) as reader:
        (queue,) = await reader.queues(TRACE_TOPIC)
        while seen.count(b"Pub\x01") < sends or seen.count(b"SubAfter\x01") < calls:
            result = await reader.pull(queue, offset)
            offset = result.next_offset
            seen += b"".join(message.body for message in result.messages)


@pytest.mark.interop
@pytest.mark.nightly
@pytest.mark.parametrize("java", jvm.VERSIONS, indirect=True)
async def test_what_java_clients_trace_is_read(java: Java, spark: SparkSession, tmp_path: Path) -> None:
    """U4, V1: single messages and a batch, each refused once and then consumed, by both versions."""
    async with EmbeddedCluster(settings={"traceTopicEnable": True, "messageDelayLevel": NO_DELAYS}) as cluster:
        names = cluster.name_servers
        async with (
            java.consumer(names, group="billing", topic="orders", trace=True, failFirst=1) as consumer,
            java.producer(names, group="shop", trace=True) as producer,
        ):
            sent = await producer.send(topic="orders", count=3, tags="A", key="k")
            await producer.send(topic="orders", count=2, mode="batch")
            await consumer.messages(10)
            # Three sends and a batch, and two calls for each message.
            await traced(names, sends=4, calls=10)
        found = await asyncio.to_thread(trace, spark, name_servers=names, grace_ms=0)
        steps = await asyncio.to_thread(path, spark, sent[0]["msgId"], name_servers=names)

    (sending,) = found.sending
    assert ("orders", "shop", 5, 0) == (sending.topic, sending.group, sending.sent, sending.failed)
    (consuming,) = found.consuming
    assert ("orders", "billing", 5, 10, 0, 0, 0) == (
        consuming.topic,
        consuming.group,
        consuming.messages,
        consuming.calls,
        consuming.lost,
        consuming.duplicated,
        consuming.failed,
    )
    assert (0, 0) == (found.bad, found.unknown_calls)
    assert ["send", "consume", "consume, retry 1"] == [step.what for step in steps]
    assert ["sent", "failed (code 4)", "success"] == [step.result for step in steps]
