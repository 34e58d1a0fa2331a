"""Groups of cores whose members change while everything breaks, from a seed (P1, P3).

As ``simulation``, and besides: nodes join as learners, vote when they keep up, leave, come again with what they had
before; changes are asked for while others are under way, of several members at once, and right after elections, which
must be refused; disks are lost for good; members are away until what they need is deleted. Members that have left
still hear and speak: real ones are refused by the others (``raft.greeting``).

Disks are lost within what Raft can survive: one at a time, with all others filled, and by members whose settings name
the present members, as the guide asks for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ternmq.errors import TernError
from ternmq.raft.group import Members
from ternmq.raft.messages import NO_TERM, HardState
from tests.raft.memory_log import Entry, MemoryLog
from tests.raft.simulation import Breakage, Node, Simulation

#: How long a leader that is to change the members waits for their answers, at most.
ASKED_MS: Final = 200


class MemberSimulation(Simulation):
    def __init__(self, seed: int, *, breakage: Breakage | None = None, keeps_trace: bool = False) -> None:
        super().__init__(seed, breakage=breakage, keeps_trace=keeps_trace)
        random = self.random
        self._changes_ms = random.choice((150, 600, 2000))
        self._losses_ms = random.choice((0, 1500, 4000))
        first = next(iter(self.nodes.values())).config
        for number in range(random.choice((1, 2, 3))):
            name = f"s{number}"
            members = Members(self.members.voters, (*self.members.learners, name))
            node = self.nodes[name] = Node(self, replace(first, self_id=name, members=members))
            if not self.faults.jumps:
                node.clock_rate = random.uniform(0.97, 1.03)
        #: How many changes were appended, for tests of this test.
        self.changes = 0
        self.losses = 0
        #: The last one that lost its disk.
        self._lost: set[str] = set()
        #: A leader has asked for answers, and may append a change until then.
        self._asked_until_ms = 0.0

    def present(self) -> dict[str, Node]:
        leaders = [node for node in self.nodes.values() if node.is_leader]
        newest = max(leaders, key=lambda node: node.core.term if node.core is not None else 0, default=None)
        members = self.members_of(newest) if newest is not None else self.members
        return {name: node for name, node in self.nodes.items() if name in members}

    def members_of(self, node: Node) -> Members:
        return node.log.members or self.members

    def _plan_faults(self) -> None:
        super()._plan_faults()
        self._repeat(self._changes_ms, self._change)
        if self._losses_ms:
            self._repeat(self._losses_ms, self._lose_disk)

    # --- Changes

    def _change(self) -> None:
        node = self._any(leader=1.0)
        if node.core is None or not node.is_leader or self.now_ms < node.paused_until_ms:
            return
        members = self._other_members(node)
        if self.random.random() < 0.1:
            members = self._other_members(node, members)
        since_ms = node.now_ms()
        node.run(lambda core: core.ask_all(since_ms))
        wait_ms = self.random.uniform(1, ASKED_MS)
        self._asked_until_ms = self.now_ms + wait_ms
        self.at(self.now_ms + wait_ms, node.life_of(lambda: self._append_change(node, members, since_ms)))

    def _append_change(self, node: Node, members: Members, since_ms: int) -> None:
        """The answers have come, or not."""
        if node.core is None or self.now_ms < node.paused_until_ms:
            return
        try:
            node.core.check_change(members, node.now_ms(), since_ms=since_ms)
        except TernError as error:
            self.note("refused", node.name, members, str(error)[:40])
            return
        self.changes += 1
        self.note("change", node.name, members)
        node._write(Entry(node.core.term, f"members {self.changes}", members))

    def _other_members(self, leader: Node, members: Members | None = None) -> Members:
        assert leader.core is not None
        members = members or self.members_of(leader)
        voters, learners = members.voters, members.learners
        ready = [name for name in learners if leader.core.keeps_up(name, leader.now_ms())]
        gone = [name for name in self.nodes if name not in members]
        others = [name for name in (*voters, *learners) if name != leader.name]
        what = self.random.random()
        if ready and what < 0.5:
            name = self.random.choice(ready)
            return Members((*voters, name), tuple(each for each in learners if each != name))
        if gone and (what < 0.8 or len(voters) == 1):
            return Members(voters, (*learners, self.random.choice(gone)))
        if others and (len(voters) > 1 or learners):
            name = self.random.choice(others)
            left = tuple(each for each in voters if each != name)
            if left:
                return Members(left, tuple(each for each in learners if each != name))
        return members

    # --- Losses

    def _lose_disk(self) -> None:
        """A member loses all, and begins with an empty disk."""
        node = self._any(leader=0.3)
        leaders = [each for each in self.nodes.values() if each.is_leader]
        if len(leaders) != 1:
            return
        members = self.members_of(leaders[0])
        committed = leaders[0].log.members_at(leaders[0].commit) or self.members
        others = [self.nodes[name] for name in (*members.voters, *members.learners) if name != node.name]
        is_safe = (
            members == committed
            and node.name in members.voters
            and len(members.voters) > 2
            and all(each.core is not None and not each.core.is_filling and each.saved_commit >= 0 for each in others)
            and all(self.members_of(each) == members for each in others)
        )
        if not is_safe or self.now_ms < self._asked_until_ms:
            # A disk that is lost between the answer and the change of members is the loss of two.
            return
        self.losses += 1
        self._lost = {node.name}
        self.note("disk lost", node.name)
        node.core = None
        node.life += 1
        node.log = MemoryLog()
        node.hard_state = HardState()
        node.saved_commit = -1
        node.config = replace(node.config, members=members)
        self.restart_later(node)

    def copy_later(self, leader: Node, follower: Node) -> None:
        """As a real member does it (``raft.filling``): it knows the members, and keeps its vote if it knows the term of
        the entry before its first."""

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
            follower.core = None
            if prev_term is None:
                state = follower.hard_state
                follower.hard_state = HardState(state.term, state.voted_for, is_filling=True)
            follower.log = MemoryLog(first_index=first, base=leader.log.members_at(first - 1), prev_term=prev_term)
            follower.saved_commit = follower.log.last_index
            follower.start()

        self.at(self.now_ms + self.random.uniform(1, 300), copy)

    # --- Checks

    def acknowledge(self, payload: str, index: int) -> None:
        """A majority of the members that the leader knows has it."""
        [leader] = [node for node in self.nodes.values() if node.acknowledges == payload]
        members = self.members_of(leader)
        holders = 0
        for name in members.voters:
            log = self.nodes[name].log
            kept = log.image if self.on_disk else log.entries
            at = index - log.first_index
            # One may lose its disk while its answer is on the way.
            holders += at < 0 or name in self._lost or (at < len(kept) and kept[at].payload == payload)
        self.checkers.acknowledges(payload, index, holders, members.quorum)
