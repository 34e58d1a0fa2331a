"""A broker in a process of its own, for a test to kill: ``python -m tests.broker.killed DIRECTORY``. Its first line is
its address."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ternmq.broker.broker import Broker
from tests.broker.calls import settings, small_store


async def main() -> None:
    async with Broker(settings(), small_store(Path(sys.argv[1]))) as broker:
        sys.stdout.write(f"{broker.address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


asyncio.run(main())
