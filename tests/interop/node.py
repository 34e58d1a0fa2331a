"""The Node client ``ali-ons``, driven from a test (V1): one ``Peer`` is one process of ``tests/node/peer.js``, which
lists its options and orders. ``script/bootstrap node`` installs it."""

from __future__ import annotations

import itertools
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from tests.interop.java import Peer
from tests.interop.program import ProgramMissing, program

_DIRECTORY: Final = Path(__file__).resolve().parents[1] / "node"


class Node:
    """Starts peers. Their files go to ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def peer(self, namesrv: str, **options: object) -> AbstractAsyncContextManager[Peer]:
        """A started producer, with a consumer if a group is named."""
        node = shutil.which("node")
        if node is None or not (_DIRECTORY / "node_modules" / "ali-ons").is_dir():
            raise ProgramMissing("Node or its client ali-ons is missing; run script/bootstrap node")
        home = self._directory / f"node-{next(self._numbers)}"
        return program("Node", [node, _DIRECTORY / "peer.js"], home=home, options={"namesrv": namesrv, **options})
