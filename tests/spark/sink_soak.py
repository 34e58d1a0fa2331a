"""``script/soak sink [--minutes M] [--seed N]``: a stream from topic to topic, whose processes die at random (U2).

Each life is a stream with a checkpoint that runs some times, with new rows in its source topic each time, and with a
death: the driver's (JVM and Python), a Python worker's at any time, a task's, or a commit's at a chosen step. At last
it runs to its end. Then the target topic must hold each row once. The first life in which it does not ends the soak,
with its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from ternmq import Message, SyncAdmin, SyncProducer, split_batch
from ternmq.embedded import EmbeddedCluster
from tests.spark.sink.test_sink_logs import Sink
from tests.spark.sink_crashes import SOURCE, STEPS, TARGET, Crashes
from tests.spark.topics import numbered

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = 200
RUNS: Final = 6
#: A start of Spark, with a busy machine.
PATIENCE_S: Final = 300.0


def tell(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def live(seed: int, directory: Path) -> None:
    """One stream with its deaths; raises ``AssertionError`` when rows are missing or double."""
    chance = random.Random(seed)
    with EmbeddedCluster(brokers=2) as cluster:
        with SyncAdmin(cluster.name_servers) as admin:
            for topic in (SOURCE, TARGET):
                admin.topics.create(topic, queues=3)
        sink = Sink(cluster.name_servers)
        for number in range(RUNS):
            with SyncProducer("soak", name_servers=cluster.name_servers) as producer:
                rows = [Message(SOURCE, body) for body in numbered(ROWS, start=number * ROWS)]
                for part in split_batch(rows, bytes_max=2_000):
                    producer.send_batch(part)
            is_copied = run(cluster.name_servers, directory, chance, is_mortal=True)
            tell(f"  run {number}: {'copied' if is_copied else 'died'}, {len(sink.bodies(TARGET))} rows are there")
        while not run(cluster.name_servers, directory, chance, is_mortal=False):
            tell("  an end that was not planned for this run")
        assert numbered(RUNS * ROWS) == sink.bodies(TARGET), f"seed {seed}"


def run(name_servers: str, directory: Path, chance: random.Random, *, is_mortal: bool) -> bool:
    """Start the stream, let something die; whether it came to its end."""
    way = chance.choice(("driver", "worker", "step")) if is_mortal else ""
    if way == "step":
        Crashes(directory).plan(chance.choice(STEPS), passes=chance.randrange(6))
    (directory / "running").unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.spark.sink_crashes", name_servers, str(directory)]
    with (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    deadline = time.monotonic() + PATIENCE_S
    while way in ("driver", "worker") and process.poll() is None and time.monotonic() < deadline:
        if (directory / "running").exists():
            time.sleep(chance.uniform(0.0, 15.0))
            jvm = int((directory / "jvm.pid").read_text())
            victims = [jvm] if way == "driver" else _workers(jvm)
            with suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(victims), signal.SIGKILL)
            break
        time.sleep(0.1)
    try:
        return process.wait(PATIENCE_S) == 0
    finally:
        process.kill()


def _workers(jvm: int) -> list[int]:
    """The Python workers of a JVM: children of its daemons."""
    daemons = [int(pid) for pid in _children(jvm)]
    return [int(pid) for daemon in daemons for pid in _children(daemon)]


def _children(pid: int) -> list[str]:
    return [child for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak sink")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, help="the first seed")
    given = parser.parse_args()
    begin = time.monotonic()
    first = given.seed if given.seed is not None else time.time_ns() // 1000 % 10**9
    for seed in count(first):
        with tempfile.TemporaryDirectory(prefix="ternmq-soak-") as directory:
            live(seed, Path(directory))
        tell(f"{time.monotonic() - begin:7.0f} s: seeds {first} to {seed}, each row once")
        if time.monotonic() - begin >= given.minutes * 60:
            return


if __name__ == "__main__":
    main()
