"""An event loop in virtual time: nothing waits, and the same program does the same things in the same order (C8, G1).

When nothing is ready, time jumps to the next timer; an hour of heartbeats takes a moment. Callbacks run in the order in
which they were asked for, timers of the same time too. Nobody sleeps, no thread runs: what is handed to an executor is
done by the loop, in its next turn. Tasks hash by their number, so that sets of them have one order, too.

A ``Process`` is everything that runs in its context: tasks, callbacks and timers inherit it from those who made them.
``kill`` ends it as ``kill -9`` does: no ``finally``, no farewell, nothing of it ever runs again. ``pause`` lets it do
nothing for a while, as a machine that swaps or a virtual one that is moved; what it missed it does afterwards.

The loop stands on asyncio's own ``BaseEventLoop`` and replaces how it schedules. Sockets are the business of a
``Network`` (``testing.net``).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Protocol, TypeVar

from ternmq.net.endpoint import Bound

T = TypeVar("T")

#: Virtual seconds at which a loop begins: a machine that has been up for a while.
BEGIN_S: Final = 1000.0
#: Callbacks at one moment of time, after which the program is taken for one that runs in a circle.
STEPS_MAX: Final = 200_000

#: The context of what belongs to no process: the network's own work.
NOWHERE: Final = Context()

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Standstill(AssertionError):
    """Nothing is ready, no timer runs, and somebody still waits: he would wait for ever."""


class Circle(AssertionError):
    """The program goes on and on without letting time pass."""


class Sockets(Protocol):
    """What the loop leaves to a network."""

    def bind(self, ip: str, port: int) -> Bound: ...

    def listen(self, sock: Any, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.AbstractServer: ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], ip: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...


class Process:
    """A program on the machine with the address ``ip``, from its start to its death."""

    def __init__(self, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.is_killed = False
        self.is_paused = False
        #: Callbacks run here, unless they bring a context of their own (which was copied from this one).
        self.context: Final = copy_context()
        self.context.run(_process.set, self)
        #: What came due during a pause, or after its death.
        self.missed: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return f"<Process {self.name}{' killed' if self.is_killed else ' paused' if self.is_paused else ''}>"

    @staticmethod
    def current() -> Process | None:
        """The one that runs now; None in what drives the simulation."""
        return _process.get()

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as this process; what it starts belongs to it."""
        return self.context.copy().run(function, *args)

    def start(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this process, which owns it."""
        return self.run(asyncio.get_running_loop().create_task, coro)

    def kill(self) -> None:
        """Nothing of it runs any more."""
        self.is_killed, self.is_paused = True, False
        _running_loop().bury(self)

    def pause(self) -> None:
        self.is_paused = not self.is_killed

    def resume(self) -> None:
        """What was missed is done now, in its order."""
        self.is_paused = False
        _running_loop().catch_up(self)


class _Task(asyncio.Task[T]):
    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: SimulatedLoop, number: int, context: Context | None):
        self._number = number
        self.process = _process.get() if context is None else context.get(_process)
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Use as ``with simulated_loop() as loop: loop.run_until_complete(…)``."""

    def __init__(self) -> None:
        super().__init__()
        self._now = BEGIN_S
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._steps = 0
        self._is_over = False
        #: With the tasks that they left.
        self._dead: dict[Process, list[asyncio.Task[Any]]] = {}
        self._ready: deque[asyncio.Handle] = deque()
        self.sockets: Sockets | None = None
        #: What callbacks raised and nobody caught: faults of the program. Raised by ``check``.
        self.failures: list[BaseException] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_failure)

    # --- Time and order -----------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context if context is not None else copy_context())
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def catch_up(self, process: Process) -> None:
        """Do what a process missed during its pause."""
        self._ready.extend(process.missed)
        process.missed.clear()

    def bury(self, process: Process) -> None:
        """Keep the tasks of a dead process: destroyed, they would run their ``finally`` whenever memory is cleaned."""
        tasks = asyncio.all_tasks(self)
        self._dead[process] = [task for task in tasks if isinstance(task, _Task) and task.process is process]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ARG002
        """Call ``func`` in the next turn: there are no threads here."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(call)
        return future

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(_process)  # type: ignore[attr-defined]  # noqa: SLF001 - a loop runs handles
            if process is not None and (process.is_killed or process.is_paused) and not self._is_over:
                process.missed.append(handle)
            else:
                handle._run()  # noqa: SLF001
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise Circle(f"{STEPS_MAX} turns of the loop at {self._now:.3f} s, and no end")

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Standstill("nothing is ready and no timer runs, but something is still awaited")
        if timers[0][0] > self._now:
            self._now, self._steps = timers[0][0], 0
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def _make_task(
        self, _: asyncio.AbstractEventLoop, coro: Any, *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        self._count += 1
        return _Task(coro, loop=self, number=self._count, context=context)

    # --- Sockets ------------------------------------------------------------------------------------------------

    def bind(self, host: str, port: int) -> Bound:
        """See ``ternmq.net.endpoint.HasPorts``."""
        return self._network.bind(host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> asyncio.AbstractServer:
        sock = options.get("sock") or self._network.bind(str(host), int(port))
        return self._network.listen(sock, protocol_factory)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        assert options.get("ssl") is None, "a simulated network has plain connections only"
        return await self._network.connect(protocol_factory, str(host), int(port))

    @property
    def _network(self) -> Sockets:
        if self.sockets is None:
            raise OSError("this loop has no network; give it one: testing.net.Network(loop, …)")
        return self.sockets

    # --- The end --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first error that nobody caught."""
        if self.failures:
            raise self.failures[0]

    def end(self) -> None:
        """Cancel whatever is left, the dead included, and close. What it says on its way out, nobody hears."""
        self._is_over = True
        for process in self._dead:
            # Or a task that waits for one of these steps could not even be cancelled.
            self.catch_up(process)
        with contextlib.suppress(Standstill):
            while tasks := asyncio.all_tasks(self):
                for task in sorted(tasks, key=hash):
                    task.cancel()
                self.run_until_complete(_ended(tasks))
            self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._is_over:
            self.failures.append(context.get("exception") or AssertionError(context["message"]))


def _running_loop() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


@contextlib.contextmanager
def simulated_loop() -> Generator[SimulatedLoop, None, None]:
    """A loop for one simulation; at the end all that is left on it is gone."""
    loop = SimulatedLoop()
    try:
        yield loop
    finally:
        loop.end()
