"""Simulated lives of a cluster, for as long as you like: ``script/soak groups [--minutes M] [--seeds N] [--seed N]``.

Each seed lives twice, and the traces are compared. The first failure ends it, with the seed and the last events.
Without ``--seed`` it begins with a new one, and says which.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from itertools import count as count_from

from tests.testing.seeds import SIMULATIONS, live_twice


def tell(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak")
    parser.add_argument("simulation", choices=sorted(SIMULATIONS))
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seeds", type=int, help="how many seeds, instead of a time")
    parser.add_argument("--seed", type=int, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print every event")
    given = parser.parse_args()
    # What programs have to say about their thousand deaths is not news.
    logging.disable(logging.CRITICAL)
    begin = told_at = time.monotonic()
    first = given.seed if given.seed is not None else time.time_ns() // 1000 % 10**12
    for done in count_from(1):
        life = live_twice(given.simulation, first + done - 1)
        if given.trace:
            for event in life.trace:
                tell(*event)
        now = time.monotonic()
        is_over = done >= given.seeds if given.seeds else now - begin >= given.minutes * 60
        if (is_over and not given.trace) or now - told_at >= 60:
            told_at = now
            tell(f"{now - begin:7.0f} s: {done} seeds from {first} on, nothing wrong")
        if is_over:
            return


if __name__ == "__main__":
    main()
