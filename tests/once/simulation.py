"""One seed, one life of consumers that share keys, where consumers die and hang, and the store fails (S1).

Guards, claims and tokens are the real ones (``guard``, ``keystore``); the store is a table in memory whose changes
happen at one moment, while the call to it takes a while and may fail before that moment or after it. Its clock jumps.
Messages are delivered until they are acknowledged, and now and then afterwards, also to two consumers at once.

The work of half of the messages is *fenced*: its effect and the end of the key are one change of the store, as in
``once_in_transaction``. The effect of the others is elsewhere. What is checked:

- a fenced effect happens exactly once;
- any other effect happens at least once, and at most one of the consumers that had it was told that all is well: the
  others died, lost the store, or got ``LeaseLost``;
- two consumers work for one key at the same time only if one of them was paused, its store failed, or the clock jumped:
  otherwise its lease was renewed;
- after the storm all messages are acknowledged soon.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeVar

from ternmq.errors import KeyBusy, KeyStoreFailed, LeaseLost
from ternmq.once.guard import Busy, Guard, Held
from ternmq.once.keystore import Decide, KeyEntry, State, settle
from ternmq.tasks import Tasks
from ternmq.testing.checkers import Broken
from ternmq.testing.clock import SimulatedClock
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import BEGIN_S, simulated_loop
from tests.client.samples import received

T = TypeVar("T")

KEYS: Final = 40
LEASE_MS: Final = 3_000
KEEP_MS: Final = 7 * 24 * 3_600_000
STORM_S: Final = 60.0
SETTLED_S: Final = 300.0


class WorkFailed(Exception):
    """The work raised an error."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One call of the work."""

    key: int
    node: Node
    #: ``Truth.excuses`` of its node before it claimed the key.
    excuses: int


