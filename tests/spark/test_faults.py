"""Jobs under which brokers die, come back and join, as real processes (U1)."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import Row, SparkSession

from ternmq import Message, MessageQueue, SyncProducer
from ternmq.spark.runtime.cluster import cluster_at
from ternmq.wire.codes import RequestCode
from tests.cli.conftest import Serving, Start, starter
from tests.spark.source.test_stream import Collected
from tests.spark.topics import Topics, numbered

PER_QUEUE = 900
#: Some MB fill all pipes between a source and what follows it; a queue has more.
BODY_BYTES = 32_768


class Brokers:
    """A name server, and brokers that start again on the same directory and another port."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        self._directory = directory
        self.name_servers = start("namesrv", "--set", "listenPort=0").name_server

    def start(self, name: str) -> Serving:
        settings = {
            "namesrvAddr": self.name_servers,
            "storePathRootDir": self._directory / name,
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
        }
        return self._start("broker", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with starter(tmp_path) as start:
        yield Brokers(start, tmp_path)


def held_at(port: int) -> Callable[[Iterable[Row]], Iterable[tuple[int, int]]]:
    """Runs on executors: each task waits for the test before it gives its first row."""

    def places(rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
        is_held = True
        for row in rows:
            if is_held:
                with socket.create_connection(("127.0.0.1", port)) as gate:
                    gate.recv(1)
                is_held = False
            yield row["queue_id"], row["queue_offset"]

    return places


def test_a_broker_that_is_killed_under_a_batch_read_costs_time_only(brokers: Brokers, spark: SparkSession) -> None:
    """U1: kill -9 while two tasks are in the middle of their slices, and another start: no loss, no doubles."""
    broker = brokers.start("broker-a")
    topics = Topics(spark, brokers.name_servers)
    topics.create("killed", queues=2)
    with SyncProducer("tests", name_servers=brokers.name_servers) as producer:
        for number in range(0, 2 * PER_QUEUE, 50):
            queue = MessageQueue("killed", "broker-a", number // 50 % 2)
            producer.send_batch([Message("killed", bytes(BODY_BYTES)) for _ in range(50)], queue=queue)
    frame = topics.reader(topic="killed").schema("queue_id INT, queue_offset BIGINT, body BINARY").load()
    found: list[tuple[int, int]] = []

    with socket.create_server(("127.0.0.1", 0)) as gate:
        held = frame.rdd.mapPartitions(held_at(gate.getsockname()[1]))
        job = Thread(target=lambda: found.extend(held.collect()))
        job.start()
        tasks = [gate.accept()[0] for _ in range(2)]
        broker.end(signal.SIGKILL)
        for task in tasks:
            task.close()
        again = brokers.start("broker-a")
        job.join()

    expected = [(queue_id, offset) for queue_id in range(2) for offset in range(PER_QUEUE)]
    assert expected == sorted(found)
    assert 0 < served(brokers.name_servers, again) < 2 * PER_QUEUE


def served(name_servers: str, broker: Serving) -> int:
    """How many messages a broker has given out since it started."""
    instance = cluster_at(name_servers).instance
    address = broker.ready["address"].replace("0.0.0.0", "127.0.0.1")
    asked = instance.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=10_000)
    answer = cluster_at(name_servers).run(asked)
    return int(json.loads(bytes(answer.body))["table"]["msgGetTotalTodayNow"])


def test_brokers_join_die_and_return_under_a_stream(brokers: Brokers, spark: SparkSession, tmp_path: Path) -> None:
    """U1: what a new broker has is read from its first message on; while one is away, the others are read."""
    brokers.start("broker-a")
    topics = Topics(spark, brokers.name_servers)
    topics.create("moving", queues=1)
    at_a, at_b = (MessageQueue("moving", name, 0) for name in ("broker-a", "broker-b"))
    stream = topics.stream(topic="moving", startingOffsets="earliest", discoverIntervalMs=1).load()
    collected = Collected()
    query = collected.start(stream, tmp_path / "checkpoint", available_now=False)
    try:
        topics.send("moving", numbered(5), queue=at_a)
        query.processAllAvailable()
        joined = brokers.start("broker-b")
        topics.create("moving", queues=1)
        topics.send("moving", numbered(5, start=5), queue=at_b)
        query.processAllAvailable()
        assert numbered(10) == collected.bodies

        joined.end(signal.SIGKILL)
        topics.send("moving", numbered(5, start=10), queue=at_a)
        query.processAllAvailable()
        assert numbered(15) == collected.bodies

        brokers.start("broker-b")
        topics.send("moving", numbered(5, start=15), queue=at_b)
        query.processAllAvailable()
    finally:
        query.stop()

    assert numbered(20) == collected.bodies
