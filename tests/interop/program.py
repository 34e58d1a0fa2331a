"""Programs around clients in other languages, driven from a test (V1): each speaks in JSON lines, as ``TernPeer``
does, so that the ``Peer`` of the Java programs serves them, too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.interop.java import LINE_BYTES_MAX, Peer


class ProgramMissing(RuntimeError):
    """The compiled or installed program is not there."""


@asynccontextmanager
async def program(
    name: str, arguments: Sequence[str | Path], *, home: Path, options: dict[str, object]
) -> AsyncIterator[Peer]:
    """Run a program, once it is ready; the end of the block stops it and waits until it has gone. Its files, such as
    broadcast offsets, go to ``home``."""
    await asyncio.to_thread(home.mkdir, parents=True, exist_ok=True)
    with (home / "stderr.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=home,
            env=os.environ | {"HOME": str(home)},
            limit=LINE_BYTES_MAX,
        )
    peer = Peer(name, process, home / "stderr.log")
    try:
        await peer.write(options)
        await peer.event("ready")
        yield peer
        await peer.stop()
    finally:
        await peer.kill()