class Truth:
    """The store as it is, and what has happened."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.entries: dict[str, KeyEntry] = {}
        self.failing = 0.0
        self.fenced: Counter[int] = Counter()
        self.unfenced: Counter[int] = Counter()
        #: Of the unfenced ones: whose consumer was told that all is well.
        self.settled: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.running: list[Attempt] = []
        #: How often leases of a node may have ended: it was paused, the store failed, or the clock jumped.
        self.excuses: Counter[str] = Counter()


class Keys:
    """The store as one consumer sees it."""

    def __init__(self, truth: Truth, node: Node) -> None:
        self.name = "simulated"
        self._truth = truth
        self._node = node

    async def change(self, key: str, decide: Decide[T]) -> T:
        return await self.at_once(lambda: self._changed(key, decide))

    async def purge(self, count_max: int) -> int:
        return 0

    async def commit(self, held: Held, key: int) -> None:
        """The effect and the end of the key, in one transaction."""

        def work() -> bool:
            is_ours = self._changed(held.name, settle(held.token, State.DONE, KEEP_MS))
            if is_ours:
                self._truth.fenced[key] += 1
            return is_ours

        if not await self.at_once(work):
            raise held.lost()

    async def at_once(self, work: Callable[[], T]) -> T:
        await self._trouble()
        result = work()
        await self._trouble()
        return result

    def _changed(self, key: str, decide: Decide[T]) -> T:
        result, changed = decide(self._truth.entries.get(key), self._truth.clock.now_ms())
        if changed is not None:
            self._truth.entries[key] = changed
        return result

    async def _trouble(self) -> None:
        random = self._node.random
        await asyncio.sleep(random.choice((0.0, 0.001, 0.05)))
        if random.random() < self._truth.failing:
            self._truth.excuses[self._node.name] += 1
            await asyncio.sleep(random.choice((0.0, 1.0, 10.0)))
            raise KeyStoreFailed("the store is gone", store=self.name)


class OnceSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a consumer should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.truth = Truth(SimulatedClock(loop))
            loop.run_until_complete(self._live())
            loop.check()
        self._compare()

    async def _live(self) -> None:
        random = self.cluster.random
        consumers = [self.cluster.node(f"consumer-{number}", self._consume) for number in range(3)]
        for node in consumers:
            node.on_death = partial(self._died, node)
        await self.cluster.start(*consumers)
        faults = [fault for fault in (self._kill, self._pause, self._jump) if random.random() < 0.5]
        self.truth.failing = random.choice((0.0, 0.0, 0.02, 0.2))
        end = self.cluster.loop.time() + STORM_S
        while self.cluster.loop.time() < end:
            await asyncio.sleep(random.expovariate(1.0))
            up = [node for node in consumers if node.is_up and not node.is_paused]
            if faults and up:
                random.choice(faults)(random.choice(up), random)
        self.truth.failing = 0.0
        try:
            async with asyncio.timeout(SETTLED_S):
                while len(self.truth.acked) < KEYS or not all(node.is_up and not node.is_paused for node in consumers):
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise Broken(f"{KEYS - len(self.truth.acked)} messages are not done after {SETTLED_S:.0f} s") from None
        for node in consumers:
            await node.stop()

    # --- Faults -------------------------------------------------------------------------------------------------------

    def _kill(self, node: Node, random: Random) -> None:
        node.kill()
        self.cluster.loop.call_later(random.choice((0.1, 1.0, 8.0)), node.start)

    def _pause(self, node: Node, random: Random) -> None:
        self.truth.excuses[node.name] += 1
        node.pause()
        self.cluster.loop.call_later(random.choice((0.5, 2.0, 5.0, 20.0)), self._resume, node)

    def _resume(self, node: Node) -> None:
        if node.is_paused:
            node.resume()

    def _jump(self, _: Node, random: Random) -> None:
        ms = random.choice((-3_600_000, -2_000, 2_000, 3_600_000))
        self.cluster.note("jump", ms)
        self.truth.excuses.update(list(self.cluster.nodes))
        self.truth.clock.jump(ms)

    def _died(self, node: Node) -> None:
        self.truth.running = [attempt for attempt in self.truth.running if attempt.node is not node]

    # --- Consumers ----------------------------------------------------------------------------------------------------

    async def _consume(self, node: Node) -> None:
        keys = Keys(self.truth, node)
        busy = node.random.choice(list(Busy))
        guard = Guard(keys, scope="g", lease_ms=LEASE_MS, keep_ms=KEEP_MS, busy=busy, wait_ms=5_000, clock=node.clock)
        node.is_ready()
        async with Tasks() as tasks:
            for _ in range(2):
                tasks.create_task(self._deliver(node, guard, keys))
            await node.stopping.wait()

    async def _deliver(self, node: Node, guard: Guard, keys: Keys) -> None:
        while not node.stopping.is_set():
            await asyncio.sleep(node.random.choice((0.05, 0.5, 2.0)))
            key = self._next(node.random)
            try:
                await self._handle(node, guard, keys, key)
            except (WorkFailed, KeyBusy, KeyStoreFailed, LeaseLost) as error:
                self.cluster.note(type(error).__name__, node.name, key)
            else:
                self.truth.acked.add(key)

    def _next(self, random: Random) -> int:
        """A message that was sent up to now: mostly one that is not acknowledged, so that consumers meet."""
        sent = min(KEYS, 1 + int((self.cluster.loop.time() - BEGIN_S) / STORM_S * KEYS))
        left = [key for key in range(sent) if key not in self.truth.acked]
        return random.choice(left) if left and random.random() < 0.9 else random.randrange(sent)

    async def _handle(self, node: Node, guard: Guard, keys: Keys, key: int) -> None:
        message = received(key)
        message.properties = {"KEYS": f"order-{key}"}
        is_fenced = key % 2 == 0
        did = False
        excuses = self.truth.excuses[node.name]
        async with guard.hold(message) as held:
            if held is None:
                return
            with self._attempt(Attempt(key, node, excuses)):
                # Shorter and longer than a lease.
                await asyncio.sleep(node.random.choice((0.0, 0.1, 2.0, 2.0 * LEASE_MS / 1000)))
                if node.random.random() < 0.1:
                    raise WorkFailed
                if not is_fenced:
                    self.truth.unfenced[key] += 1
                    did = True
            if is_fenced:
                held.check()
                await keys.commit(held, key)
                held.is_finished = True
        if did:
            self.truth.settled[key] += 1

    @contextlib.contextmanager
    def _attempt(self, attempt: Attempt) -> Iterator[None]:
        name, key = attempt.node.name, attempt.key
        for other in self.truth.running:
            # One that was paused between its claim and its work begins late, while the next owner works.
            if other.key == key and not self._is_excused(other) and not self._is_excused(attempt):
                self.cluster.note("broken", name, other.node.name, key)
                raise Broken(f"{name} works for key {key}, and so does {other.node.name}, whose lease was renewed")
        self.cluster.note("works", name, key)
        self.truth.running.append(attempt)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # its process died
                self.truth.running.remove(attempt)

    def _is_excused(self, attempt: Attempt) -> bool:
        return attempt.excuses != self.truth.excuses[attempt.node.name]

    # --- What holds ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        for key in range(KEYS):
            if key % 2 == 0:
                count = self.truth.fenced[key]
                if count != 1:
                    raise Broken(f"the fenced effect of key {key} happened {count} times")
            elif not self.truth.unfenced[key]:
                raise Broken(f"the effect of key {key} did not happen")
            elif self.truth.settled[key] > 1:
                raise Broken(f"{self.truth.settled[key]} consumers were told that the work for key {key} is done")
