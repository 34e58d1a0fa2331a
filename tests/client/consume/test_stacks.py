"""What every thread and task does right now (F10)."""

from __future__ import annotations

import asyncio
import threading

from ternmq.client.consume.stacks import FRAMES_MAX, stack_dump


async def test_threads_and_tasks_are_shown_down_to_what_they_wait_for() -> None:
    """F10."""
    go, began = threading.Event(), threading.Event()

    def in_a_thread() -> None:
        began.set()
        go.wait()

    async def inner(event: asyncio.Event) -> None:
        await event.wait()

    async def outer(event: asyncio.Event) -> None:
        await inner(event)

    event = asyncio.Event()
    thread = threading.Thread(target=in_a_thread, name="listener-7")
    thread.start()
    task = asyncio.create_task(outer(event), name="listener-8")
    await asyncio.sleep(0)
    await asyncio.to_thread(began.wait)
    try:
        dump = stack_dump()
    finally:
        go.set()
        event.set()
        await task
        thread.join()

    of_thread = dump[dump.index("thread listener-7 (") :]
    assert "in in_a_thread\n    go.wait()\n" in of_thread
    of_task = dump[dump.index("task listener-8\n") :]
    assert of_task.index("in outer\n    await inner(event)\n") < of_task.index("in inner\n    await event.wait()\n")


async def test_a_recursion_is_shown_up_to_a_limit() -> None:
    """F10: the innermost frames, as the answer must fit into a frame of the protocol."""

    def one(times: int) -> str:
        return other(times) if times else stack_dump()

    def other(times: int) -> str:
        return one(times - 1)

    dump = one(100)
    of_thread = dump[dump.index("thread MainThread") :]
    frames = of_thread.count("in one\n") + of_thread.count("in other\n")
    assert FRAMES_MAX - 5 < frames <= FRAMES_MAX
    assert "in stack_dump\n" in of_thread
