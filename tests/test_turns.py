"""Long work in slices: one piece at a time, owners in turn."""

from __future__ import annotations

import asyncio

import pytest

from ternmq import turns as module
from ternmq.errors import SystemBusy
from ternmq.turns import Turns


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Pieces:
    """Pieces of work that end when they are told to; ``done`` has their owners in the order of their turns."""

    def __init__(self) -> None:
        self.turns = Turns("pieces")
        self.begun: list[str] = []
        self.may_end = asyncio.Semaphore(0)

    async def work(self, owner: str) -> None:
        async with self.turns.of(owner):
            self.begun.append(owner)
            await self.may_end.acquire()


async def test_one_piece_is_under_way_at_a_time_and_owners_take_turns() -> None:
    """B3: an owner with many pieces does not keep the others waiting."""
    pieces = Pieces()
    async with asyncio.TaskGroup() as tasks:
        for owner in "aaaaabbc":
            tasks.create_task(pieces.work(owner))
        for ended in range(8):
            await settle()
            assert ended + 1 == len(pieces.begun)
            pieces.may_end.release()
    assert "aabcabaa" == "".join(pieces.begun)


async def test_a_piece_that_is_given_up_lets_the_next_one_in() -> None:
    """B3: while it waits, in the moment of its turn, and while it works."""
    pieces = Pieces()
    first, second, third, fourth = (asyncio.ensure_future(pieces.work(owner)) for owner in "abcd")
    await settle()
    second.cancel()
    await settle()
    pieces.may_end.release()
    await asyncio.sleep(0)
    assert first.done()
    # The third has its turn, but did not run yet.
    third.cancel()
    await settle()
    assert ["a", "d"] == pieces.begun
    fourth.cancel()
    await settle()
    last = asyncio.ensure_future(pieces.work("e"))
    pieces.may_end.release()
    await last
    assert ["a", "d", "e"] == pieces.begun


@pytest.mark.parametrize(("bound", "owner"), [("WAITING_MAX", "c"), ("OWN_WAITING_MAX", "b")])
async def test_those_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch, bound: str, owner: str) -> None:
    """B3, bounds: one too many is refused with a sentence, the others go on."""
    monkeypatch.setattr(module, bound, 2)
    pieces = Pieces()
    tasks = [asyncio.ensure_future(pieces.work(each)) for each in "abb"]
    await settle()
    with pytest.raises(SystemBusy, match="too many pieces are waiting"):
        await pieces.work(owner)
    for _ in tasks:
        pieces.may_end.release()
    await asyncio.gather(*tasks)
    assert ["a", "b", "b"] == pieces.begun
