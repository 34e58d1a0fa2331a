"""A bar for work that takes long: on a terminal's stderr, and nowhere else (T1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


def _tell_nobody(_done: int, _total: int) -> None:
    """Programs and files need no bar."""
