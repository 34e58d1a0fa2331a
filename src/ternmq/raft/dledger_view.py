"""What the translation to DLedger's calls asks of this member, and what it wants to have done (P3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ternmq.raft.core import RaftCore
from ternmq.raft.log import RaftLog
from ternmq.raft.messages import NodeId, RaftMessage
from ternmq.raft.ready import RaftRole
from ternmq.raft.wire import EntriesGone
from ternmq.wire.bodies.dledger import Base, DLedgerCode

#: How long DLedger waits for an answer (``DLedgerRpcNettyService``), and so do we.
CALL_MS: Final = 3_000
#: A leader that was heard within this time is there: two of DLedger's heart beats.
_LED_MS: Final = 4_000


class View(Protocol):
    """This member as it is now. Indexes and terms are those of its log."""

    @property
    def role(self) -> RaftRole: ...

    @property
    def term(self) -> int: ...

    @property
    def leader(self) -> NodeId | None: ...

    @property
    def commit(self) -> int: ...

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    def term_of(self, index: int) -> int | None: ...

    def is_led(self, now_ms: int) -> bool:
        """Whether the leader that it knows was heard lately."""

    def entries(self, first: int, last: int) -> bytes | None:
        """The bytes of these entries; None if one of them is not there any more."""


@dataclass(slots=True)
class Todo:
    """What the shell must do."""

    #: For this member's core, or its node.
    messages: list[RaftMessage | EntriesGone] = field(default_factory=list)
    #: Calls of the other member: a number by which the answer is told, code and body.
    calls: list[tuple[int, DLedgerCode, Base]] = field(default_factory=list)
    #: Answers to calls of the other member, by what they were told with.
    answers: list[tuple[object, Base]] = field(default_factory=list)

    def __iadd__(self, other: Todo) -> Todo:
        self.messages += other.messages
        self.calls += other.calls
        self.answers += other.answers
        return self


class NodeView:
    """A node's core and log as ``View``. ``core`` tells the present one: a node may make a new one."""

    def __init__(self, core: Callable[[], RaftCore], log: RaftLog) -> None:
        self._core = core
        self._log = log
        self.term_of = log.term_of

    @property
    def role(self) -> RaftRole:
        return self._core().role

    @property
    def term(self) -> int:
        return self._core().term

    @property
    def leader(self) -> NodeId | None:
        return self._core().leader

    @property
    def commit(self) -> int:
        return self._core().commit

    @property
    def first_index(self) -> int:
        return self._log.first_index

    @property
    def last_index(self) -> int:
        return self._log.last_index

    def is_led(self, now_ms: int) -> bool:
        core = self._core()
        return core.role is RaftRole.LEADER or now_ms - core.heard_ms < _LED_MS

    def entries(self, first: int, last: int) -> bytes | None:
        log, end = self._log, self._log.end_of(last)
        pieces: list[memoryview] = []
        while first <= last:
            begin = log.position_of(first)
            if begin is None or end is None:
                return None
            sent, views = log.entries(first, end - begin)
            if sent < first:
                return None
            pieces += views
            first = sent + 1
        return b"".join(pieces)
