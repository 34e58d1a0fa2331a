"""A hundred thousand open transactions (J2): bounded memory, and no long turns of the loop."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ternmq.message import Outcome
from ternmq.testing.loop import simulated_loop
from ternmq.transaction import checker as checkers
from ternmq.transaction import transactions as folds
from ternmq.wire.record import Record
from ternmq.wire.requests import CheckTransaction
from tests.transaction.world import RULES, Asked, World

COUNT = 100_000
LARGE: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 26,
    "mapped_file_size_consume_queue": 2_000_000,
    "message_index_enable": False,
}


def test_a_hundred_thousand_open_halves_are_folded_and_checked_in_slices(tmp_path: Path) -> None:
    """J2: no turn of the loop looks at more than a slice, checks are paced, an open half takes little memory."""

    async def program() -> None:
        world = World(root=tmp_path, **LARGE)
        world.start()
        await world.folded()
        sent = [world.send(b"%d" % number, UNIQ_KEY=f"K{number:015d}") for number in range(COUNT)]
        await world.stop()

        world.start()
        # Each slice of halves, and of open halves that are looked at, is one turn.
        assert await _turns(world.folded()) >= 2 * COUNT // folds.SLICE
        ledger = world.transactions.ledger
        assert COUNT == len(ledger.open)
        assert sys.getsizeof(ledger.open) + COUNT * 2 * 32 < 150 * COUNT

        loop, moments = asyncio.get_running_loop(), Counter[float]()

        def answer(check: CheckTransaction, _: Record) -> None:
            moments[loop.time()] += 1
            loop.call_soon(world.answer, check, Outcome.COMMIT)

        member = Asked(answer)
        world.producers = [member]
        await asyncio.sleep(RULES.interval_ms / 1000 + 5)
        assert checkers._BURST == max(moments.values())
        asked = len(member.checks)
        assert 0 < asked <= 6 * 500
        assert COUNT - asked == world.open
        for one in sent[-3:]:
            world.end(one, Outcome.COMMIT)
        bodies = Counter(bytes(record.body) for record in world.records())
        assert (asked + 3, 1) == (len(bodies), max(bodies.values()))
        await world.stop()

    with simulated_loop() as loop:
        loop.run_until_complete(program())


async def _turns(work: Coroutine[Any, Any, None]) -> int:
    """How many turns the loop makes until some work is done."""
    task = asyncio.ensure_future(work)
    turns = 0
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turns
        turns += 1
        if not task.done():
            loop.call_soon(count)

    loop.call_soon(count)
    await task
    return turns
