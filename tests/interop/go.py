"""Apache's Go client, driven from a test (V1): one ``Peer`` is one process that runs one command of ``tests/go``.

``script/bootstrap go`` builds the program. It speaks like the Java programs, so their ``Peer`` serves it, too; the
options of each command are the fields of its structs (``tests/go/*.go``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

from tests.interop.java import LINE_BYTES_MAX, Peer

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "go" / "target" / "ternpeer"

_Running: TypeAlias = AbstractAsyncContextManager[Peer]


class GoMissing(RuntimeError):
    """The compiled program is not there."""


class Go:
    """Starts peers. Their files, such as broadcast offsets, go to ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    @asynccontextmanager
    async def peer(self, command: str, **options: object) -> AsyncIterator[Peer]:
        """Run a command, once it is ready; the end of the block stops it and waits until it has gone."""
        if not _PROGRAM.is_file():
            raise GoMissing(f"{_PROGRAM} is missing; run script/bootstrap go")
        home = self._directory / f"go-{next(self._numbers)}-{command}"
        home.mkdir(parents=True)
        with (home / "stderr.log").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                str(_PROGRAM),
                command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env=os.environ | {"HOME": str(home)},
                limit=LINE_BYTES_MAX,
            )
        peer = Peer(f"Go {command}", process, home / "stderr.log")
        try:
            await peer.write(options)
            await peer.event("ready")
            yield peer
            await peer.stop()
        finally:
            await peer.kill()

    def producer(self, namesrv: str, **options: object) -> _Running:
        """A started producer; see ``produce.go``."""
        return self.peer("produce", namesrv=namesrv, **options)

    def transactions(self, namesrv: str, *, group: str, **options: object) -> _Running:
        """A started transaction producer; see ``transact.go``."""
        return self.peer("transact", namesrv=namesrv, group=group, **options)

    def consumer(self, namesrv: str, *, group: str, topic: str, **options: object) -> _Running:
        """A started push consumer; see ``push.go``."""
        return self.peer("push", namesrv=namesrv, group=group, topic=topic, **options)
