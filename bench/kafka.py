"""Apache Kafka beside TernMQ in Spark: one broker in KRaft mode, and Spark's own Kafka source and sink.

The jars come by Maven (``bench/java/pom.xml``), the first time that ``connector_jars`` or ``start_kafka`` needs them.
The broker has its own defaults, with a heap of 1 GiB like RocketMQ's in ``systems``, and flushes as TernMQ does by
default: when the system decides.

>>> spark = session(settings={"spark.jars": connector_jars()})
>>> with start_kafka(directory) as kafka:
...     kafka.create("bench", partitions=4)
...     spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address).option("subscribe", "bench").load()
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop import jvm
from tests.interop.rocketmq import free_port

_JAVA: Final = Path(__file__).parent / "java"
_READY_S: Final = 120.0
_STOP_S: Final = 60.0
#: Any value in Kafka's form of a UUID.
_CLUSTER_ID: Final = "TernMQbenchmarkKafka00"
# What Kafka's own start script sets.
_FLAGS: Final = (
    "-Xmx1g",
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@dataclass(slots=True, frozen=True)
class Kafka:
    """A running broker."""

    address: str
    pid: int

    def create(self, topic: str, *, partitions: int) -> None:
        """Create a topic with one replica; returns when it exists."""
        where = ("--bootstrap-server", self.address, "--topic", topic)
        _run("org.apache.kafka.tools.TopicCommand", "--create", *where, "--partitions", str(partitions))


def connector_jars() -> str:
    """Spark's Kafka source and sink, as its setting ``spark.jars`` takes them."""
    return ",".join(map(str, sorted(_jars("connector").glob("*.jar"))))


@contextmanager
def start_kafka(directory: Path) -> Iterator[Kafka]:
    """Broker and controller in one process, ready to be used; killed at the end, since its files are not needed."""
    directory.mkdir(parents=True, exist_ok=True)
    port, controller_port = free_port(), free_port()
    settings = directory / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller_port=controller_port, logs=directory / "logs"))
    _run("kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(settings))
    log_path = directory / "kafka.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(_command("kafka.Kafka", str(settings), flags=_FLAGS), stdout=log, stderr=log)
    try:
        kafka = Kafka(f"127.0.0.1:{port}", process.pid)
        _wait(kafka, process, log_path)
        yield kafka
    finally:
        process.kill()
        process.wait(_STOP_S)


def _wait(kafka: Kafka, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until the broker answers a tool."""
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            _run("org.apache.kafka.tools.TopicCommand", "--list", "--bootstrap-server", kafka.address)
        except SystemExit:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Kafka did not start\n{jvm.tail(log_path)}") from None
        else:
            return


def _run(main: str, *arguments: str) -> None:
    """Run one of Kafka's tools to its end."""
    done = subprocess.run(_command(main, *arguments), capture_output=True, text=True, timeout=_READY_S, check=False)
    if done.returncode:
        raise SystemExit(f"{main} failed: {done.stdout}{done.stderr}")


def _command(main: str, *arguments: str, flags: Sequence[str] = jvm.SMALL) -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise SystemExit("Java is missing; run script/bootstrap java")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [java, *flags, quiet, "-cp", f"{_jars('broker')}/*", main, *arguments]


def _jars(part: str) -> Path:
    """The directory of one part's jars; they are fetched if they are missing."""
    lib, pom = _JAVA / "target" / part / "lib", _JAVA / "pom.xml"
    stamp = lib.with_name("stamp")
    if not stamp.exists() or stamp.read_bytes() != pom.read_bytes():
        shutil.rmtree(lib, ignore_errors=True)
        command = ["mvn", "-f", str(pom), "-B", "-q", "-Dmaven.wagon.http.retryHandler.count=3", f"-P{part}"]
        done = subprocess.run([*command, "process-resources"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Maven could not fetch Kafka ({part}): {done.stdout}{done.stderr}")
        stamp.write_bytes(pom.read_bytes())
    return lib
