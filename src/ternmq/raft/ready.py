"""What a core needs of its log, and what it asks of its shell (P1, P3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ternmq.raft.group import Members
from ternmq.raft.messages import Append, HardState, NodeId, RaftMessage


class EntryTerms(Protocol):
    """What the core asks of the log, whose entries it never sees."""

    @property
    def first_index(self) -> int:
        """The first entry kept; ``last_index + 1`` if there is none."""

    @property
    def last_index(self) -> int:
        """-1 if there never was an entry."""

    def term_of(self, index: int) -> int | None:
        """None: deleted, or not there. The term of the entry before the first one, too, if the log knows it."""

    @property
    def members(self) -> Members | None:
        """Who the members are by the newest entry that names them; None if none does. The same until it changes."""

    @property
    def members_index(self) -> int:
        """That entry; -1 if there is none."""

    def span(self, first_index: int, bytes_max: int) -> tuple[int, int]:
        """The last of the entries from ``first_index`` on that fit into ``bytes_max``, one at least; their bytes."""


class RaftRole(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True, frozen=True)
class RoleChange:
    role: RaftRole
    term: int
    #: Who leads, as far as this member knows.
    leader: NodeId | None


@dataclass(slots=True)
class Ready:
    """What the shell must do, in this order, before it calls the core again."""

    #: At once if this ends a leadership; LEADER: after the hard state is on disk.
    role: RoleChange | None = None
    #: On disk (synced) before anything below is done.
    hard_state: HardState | None = None
    #: Drop the entries from this index on, durably before others come in their place: the commit index may be saved
    #: before those are synced, and must not count the old ones after a power cut.
    truncate_from: int | None = None
    #: Take the entries of this message from ``append_from`` on into the log. Call ``stored`` when they are where they
    #: count.
    append: Append | None = None
    append_from: int = 0
    #: Send. An ``Append`` with entries still needs its data.
    messages: list[RaftMessage] = field(default_factory=list)
    #: All entries up to this index are committed.
    commit: int | None = None
    #: Followers that need entries which this leader has deleted; told with each of their replies until they are back.
    #: The follower must ask its own core (``lacks``) before it drops anything.
    needs_copy: list[NodeId] = field(default_factory=list)
