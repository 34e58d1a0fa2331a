"""``tern`` in a terminal of its own: what people see and type."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.conftest import ENVIRONMENT, TERN

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A running command; what it has printed, without colours and cursor moves, is ``text``."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self.raw = ""

    @property
    def text(self) -> str:
        return _CODES.sub("", self.raw)

    def until(self, wanted: str, *, times: int = 1) -> str:
        """Read until a text has been printed so many times; the end of the program ends the reading, too."""
        while self.text.count(wanted) < times:
            try:
                data = os.read(self._controller, 65_536)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not data:
                break
            self.raw += data.decode(errors="replace")
        return self.text

    def type(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    def end(self) -> int:
        """Read the rest; returns the exit code."""
        self.until("\0")
        return self.process.wait(timeout=60)


@contextmanager
def terminal(*arguments: str, name_server: str) -> Iterator[Terminal]:
    controller, side = pty.openpty()
    environment = ENVIRONMENT | {"NAMESRV_ADDR": name_server, "COLUMNS": "140", "LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        [TERN, *arguments], stdin=side, stdout=side, stderr=side, env=environment, start_new_session=True
    )
    os.close(side)
    try:
        yield Terminal(process, controller)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(controller)
