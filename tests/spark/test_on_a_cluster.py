"""On a Spark cluster, a master and two workers as processes of this machine: sources, sink, pipelines (U1 to U5)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ternmq import Message, SyncProducer
from ternmq.embedded import EmbeddedCluster
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.interop.rocketmq import free_port
from tests.spark.cluster_program import SETTINGS
from tests.spark.small import SMALL_JVM

# The first test waits for the program to end.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(650)]

Part = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that two workers of one core each belong to."""
    directory = tmp_path_factory.mktemp("master")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM, "SPARK_DAEMON_MEMORY": "256m"}
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in range(2):
        where = str(directory / f"worker-{number}")
        flags = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", where]
        commands.append([f"{deploy}.worker.Worker", *flags, url])
    log = directory / "spark.log"
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        for command in commands:
            process = subprocess.Popen([str(spark_class), *command], stdout=output, stderr=output, env=environment)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 100
        while log.read_text().count("Successfully registered with master") < 2:
            assert time.monotonic() < deadline, log.read_text()[-2_000:]
            time.sleep(0.1)
        yield url


@pytest.fixture(scope="module")
def part(master: str, tmp_path_factory: pytest.TempPathFactory) -> Part:
    """What each part of the program tells; it runs once for all."""
    directory = tmp_path_factory.mktemp("program")
    program = [sys.executable, "-m", "tests.spark.cluster_program"]
    stdout, stderr = directory / "stdout", directory / "stderr"
    with (
        EmbeddedCluster() as cluster,
        stdout.open("wb") as output,
        stderr.open("wb") as errors,
        # Parts that were done in time are judged all the same.
        contextlib.suppress(subprocess.TimeoutExpired),
    ):
        arguments = [cluster.name_servers, master, str(directory)]
        subprocess.run([*program, *arguments], stdout=output, stderr=errors, timeout=500, check=False)
    lines: list[dict[str, Any]] = [json.loads(line) for line in stdout.read_text().splitlines()]
    told = {facts.pop("part"): facts for facts in lines}

    def of(name: str) -> dict[str, Any]:
        assert name in told, stderr.read_text()[-4_000:]
        return told[name]

    return of


@pytest.mark.nightly
def test_executors_read_slices_side_by_side(part: Part) -> None:
    """U1, U5: by one setting, the master."""
    assert {"is_whole": True, "executors": 2} == part("batch")


@pytest.mark.nightly
def test_a_stream_goes_on_when_an_executor_is_killed_in_the_middle_of_a_slice(part: Part) -> None:
    """U1: nothing is missing, nothing twice."""
    assert {"is_whole": True, "batches": [0, 1], "was_killed": True} == part("stream")


@pytest.mark.nightly
def test_the_driver_commits_what_executors_have_staged(part: Part) -> None:
    """U2."""
    assert {"is_whole": True} == part("sink")


@pytest.mark.nightly
def test_executors_read_a_store(part: Part) -> None:
    """U3."""
    assert {"records": 110, "places": 110, "is_sliced": True} == part("files")


@pytest.mark.nightly
def test_messages_go_into_a_lake_and_back(part: Part) -> None:
    """U4: *archive*, with files merged, and *replay*."""
    assert {"archived": 40, "is_merged": True, "replayed": 40, "is_whole": True} == part("lake")


@pytest.mark.nightly
def test_a_lost_message_is_found_in_traces(part: Part) -> None:
    """U4: *trace*, with its page."""
    assert {
        "consuming": [["orders", "billing", 9, 8, 1]],
        "findings": [["lost", "M3"]],
        "has_plot": True,
    } == part("traced")


@pytest.mark.nightly
def test_dead_letters_are_counted_and_sent_again(part: Part) -> None:
    """U4: *deadletters*."""
    assert {
        "groups": [["dead", "even", 2], ["dead", "odd", 2]],
        "resent": [["%RETRY%billing", "1", True], ["%RETRY%billing", "3", True]],
    } == part("deadletters")


@pytest.mark.nightly
def test_what_is_missing_and_double_is_found(part: Part) -> None:
    """U4: *reconcile*."""
    assert {
        "problems": {"missing stored": 1, "double stored": 1},
        "differences": [["double", "stored", "0"], ["missing", "stored", "4"]],
    } == part("reconciled")


@pytest.mark.nightly
def test_topics_are_joined_into_a_third(part: Part) -> None:
    """U4: *sql*."""
    joined = sorted([f"n{number % 5}", number] for number in range(10))
    assert {"messages": [18], "joined": joined} == part("sql")


@pytest.mark.nightly
def test_a_store_is_rebuilt(part: Part) -> None:
    """U4: *rebuild*."""
    assert {"records": 110, "queues": 3, "is_same": True} == part("rebuilt")


def test_a_command_runs_on_a_cluster(master: str) -> None:
    """U4, U5: as a user types it."""
    # One executor is enough for four messages.
    settings = SETTINGS | {"spark.cores.max": "1"}
    conf = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    script = "CREATE VIEW o (id INT) FROM TOPIC orders; SELECT id FROM o WHERE id > 0"
    with EmbeddedCluster() as cluster:
        with SyncProducer("tests", name_servers=cluster.name_servers) as producer:
            for number in range(4):
                producer.send(Message("orders", b'{"id": %d}' % number))
        command = [TERN, "pipeline", "sql", "-e", script, "-n", cluster.name_servers, "--once", "--master", master]
        done = subprocess.run(
            [*command, *conf],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=ENVIRONMENT,
        )
    assert (0, ["1", "2", "3"]) == (done.returncode, sorted(done.stdout.splitlines())), done.stderr[-2_000:]
