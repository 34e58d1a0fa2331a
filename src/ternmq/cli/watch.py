"""``--watch``: a command again and again (T1). A terminal is redrawn, a pipe gets the output each time.

An error in the first round ends the command as usual. Later ones are shown, and the command goes on: who watches a
cluster wants to see it come back.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

import typer

from ternmq.cli.output import ReaderGone, note, sentence_of
from ternmq.cli.times import format_ms
from ternmq.env import SystemClock
from ternmq.errors import TernError

EVERY_S: Final = 2
#: The alternate screen without a cursor, and back: what was on the terminal before is there again afterwards.
ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


class Frame(io.StringIO):
    """What a command prints in one round, for a terminal."""

    def isatty(self) -> bool:
        return True


def repeat(show: Callable[[], None], every_s: float, *, title: str, redraws: bool) -> None:
    """Call ``show`` until Ctrl-C, which ends it normally."""
    pause = threading.Event()
    try:
        if redraws and sys.stdout.isatty():
            _redraw(show, every_s, title, pause)
        else:
            _print(show, every_s, pause)
    except KeyboardInterrupt:
        return


def fitted(text: str, *, lines: int) -> str:
    """A frame that fits on the screen: it is drawn over the last one, without a flicker."""
    shown = text.splitlines()
    if len(shown) > lines:
        shown = [*shown[: lines - 1], f"… {len(shown) - lines + 1} more lines"]
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown) + _CLEAR_BELOW


def _print(show: Callable[[], None], every_s: float, pause: threading.Event) -> None:
    _once(show)
    while not pause.wait(every_s):
        try:
            _once(show)
        except ReaderGone:
            raise
        except (TernError, OSError) as error:
            note(f"tern: {sentence_of(error)}; trying again in {every_s:g} s")


def _redraw(show: Callable[[], None], every_s: float, title: str, pause: threading.Event) -> None:
    frame = _frame(show)
    terminal = sys.stdout
    clock = SystemClock()
    try:
        terminal.write(ENTER_SCREEN)
        while True:
            head = f"{title}  every {every_s:g} s, Ctrl-C ends  {format_ms(clock.now_ms())[:19]}\n"
            terminal.write(fitted(head + frame, lines=shutil.get_terminal_size().lines - 1))
            terminal.flush()
            pause.wait(every_s)
            try:
                frame = _frame(show)
            except (TernError, OSError) as error:
                frame = f"\n{sentence_of(error)}; trying again in {every_s:g} s\n"
    finally:
        terminal.write(LEAVE_SCREEN)
        terminal.flush()


def _frame(show: Callable[[], None]) -> str:
    frame = Frame()
    with redirect_stdout(frame), redirect_stderr(frame):
        _once(show)
    return frame.getvalue()


def _once(show: Callable[[], None]) -> None:
    """A check that found something ends with an exit code; it is watched all the same."""
    try:
        show()
    except typer.Exit:
        return
