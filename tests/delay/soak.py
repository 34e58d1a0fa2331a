"""``script/soak timers``: seeds of ``timer_simulation``, as many as you like; the first that fails is printed."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.delay.timer_simulation import TimerSimulation
from tests.delay.world import in_virtual_time


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak timers")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (0)")
    parser.add_argument("--count", type=int, default=10_000, metavar="N", help="how many seeds (10,000)")
    args = parser.parse_args()
    # The disks of a simulation fail on purpose.
    logging.disable(logging.CRITICAL if args.count > 1 else logging.NOTSET)
    for seed in range(args.seed, args.seed + args.count):
        try:
            in_virtual_time(TimerSimulation(seed).run())
        except BaseException:
            sys.stderr.write(f"seed {seed} failed; replay it with: script/soak timers --seed {seed} --count 1\n")
            raise
    sys.stdout.write(f"{args.count} seeds, nothing found\n")


if __name__ == "__main__":
    main()
