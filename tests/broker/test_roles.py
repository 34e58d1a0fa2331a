"""What runs on a master only starts and stops in one place, one object per term (I1, F9)."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from ternmq import EmbeddedCluster, Message, Producer
from ternmq.broker.roles import RESTART_MAX_S, Role, Roles, Runner, Switch, Term
from ternmq.broker.services.pop_term import PopTerm
from ternmq.delay.delivery import Delivery
from ternmq.delay.levels import DelayLevels
from ternmq.errors import NotMaster, TernError
from ternmq.replication.master import Master
from ternmq.testing.loop import simulated_loop
from ternmq.transaction.checker import TransactionChecker
from ternmq.transaction.transactions import Transactions
from tests.client.send.test_transaction import QUICK, bodies, until

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


class Failing:
    """A runner that fails after so many seconds of work, again and again; ``starts`` are the times of its starts."""

    def __init__(self, *works_s: float) -> None:
        self._works_s = list(works_s)
        self.starts: list[float] = []

    async def run(self) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        if not self._works_s:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._works_s.pop(0))
        raise ZeroDivisionError

    def stop(self, _reason: TernError) -> None: ...


def test_a_runner_that_fails_is_started_again_after_a_pause_that_grows(caplog: pytest.LogCaptureFixture) -> None:
    """Each failure is logged once; a runner that has worked for long begins with the shortest pause again."""

    async def program() -> None:
        runner = Failing(0, 0, 0, RESTART_MAX_S, 0)
        async with Roles() as roles:
            roles.add(lambda _: runner)
            await roles.become(Role.MASTER, Term(1))
            await asyncio.sleep(300)
            began = runner.starts[0]
            assert [0, 1, 3, 7, 7 + RESTART_MAX_S + 1, 7 + RESTART_MAX_S + 3] == [at - began for at in runner.starts]
            assert 5 == len([one for one in caplog.records if "Failing of this master failed" in one.getMessage()])

    with simulated_loop() as loop:
        loop.run_until_complete(program())


def test_a_runner_is_not_started_again_after_its_term() -> None:
    async def program() -> None:
        runner = Failing(0, 0, 0, 0)
        async with Roles() as roles:
            roles.add(lambda _: runner)
            await roles.become(Role.MASTER, Term(1))
            await asyncio.sleep(1.5)
            roles.step_down(REASON)
            await asyncio.sleep(300)
            assert 2 == len(runner.starts)

    with simulated_loop() as loop:
        loop.run_until_complete(program())


class _Once:
    """Lets a method fail at one call; ``again`` is set when it is called after that."""

    def __init__(self, method: Callable[..., Any], *, number: int = 1) -> None:
        self.calls_left = number
        self.again = asyncio.Event()
        self._method = method

    def __get__(self, owner: object, _kind: type) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise ZeroDivisionError
            if self.calls_left < 0:
                self.again.set()
            return self._method(owner, *arguments)

        return call


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (DelayLevels, "_deliver"),
        (Delivery, "_turn"),
        (PopTerm, "_tend"),
        (TransactionChecker, "check_all"),
        (Transactions, "tend"),
        (Master, "look"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_each_runner_of_a_broker_works_again_after_an_error_that_it_does_not_expect(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I2, F9, J2, O1: delay levels, delivery, pop, transaction check, the port for slaves."""
    once = _Once(getattr(kind, name))
    monkeypatch.setattr(kind, name, once)
    async with EmbeddedCluster(settings=QUICK), asyncio.timeout(60):
        await once.again.wait()


async def test_a_delayed_message_is_delivered_once_after_its_delivery_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I2: what the failed turn had taken is not forgotten, and what it had delivered is not repeated."""
    async with EmbeddedCluster() as cluster:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            # The first call delivers at least one of them, the second fails.
            once = _Once(Delivery._deliver_together, number=2)
            monkeypatch.setattr(Delivery, "_deliver_together", once)
            for number in range(3):
                delay = datetime.timedelta(seconds=1 + number)
                await producer.send(Message("orders", b"%d" % number, delay=delay))

            async def came() -> bool:
                return 3 <= len(await bodies(cluster))

            await asyncio.wait_for(once.again.wait(), 60)
            await until(came)
        assert [b"0", b"1", b"2"] == sorted(await bodies(cluster))
