"""Makes this process lack what Windows lacks, for programs that are run on it (``test_other_systems.py``)::

    python -c 'import tests.windows_like; …'

Python's own modules are loaded before: those of the real system would not load under the name of another one.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any, Final

_MISSING: Final = frozenset({"fcntl", "resource", "termios", "tty", "pwd", "grp", "uvloop", "readline"})
_CALLS: Final = ("fdatasync", "posix_fallocate", "pread", "pwrite", "statvfs", "fork", "getuid", "geteuid")


class _Missing:
    """An importer that finds none of these."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in _MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _no_handlers(_self: object, _number: int, *_: object) -> None:
    raise NotImplementedError


for _name in (
    "concurrent.futures.thread",
    "getpass",
    "logging.handlers",
    "multiprocessing.context",
    "platform",
    "select",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "webbrowser",
):
    importlib.import_module(_name)
for _name in _MISSING:
    sys.modules.pop(_name, None)
sys.meta_path.insert(0, _Missing)
for _name in _CALLS:
    if hasattr(os, _name):
        delattr(os, _name)
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = _no_handlers  # type: ignore[assignment,method-assign]
_msvcrt = types.ModuleType("msvcrt")
_msvcrt.LK_NBLCK = 2  # type: ignore[attr-defined]
_msvcrt.locking = lambda _fd, _mode, _count: None  # type: ignore[attr-defined]
sys.modules["msvcrt"] = _msvcrt
# Other packages look for the rest of Windows under this name, so only modules of ours that ask for it see it.
_platform, sys.platform = sys.platform, "win32"
importlib.import_module("ternmq.client.consume.file_lock")
sys.platform = _platform
