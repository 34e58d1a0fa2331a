"""Lives of simulated groups by seed, and
``script/soak raft-core [--minutes M] [--seeds N] [--seed N] [--members|--storm]``.

The first failure ends it, with the seed and the last events.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count as count_from
from typing import Final

from tests.raft.member_simulation import MemberSimulation
from tests.raft.simulation import Breakage, Simulation
from tests.raft.storm_simulation import StormSimulation

SHOWN_EVENTS: Final = 60


def live(seed: int, *, breakage: Breakage | None = None, kind: type[Simulation] = Simulation) -> Simulation:
    """One life. Raises what it finds, with the last events before."""
    simulation = kind(seed, breakage=breakage)
    try:
        simulation.run()
    except Exception as error:
        again = kind(seed, breakage=breakage, keeps_trace=True)
        try:
            again.run()
        except Exception:
            lines = [" ".join(map(str, event)) for event in again.trace[-SHOWN_EVENTS:]]
            error.add_note("\n".join([f"seed {seed}; the last of its {len(again.trace)} events:", *lines]))
        raise
    return simulation


def live_twice(seed: int, kind: type[Simulation] = Simulation) -> Simulation:
    """Two lives, whose events must be the same."""
    lives = [kind(seed, keeps_trace=True) for _ in range(2)]
    for simulation in lives:
        simulation.run()
    assert lives[0].trace == lives[1].trace, f"seed {seed} is not one life"
    return lives[0]


def tell(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak raft-core")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seeds", type=int, help="how many seeds, instead of a time")
    parser.add_argument("--seed", type=int, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--members", action="store_true", help="members join, leave and lose their disks, too")
    parser.add_argument("--storm", action="store_true", help="leaders die one after the other")
    given = parser.parse_args()
    kind = MemberSimulation if given.members else StormSimulation if given.storm else Simulation
    begin = told_at = time.monotonic()
    first = given.seed if given.seed is not None else time.time_ns() // 1000 % 10**12
    acknowledged, slowest_ms = 0, 0.0
    for done in count_from(1):
        life = live_twice(first + done - 1, kind) if given.trace else live(first + done - 1, kind=kind)
        acknowledged += len(life.checkers.acknowledged)
        slowest_ms = max(slowest_ms, life.recovered_ms)
        for event in life.trace:
            tell(*event)
        now = time.monotonic()
        is_over = done >= given.seeds if given.seeds else now - begin >= given.minutes * 60
        if is_over or now - told_at >= 60:
            told_at = now
            tell(
                f"{now - begin:7.0f} s: {done} seeds from {first} on, {acknowledged} acknowledged entries, working "
                f"again after {slowest_ms:.0f} ms at most, nothing wrong"
            )
        if is_over:
            return


if __name__ == "__main__":
    main()
