"""On a Spark cluster, a master and two workers as processes of this machine: source, sink, pipelines (U1 to U5)."""

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
from tests.spark.stores import write_store
from tests.store.small import log_queues_index

PROGRAM = """
import os, signal, sys
from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.pipelines.compact import compact
from ternmq.spark.pipelines.replay import replay
from ternmq.spark.session import session

name_servers, master, directory = sys.argv[1:]
with SyncAdmin(name_servers) as admin:
    admin.topics.create("near", queues=2)
with SyncProducer("tests", name_servers=name_servers) as producer:
    for number in range(200):
        producer.send(Message("far", b"%d" % number))
spark = session(master=master, settings={
    "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JVM, "spark.executor.extraJavaOptions": JVM, "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
})
frame = spark.read.format("ternmq").option("nameServers", name_servers).option("sliceMessages", 20).load("far")
print(frame.selectExpr("CAST(body AS STRING)").distinct().count(), frame.count())
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(executors)

def parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])

def bodies_of_a_dying_executor(rows):
    for number, row in enumerate(rows):
        if number == 3:
            try:
                os.close(os.open(f"{directory}/killed", os.O_CREAT | os.O_EXCL))
                # A Python worker is the child of a daemon, which is that of the executor.
                os.kill(parent(parent(os.getpid())), signal.SIGKILL)
            except FileExistsError:
                pass
        yield int(bytes(row["body"]))

streamed = []
stream = spark.readStream.format("ternmq").options(
    nameServers=name_servers, startingOffsets="earliest", sliceMessages=20, maxMessagesPerTrigger=120).load("far")
writer = stream.writeStream.foreachBatch(
    lambda batch, number: streamed.extend(batch.rdd.mapPartitions(bodies_of_a_dying_executor).collect()))
writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start().awaitTermination()
print(os.path.exists(f"{directory}/killed"), sorted(streamed) == list(range(200)))
sink = stream.select("body").writeStream.format("ternmq").option("nameServers", name_servers)
sink.option("checkpointLocation", f"{directory}/sink").trigger(availableNow=True).start("near").awaitTermination()
copy = spark.read.format("ternmq").option("nameServers", name_servers).load("near")
print(copy.select("body").distinct().count(), copy.count())

lake = f"{directory}/lake"
with SyncAdmin(name_servers) as admin:
    admin.topics.create("far-again", queues=1)
archived = archive(spark, lake=lake, topics=["far"], name_servers=name_servers, once=True, rows_per_batch=120)
merged = compact(spark, lake=lake)
sent = replay(spark, lake=lake, to="far-again", name_servers=name_servers)
again = spark.read.format("ternmq").option("nameServers", name_servers).load("far-again")
print(archived.rows, merged.files_before > merged.files_after, spark.read.parquet(lake).count(), again.count())
spark.stop()
"""


FILES_PROGRAM = """
import sys
from ternmq.cli.main import main
from ternmq.spark.session import session

store, output, master = sys.argv[1:]
settings = {
    "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JVM, "spark.executor.extraJavaOptions": JVM, "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
spark = session(master=master, settings=settings)
frame = spark.read.format("ternmq_files").option("sliceBytes", 16384).load(store)
print(frame.select("log_offset").distinct().count(), frame.count(), frame.rdd.getNumPartitions() > 2, flush=True)
spark.stop()
given = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
sys.argv = ["tern", "pipeline", "rebuild", store, "--output", output, "--master", master, *given]
main()
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
@pytest.mark.timeout(600)
def test_executors_of_a_cluster_read_slices_and_stage_rows_side_by_side(master: str, tmp_path: Path) -> None:
    """U1, U2, U4, U5: by one setting, the master; then a stream, one of whose executors is killed in the middle of a
    slice; then one into a topic, where the driver commits what executors of other processes have staged; then a lake,
    and back."""
    with EmbeddedCluster() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", f"JVM = {SMALL_JVM!r}\n{PROGRAM}", cluster.name_servers, master, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    expected = ["200 200", "2", "True True", "200 200", "200 True 200 200"]
    assert expected == done.stdout.splitlines(), done.stderr[-2_000:]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_workers_read_a_store_and_rebuild_it(master: str, tmp_path: Path) -> None:
    """U3, U4, U5: the command as a user types it."""
    store = write_store(tmp_path / "ternmq")
    done = subprocess.run(
        [sys.executable, "-c", f"JVM = {SMALL_JVM!r}\n{FILES_PROGRAM}", str(store), str(tmp_path / "out"), master],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    read, made = done.stdout.splitlines() or ("", done.stderr[-2_000:])
    assert "310 310 True" == read, done.stderr[-2_000:]
    assert made.startswith(f"3 queues and the index made of 310 records in {tmp_path / 'out'} (")
    assert log_queues_index(store)[1:] == log_queues_index(tmp_path / "out")[1:]
