"""Members whose messages arrive at once, for tests that tell one story. ``simulation`` has all that goes wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.messages import NO_TERM, Append, AppendReply, HardState, RaftMessage, VoteRequest
from ternmq.raft.ready import RaftRole, Ready
from tests.raft.memory_log import ENTRY_BYTES, Entry, MemoryLog

THREE = Members(("n0", "n1", "n2"))


def entries(*terms: int) -> list[Entry]:
    """Entries of these terms; those of one index and term have one payload."""
    return [Entry(term, f"{index} of term {term}") for index, term in enumerate(terms)]


def config(self_id: str = "n0", members: Members = THREE, **settings: Any) -> RaftCoreConfig:
    settings = {"append_bytes": 10 * ENTRY_BYTES, "window_bytes": 40 * ENTRY_BYTES} | settings
    return RaftCoreConfig(self_id=self_id, members=members, **settings)


def core(
    *terms: int,
    self_id: str = "n0",
    members: Members = THREE,
    term: int | None = None,
    voted_for: str | None = None,
    commit: int = -1,
    stored: int | None = None,
    first_index: int = 0,
    now_ms: int = 0,
    **settings: Any,
) -> RaftCore:
    """A member whose log has entries of these terms."""
    log = MemoryLog(entries(*([0] * first_index), *terms)[first_index:], first_index=first_index)
    hard_state = HardState(max(terms, default=0) if term is None else term, voted_for)
    chosen = config(self_id, members, **settings)
    return RaftCore(chosen, hard_state, log, Random(0), now_ms, commit=commit, stored=stored)


def vote(
    term: int, last_index: int, last_term: int, *, sender: str = "n1", commit: int = -1, is_pre: bool = False
) -> VoteRequest:
    return VoteRequest(
        sender=sender,
        receiver="n0",
        term=term,
        last_index=last_index,
        last_term=last_term,
        commit=commit,
        is_pre=is_pre,
    )


def append(
    term: int, prev_index: int, prev_term: int, *terms: int, commit: int = -1, sender: str = "n1", **fields: Any
) -> Append:
    """Entries of these terms behind ``prev_index``."""
    runs: list[tuple[int, int]] = []
    for number, entry_term in enumerate(terms):
        if not runs or runs[-1][1] != entry_term:
            runs.append((prev_index + 1 + number, entry_term))
    fields = dict[str, Any](receiver="n0", sent_ms=0) | fields
    last_index = prev_index + len(terms)
    return Append(
        sender=sender,
        term=term,
        prev_index=prev_index,
        prev_term=prev_term,
        last_index=last_index,
        runs=tuple(runs),
        commit=commit,
        **fields,
    )


def reply(
    sender: str,
    term: int,
    index: int,
    *,
    stored: int | None = None,
    sent_ms: int = 0,
    refused: bool = False,
    **hint: int,
) -> AppendReply:
    return AppendReply(
        sender=sender,
        receiver="n0",
        term=term,
        is_accepted=not refused,
        index=index,
        stored=index if stored is None else stored,
        sent_ms=sent_ms,
        hint_index=hint.get("hint_index", -1),
        hint_term=hint.get("hint_term", NO_TERM),
    )


class Member:
    def __init__(self, group: Group, name: str, log: MemoryLog, **settings: Any) -> None:
        self.name = name
        self.log = log
        self._group = group
        self._config = config(name, group.members, **settings)
        self.hard_state = HardState(max((entry.term for entry in log.entries), default=0))
        self.commit = -1
        self.copies: list[str] = []
        self.core: RaftCore
        self.restart()

    def restart(self) -> None:
        self.core = RaftCore(
            self._config, self.hard_state, self.log, self._group.random, self._group.now_ms, commit=self.commit
        )

    def do(self, ready: Ready, received: Sequence[Entry] = ()) -> None:
        group = self._group
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.truncate_from is not None:
            self.log.truncate(ready.truncate_from)
        if ready.append is not None:
            self.log.append(ready.append_from, received[ready.append_from - ready.append.first_index :])
        if ready.commit is not None:
            self.commit = ready.commit
        for message in ready.messages:
            carried: Sequence[Entry] = ()
            if isinstance(message, Append):
                carried = self.log.between(message.first_index, message.last_index)
            group.under_way.append((message, carried))
        self.copies += ready.needs_copy
        if ready.append is not None:
            self.do(self.core.stored(self.log.last_index, group.now_ms))
        if ready.role is not None and ready.role.role is RaftRole.LEADER:
            self.put(f"term {ready.role.term}")

    def put(self, payload: str, members: Members | None = None) -> None:
        self.log.append(self.log.last_index + 1, [Entry(self.core.term, payload, members)])
        self.do(self.core.appended(self._group.now_ms))
        self.do(self.core.stored(self.log.last_index, self._group.now_ms))


class Group:
    def __init__(self, *logs: Sequence[int], members: Members = THREE, seed: int = 0, **settings: Any) -> None:
        """One member for each name; ``logs`` are the terms of their entries, of no entries if not given."""
        self.members = members
        self.random = Random(seed)
        self.now_ms = 0
        #: Links that carry nothing.
        self.cut: set[tuple[str, str]] = set()
        self.under_way: deque[tuple[RaftMessage, Sequence[Entry]]] = deque()
        names = (*members.voters, *members.learners)
        self.nodes = {
            name: Member(self, name, MemoryLog(entries(*(logs[at] if at < len(logs) else ()))), **settings)
            for at, name in enumerate(names)
        }

    def __getitem__(self, name: str) -> Member:
        return self.nodes[name]

    @property
    def leaders(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.core.role is RaftRole.LEADER]

    @property
    def leader(self) -> Member:
        (name,) = self.leaders
        return self.nodes[name]

    def isolate(self, *names: str) -> None:
        """Cut these members off from all others."""
        self.cut |= {(a, b) for a in self.nodes for b in self.nodes if (a in names) != (b in names)}

    def deliver(self) -> None:
        while self.under_way:
            message, carried = self.under_way.popleft()
            if (message.sender, message.receiver) not in self.cut and message.receiver in self.nodes:
                node = self.nodes[message.receiver]
                node.do(node.core.step(message, self.now_ms), carried)

    def run(self, for_ms: int, *, without: Iterable[str] = ()) -> None:
        """Let time pass; members in ``without`` stand still."""
        end_ms = self.now_ms + for_ms
        awake = [node for name, node in self.nodes.items() if name not in without]
        self.deliver()
        while (at := min(node.core.deadline_ms for node in awake)) <= end_ms:
            self.now_ms = max(self.now_ms, at)
            for node in awake:
                if node.core.deadline_ms <= self.now_ms:
                    node.do(node.core.tick(self.now_ms))
                    self.deliver()
        self.now_ms = end_ms

    def run_until(self, done: Callable[[], bool], *, at_most_ms: int = 10_000) -> int:
        begin_ms = self.now_ms
        while not done():
            assert self.now_ms < begin_ms + at_most_ms, "it does not happen"
            self.run(5)
        return self.now_ms - begin_ms

    def elect(self, name: str) -> Member:
        """Let this member become the leader."""
        node = self.nodes[name]
        self.now_ms = max(self.now_ms, node.core.deadline_ms, *(0,))
        node.do(node.core.tick(self.now_ms))
        self.deliver()
        assert self.leaders == [name]
        return node
