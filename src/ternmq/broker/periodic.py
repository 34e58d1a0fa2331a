"""What a broker does again and again, beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ternmq.broker.tables.stats import Stats

log = logging.getLogger(__name__)


async def sample(stats: Stats) -> None:
    """Note the totals of this moment, in slices: clients have their turn between them."""
    stats.sample()
    for _ in iter(stats.mark_more, False):
        await asyncio.sleep(0)


async def every(seconds: float | Callable[[], float], work: Callable[[], Awaitable[None] | None]) -> None:
    """Do something again and again; one failure is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds() if callable(seconds) else seconds)
        try:
            later = work()
            if later is not None:
                await later
        except Exception:
            log.exception("a background task failed; retrying")
