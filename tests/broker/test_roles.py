"""What runs on a master only starts and stops in one place, one object per term (I1, F9)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.broker.roles import Role, Roles, Runner, Switch, Term
from ternmq.errors import NotMaster, TernError

REASON = NotMaster("another broker is the master")


class Worker:
    """A runner that writes down what happens to it, and works once for each ``work``."""

    def __init__(self, story: list[str], term: Term, name: str = "worker") -> None:
        self.name = f"{name} {term.number}"
        self.work = asyncio.Event()
        self._story = story
        story.append(f"{self.name} begins")

    async def run(self) -> None:
        try:
            while True:
                await self.work.wait()
                self.work.clear()
                self._story.append(f"{self.name} works")
        finally:
            self._story.append(f"{self.name} ends")

    def stop(self, reason: TernError) -> None:
        self._story.append(f"{self.name} stops: {reason}")


class World:
    """Roles with one worker; ``story`` is what happened, ``workers`` are those of all terms."""

    def __init__(self, *, broker_id: int = 0) -> None:
        self.story: list[str] = []
        self.workers: list[Worker] = []
        self.folded = asyncio.Event()
        self.folded.set()
        self.roles = Roles(broker_id=broker_id, folded=self.wait_folded, announce=self.announce)

    async def wait_folded(self) -> None:
        await self.folded.wait()

    async def announce(self) -> None:
        self.story.append(f"id {self.roles.broker_id}")

    def worker(self, term: Term) -> Runner:
        self.workers.append(Worker(self.story, term))
        return self.workers[-1]


async def turn() -> None:
    await asyncio.sleep(0)


async def test_each_term_has_its_own_runner() -> None:
    """House: what depends on the role is one object per term, never reset."""
    world = World(broker_id=2)
    async with world.roles as roles:
        roles.add(world.worker)

        await roles.become(Role.MASTER, Term(1))
        assert (Role.MASTER, Term(1), 0) == (roles.role, roles.term, roles.broker_id)
        await turn()
        await roles.become(Role.SLAVE, Term(2))
        assert (Role.SLAVE, Term(2), 2) == (roles.role, roles.term, roles.broker_id)
        await roles.become(Role.MASTER, Term(3))
        await turn()

        assert [
            "worker 1 begins",
            "id 0",
            "worker 1 stops: this broker becomes slave in term 2",
            "worker 1 ends",
            "id 2",
            "worker 3 begins",
            "id 0",
        ] == world.story
        assert 2 == len(world.workers)


async def test_a_runner_that_was_about_to_work_gets_no_turn_after_the_end_of_its_term() -> None:
    """House: step_down is one turn; no message is delivered by a runner of an old term."""
    world = World()
    async with world.roles as roles:
        roles.add(world.worker)
        await roles.become(Role.MASTER, Term(1))
        await turn()
        world.story.clear()

        world.workers[0].work.set()  # its task is scheduled now
        roles.step_down(REASON)
        assert ["worker 1 stops: another broker is the master"] == world.story
        assert Role.NONE is roles.role
        for _ in range(3):
            await turn()

        assert "worker 1 works" not in world.story
        assert "worker 1 ends" == world.story[-1]


async def test_parts_stop_in_the_order_of_adding_and_a_failure_stops_no_other() -> None:
    """House: the permission to write goes first, whatever happens to the others."""
    story: list[str] = []

    def broken(_reason: TernError) -> None:
        story.append("broken")
        raise ZeroDivisionError

    async with Roles() as roles:
        roles.add(Switch.factory(on=lambda: story.append("may write"), off=lambda reason: story.append(f"{reason}")))
        roles.add(Switch.factory(off=broken))
        roles.add(Switch.factory(off=lambda _: story.append("last")))
        await roles.become(Role.MASTER, Term(1))

        roles.step_down(REASON)
        roles.step_down(REASON)

        assert ["may write", str(REASON), "broken", "last"] == story


async def test_a_term_begins_when_all_records_are_folded() -> None:
    """House: become waits for the folds."""
    world = World()
    world.folded.clear()
    async with world.roles as roles:
        roles.add(world.worker)
        becoming = asyncio.ensure_future(roles.become(Role.MASTER, Term(1)))
        await turn()
        assert (Role.NONE, []) == (roles.role, world.story)

        world.folded.set()
        await becoming

        assert (Role.MASTER, ["worker 1 begins", "id 0"]) == (roles.role, world.story)


async def test_a_role_that_was_overtaken_while_it_waited_does_not_begin() -> None:
    """A new master appears while this broker still folds: two masters would write."""
    world = World()
    world.folded.clear()
    async with world.roles as roles:
        roles.add(world.worker)
        becoming = asyncio.ensure_future(roles.become(Role.MASTER, Term(1)))
        await turn()

        await roles.become(Role.SLAVE, Term(2))
        world.folded.set()
        await becoming

        assert (Role.SLAVE, ["id 1"]) == (roles.role, world.story)


async def test_a_term_that_cannot_begin_leaves_nothing_running() -> None:
    """One of several parts cannot read its file."""
    world = World()

    def broken(_term: Term) -> Runner:
        raise ValueError("cannot read its file")

    async with world.roles as roles:
        roles.add(world.worker)
        roles.add(broken)

        with pytest.raises(ValueError, match="cannot read"):
            await roles.become(Role.MASTER, Term(1))

        assert Role.NONE is roles.role
        assert ["worker 1 begins", "worker 1 stops: term 1 could not begin: cannot read its file"] == world.story


async def test_leaving_the_block_cancels_runners_but_does_not_end_the_term() -> None:
    """A broker that stops writes what it has in memory: its services close in their own order."""
    world = World()
    async with world.roles as roles:
        roles.add(world.worker)
        await roles.become(Role.MASTER, Term(1))
        await turn()

    assert ["worker 1 begins", "id 0", "worker 1 ends"] == world.story
