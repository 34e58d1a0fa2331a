"""An archive whose driver is killed with ``kill -9`` at moments of a seed, again and again; then the lake is compared
with what was sent (U4). ``script/soak lake`` runs it for long; a failure names the seed.

    python -m tests.spark.kills --rounds 20 --seed 7
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from ternmq import Message, SyncProducer
from ternmq.embedded import EmbeddedCluster
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.spark.small import SMALL_FLAGS
from tests.spark.topics import numbered

MESSAGES = 120


def run_killed(*, seed: int, rounds: int, directory: Path) -> list[str]:
    """The moments at which drivers were killed. Raises ``AssertionError`` where the lake is not what was sent."""
    chance = random.Random(seed)
    lake = directory / "lake"
    moments = []
    with EmbeddedCluster() as cluster:
        command = [TERN, "pipeline", "archive", "kills", "--lake", str(lake), "--once", "--json"]
        command += ["-n", cluster.name_servers, "--rows-per-batch", "30", *SMALL_FLAGS]
        sent: list[bytes] = []
        for _ in range(rounds):
            bodies = numbered(MESSAGES, start=len(sent))
            with SyncProducer("tests", name_servers=cluster.name_servers) as producer:
                for body in bodies:
                    producer.send(Message("kills", body))
            sent += bodies
            moments.append(_killed(command, lake, chance))
            seen = _bodies(lake)
            assert len(set(seen)) == len(seen), f"seed {seed}: {len(seen) - len(set(seen))} messages are double"
            assert set(seen) <= set(sent), f"seed {seed}: messages that were never sent"
        subprocess.run(command, check=True, capture_output=True, timeout=200, env=ENVIRONMENT)
    missing = set(sent).difference(_bodies(lake))
    assert sorted(sent) == _bodies(lake), f"seed {seed}: {len(missing)} messages are missing, or some are double"
    assert [] == list((lake / "_ternmq" / "staging").iterdir())
    return moments


def _killed(command: list[str], lake: Path, chance: random.Random) -> str:
    """Run it until a batch is being written, and a little longer; then end it the hard way."""
    batch, wait_s, with_java = chance.randint(1, 3), chance.choice((0, 0.05, 0.2, 0.5)), chance.random() < 0.5
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=ENVIRONMENT
    )
    stages: set[str] = set()
    deadline = time.monotonic() + 200
    while len(stages) < batch and process.poll() is None:
        assert time.monotonic() < deadline, "no batch within 200 s"
        if (lake / "_ternmq" / "staging").exists():
            stages.update(path.name for path in (lake / "_ternmq" / "staging").iterdir())
        time.sleep(0.002)
    time.sleep(wait_s)
    if with_java:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    return f"batch {batch} of the run, {wait_s} s after its beginning, {'with' if with_java else 'before'} Java"


def _bodies(lake: Path) -> list[bytes]:
    """What a plain reader sees."""
    if not any(lake.glob("topic=*/*/*/*.parquet")):
        return []
    return sorted(pq.read_table(lake).column("body").to_pylist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="ternmq-kills-") as name:
        for moment in run_killed(seed=options.seed, rounds=options.rounds, directory=Path(name)):
            print(moment)  # noqa: T201


if __name__ == "__main__":
    main()
