"""Tasks have one owner, which ends them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ternmq.tasks import Tasks


async def test_leaving_the_block_ends_every_task() -> None:
    ended: list[str] = []

    async def run_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with Tasks() as tasks:
        tasks.create_task(run_for_ever())
        tasks.create_task(run_for_ever())
        await asyncio.sleep(0)

    assert ["ended", "ended"] == ended


async def test_an_error_of_the_block_comes_out_as_it_is() -> None:
    """A user's ``except KeyError`` works around any ``async with`` of ours."""
    with pytest.raises(KeyError):
        async with Tasks() as tasks:
            tasks.create_task(asyncio.Event().wait())
            raise KeyError("x")


async def test_a_failed_task_is_logged_at_once_and_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="broken"):
        async with Tasks() as tasks:
            await asyncio.wait([tasks.create_task(fail(), name="the failing one")])
            await asyncio.sleep(0)
            assert ["a task failed"] == [record.message for record in caplog.records]


async def test_no_task_starts_after_the_end() -> None:
    async with Tasks() as tasks:
        pass
    with pytest.raises(RuntimeError, match="has ended"):
        tasks.create_task(asyncio.sleep(0))
