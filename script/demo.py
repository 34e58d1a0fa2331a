"""The program of ``script/demo``: two brokers, a producer and a consumer in Python, the command line, a crash, and
a Spark pipeline: the topic into a Parquet lake, and SQL on it.

Everything is in a temporary directory and on free ports; the last line says whether the demo passed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ternmq import Message, ReceivedMessage, StartPosition, SyncProducer, SyncPushConsumer
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.session import session

MESSAGES: Final = 1_000
TERN: Final = str(Path(sys.executable).with_name("tern"))


def say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def servers(directory: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """``tern up`` with two brokers, ready; stopped cleanly at the end unless it was killed before."""
    command = [TERN, "up", "--dir", str(directory), "--port", str(port), "--broker-port", "0", "--brokers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise SystemExit(f"the servers did not start: {line or 'see above'}")
        print(line, end="", flush=True)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def pull_the_plug(process: subprocess.Popen[str]) -> None:
    """kill -9 for the brokers and the name server: without a flush or a clean end."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [*map(int, children), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def tern(*arguments: str) -> str:
    """Run the command line program; show what a user would see."""
    print(f"$ tern {' '.join(arguments)}", flush=True)
    return subprocess.run([TERN, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def into_a_lake(name_server: str, directory: Path) -> set[str]:
    """The same as `tern pipeline archive orders --once`; returns the bodies in the lake."""
    spark = session(name="demo", log_file=directory / "spark.log")
    try:
        lake = str(directory / "lake")
        done = archive(spark, lake=lake, topics=["orders"], name_servers=name_server, once=True)
        print(f"{done.rows:,} messages archived")
        spark.read.parquet(lake).createOrReplaceTempView("orders")
        spark.sql("SELECT topic, broker, tags, count(*) AS messages FROM orders GROUP BY ALL ORDER BY ALL").show()
        return {row["body"] for row in spark.sql("SELECT CAST(body AS STRING) AS body FROM orders").collect()}
    finally:
        spark.stop()


def main() -> None:
    os.environ["NAMESRV_ADDR"] = name_server = f"127.0.0.1:{free_port()}"
    port = int(name_server.rpartition(":")[2])
    with tempfile.TemporaryDirectory(prefix="ternmq-demo-") as name:
        directory = Path(name)
        say("A name server and two brokers")
        with servers(directory, port) as process:
            say(f"A producer sends {MESSAGES:,} orders")
            began = time.perf_counter()
            with SyncProducer("shop", name_servers=name_server) as producer:
                sent = {f"order {number}" for number in range(MESSAGES)}
                receipts = [producer.send(Message("orders", body.encode(), tags="new")) for body in sorted(sent)]
            seconds = time.perf_counter() - began
            print(f"{len(receipts):,} acknowledged in {seconds:.2f} s; the last one in {receipts[-1].queue}")

            say("A consumer group consumes them")
            consumed: set[str] = set()
            complete = threading.Event()

            def bill(message: ReceivedMessage) -> None:
                consumed.add(message.body.decode())
                if len(consumed) == MESSAGES:
                    complete.set()

            start = StartPosition.FIRST
            with SyncPushConsumer("billing", bill, name_servers=name_server, start=start) as consumer:
                consumer.subscribe("orders")
                complete.wait(60)
            print(f"{len(consumed):,} different orders consumed")

            say("The same on the command line")
            print(tern("topic", "status", "orders"), end="")
            print(tern("group", "progress", "billing"), end="")

            say("Pull the plug: kill -9, everything at once")
            pull_the_plug(process)

        say("Start again, and look for all of them")
        with servers(directory, port):
            found = set(tern("consume", "orders", "--no-follow").splitlines())
            print(f"{len(found):,} orders found again")

            say("Spark: the topic into a lake of Parquet files, and SQL on it")
            archived = into_a_lake(name_server, directory)

    if not sent == consumed == found == archived:
        raise SystemExit(
            f"demo FAILED: {len(sent - consumed)} were not consumed, {len(sent - found)} were lost, "
            f"{len(sent - archived)} are not in the lake"
        )
    say(f"demo passed: {MESSAGES:,} sent, consumed, found after a crash, and archived")


if __name__ == "__main__":
    main()
