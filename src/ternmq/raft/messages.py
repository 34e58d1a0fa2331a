"""What the members of a group tell each other (P1, P3), as the core sees it: indexes and terms, never bytes.

Entries count from 0; -1 stands for the place before the first one. Terms count from 1 in a new group; ``NO_TERM`` is
the term of an entry that is not there, or is not known any more.

Each message belongs to a term. A receiver of a smaller term takes over the larger one; a receiver of a larger term
tells the sender so. The only exceptions are pre-votes, which ask about a term without beginning it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ternmq.types import Buffer

NodeId: TypeAlias = str

#: The index before the first entry of all.
NO_INDEX: Final = -1
#: The term of an entry that does not exist, or was deleted.
NO_TERM: Final = -1


@dataclass(slots=True, frozen=True)
class HardState:
    """What must be on disk before any message of the term is sent: a member that died and came back votes no second
    time in a term."""

    term: int = 0
    voted_for: NodeId | None = None
    #: It began with an empty log, and does not have all yet that was committed before.
    is_filling: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class VoteRequest:
    """A candidate asks for a vote. ``is_pre``: it asks whether it would get one in ``term``, which has not begun."""

    sender: NodeId
    receiver: NodeId
    term: int
    last_index: int
    last_term: int
    #: What the candidate knows as committed.
    commit: int = NO_INDEX
    is_pre: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class VoteReply:
    """``term``: the term of the request if it was granted, else that of the voter."""

    sender: NodeId
    receiver: NodeId
    term: int
    is_granted: bool
    is_pre: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class Append:
    """Entries ``prev_index + 1`` to ``last_index``; none if both are equal (heartbeat, probe, news of a commit).

    The core leaves ``data`` empty. The shell of the sender fills in the bytes of the entries; the shell of the receiver
    checks them against the other fields before it calls ``step``.
    """

    sender: NodeId
    receiver: NodeId
    term: int
    prev_index: int
    #: ``NO_TERM`` if the leader has deleted that entry, or ``prev_index`` is -1.
    prev_term: int
    last_index: int
    #: (index, term) of the first entry and of each entry whose term differs from the one before; empty without entries.
    runs: tuple[tuple[int, int], ...] = ()
    commit: int
    #: The leader's clock. Replies return it, which is how the leader knows how long its lease lasts.
    sent_ms: int
    #: The member that has been told to take over. Only its election may interrupt the leader's lease.
    heir: NodeId | None = None
    data: Buffer = b""

    @property
    def first_index(self) -> int:
        return self.prev_index + 1

    @property
    def is_well_formed(self) -> bool:
        """Whether indexes and terms fit together: runs begin with the first entry, and terms grow from run to run up to
        that of the leader."""
        index, term = self.prev_index, self.prev_term
        for first, run_term in self.runs:
            if index == self.prev_index:
                is_next = first == index + 1 and run_term >= term
            else:
                is_next = first > index and run_term > term
            if not is_next:
                return False
            index, term = first, run_term
        has_entries = self.last_index > self.prev_index
        return (
            NO_INDEX <= self.prev_index <= self.last_index >= index
            and has_entries == bool(self.runs)
            and term <= self.term
        )

    def term_of(self, index: int) -> int:
        """The term of an entry of this message, or of the one before."""
        found = self.prev_term
        for first, term in self.runs:
            if first > index:
                break
            found = term
        return found


@dataclass(slots=True, frozen=True, kw_only=True)
class AppendReply:
    sender: NodeId
    receiver: NodeId
    term: int
    is_accepted: bool
    #: Accepted: the logs of both are equal up to here. Refused: the ``prev_index`` that does not fit.
    index: int
    #: Equal to the leader's log up to here, and where it counts (page cache or disk).
    stored: int
    #: Refused: the logs may be equal up to this index; they differ in all entries behind it whose term is larger.
    hint_index: int = NO_INDEX
    hint_term: int = NO_TERM
    #: ``sent_ms`` of the append that is answered.
    sent_ms: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TransferNow:
    """The receiver has all entries of the leader, who wants it to become the leader at once."""

    sender: NodeId
    receiver: NodeId
    term: int


RaftMessage: TypeAlias = VoteRequest | VoteReply | Append | AppendReply | TransferNow
