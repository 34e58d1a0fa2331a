"""An event loop in virtual time: it never waits, and the same program runs in the same order each time (C8, G1).

If no callback is ready, time jumps to the next timer; an hour of heartbeats takes a moment. Callbacks run in the order
in which they were scheduled, also timers of the same time. There are no sleeps and no threads: work for an executor is
done by the loop, in its next turn. Tasks hash by their number, so that sets of them have a fixed order, too.

A ``Process`` is everything that runs in its context: tasks, callbacks and timers inherit it from their creator.
``kill`` ends it like ``kill -9``: no ``finally`` runs, no message is sent, and none of its code runs again. ``pause``
suspends it for a while, like a machine that swaps or a virtual machine that is moved; missed callbacks run afterwards.

The loop is based on asyncio's ``BaseEventLoop`` and replaces its scheduling. Sockets are provided by a
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

from ternmq.env import WorkClock
from ternmq.net.endpoint import Bound

T = TypeVar("T")

#: Virtual time at the start of a loop: a machine that has been up for a while.
BEGIN_S: Final = 1000.0
#: Callbacks at one moment of time; with more, the program is considered to be in an endless loop.
STEPS_MAX: Final = 200_000

#: The context of work that belongs to no process: that of the network.
NOWHERE: Final = Context()

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Standstill(AssertionError):
    """No callback is ready and no timer runs, but a task still waits: it would wait for ever."""


class Circle(AssertionError):
    """The program runs on and on without letting time pass."""


class Sockets(Protocol):
    """The operations that the loop delegates to a network."""

    def bind(self, ip: str, port: int) -> Bound: ...

    def listen(self, sock: Any, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.AbstractServer: ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], ip: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...


class Process:
    """A program on the machine with the address ``ip``, from its start to its end."""

    def __init__(self, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.is_killed = False
        self.is_paused = False
        #: Callbacks run in this context, unless they have their own (which was copied from this one).
        self.context: Final = copy_context()
        self.context.run(_process.set, self)
        #: Callbacks that became due during a pause, or after its end.
        self.missed: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return f"<Process {self.name}{' killed' if self.is_killed else ' paused' if self.is_paused else ''}>"

    @staticmethod
    def current() -> Process | None:
        """The running process; None in the driver of the simulation."""
        return _process.get()

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as this process, which owns everything that it starts."""
        return self.context.copy().run(function, *args)

    def start(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this process, which owns it."""
        return self.run(asyncio.get_running_loop().create_task, coro)

    def kill(self) -> None:
        """End it: none of its code runs again."""
        self.is_killed, self.is_paused = True, False
        _running_loop().bury(self)

    def pause(self) -> None:
        self.is_paused = not self.is_killed

    def resume(self) -> None:
        """Run the missed callbacks now, in their order."""
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
        #: Ended processes, with their remaining tasks.
        self._dead: dict[Process, list[asyncio.Task[Any]]] = {}
        self._ready: deque[asyncio.Handle] = deque()
        self.sockets: Sockets | None = None
        #: How long work on another thread takes, as that of a slow disk; 0: it is done in the next turn.
        self.thread_s = 0.0
        #: Uncaught errors of callbacks: faults of the program. Raised by ``check``.
        self.failures: list[BaseException] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_failure)

    # --- Time and order -----------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    @property
    def work_clock(self) -> WorkClock:
        """Work takes no time here."""
        return WorkClock(self.time, self.time)

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
        """Run the callbacks that a process missed during its pause."""
        self._ready.extend(process.missed)
        process.missed.clear()

    def bury(self, process: Process) -> None:
        """Keep the tasks of a killed process: the garbage collector would run the ``finally`` of destroyed tasks."""
        tasks = asyncio.all_tasks(self)
        self._dead[process] = [task for task in tasks if isinstance(task, _Task) and task.process is process]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # noqa: ARG002
        """Call ``func`` in the next turn, or after ``thread_s``: there are no threads in a simulation."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        if self.thread_s:
            self.call_later(self.thread_s, call)
        else:
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
            raise Circle(f"{STEPS_MAX} turns of the loop at {self._now:.3f} s without an end")

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
        """Raise the first uncaught error."""
        if self.failures:
            raise self.failures[0]

    def end(self) -> None:
        """Cancel all remaining tasks, also those of killed processes, and close. Their errors are ignored."""
        self._is_over = True
        for process in self._dead:
            # Otherwise a task that waits for one of these steps could not be cancelled.
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
    """A loop for one simulation; everything that is left on it is ended with the block."""
    loop = SimulatedLoop()
    try:
        yield loop
    finally:
        loop.end()
