"""A bar for work that takes long: on a terminal's stderr, and nowhere else (T1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

#: Less than this is done before anybody wonders, and needs no bar.
LONG_BYTES: Final = 256 << 20


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with the bytes done and all bytes; the bar is gone at the end of the block."""
    if not sys.stderr.isatty():
        yield _tell_nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield tell


@contextmanager
def late_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """The same for work that is usually short: the bar comes when it is not, and goes when all is done.

    Any thread may call the function, one at a time.
    """
    with ExitStack() as shown:
        tell: Callable[[int, int], None] | None = None

        def tell_if_long(done: int, total: int) -> None:
            nonlocal tell
            if tell is None and total >= LONG_BYTES:
                tell = shown.enter_context(progress_bar(title))
            if tell is not None:
                tell(done, total)
            if done == total:
                shown.close()
                tell = None

        yield tell_if_long


def _tell_nobody(_done: int, _total: int) -> None:
    """Programs and files need no bar."""
