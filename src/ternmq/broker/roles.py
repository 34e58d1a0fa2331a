"""Roles: what a broker does because it is the master, in one place (I1, F9, J2).

A broker is a master, a slave, or neither while that is being decided. What only a master does (write, deliver delayed
messages, revive popped ones, check transactions) is a *runner*: one object per term, made when the term begins and
dropped when it ends. Nothing is reset, so nothing of an old term can be left over in a new one.

::

    become(MASTER, term)  wait until all records are folded ─▶ make the runners ─▶ start them ─▶ register with id 0
    step_down(reason)     stop all runners, in the order in which they were added: one turn of the loop, no await
    become(SLAVE, term)   step down, wait until the old tasks are gone ─▶ register with the slave's id

A runner that fails, by an error that it does not expect, is logged and started again after a pause that grows. What
waits for it, such as delayed messages, would otherwise wait until the broker is restarted.

The first runner is the permission to write (``Switch`` around the store's), so after ``step_down`` has returned no
record can be appended, whatever a task of the old term still tries. The tasks of the old term are cancelled in the same
turn: a task that was about to run gets the cancellation instead of its turn.

A plain broker is MASTER from its start to its end. Its end is not the end of a term: runners are cancelled, but not
stopped, and the services close in their own order, so that what is in memory is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, Self

from ternmq.errors import NotMaster, TernError
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: The broker id of a master; slaves have larger ones.
MASTER_ID: Final = 0
_FIRST_SLAVE_ID: Final = 1
#: The pause before a runner that failed is started again. It doubles, up to the second, until the runner has worked for
#: as long as that.
RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 60.0


class Role(Enum):
    MASTER = "master"
    SLAVE = "slave"
    #: Neither: before the first role, and between the end of a term and the next role.
    NONE = "none"


@dataclass(slots=True, frozen=True)
class Term:
    """One time as master. Numbers only grow."""

    number: int


class Runner(Protocol):
    """What runs on a master only; one object per term."""

    async def run(self) -> None:
        """Work until cancelled, or return if there is nothing to do by itself. Called again after it has raised."""
        ...

    def stop(self, reason: TernError) -> None:
        """The term is over: answer what is parked with ``reason``, drop timers and caches. Nothing can be written any
        more. Called once, in the turn of ``step_down``; must not wait."""
        ...


#: Makes the runner of a term, when all records are folded.
RunnerFactory = Callable[[Term], Runner]


class Switch:
    """A runner without work of its own: ``off`` is called when the term ends."""

    def __init__(self, off: Callable[[TernError], None]) -> None:
        self._off = off

    @classmethod
    def factory(cls, *, on: Callable[[], None] | None = None, off: Callable[[TernError], None]) -> RunnerFactory:
        """Calls ``on`` when a term begins, and ``off`` with the reason when it ends."""

        def begin(_term: Term) -> Switch:
            if on is not None:
                on()
            return cls(off)

        return begin

    async def run(self) -> None:
        return

    def stop(self, reason: TernError) -> None:
        self._off(reason)


class Roles:
    """``async with Roles(…) as roles``; leaving the block cancels the runners. All methods belong to the broker's loop.

    ``folded`` waits until all records are dispatched, before a term begins. ``announce`` tells the name servers about
    the new identity.
    """

    def __init__(
        self,
        *,
        broker_id: int = MASTER_ID,
        folded: Callable[[], Awaitable[None]] | None = None,
        announce: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.role = Role.NONE
        self.term = Term(0)
        self._configured_id = broker_id
        self._broker_id = broker_id
        self._folded = folded or _at_once
        self._announce = announce or _at_once
        self._factories: list[RunnerFactory] = []
        self._runners: list[Runner] = []
        self._running: list[asyncio.Task[None]] = []
        self._tasks = Tasks()
        #: Counts changes, so that one that had to wait sees that another was faster.
        self._changes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def is_master(self) -> bool:
        return self.role is Role.MASTER

    @property
    def broker_id(self) -> int:
        """The id under which this broker is registered; it also stands in replies."""
        return self._broker_id

    def add(self, factory: RunnerFactory) -> None:
        """Have a runner in each term. Call before the first term: runners start and stop in the order of adding."""
        assert not self._runners, "runners are added before the first term"
        self._factories.append(factory)

    def step_down(self, reason: TernError) -> None:
        """End the term, in one turn: nothing is written any more, and all that waits for this master is answered.

        Does nothing on a broker that is not a master.
        """
        self._changes += 1
        if self.role is not Role.MASTER:
            return
        self.role = Role.NONE
        log.info("stepping down from term %d: %s", self.term.number, reason)
        self._stop(reason)

    async def ended(self) -> None:
        """Wait until the tasks of the last term are gone."""
        if self._running:
            await asyncio.wait(self._running)

    async def become(self, role: Role, term: Term, *, broker_id: int | None = None) -> None:
        """Take a role. As master, the runners of the term run when this returns; each term needs a larger number.

        ``broker_id`` is the new id; without it a master has 0, and a slave the configured one. A call that was
        overtaken by ``step_down`` or another ``become`` changes nothing. Raises what a factory raises; the broker then
        has no role.
        """
        self.step_down(NotMaster(f"this broker becomes {role.value} in term {term.number}"))
        change = self._changes
        await self.ended()
        if role is Role.MASTER:
            await self._folded()
        if change != self._changes:
            return
        if role is Role.MASTER:
            assert term.number > self.term.number, f"term {term.number} does not follow term {self.term.number}"
            self._begin(term)
        self.term = term
        self.role = role
        self._broker_id = self._id_of(role) if broker_id is None else broker_id
        log.info("this broker is %s in term %d, with id %d", role.value, term.number, self._broker_id)
        await self._announce()

    def _id_of(self, role: Role) -> int:
        if role is Role.SLAVE:
            return self._configured_id or _FIRST_SLAVE_ID
        return MASTER_ID

    def _begin(self, term: Term) -> None:
        try:
            for factory in self._factories:
                self._runners.append(factory(term))
        except BaseException as error:
            self._stop(NotMaster(f"term {term.number} could not begin: {error}"))
            raise
        self._running = [self._tasks.create_task(_keep_running(runner)) for runner in self._runners]

    def _stop(self, reason: TernError) -> None:
        runners, self._runners = self._runners, []
        for runner in runners:
            try:
                runner.stop(reason)
            except Exception:
                # The others must stop, too.
                log.exception("a part of this master could not be stopped")
        for task in self._running:
            task.cancel()


async def _keep_running(runner: Runner) -> None:
    time, pause_s = asyncio.get_running_loop().time, RESTART_S
    while True:
        began = time()
        try:
            await runner.run()
        except Exception:
            if time() - began >= RESTART_MAX_S:
                pause_s = RESTART_S
            name = type(runner).__name__
            log.exception("%s of this master failed unexpectedly; starting it again in %g s", name, pause_s)
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RESTART_MAX_S)


async def _at_once() -> None:
    """Nothing has to be waited for."""
