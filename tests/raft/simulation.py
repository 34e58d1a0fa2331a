"""A group of cores in a network that breaks, from a seed (P1, P3).

Each seed chooses which faults there are: lost, doubled, late and overtaking messages, links that fail in one direction,
that flap, members that are killed, lose power, stand still, whose clocks run fast or jump, slow disks, transfers,
deleted entries. Members are real cores; shell, log and disk are models of the real ones (``memory_log``). After some
time the faults end, and the group must work again soon.

Time is global, in ms; each member has its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from ternmq.errors import TernError
from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.messages import NO_TERM, Append, HardState, RaftMessage
from ternmq.raft.ready import RaftRole, Ready, RoleChange
from tests.raft.checkers import Checkers, Wrong
from tests.raft.memory_log import ENTRY_BYTES, Entry, MemoryLog

#: How long everything may break, and in how much time the group must work again.
BROKEN_MS: Final = 15_000
HEALED_MS: Final = 8_000
#: And all be equal: a follower that lacks a thousand entries gets them in small windows here.
EQUAL_MS: Final = 30_000
#: Senders that wait at one leader.
WAITING_MAX: Final = 50
#: How often the logs are compared.
COMPARE_MS: Final = 500


class Crash(Exception):
    """A member dies in the middle of what it does."""


class Packet(NamedTuple):
    message: RaftMessage
    entries: Sequence[Entry]


class Breakage:
    """Rules to break on purpose. The ones of the core are broken by another class; these are of the shell."""

    core: type[RaftCore] = RaftCore
    #: Tell the core that entries are stored when they are only written.
    stores_early = False
    forgets_vote = False
    forgets_term = False
    sends_before_vote_is_saved = False


class Faults:
    """What may happen to one seed."""

    def __init__(self, random: Random) -> None:
        def chance(share: float, least: float, most: float) -> float:
            return random.uniform(least, most) if random.random() < share else 0.0

        self.loss = chance(0.6, 0.01, 0.2)
        self.doubles = chance(0.4, 0.01, 0.2)
        #: Without it, messages of one link keep their order, as on a TCP connection.
        self.overtakes = random.random() < 0.4
        self.late_ms = chance(0.4, 50, 1500)
        #: Mean ms between two of each kind; 0: never.
        self.kills = chance(0.7, 700, 6000)
        self.power_cuts = chance(0.5, 900, 8000)
        self.cuts = chance(0.7, 500, 5000)
        self.pauses = chance(0.5, 1500, 6000)
        self.jumps = chance(0.3, 1000, 6000)
        self.transfers = chance(0.5, 700, 5000)
        self.deletions = chance(0.4, 1000, 5000)
        #: That a member dies between two acts of one ``Ready``.
        self.torn = chance(0.5, 0.002, 0.02)
        self.slow_disk = chance(0.4, 0.02, 0.3)
        #: Two members hear each other now and then, and the others hear both.
        self.flaps = random.random() < 0.4
        self.is_storm = random.random() < 0.2
        if self.is_storm:
            # Elections one after the other, with votes that come late, by members that die and are back at once.
            self.kills, self.torn = random.uniform(150, 600), 0.03
            self.late_ms, self.overtakes, self.jumps = random.uniform(300, 1500), True, 0.0


class Node:
    """A member: its log and files, and a core while it runs."""

    def __init__(self, simulation: Simulation, config: RaftCoreConfig) -> None:
        self.simulation = simulation
        self.config = config
        self.name = config.self_id
        self.log = MemoryLog()
        self.hard_state = HardState()
        self.saved_commit = -1
        self.core: RaftCore | None = None
        self.commit = -1
        #: Grows with each life: what was begun in an earlier one is void.
        self.life = 0
        self.clock_rate = 1.0
        self.clock_ms = 0.0
        self.paused_until_ms = 0.0
        #: Index → payload of what senders wait for, in this term.
        self.waiting: dict[int, str] = {}
        #: What it tells a sender at this moment.
        self.acknowledges = ""
        self._tick_at = 0.0
        self._is_syncing = False

    @property
    def is_leader(self) -> bool:
        return self.core is not None and self.core.role is RaftRole.LEADER

    def now_ms(self) -> int:
        return int(self.clock_ms + self.simulation.now_ms * self.clock_rate)

    def start(self) -> None:
        hard_state = self.hard_state
        if self.simulation.breakage.forgets_vote:
            hard_state = HardState(hard_state.term, None)
        if self.simulation.breakage.forgets_term:
            hard_state = HardState()
        self.life += 1
        self._is_syncing = False
        self._tick_at = 0.0
        self.waiting = {}
        self.commit = max(min(self.saved_commit, self.log.last_index), self.log.first_index - 1)
        self.core = self.simulation.breakage.core(
            self.config,
            hard_state,
            self.log,
            Random(self.simulation.random.random()),
            self.now_ms(),
            commit=self.commit,
            stored=self.log.synced if self.simulation.on_disk else None,
        )
        self.simulation.note("start", self.name, self.log.last_index, hard_state)
        self._sync()
        self._plan_tick()

    def die(self, *, power_cut: bool) -> None:
        self.simulation.note("power cut" if power_cut else "kill", self.name)
        self.core = None
        self.life += 1
        if power_cut:
            self.log.cut_power(self.simulation.random)
            self.saved_commit = min(self.saved_commit, self.log.last_index)

    def run(self, call: Callable[[RaftCore], Ready]) -> None:
        """Call the core, and do what it wants; a torn ``Ready`` is a death."""
        if self.core is None:
            return
        try:
            self._do(call(self.core))
        except Crash:
            self.die(power_cut=self.simulation.on_disk and self.simulation.random.random() < 0.5)
            self.simulation.restart_later(self)
            return
        except TernError as error:
            raise Wrong(f"{self.name} takes another member's message for a fault: {error}") from error
        self._plan_tick()

    def propose(self, payload: str) -> None:
        if self.core is not None and self.is_leader and self.core.heir is None and len(self.waiting) < WAITING_MAX:
            self.waiting[self.log.last_index + 1] = payload
            self._write(Entry(self.core.term, payload))

    def take(self, packet: Packet) -> None:
        if self.core is None:
            return
        if self.simulation.now_ms < self.paused_until_ms:
            self.simulation.at(self.paused_until_ms, self.life_of(lambda: self.take(packet)))
            return
        self.simulation.note(self.name, "gets", packet.message)
        if isinstance(packet.message, Append):
            self._entries = packet.entries
        self.run(lambda core: core.step(packet.message, self.now_ms()))

    def life_of(self, act: Callable[[], None]) -> Callable[[], None]:
        """``act``, unless this life has ended."""
        life = self.life
        return lambda: act() if self.life == life else None

    def _write(self, entry: Entry) -> None:
        self.log.append(self.log.last_index + 1, [entry])
        self._sync()
        self.run(lambda core: core.appended(self.now_ms()))
        self._stored_in_cache()

    def _stored_in_cache(self) -> None:
        if not self.simulation.on_disk or self.simulation.breakage.stores_early:
            self.run(lambda core: core.stored(self.log.last_index, self.now_ms()))

    def _sync(self) -> None:
        """One sync at a time; it covers what is written when it begins."""
        if self._is_syncing or self.log.synced >= self.log.last_index:
            return
        self._is_syncing = True
        last, cuts = self.log.last_index, self.log.cuts

        def synced() -> None:
            self._is_syncing = False
            if self.log.cuts == cuts:
                self.log.sync(last)
                if self.simulation.on_disk:
                    self.run(lambda core: core.stored(last, self.now_ms()))
            self._sync()

        self.simulation.at(self.simulation.now_ms + self.simulation.disk_ms(), self.life_of(synced))

    def _do(self, ready: Ready) -> None:
        simulation = self.simulation
        if ready.role is not None:
            self._turn(ready.role)
        if ready.hard_state is not None:
            if simulation.breakage.sends_before_vote_is_saved:
                self._send(ready.messages)
                simulation.maybe_crash()
            simulation.maybe_crash()
            self.hard_state = ready.hard_state
            simulation.maybe_crash()
        if ready.truncate_from is not None:
            simulation.checkers.truncates(self.name, ready.truncate_from, self.commit)
            simulation.note(self.name, "truncates from", ready.truncate_from)
            self.log.truncate(ready.truncate_from)
            simulation.maybe_crash()
        if ready.append is not None:
            self.log.append(ready.append_from, self._entries[ready.append_from - ready.append.first_index :])
            simulation.maybe_crash()
        if ready.commit is not None:
            self._commit(ready.commit)
        self._send(ready.messages)
        if ready.hard_state is not None:
            simulation.maybe_crash()
        for name in ready.needs_copy:
            simulation.copy_later(self, simulation.nodes[name])
        if ready.append is not None:
            self._sync()
            self._stored_in_cache()
        if ready.role is not None and ready.role.role is RaftRole.LEADER:
            simulation.checkers.leads(self.name, ready.role.term, self.log)
            self._write(Entry(ready.role.term, f"term {ready.role.term}"))

    def _turn(self, change: RoleChange) -> None:
        self.simulation.note(self.name, change)
        self.waiting = {}

    def _commit(self, index: int) -> None:
        simulation = self.simulation
        assert self.core is not None
        simulation.checkers.commits(self.name, self.core.term, self.commit, index, self.log)
        self.commit = index
        if simulation.random.random() < 0.2:
            self.saved_commit = index
        for at in [at for at in self.waiting if at <= index]:
            payload = self.waiting.pop(at)
            simulation.note("acknowledged", payload, at)
            self.acknowledges = payload
            simulation.acknowledge(payload, at)
            self.acknowledges = ""

    def _send(self, messages: Sequence[RaftMessage]) -> None:
        for message in messages:
            entries: Sequence[Entry] = ()
            if isinstance(message, Append):
                entries = self.log.between(message.first_index, message.last_index)
                assert len(entries) == message.last_index - message.prev_index
            self.simulation.send(Packet(message, entries))

    def _plan_tick(self) -> None:
        if self.core is None:
            return
        at = self.simulation.now_ms + max(self.core.deadline_ms - self.now_ms(), 0) / self.clock_rate + 1
        if abs(at - self._tick_at) < 1 and self._tick_at > self.simulation.now_ms:
            return
        self._tick_at = at

        def tick() -> None:
            if self._tick_at != at:
                return
            if self.simulation.now_ms < self.paused_until_ms:
                self._tick_at = self.paused_until_ms
                self.simulation.at(self.paused_until_ms, self.life_of(self._plan_tick))
                return
            self.run(lambda core: core.tick(self.now_ms()))

        self.simulation.at(at, self.life_of(tick))


class Simulation:
    def __init__(self, seed: int, *, breakage: Breakage | None = None, keeps_trace: bool = False) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.breakage = breakage or Breakage()
        self.trace: list[tuple[object, ...]] = []
        self._keeps_trace = keeps_trace
        self.checkers = Checkers()
        self.now_ms = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        random = self.random
        self.faults = Faults(random)
        #: Entries count when they are on disk, else when they are in the page cache. Then no power is lost: what that
        #: mode does not survive is not its fault (docs/decisions/0027-raft-core.md).
        self.on_disk = random.random() < 0.6
        count = random.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5))
        names = [f"n{number}" for number in range(count)]
        self.members = Members(tuple(names), ("l0",) if random.random() < 0.2 else ())
        preferred = tuple(random.sample(names, 1)) if random.random() < 0.2 else ()
        self.nodes: dict[str, Node] = {}
        for name in (*self.members.voters, *self.members.learners):
            config = RaftCoreConfig(
                self_id=name,
                members=self.members,
                preferred=preferred,
                append_bytes=random.choice((1, 5)) * ENTRY_BYTES,
                window_bytes=random.choice((5, 12, 40)) * ENTRY_BYTES,
                window_count=random.choice((2, 8)),
            )
            self.nodes[name] = Node(self, config)
            if not self.faults.jumps:
                self.nodes[name].clock_rate = random.uniform(0.97, 1.03)
        #: Links that carry nothing, and when the last message of each arrives.
        self.cut: set[tuple[str, str]] = set()
        self._flapping: set[tuple[str, str]] = set()
        self._arrivals: dict[tuple[str, str], float] = {}
        self._is_healed = False
        self._proposed = 0
        #: How long the group needed to work again.
        self.recovered_ms = 0.0

    # --- Running

    def run(self) -> None:
        for node in self.nodes.values():
            self.at(self.random.uniform(0, 100), node.start)
        self._plan_faults()
        self._plan_proposals()
        self.at(COMPARE_MS, self._compare)
        self._run_until(BROKEN_MS)
        self._heal()
        healed_ms = self.now_ms
        before = self._proposed
        while not any(f"p{number}" in self.checkers.acknowledged for number in range(before + 1, self._proposed + 1)):
            if self.now_ms > healed_ms + HEALED_MS:
                raise Wrong(f"no leader, or no commit, within {HEALED_MS} ms of a whole network")
            self._propose()
            self._run_until(self.now_ms + 100)
        self.recovered_ms = self.now_ms - healed_ms
        ends: set[tuple[int, int]] = set()
        while len(ends) != 1:
            if self.now_ms > healed_ms + EQUAL_MS:
                raise Wrong(f"members are not equal {EQUAL_MS} ms after all is well: {sorted(ends)}")
            self._run_until(self.now_ms + 500)
            ends = {(node.log.last_index, node.commit) for node in self.present().values()}
        self._compare()
        self.checkers.acknowledged_is_kept({name: node.log for name, node in self.present().items()})

    def present(self) -> dict[str, Node]:
        """The members that must be equal at the end."""
        return self.nodes

    def at(self, when_ms: float, act: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._queue, (when_ms, self._number, act))

    def note(self, *what: object) -> None:
        if self._keeps_trace:
            self.trace.append((round(self.now_ms, 1), *what))

    def _run_until(self, end_ms: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_ms:
            self.now_ms, _, act = heappop(queue)
            act()
            self._check_leases()
        self.now_ms = end_ms

    # --- The world

    def send(self, packet: Packet) -> None:
        link = packet.message.sender, packet.message.receiver
        faults, random = self.faults, self.random
        if link in self.cut or link in self._flapping or random.random() < faults.loss:
            return
        for _ in range(2 if random.random() < faults.doubles else 1):
            at = self.now_ms + random.uniform(0.2, 10)
            if faults.late_ms and random.random() < (0.3 if faults.is_storm else 0.1):
                at += random.uniform(0, faults.late_ms)
            if not faults.overtakes:
                at = self._arrivals[link] = max(at, self._arrivals.get(link, 0.0))
            self.at(at, lambda: self.nodes[packet.message.receiver].take(packet))

    def disk_ms(self) -> float:
        is_slow = self.random.random() < self.faults.slow_disk
        return self.random.uniform(100, 2000) if is_slow else self.random.uniform(0.5, 15)

    def maybe_crash(self) -> None:
        if self.faults.torn and self.random.random() < self.faults.torn:
            raise Crash

    def restart_later(self, node: Node) -> None:
        longest_ms = 40 if self.faults.is_storm else self.random.choice((60, 300, 2500))
        self.at(self.now_ms + self.random.uniform(5, longest_ms), node.life_of(node.start))

    def copy_later(self, leader: Node, follower: Node) -> None:
        """A follower lacks entries that are deleted: it begins anew where the leader's log begins."""

        def copy() -> None:
            first = leader.log.first_index
            if leader.core is None or not leader.is_leader or follower.core is None:
                return
            if follower.core.leader != leader.name or follower.core.term != leader.core.term:
                return
            prev_term = leader.log.term_of(first - 1)
            follower.core.meets(first - 1, NO_TERM if prev_term is None else prev_term)
            if not follower.core.lacks(first):
                return
            self.note("copy", leader.name, follower.name, first)
            entries = leader.log.between(first, leader.commit) if self.random.random() < 0.5 else []
            follower.core = None
            follower.log = MemoryLog(entries, first_index=first)
            follower.saved_commit = follower.log.last_index
            follower.start()

        self.at(self.now_ms + self.random.uniform(1, 300), copy)

    def acknowledge(self, payload: str, index: int) -> None:
        holders = 0
        for name in self.members.voters:
            log = self.nodes[name].log
            if index < log.first_index:
                holders += 1
            else:
                kept = log.image if self.on_disk else log.entries
                at = index - log.first_index
                holders += at < len(kept) and kept[at].payload == payload
        self.checkers.acknowledges(payload, index, holders, self.members.quorum)

    def _plan_proposals(self) -> None:
        # Seldom ones leave all logs equal, so that each member could be elected.
        mean_ms = self.random.choice((100, 2500) if self.faults.is_storm else (15, 50, 200, 2500))

        self._repeat(mean_ms, self._propose)

    def _propose(self) -> str | None:
        leaders = [node for node in self.nodes.values() if node.is_leader and self.now_ms >= node.paused_until_ms]
        if not leaders:
            return None
        self._proposed += 1
        payload = f"p{self._proposed}"
        self.random.choice(leaders).propose(payload)
        return payload

    def _plan_faults(self) -> None:
        faults = self.faults
        if faults.flaps and len(self.nodes) > 2:
            self._flap(*self.random.sample(list(self.nodes), 2))
        for mean_ms, act in (
            (faults.kills, lambda: self._kill(power_cut=False)),
            (faults.power_cuts if self.on_disk else 0.0, lambda: self._kill(power_cut=True)),
            (faults.cuts, self._cut),
            (faults.pauses, self._pause),
            (faults.jumps, self._jump),
            (faults.transfers, self._transfer),
            (faults.deletions, self._delete),
        ):
            if mean_ms:
                self._repeat(mean_ms, act)

    def _repeat(self, mean_ms: float, act: Callable[[], object]) -> None:
        """Until the faults end."""

        def again() -> None:
            if not self._is_healed:
                act()
                self.at(self.now_ms + self.random.expovariate(1 / mean_ms), again)

        self.at(self.now_ms + self.random.expovariate(1 / mean_ms), again)

    def _any(self, *, leader: float = 0.5) -> Node:
        """A member, with some luck the leader."""
        leaders = [node for node in self.nodes.values() if node.is_leader]
        if leaders and self.random.random() < leader:
            return self.random.choice(leaders)
        return self.random.choice(list(self.nodes.values()))

    def _kill(self, *, power_cut: bool) -> None:
        is_all = self.random.random() < 0.1
        for node in list(self.nodes.values()) if is_all else [self._any()]:
            if node.core is not None:
                node.die(power_cut=power_cut)
                self.restart_later(node)

    def _cut(self) -> None:
        """Cut links: all of one member, one direction of them, one link, or between two halves; some flap."""
        names = list(self.nodes)
        one, other = self._any().name, self.random.choice(names)
        half = set(self.random.sample(names, len(names) // 2))
        links = self.random.choice(
            (
                [(one, name) for name in names],
                [(name, one) for name in names],
                [(one, name) for name in names] + [(name, one) for name in names],
                [(one, other)],
                [(one, other), (other, one)],
                [(a, b) for a in names for b in names if (a in half) != (b in half)],
            )
        )
        self.note("cut", links)
        self.cut.update(links)

        def mend() -> None:
            self.note("mend", links)
            self.cut.difference_update(links)

        self.at(self.now_ms + self.random.choice((100, 1000, 4000)) * self.random.uniform(0.2, 1), mend)

    def _flap(self, one: str, other: str) -> None:
        if self._is_healed:
            return
        if self._flapping:
            self._flapping.clear()
            after_ms = self.random.uniform(300, 1500)
        else:
            self._flapping = {(one, other), (other, one)}
            after_ms = self.random.uniform(800, 3000)
        self.note("flap", one, other, bool(self._flapping))
        self.at(self.now_ms + after_ms, lambda: self._flap(one, other))

    def _pause(self) -> None:
        node = self._any()
        node.paused_until_ms = self.now_ms + self.random.uniform(50, 4000)
        self.note("pause", node.name, node.paused_until_ms)

    def _jump(self) -> None:
        node = self._any()
        node.clock_ms += self.random.choice((50, 1000, 100_000)) * self.random.random()
        self.note("jump", node.name, node.now_ms())
        node._plan_tick()

    def _transfer(self) -> None:
        node = self._any(leader=1.0)
        if node.core is None or not node.is_leader or self.now_ms < node.paused_until_ms:
            return
        to = self.random.choice([None, *(name for name in self.members.voters if name != node.name)])
        self.note("transfer", node.name, to)
        try:
            ready = node.core.transfer(to, node.now_ms())
        except TernError:
            return  # no member can be reached
        node.run(lambda _: ready)

    def _delete(self) -> None:
        """Retention of one member: it deletes committed entries."""
        node = self._any()
        if node.core is not None and node.commit > node.log.first_index:
            node.log.drop_before(self.random.randint(node.log.first_index, node.commit))
            node.saved_commit = max(node.saved_commit, node.log.first_index - 1)
            self.note("delete", node.name, node.log.first_index)

    def _heal(self) -> None:
        self.note("heal")
        self._is_healed = True
        faults = self.faults
        faults.loss = faults.doubles = faults.late_ms = faults.torn = faults.slow_disk = 0.0
        self.cut.clear()
        self._flapping.clear()
        for node in self.nodes.values():
            node.paused_until_ms = min(node.paused_until_ms, self.now_ms)
            if node.core is None:
                node.life += 1  # no planned start
                node.start()

    # --- Checks

    def _compare(self) -> None:
        self.checkers.logs_match({name: node.log for name, node in self.nodes.items()})
        if not self._is_healed:
            self.at(self.now_ms + COMPARE_MS, self._compare)

    def _check_leases(self) -> None:
        """A leader with a lease has no rival of a later term. Leases depend on clocks that do not jump."""
        leaders = [node for node in self.nodes.values() if node.is_leader]
        if len(leaders) < 2 or self.faults.jumps:
            return
        last = max(node.core.term for node in leaders if node.core is not None)
        for node in leaders:
            if node.core is not None and node.core.term < last and node.core.has_lease(node.now_ms()):
                raise Wrong(f"lease: {node.name} has one for term {node.core.term}, and term {last} has a leader")
