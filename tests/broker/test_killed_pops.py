"""kill -9 of a broker between pops and acks (F9)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.broker.calls import FAR_MS, Caller, dialled
from tests.broker.popping import ack, change, popped


@asynccontextmanager
async def until_killed(path: Path) -> AsyncIterator[Caller]:
    """A connection to a broker that is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.broker.killed", str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        async with dialled(address) as caller:
            yield caller
            process.kill()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # Read to the end, or the pipe outlives the loop.
        await process.communicate()


async def test_what_was_popped_and_not_acked_survives_kill_9(tmp_path: Path) -> None:
    """F9: hidden or made visible later, handed out from the queue or from the retry topic."""
    async with until_killed(tmp_path) as broker:
        for number in range(8):
            await broker.sent("orders", b"%d" % number)
        first = await popped(broker, "orders", count_max=2, invisible_ms=1)
        again = await popped(broker, "orders", count_max=2, poll_ms=FAR_MS)
        held = await popped(broker, "orders", count_max=2)
        later = await popped(broker, "orders", count_max=1)
        response, _ = await change(broker, later[0], invisible_ms=500)
        assert response.code == 0
        await ack(broker, held[0])

    found: set[bytes] = set()
    async with until_killed(tmp_path) as broker:
        while len(found) < 8:
            for message in await popped(broker, "orders", poll_ms=FAR_MS):
                found.add(message.body)
                await ack(broker, message)

    assert {b"%d" % number for number in range(8)} == found
    assert (2, 2, 2, 1) == (len(first), len(again), len(held), len(later))
