"""What every thread and every task of the loop does right now, as text (F10).

Java's consumers answer a tool's request with a dump of their threads. In Python half of the answer is in the tasks: a
listener that waits for a database is no line of any thread's stack. A task is shown from its outermost coroutine down
to what it waits for.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

#: As deep as is useful; an endless recursion must not make an answer too large to send.
FRAMES_MAX: Final = 100


def stack_dump() -> str:
    """Threads by name, then the tasks of the running loop by name; each with its stack, innermost line last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        f"thread {names.get(ident, '?')} ({ident})\n{_text(traceback.walk_stack(frame), is_inner_first=True)}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - its documented name
    ]
    tasks = [f"task {task.get_name()}\n{_text(_walk(task.get_coro()))}" for task in asyncio.all_tasks()]
    return "\n".join([*sorted(threads), *sorted(tasks)])


def _walk(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of those that it waits for."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _text(frames: Iterator[tuple[FrameType, int]], *, is_inner_first: bool = False) -> str:
    summary = traceback.StackSummary.extract(frames, limit=FRAMES_MAX)
    if is_inner_first:
        summary.reverse()
    return "".join(summary.format())
