"""kill -9 of tasks, commits, drivers and brokers: each row is in the topic once (U2)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.embedded import EmbeddedCluster
from tests.cli.conftest import Start, start
from tests.interop.rocketmq import free_port
from tests.spark import sink_crashes
from tests.spark.sink.test_sink_logs import Sink, rows
from tests.spark.sink_crashes import SOURCE, TARGET, Crashes
from tests.spark.topics import Topics, bodies_of, numbered

__all__ = ["start"]

ROOT = Path(__file__).parents[3]


def test_tasks_and_commits_that_die_at_each_step_write_each_row_once(topics: Topics, tmp_path: Path) -> None:
    """The process that stages or commits is killed, Spark gives up, and the query starts again from its checkpoint."""
    topics.create(SOURCE, queues=3)
    topics.create(TARGET, queues=3)
    crashes = Crashes(tmp_path)
    for number, place in enumerate(sink_crashes.STEPS):
        topics.send(SOURCE, numbered(100, start=number * 100))
        # The second micro-batch, and where there are many, in the middle.
        crashes.plan(place, passes=2 if place in ("chunk", "task") else 1)
        with pytest.raises(StreamingQueryException):
            sink_crashes.start(topics.spark, topics.name_servers, tmp_path).awaitTermination()
    sink_crashes.start(topics.spark, topics.name_servers, tmp_path).awaitTermination()
    assert numbered(100 * len(sink_crashes.STEPS)) == bodies_of(topics.read(TARGET).collect())


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_with_a_part_of_its_rows_published_goes_on(tmp_path: Path) -> None:
    """The JVM and the committing process, in the middle of publishing; another driver finishes."""
    with EmbeddedCluster() as cluster:
        with SyncAdmin(cluster.name_servers) as admin:
            admin.topics.create(SOURCE, queues=3)
            admin.topics.create(TARGET, queues=3)
        with SyncProducer("tests", name_servers=cluster.name_servers) as producer:
            for body in numbered(100):
                producer.send(Message(SOURCE, body))
        Crashes(tmp_path).plan("chunk", passes=1)
        assert 0 != _run(cluster.name_servers, tmp_path)
        sink = Sink(cluster.name_servers)
        assert 0 < len(sink.bodies(TARGET)) < 100
        assert 0 == _run(cluster.name_servers, tmp_path), (tmp_path / "driver.log").read_text()[-3_000:]
        assert numbered(100) == sink.bodies(TARGET)


def _run(name_servers: str, directory: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with (directory / "driver.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.spark.sink_crashes", name_servers, str(directory)]
        return subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=280, check=False).returncode


def test_a_broker_that_is_killed_under_running_writes_gets_each_row_once(start: Start, tmp_path: Path) -> None:
    """Executors and committers try again; what was stored before a lost answer is found."""
    chance = random.Random(7)
    name_server = start("namesrv", "--set", "listenPort=0").name_server
    settings = {
        "storePathRootDir": tmp_path / "store",
        "listenPort": free_port(neighbours=(-2, 1)),
        "namesrvAddr": name_server,
        "brokerIP1": "127.0.0.1",
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 4 << 20,
        "maxHashSlotNum": 100,
        "maxIndexNum": 1000,
    }
    arguments = ["broker", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]
    running = start(*arguments)
    sink = Sink(name_server)
    with SyncAdmin(name_server) as admin:
        admin.topics.create("killed", queues=4)
    for batch in range(4):
        death = threading.Timer(chance.uniform(0.0, 0.15), running.end, [signal.SIGKILL])
        death.start()
        committing = threading.Thread(target=sink.write, args=("killed", batch, rows(800)))
        committing.start()
        death.join()
        running = start(*arguments)
        committing.join()
    assert sorted(numbered(800) * 4) == sink.bodies("killed")
