"""A progress bar for long work, only if stderr is a terminal (T1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

#: Less work than this takes only a moment, and needs no bar.
LONG_BYTES: Final = 256 << 20


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with the bytes done and all bytes; the bar is removed at the end of the block."""
    if not sys.stderr.isatty():
        yield _report_nothing
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
    """The same for work that is usually short: the bar appears when it takes long, and is removed at the end.

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


def _report_nothing(_done: int, _total: int) -> None:
    """For programs and files, which need no bar."""
