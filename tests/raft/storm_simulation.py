"""Elections one after the other, from a seed (P1): what only a coincidence of several deaths can show.

As ``simulation``, with three members, time-outs of a tenth, and leaders that die within a moment of their election,
most of them before others have their entries. Entries and votes come late and overtake each other; members that died
are back at once, or after the next election. So entries of several terms lie on minorities, as in figure 8 of Raft's
paper, and voters die between two candidates of one term.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.messages import Append, VoteRequest
from tests.raft.memory_log import ENTRY_BYTES
from tests.raft.simulation import Breakage, Node, Packet, Simulation

#: Most leaders die so long after their election.
LEADS_MS: Final = 40
#: How late entries, and questions for votes, may come.
LATE_MS: Final = 90


class StormSimulation(Simulation):
    def __init__(self, seed: int, *, breakage: Breakage | None = None, keeps_trace: bool = False) -> None:
        super().__init__(seed, breakage=breakage, keeps_trace=keeps_trace)
        faults = self.faults
        faults.kills, faults.torn, faults.overtakes = 150.0, 0.01, True
        faults.loss = faults.doubles = faults.late_ms = faults.slow_disk = 0.0
        faults.power_cuts = faults.cuts = faults.pauses = faults.jumps = faults.transfers = faults.deletions = 0.0
        faults.flaps = False
        self.members = Members(("n0", "n1", "n2"))
        self.nodes = {name: Node(self, self._config(name)) for name in self.members.voters}
        #: The last term whose leader was condemned.
        self._condemned = 0

    def _config(self, name: str) -> RaftCoreConfig:
        return RaftCoreConfig(
            self_id=name,
            members=self.members,
            heartbeat_ms=10,
            election_min_ms=60,
            election_max_ms=150,
            append_bytes=ENTRY_BYTES,
            window_bytes=4 * ENTRY_BYTES,
            window_count=2,
        )

    def _plan_faults(self) -> None:
        super()._plan_faults()
        self._repeat(5, self._condemn)

    def _condemn(self) -> None:
        """Have a new leader die soon."""
        for node in self.nodes.values():
            if node.core is not None and node.is_leader and node.core.term > self._condemned:
                self._condemned = node.core.term
                if self.random.random() < 0.8:
                    self.at(self.now_ms + self.random.uniform(0, LEADS_MS), node.life_of(partial(self._end, node)))

    def _end(self, node: Node) -> None:
        node.die(power_cut=False)
        self.restart_later(node)

    def restart_later(self, node: Node) -> None:
        longest_ms = self.random.choice((10, 400))
        self.at(self.now_ms + self.random.uniform(1, longest_ms), node.life_of(node.start))

    def send(self, packet: Packet) -> None:
        message = packet.message
        is_late = isinstance(message, VoteRequest) or (isinstance(message, Append) and message.runs)
        if not is_late or self._is_healed or self.random.random() < 0.4:
            super().send(packet)
            return
        # For a receiver that has died meanwhile, too: the sender's kernel may have more patience than its life.
        self.at(self.now_ms + self.random.uniform(0, LATE_MS), lambda: self.nodes[message.receiver].take(packet))
