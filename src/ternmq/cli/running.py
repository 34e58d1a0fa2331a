"""Running a command's coroutine: on uvloop where it exists, until done or until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run until the end, or until Ctrl-C or SIGTERM, which are a clean end: ``main`` is cancelled and cleans up."""
    # Modules and classes stay. A collection that looks through them all takes 10 ms, in which nobody is answered.
    gc.freeze()
    run(_until_stopped(main))


async def _until_stopped(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        # Cancelling is right at every moment, also half-way through a start. Once only: what follows is clean-up.
        nonlocal stopped
        if not stopped:
            stopped = True
            task.cancel()

    for number in _STOPS:
        # Windows has no such handlers; there Ctrl-C raises KeyboardInterrupt in the runner, which cancels as well.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop)
    try:
        await main
    except asyncio.CancelledError:
        if not stopped:
            raise
        task.uncancel()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
