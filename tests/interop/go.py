"""Apache's Go client, driven from a test (V1): one ``Peer`` is one process that runs one command of ``tests/go``.

``script/bootstrap go`` builds the program. The options of each command are the fields of its structs
(``tests/go/*.go``).
"""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeAlias

from tests.interop.java import Peer
from tests.interop.program import ProgramMissing, program

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "go" / "target" / "ternpeer"

_Running: TypeAlias = AbstractAsyncContextManager[Peer]


class Go:
    """Starts peers. Their files, such as broadcast offsets, go to ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def peer(self, command: str, **options: object) -> _Running:
        """Run a command, once it is ready; the end of the block stops it and waits until it has gone."""
        if not _PROGRAM.is_file():
            raise ProgramMissing(f"{_PROGRAM} is missing; run script/bootstrap go")
        home = self._directory / f"go-{next(self._numbers)}-{command}"
        return program(f"Go {command}", [_PROGRAM, command], home=home, options=options)

    def producer(self, namesrv: str, **options: object) -> _Running:
        """A started producer; see ``produce.go``."""
        return self.peer("produce", namesrv=namesrv, **options)

    def transactions(self, namesrv: str, *, group: str, **options: object) -> _Running:
        """A started transaction producer; see ``transact.go``."""
        return self.peer("transact", namesrv=namesrv, group=group, **options)

    def consumer(self, namesrv: str, *, group: str, topic: str, **options: object) -> _Running:
        """A started push consumer; see ``push.go``."""
        return self.peer("push", namesrv=namesrv, group=group, topic=topic, **options)
