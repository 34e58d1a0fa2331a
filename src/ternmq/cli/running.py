"""Running a command's coroutine: on uvloop if it is installed, until it ends or is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


def check_system() -> None:
    """Raise the error that says where servers run (``output.sentence_of``), if this system is another one."""
    import fcntl  # noqa: F401  # what their stores are locked with


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on its own loop."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run until the end, or until Ctrl-C or SIGTERM, which stop cleanly: ``main`` is cancelled and cleans up."""
    # Modules and classes stay in memory. A collection that visits all of them takes 10 ms, which delays all replies.
    gc.freeze()
    run(_until_stopped(main))


async def _until_stopped(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        # It may be cancelled at any moment, also during the start. Only once: after that it cleans up.
        nonlocal stopped
        if not stopped:
            stopped = True
            task.cancel()

    for number in _STOPS:
        # Windows does not have such handlers; there Ctrl-C raises KeyboardInterrupt in the runner, which cancels, too.
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
