"""The start of a broker whose machine lost power: TernMQ beside RocketMQ 4.9.4 on copies of the same directory.

::

    .venv/bin/python -m bench.recovery --mb 2000 --rounds 2

A store of records of 300 bytes, each with a unique key, a key and a tag, is made once. Its checkpoint is removed, and
the file ``abort`` says that it was not closed: so a broker walks the whole log, checks each record, and makes what its
queues and index lack. *As they were*: queues and index are those of the moment of the power cut, complete by chance;
RocketMQ keeps what it finds, TernMQ trusts nothing of it. *Lost*: there are none. *Empty*: the start with an empty
directory, for comparison.

Each start has a copy of its own, in the page cache; the systems take turns. Time is from the start of the process until
it is ready: registered with its name server, and its port answers. CPU is that of the broker's process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bench.disk import BODY, HOST, MB, PROPERTIES, QUEUES
from bench.systems import (
    Node,
    cpu_s,
    start_rocketmq_names,
    start_rocketmq_node,
    start_ternmq_names,
    start_ternmq_node,
)
from ternmq.env import SystemClock
from ternmq.store.config import StoreConfig
from ternmq.store.store import MessageStore

Start = Callable[[Path, str, str, int], AbstractContextManager[Node]]
BATCH: Final = 500
DERIVED: Final = ("consumequeue", "index")


def make_store(root: Path, log_bytes: int) -> int:
    """A store with a log of so many bytes; returns how many records it has."""
    records = 0
    with MessageStore.open(StoreConfig(store_path_root_dir=root), store_host=HOST, clock=SystemClock()) as store:
        while store.written < log_bytes:
            numbers = range(records, records + BATCH)
            parcels = [(0, BODY, PROPERTIES.format(number & 0xFFFF, number).encode()) for number in numbers]
            store.put_batch("BenchTopic", records // BATCH % QUEUES, parcels, born_time_ms=1, born_host=HOST)
            records += BATCH
    return records


def cut_power(root: Path) -> None:
    """What a machine that lost power leaves: nothing says how far the log was safe."""
    (root / "checkpoint").unlink(missing_ok=True)
    (root / "abort").write_bytes(b"")


def measure(start: Start, names: str, source: Path | None, directory: Path, *, is_derived_lost: bool) -> list[float]:
    """Seconds until ready, and of CPU, on a copy of ``source``."""
    root = directory / "store"
    if source is not None:
        shutil.copytree(source, root)
        if is_derived_lost:
            for name in DERIVED:
                shutil.rmtree(root / name, ignore_errors=True)
        cut_power(root)
    began = time.monotonic()
    with start(directory, names, "ASYNC_MASTER", 0) as node:
        result = [time.monotonic() - began, cpu_s(node.pid)]
    shutil.rmtree(directory)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=2_000, help="of log (2000)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where the stores are made; it needs four times the log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as temporary:
        directory = Path(temporary)
        source = directory / "source"
        records = make_store(source, given.mb * MB)
        print(f"{records:,} records, {given.mb:,} MB of log; medians of {given.rounds}")
        with (
            start_rocketmq_names(directory / "rocketmq-names") as rocketmq,
            start_ternmq_names(directory / "ternmq-names") as ternmq,
        ):
            systems: dict[str, tuple[Start, str]] = {
                "RocketMQ 4.9.4": (start_rocketmq_node, rocketmq),
                "TernMQ": (start_ternmq_node, ternmq),
            }
            print(f"{'':16}{'':16}{'ready, s':>10}{'CPU, s':>10}")
            for title, store, is_lost in (
                ("empty", None, False),
                ("as they were", source, False),
                ("lost", source, True),
            ):
                taken: dict[str, list[list[float]]] = {name: [] for name in systems}
                for number in range(given.rounds):
                    for name, (start, names) in list(systems.items())[:: -1 if number % 2 else 1]:
                        result = measure(start, names, store, directory / "copy", is_derived_lost=is_lost)
                        taken[name].append(result)
                for name, results in taken.items():
                    ready_s, used_s = map(statistics.median, zip(*results, strict=True))
                    print(f"{title:16}{name:16}{ready_s:>10.2f}{used_s:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
