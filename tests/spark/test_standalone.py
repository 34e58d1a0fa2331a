"""The source on a Spark cluster: a master and two workers as processes of this machine (U1, U5)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from ternmq.embedded import EmbeddedCluster
from tests.interop.rocketmq import free_port
from tests.spark.conftest import SMALL_JVM

PROGRAM = """
import sys
from ternmq import Message, SyncProducer
from ternmq.spark.session import session

name_servers, master = sys.argv[1:]
with SyncProducer("tests", name_servers=name_servers) as producer:
    for number in range(200):
        producer.send(Message("far", b"%d" % number))
spark = session(master=master, settings={
    "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JVM, "spark.executor.extraJavaOptions": JVM, "spark.ui.enabled": "false",
})
frame = spark.read.format("ternmq").option("nameServers", name_servers).option("sliceMessages", 5).load("far")
print(frame.selectExpr("CAST(body AS STRING)").distinct().count(), frame.count())
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(executors)
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master that two workers of one core each belong to."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM, "SPARK_DAEMON_MEMORY": "256m"}
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in range(2):
        where = str(tmp_path / f"worker-{number}")
        flags = ["--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", where]
        commands.append([f"{deploy}.worker.Worker", *flags, url])
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "spark.log").open("wb"))
        for command in commands:
            process = subprocess.Popen([str(spark_class), *command], stdout=log, stderr=log, env=environment)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 100
        while (tmp_path / "spark.log").read_text().count("Successfully registered with master") < 2:
            assert time.monotonic() < deadline, (tmp_path / "spark.log").read_text()[-2_000:]
            time.sleep(0.1)
        yield url


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_executors_of_a_cluster_read_slices_side_by_side(master: str) -> None:
    """U1, U5: by one setting, the master."""
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", f"JVM = {SMALL_JVM!r}\n{PROGRAM}", cluster.name_servers, master],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert ["200 200", "2"] == done.stdout.splitlines(), done.stderr[-2_000:]
