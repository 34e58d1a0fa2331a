"""What the lanes cost: microseconds of CPU time to queue and run one request (``python -m bench.lanes``).

Plain requests, as sends are, come alone or a hundred at a time; requests with keys, as pulls are, of one group, of ten
and of a thousand. The worker does nothing, so the figures are the scheduler's own. Compare runs that take turns on one
machine: only ratios mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from ternmq.net.lanes import LaneConfig, Lanes


class Idle:
    """A worker that does nothing."""

    def run(self, request: Any) -> None: ...

    def refuse(self, request: Any, reason: str) -> None:
        raise AssertionError(f"{request}: {reason}")

    def flush(self) -> None:
        pass


async def run(lanes: Lanes, reads: int, keys: list[str | None]) -> float:
    """Microseconds per request, for so many reads of ``len(keys)`` requests each."""
    lane, worker, submit = lanes["work"], Idle(), lanes.submit
    # Nothing is late: without a limit, the time of arrival is not looked at.
    arrived = 0.0
    began = time.thread_time()
    if len(keys) == 1:
        for _ in range(reads):
            if not lanes.run_alone(lane, worker, (None,), lanes.time(), keys[0]):
                # The turn is over.
                await asyncio.sleep(0)
    elif keys == [None] * len(keys):
        for _ in range(reads):
            for _ in keys:
                submit(lane, worker, None, arrived, 100)
            lanes.run()
            while lane.count:  # noqa: ASYNC110 - the turn was over, and lanes tell no event
                await asyncio.sleep(0)
    else:
        for _ in range(reads):
            for key in keys:
                submit(lane, worker, None, arrived, 100, key)
            lanes.run()
            while lane.count:  # noqa: ASYNC110 - the turn was over, and lanes tell no event
                await asyncio.sleep(0)
    return (time.thread_time() - began) * 1e6 / (reads * len(keys))


async def main(rounds: int) -> None:
    cases: dict[str, list[str | None]] = {
        "plain, alone": [None],
        "one group, alone": ["group"],
        "plain, 100 a read": [None] * 100,
        "one group, 100 a read": ["group"] * 100,
        "10 groups, 100 a read": [f"group-{number % 10}" for number in range(100)],
        "1,000 groups, 1,000 a read": [f"group-{number}" for number in range(1000)],
    }
    for name, keys in cases.items():
        best = min([await run(Lanes([LaneConfig("work")]), 200_000 // len(keys), keys) for _ in range(rounds)])
        print(f"{name:28} {best:6.3f} µs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(main(parser.parse_args().rounds))
