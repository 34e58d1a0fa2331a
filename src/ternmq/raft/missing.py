"""What one member lacks and no entry can bring: files that the leader has deleted the entries of, and tables (P3).

A member whose log the leader cannot continue asks for files (``raft.filling``), or says why it does not. One that began
anew does not lead before it has the tables of its leader, which are not all in the log: it would take consumers back.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from ternmq.raft.config import RaftConfig
from ternmq.raft.copies import Content
from ternmq.raft.core import RaftCore
from ternmq.raft.links import Links
from ternmq.raft.log import RaftLog
from ternmq.raft.messages import Append, NodeId, RaftMessage
from ternmq.raft.wire import EntriesGone
from ternmq.rare_log import RareLog

log = logging.getLogger(__name__)

#: Entries of a group that is young: its members do not wait for tables before they vote.
YOUNG_MAX: Final = 1_000
#: A member without tables may lead when there has been no leader for so long.
_TABLES_S: Final = 30.0


class LackingMember(Protocol):
    """What is needed of this member (``raft.node.RaftNode``)."""

    @property
    def id(self) -> str: ...

    @property
    def config(self) -> RaftConfig: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def log(self) -> RaftLog: ...

    @property
    def links(self) -> Links: ...

    @property
    def trouble(self) -> str:
        """Why it takes no part any more; empty while it does."""

    def hold(self) -> None:
        """Take and answer nothing."""

    def release(self) -> None:
        """Take and answer again."""


class FillingFiles(Protocol):
    """What gets this member what no entry can bring (``raft.filling``)."""

    @property
    def progress(self) -> str: ...

    def ask_for(self, leader: NodeId, /) -> None: ...

    def deliver(self, sender: NodeId, kind: int, body: bytes, /) -> None: ...

    def filled(self) -> None:
        """This member has all that was committed before it began."""


class Missing:
    def __init__(self, node: LackingMember, logs: RareLog) -> None:
        self._node = node
        self._logs = logs
        #: Set by the owner before the first turn; None: files are an operator's business.
        self.files: FillingFiles | None = None
        #: Why this member cannot follow the leader; empty if it can.
        self.reason = ""
        #: Whether this member waits for the tables of its leader; None: not known yet.
        self._awaits_tables: bool | None = None
        #: How long there has been no leader.
        self._alone_s = 0.0

    # --- Tables

    @property
    def awaits_tables(self) -> bool:
        return self._awaits_tables is True

    def await_tables(self) -> None:
        """Before the first turn: this member began anew, and did not get the tables of the leader in its last life."""
        self._set_awaits(awaits=True)

    def _set_awaits(self, *, awaits: bool) -> None:
        self._awaits_tables = self._node.core.awaits_tables = awaits

    def see(self, message: RaftMessage) -> None:
        """The first append of a leader tells whether there are tables that are worth waiting for."""
        if self._awaits_tables is None and isinstance(message, Append):
            self._set_awaits(awaits=self._node.core.is_filling and message.commit > YOUNG_MAX)

    def tables_copied(self) -> None:
        """The tables of the leader have come."""
        self._set_awaits(awaits=False)
        if self.files is not None and not self._node.core.is_filling:
            self.files.filled()

    def look(self, passed_s: float) -> None:
        """Now and then: wait no longer if there is no leader that could send its tables."""
        core = self._node.core
        self._alone_s = 0.0 if core.leader is not None else self._alone_s + passed_s
        if self._alone_s > _TABLES_S and core.awaits_tables:
            log.warning("%s has not got the tables of a leader; there is none, and it may lead without", self._node.id)
            self._set_awaits(awaits=False)

    # --- Files

    @property
    def progress(self) -> str:
        """How far this member is with what it lacks, if it is filling; empty if it is not."""
        copying = self.files.progress if self.files is not None else ""
        core = self._node.core
        if not copying and core.is_filling and core.commit >= 0:
            return "filling"
        return copying or ("waiting for tables" if core.awaits_tables else "")

    def may_begin_anew(self, leader: NodeId, content: Content) -> bool:
        """Whether this member follows ``leader``, and its log, which is to be replaced, cannot be continued."""
        node = self._node
        if node.trouble:
            return False
        if node.log.last_index < 0:
            # There is nothing to lose, unless it was a single broker.
            return not node.log.old_segments() and content.position != node.log.end
        node.core.meets(content.first_index - 1, content.prev_term)
        return node.core.leader == leader and node.core.lacks(content.first_index)

    def fall_silent(self, content: Content) -> bool:
        """The log of this member is given up for one that begins with ``content``. Returns whether it keeps its vote:
        whether all that it has ever answered for, and that counts, is among what ``content`` says that is deleted."""
        node = self._node
        node.hold()
        # RocketMQ brokers count entries of old terms: what they have deleted says less.
        return content.prev_term >= 0 and not node.core.is_filling and not node.config.is_mixed

    def go_on(self) -> None:
        """The log is not given up."""
        self._node.release()

    def told_gone(self, sender: NodeId, gone: EntriesGone) -> None:
        """The leader has deleted what this member needs next."""
        core = self._node.core
        if (sender, gone.term) == (core.leader, core.term) and core.lacks(gone.first_index):
            self.ask_for_files(
                sender,
                f"its log ends with entry {self._node.log.last_index}, and {sender} has deleted all before "
                f"{gone.first_index}",
            )

    def ask_for_files(self, leader: NodeId, why: str) -> None:
        """The leader cannot continue this log."""
        node = self._node
        if node.log.last_index < 0 and node.log.old_segments():
            # They may be of another broker: no program should decide that they can go.
            self.reason = (
                f"{why}; this member has messages that it stored as a single broker, and they are not those of the "
                "group. Move its store directory away and start it again: it gets all from the group"
            )
        elif self.files is None or (node.config.is_mixed and not node.links.is_ours(leader)):
            # A RocketMQ broker gives no files.
            self.reason = f"{why}; stop it, and copy the store directory of another follower"
        else:
            self.reason = ""
            self.files.ask_for(leader)
            return
        self._logs.error("gone", f"{node.id} cannot follow: {self.reason}")
