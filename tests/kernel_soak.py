"""Kernels against the Python versions for as long as wanted, with new seeds: ``script/soak native`` (issue 21).

Each round gives a broker with kernels and one without the same random reads, has stores on all kinds of logs live the
same random life, and runs all property tests of kernels. The first difference ends it; the seed of brokers and stores
is told, and Hypothesis prints the smallest example that it finds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

from hypothesis import HealthCheck, settings

from ternmq.kernels import HAS_NATIVE
from tests.broker.test_runs import Reads, check_same, plain
from tests.store.log.test_waiting_runs import LOGS, check_same_life

# A busy machine is no reason to stop. Tests take over the profile that is loaded when they are defined, so it is first.
settings.register_profile("soak", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.load_profile("soak")
MODULES = [
    importlib.import_module(f"tests.{name}")
    for name in (
        "test_kernels",
        "test_send_kernel",
        "delay.test_kernels",
        "delay.test_timed_sends",
        "raft.test_recovery_kernel",
        "store.inspect.test_verify_kernel",
        "spark.source.test_column_kernels",
        "spark.sink.test_row_kernel",
    )
]


def property_tests(module: ModuleType) -> Iterator[Callable[[], None]]:
    """Those that need nothing but what Hypothesis makes."""
    for name, test in vars(module).items():
        if name.startswith("test_") and hasattr(test, "hypothesis") and not inspect.signature(test).parameters:
            yield test


def run(seed: int) -> None:
    source = Reads(seed)
    reads = [plain(number) for number in range(4)] + [data for _ in range(120) for data in source.next()]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check_same(Path(directory), reads, plain_min=1, timed_min=1))
    for kind in LOGS:
        with tempfile.TemporaryDirectory() as directory:
            check_same_life(Path(directory), kind, seed)
    for module in MODULES:
        for test in property_tests(module):
            test()


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak native")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seeds", type=int, help="how many seeds, instead of a time")
    parser.add_argument("--seed", type=int, help="the first seed")
    given = parser.parse_args()
    if not HAS_NATIVE:
        sys.exit("the compiled kernels are not installed; there is nothing to compare")
    # Odd frames make brokers warn, thousands of times: what this prints would be lost among that.
    logging.disable(logging.CRITICAL)
    begin = time.monotonic()
    first = given.seed if given.seed is not None else time.time_ns() // 1000 % 10**12
    for done in count(1):
        seed = first + done - 1
        try:
            run(seed)
        except BaseException:
            sys.stderr.write(
                f"with seed {seed}; script/soak native --seed {seed} --seeds 1 repeats brokers and stores\n"
            )
            raise
        took_s = time.monotonic() - begin
        sys.stdout.write(f"{took_s:7.0f} s: {done} seeds from {first} on, nothing differs\n")
        sys.stdout.flush()
        if done >= given.seeds if given.seeds else took_s >= given.minutes * 60:
            return


if __name__ == "__main__":
    main()
