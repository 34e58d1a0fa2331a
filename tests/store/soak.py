"""Simulated lives of a store, for as long as you like: ``script/soak store [--hours H] [--seed N] [--count N]``.

Each seed lives twice, and the traces are compared; then once more with flipped bits at the end; then with and without
them on a log that confirms late and takes records back (``late_log``), and on that of a Raft member. The first failure
ends it, with the seed and the last steps before. Without ``--seed`` it begins with a new one, and says which.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from itertools import count as count_from

from tests.raft.log_simulation import RaftLogSimulation
from tests.store.late_simulation import LateSimulation
from tests.store.simulation import Simulation

SHOWN_STEPS = 40


def live(seed: int, *, actions: int) -> Simulation:
    """All lives of a seed. Raises what it finds."""
    lives = [Simulation(seed, actions=actions) for _ in range(3)]
    running: Simulation = lives[0]
    try:
        for running in lives[:2]:
            running.run()
        assert lives[0].trace == lives[1].trace, f"seed {seed} is not one life"
        running = lives[2]
        running.rot()
        running = LateSimulation(seed, actions=actions)
        running.run()
        running = LateSimulation(seed, actions=actions)
        running.rot()
        running = RaftLogSimulation(seed, actions=actions)
        running.run()
        running = RaftLogSimulation(seed, actions=actions)
        running.rot()
    except BaseException:
        tell(f"seed {seed} fails; the last of its {len(running.trace)} steps:")
        for step in running.trace[-SHOWN_STEPS:]:
            tell("   ", *step)
        raise
    return lives[0]


def tell(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak store")
    parser.add_argument("--hours", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--seed", type=int, help="the first seed")
    parser.add_argument("--count", type=int, help="how many seeds, instead of a time")
    parser.add_argument("--actions", type=int, default=60, help="calls in one life (60)")
    parser.add_argument("--trace", action="store_true", help="print every step")
    given = parser.parse_args()
    # What a store has to say about its thousand deaths is not news.
    logging.disable(logging.CRITICAL)
    begin = told_at = time.monotonic()
    first = given.seed if given.seed is not None else time.time_ns() // 1000 % 10**12
    openings = 0
    for done in count_from(1):
        simulation = live(first + done - 1, actions=given.actions)
        openings += simulation.openings
        if given.trace:
            for step in simulation.trace:
                tell(*step)
        now = time.monotonic()
        is_over = done >= given.count if given.count else now - begin >= given.hours * 3600
        if (is_over and not given.trace) or now - told_at >= 60:
            told_at = now
            tell(f"{now - begin:7.0f} s: {done} seeds from {first} on, {openings} openings, nothing wrong")
        if is_over:
            return


if __name__ == "__main__":
    main()
