"""One member of a Raft group: what the core decides is carried out here (P1, P3).

::

    links ──▶ inbox ──┐                          ┌─▶ role: step down at once; lead when the term's record is committed
    time ─────────────┼─▶ core ── Ready ─ in order ─▶ term and vote to the disk, on a thread
    records sealed ───┤                          ├─▶ log: truncate, append
    records flushed ──┘                          ├─▶ messages: one append for each follower and turn
                                                 └─▶ commit: the store confirms, senders are answered

All inputs of one turn of the loop are handled together, in ``_turn``. So the records of all sends that came in one turn
leave in one message. While a term or a vote is being written, inputs wait in the inbox, which is bounded in bytes:
beyond that nothing is read from the other members. What ends a leadership does not wait.

An entry counts for this member when it is in its page cache; under SYNC_FLUSH when it is on its disk.

A member that wins an election first folds all that is confirmed, then appends the first record of its term, in a topic
of its own. When that record is committed, so is everything before it. Then all is dispatched, and ``led`` returns: from
now on the broker may take messages.

A disk that fails for good ends the member's part: it falls silent, and the others elect another leader. A full disk
does not: entries that it has no room for are dropped, and the leader sends them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from ternmq import names
from ternmq.env import Env
from ternmq.errors import (
    BrokerRefused,
    DiskFull,
    NotMaster,
    RemoteProtocolError,
    StoreError,
    SystemBusy,
    TernError,
)
from ternmq.net.endpoint import Bound
from ternmq.raft.config import RaftConfig
from ternmq.raft.core import RaftCore
from ternmq.raft.filling import ANSWER_KIND, ASK_KIND, Content
from ternmq.raft.links import Links
from ternmq.raft.log import BeginsElsewhere, RaftLog
from ternmq.raft.member_changes import MemberChanges
from ternmq.raft.messages import Append, HardState, NodeId, RaftMessage, VoteReply
from ternmq.raft.ready import RaftRole, Ready, RoleChange
from ternmq.raft.status import status_of
from ternmq.raft.term_file import TermFile
from ternmq.raft.wire import EntriesGone, check_entries, pack_gone, pack_message, unpack_message
from ternmq.rare_log import RareLog
from ternmq.store.durable.safety import Level
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.bodies.raft import RaftStatus
from ternmq.wire.codes import ResponseCode
from ternmq.wire.layouts.raft_state import Vote

log = logging.getLogger(__name__)

#: Bytes of messages that may wait here; beyond that nothing is read from the other members.
INBOX_BYTES_MAX: Final = 32 << 20
#: What a message takes in memory besides its body; most bodies are smaller than that.
_MESSAGE_BYTES: Final = 512
#: Records that may wait for a majority before messages are refused. Far fewer than a store can hold: a new leader has
#: to write its first record behind all that its predecessor left.
PENDING_MAX: Final = 20_000
#: Entries of a group that is young: its members do not wait for tables before they vote.
YOUNG_MAX: Final = 1_000
#: Bytes of messages that are handled in one turn of the loop.
_TURN_BYTES: Final = 4 << 20
#: Seconds of folding in one turn.
_FOLD_S: Final = 0.005
#: How often the commit index is saved, which is only a hint for the next start, and the disk is looked at.
_LOOK_S: Final = 3.0
#: A member without tables may lead when there has been no leader for so long.
_TABLES_S: Final = 30.0
#: How long a follower whose disk is full takes no entries: each attempt makes a new core.
_FULL_PAUSE_S: Final = 1.0
#: How long a leader with a full disk that could not be rid of its role keeps it.
_LEAVE_AGAIN_S: Final = 60.0
#: How long to wait after the disk has refused something.
_RETRY_S: Final = 0.2


class RoleListener(Protocol):
    """What depends on the role of this member. Both calls come in the turn in which it changes, and must not wait."""

    def lost(self, reason: NotMaster) -> None:
        """This member does not lead any more: nothing may be written as the leader from now on."""

    def changed(self, change: RoleChange) -> None:
        """Role, term or leader have changed. As LEADER, wait for ``RaftNode.led`` first."""


class FillingFiles(Protocol):
    """What gets this member what no entry can bring (``raft.filling``)."""

    @property
    def progress(self) -> str: ...

    def ask_for(self, leader: NodeId, /) -> None: ...

    def deliver(self, sender: NodeId, kind: int, body: bytes, /) -> None: ...

    def filled(self) -> None:
        """This member has all that was committed before it began."""


class TermRecord(msgspec.Struct, frozen=True):
    """The body of the first record of a term."""

    term: int
    leader: str


class RaftNode:
    """``async with RaftNode(…) as node: await node.serve(bound)``. Belongs to the loop, like its store.

    ``commit_log`` is the one that ``store`` was opened with; it must ``wake`` the node when entries are sealed. The
    links must deliver to ``node.deliver``.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        store: MessageStore,
        commit_log: RaftLog,
        term_file: TermFile,
        links: Callable[[RaftNode], Links],
        listener: RoleListener,
        env: Env,
        store_host: bytes,
        is_sync: bool,
    ) -> None:
        """``is_sync``: an entry counts when it is on the disk. Raises ``CorruptFile`` if term and vote are lost."""
        self.config = config
        self.id = config.d_leger_self_id
        self.store = store
        self.log = commit_log
        self._term_file = term_file
        self._listener = listener
        self._env = env
        self._store_host = store_host
        self._is_sync = is_sync
        self._loop = asyncio.get_running_loop()
        self._logs = RareLog(log, self._loop.time)
        self._tasks = Tasks()
        saved = term_file.load(has_entries=commit_log.last_index >= 0)
        #: Term and vote as they are on the disk.
        self._hard_state = HardState(*saved)
        #: The last entry that is where it counts, and the last that the store has confirmed. Only confirmed records are
        #: dispatched, so the store may know more than the saved commit index.
        self._stored = commit_log.index_at(store.flushed.value) if is_sync else commit_log.last_index
        self.confirmed = max(commit_log.committed, commit_log.index_at(store.dispatched))
        #: Until then this member, which is filling, waits for the tables of its leader; None: not known yet.
        self._awaits_tables: bool | None = None
        #: Who the members are.
        self.members: Final = MemberChanges(self, env, store_host)
        self.core = self._new_core()
        #: Position up to which a majority has the log. Senders wait for it.
        self.committed = Watermark(commit_log.end_of(self.confirmed) or 0)
        self.level: Final = Level(
            self.committed,
            config.raft_commit_timeout,
            ResponseCode.SYSTEM_ERROR,
            is_required=True,
            check_write=self._check_write,
            room=lambda: PENDING_MAX + 1 - (self.log.last_index - self.confirmed),
        )
        store.safety.add(self.level)
        store.confirm(self.committed.value)
        self.links = links(self)
        self._inbox: deque[tuple[RaftMessage, int]] = deque()
        self._inbox_bytes = 0
        self._is_held = False
        #: A turn is on its way; a term is being written; folding is on its way; the disk is waited for.
        self._is_woken = False
        self.is_busy = False
        self._folds = False
        self._awaits_flush = False
        self._is_open = True
        self._timer: asyncio.TimerHandle | None = None
        #: The last entry that the core knows of as the leader's own.
        self._announced = commit_log.last_index
        #: Where the first record of the current term ends; None: it is not written yet.
        self._term_end: int | None = None
        #: The last entries that were sent, as bytes: both followers get the same.
        self._packed: tuple[int, int, bytes] = (-1, -1, b"")
        self._waiting: list[asyncio.Future[bool]] = []
        #: Changes of members that wait for answers: for the next turn.
        self._turned: list[asyncio.Future[None]] = []
        #: Reads that wait for a lease.
        self._unleased: list[asyncio.Future[None]] = []
        #: Set when the role changes.
        self._changed = asyncio.Event()
        #: Until then entries are dropped unread: the disk was full.
        self._full_until = 0.0
        #: When a leader with a full disk may hand over again.
        self._leave_at = 0.0
        #: How long there has been no leader.
        self._alone_s = 0.0
        #: Why this member takes no part any more; empty while it does.
        self.trouble = ""
        #: Why it cannot follow the leader; empty if it can.
        self.lack = ""
        #: Set by the owner before the first turn; None: files are an operator's business.
        self.files: FillingFiles | None = None

    async def __aenter__(self) -> Self:
        await self.links.__aenter__()
        self.members.see()
        self._tasks.create_task(self._look_now_and_then(), name="raft: save the commit index")
        self._tasks.create_task(self._promote(), name="raft: let learners vote")
        self._listener.changed(RoleChange(self.core.role, self.core.term, self.core.leader))
        self.wake()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._answer_waiting()
        self._answer_unleased()
        self._answer_turned()
        await self.links.__aexit__(kind, error, trace)
        await self._tasks.close()
        self.store.safety.give_up()
        try:
            self.log.save_committed()
        except StoreError as failure:
            log.warning("the commit index could not be saved: %s; the next start takes longer", failure)

    async def serve(self, bound: Bound) -> None:
        """Take messages of the other members on a port of ``net.endpoint.bind``, which is ours from now on."""
        await self.links.serve(bound)

    # --- For the broker -----------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.core.role is RaftRole.LEADER and not self.trouble

    def has_lease(self) -> bool:
        """Whether no other member can be leader at this moment. In a group with RocketMQ brokers none can promise
        that: a leader is believed until it knows better, as in DLedger."""
        return self.is_leader and (self.config.is_mixed or self.core.has_lease(self.now_ms()))

    async def leased(self) -> None:
        """Wait until this leader has a lease again, or leads no more."""
        while self.is_leader and self._is_open and not self.has_lease():
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._unleased.append(waiting)
            await waiting

    async def led(self) -> bool:
        """Wait until this leader has all earlier records committed and dispatched; False if it leads no more."""
        if not self.leads():
            waiting: asyncio.Future[bool] = self._loop.create_future()
            self._waiting.append(waiting)
            self.wake()
            return await waiting
        return True

    async def transfer(self, to: NodeId | None = None) -> bool:
        """Hand the leadership over, to the member that has most if none is named; False if this member still leads.

        No message is taken meanwhile. Raises ``BrokerRefused``: this member does not lead, or the other one cannot.
        """
        if to is None:
            to = self._best_linked()
        self._changed.clear()
        self.do_now(lambda now_ms: self.core.transfer(to, now_ms))
        limit_s = 2 * self.config.election_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                while self.is_leader and self.core.heir is not None:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            pass
        return not self.is_leader

    def _best_linked(self) -> NodeId | None:
        """The follower that has most; the core does not know of one that has just closed its connection."""
        linked = [(each.match, each.node) for each in self.core.followers() if self.links.is_linked(each.node)]
        return max(linked, default=(0, None))[1]

    def status(self) -> RaftStatus:
        """Where this member stands; the others' progress is known to the leader only."""
        self._turn_if_late()
        return status_of(
            self.id,
            self.members.peers,
            self.core,
            self.log,
            self.links,
            has_lease=self.has_lease(),
            trouble=self.trouble or self.members.removal or self.lack,
            filling=self.filling,
            has_failed=bool(self.trouble),
        )

    def _turn_if_late(self) -> None:
        """Where this process was stopped, and a request came before its timer: it may not lead any more."""
        if self.core.deadline_ms <= self.now_ms():
            self._turn()

    @property
    def filling(self) -> str:
        """How far this member is with what it lacks, if it is filling; empty if it is not."""
        copying = self.files.progress if self.files is not None else ""
        if not copying and self.core.is_filling and self.core.commit >= 0:
            return "filling"
        return copying or ("waiting for tables" if self.core.awaits_tables else "")

    def await_tables(self) -> None:
        """Before the first turn: this member began anew, and did not get the tables of the leader in its last life."""
        self._awaits_tables = self.core.awaits_tables = True

    def may_begin_anew(self, leader: NodeId, content: Content) -> bool:
        """Whether this member follows ``leader``, and its log, which is to be replaced, cannot be continued."""
        if self.trouble:
            return False
        if self.log.last_index < 0:
            # There is nothing to lose, unless it was a single broker.
            return not self.log.old_segments() and content.position != self.log.end
        return self.core.leader == leader and self.core.lacks(content.first_index)

    def tables_copied(self) -> None:
        """The tables of the leader, which are not in the log, have come."""
        self._awaits_tables = self.core.awaits_tables = False
        if self.files is not None and not self.core.is_filling:
            self.files.filled()

    # --- Inputs -------------------------------------------------------------------------------------------------------

    def deliver(self, sender: NodeId, kind: int, body: bytes) -> None:
        """A frame of another member. Raises ``RemoteProtocolError``."""
        if self.trouble:
            return
        if kind in (ASK_KIND, ANSWER_KIND):
            if self.files is not None and not self.trouble:
                self.files.deliver(sender, kind, body)
            return
        self.take(unpack_message(kind, body, sender=sender, receiver=self.id), sender, len(body))

    def take(self, message: RaftMessage | EntriesGone, sender: NodeId, body_bytes: int) -> None:
        """A message of another member."""
        if self.trouble:
            return
        if isinstance(message, EntriesGone):
            self._told_gone(sender, message)
            return
        size = body_bytes + _MESSAGE_BYTES
        self._inbox.append((message, size))
        self._inbox_bytes += size
        if self._inbox_bytes > INBOX_BYTES_MAX and not self._is_held:
            self._is_held = True
            self.links.hold()
        self.wake()

    def _told_gone(self, sender: NodeId, gone: EntriesGone) -> None:
        """The leader has deleted what this member needs next."""
        core = self.core
        if (sender, gone.term) == (core.leader, core.term) and core.lacks(gone.first_index):
            self._ask_for_files(
                sender,
                f"its log ends with entry {self.log.last_index}, and {sender} has deleted all before "
                f"{gone.first_index}",
            )

    def _ask_for_files(self, leader: NodeId, why: str) -> None:
        """The leader cannot continue this log."""
        if self.log.last_index < 0 and self.log.old_segments():
            # They may be of another broker: no program should decide that they can go.
            self.lack = (
                f"{why}; this member has messages that it stored as a single broker, and they are not those of the "
                "group. Move its store directory away and start it again: it gets all from the group"
            )
        elif self.files is None or (self.config.is_mixed and not self.links.is_ours(leader)):
            # A RocketMQ broker gives no files.
            self.lack = f"{why}; stop it, and copy the store directory of another follower"
        else:
            self.lack = ""
            self.files.ask_for(leader)
            return
        self._logs.error("gone", f"{self.id} cannot follow: {self.lack}")

    def wake(self) -> None:
        """There is something to do; cheap to call after each record."""
        if not self._is_woken and self._is_open:
            self._is_woken = True
            # In the next turn: one message for all that is appended in this one.
            self._loop.call_soon(self._turn)

    def _check_write(self) -> None:
        if self.core.heir is not None:
            raise NotMaster(f"{self.id} hands the leadership over to {self.core.heir}; send again")
        waiting = self.log.last_index - self.confirmed
        if waiting > PENDING_MAX:
            raise SystemBusy(
                f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {waiting} messages wait for a majority "
                "of the group"
            )

    def _new_core(self) -> RaftCore:
        # What is synced is lost by damage only. Then this member must not vote before it has it again: its vote could
        # make a leader without it. A member without others has none to get it from.
        lost = self.log.lost if self._is_sync and len(self.members.peers) > 1 else -1
        if lost >= 0:
            self._logs.error(
                "damage",
                f"{self.id} has lost entries up to {lost} that were committed: its disk is damaged; it gets them "
                "again, and votes for no leader until then",
            )
        core = RaftCore(
            self.config.of_core(),
            self._hard_state,
            self.log,
            self._env.random,
            self.now_ms(),
            commit=self.confirmed,
            stored=self._stored,
            lost=lost,
        )
        core.awaits_tables = self._awaits_tables is True
        return core

    def now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    # --- A turn -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._is_woken = False
        try:
            self._handle_all()
        except Exception as error:
            # The disk, or a fault of ours: what the core has decided is not done. Only a new start can tell what is.
            self._fail(error)
        if self._unleased and self.has_lease():
            self._answer_unleased()
        self._answer_turned()
        if self._is_open and not self.is_busy and not self.trouble:
            self._set_timer()

    def _handle_all(self) -> None:
        if self.store.failure is not None and not self.trouble:
            # The log takes nothing any more: a leader would refuse all senders, and keep its role by heartbeats.
            self._fail(self.store.failure)
        taken_bytes = 0
        while self._is_open and not self.is_busy and not self.trouble:
            now_ms = self.now_ms()
            if self.core.deadline_ms <= now_ms:
                self._carry_out(self.core.tick(now_ms))
            elif self._has_sealed():
                self._announced = self.log.last_index
                self._carry_out(self.core.appended(now_ms))
            elif (stored := self._stored_now()) > self._stored:
                self._stored = stored
                self._carry_out(self.core.stored(stored, now_ms))
            elif self._inbox and taken_bytes < _TURN_BYTES:
                message, size = self._inbox.popleft()
                self._inbox_bytes -= size
                taken_bytes += size
                if not (isinstance(message, Append) and message.data and self._loop.time() < self._full_until):
                    self._step(message, now_ms)
            else:
                break
        if self._is_held and self._inbox_bytes < INBOX_BYTES_MAX // 2:
            self._is_held = False
            self.links.go_on()
        if self._inbox and not self.is_busy and not self.trouble:
            self.wake()

    def _step(self, message: RaftMessage, now_ms: int) -> None:
        if self._awaits_tables is None and isinstance(message, Append):
            # In a young group there is nothing yet that is worth waiting for.
            self._awaits_tables = self.core.awaits_tables = self.core.is_filling and message.commit > YOUNG_MAX
        try:
            ready = self.core.step(message, now_ms)
        except RemoteProtocolError as error:
            self._logs.error("rules", f"a message of {message.sender} is ignored: {error}")
            return
        refusals = [each for each in ready.messages if isinstance(each, VoteReply) and not each.is_granted]
        if refusals and self.core.is_filling:
            self._logs.warning(
                "filling",
                f"{self.id} gives no vote to {message.sender}: it does not have all yet that was committed. If there "
                "is no leader, start the member that led before",
            )
        self._carry_out(ready)

    def _has_sealed(self) -> bool:
        return self.is_leader and self.log.last_index > self._announced

    def _stored_now(self) -> int:
        """The last entry that is where it counts."""
        if not self._is_sync:
            return self.log.last_index
        flushed = self.store.flushed
        if flushed.value < self.log.end and not self._awaits_flush:
            self._awaits_flush = True
            flushed.call_when(self.log.end, self._flushed, self._flushed)
        return self.log.index_at(flushed.value)

    def _flushed(self, _error: TernError | None = None) -> None:
        """The log has come to the disk, or what was awaited is taken back."""
        self._awaits_flush = False
        self.wake()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(self.core.deadline_ms - self.now_ms(), 1) / 1000
        self._timer = self._loop.call_later(delay_s, self.wake)

    def do_now(self, call: Callable[[int], Ready]) -> None:
        """Make a call of the core, if none is being carried out."""
        if not self.is_busy and not self.trouble:
            self._carry_out(call(self.now_ms()))
            self.wake()

    # --- What the core wants ------------------------------------------------------------------------------------------

    def _carry_out(self, ready: Ready) -> None:
        if ready.role is not None and ready.role.role is not RaftRole.LEADER:
            self._change_role(ready.role)
        if ready.hard_state is not None:
            self.is_busy = True
            self._tasks.create_task(self._save_then(ready, ready.hard_state), name="raft: save term and vote")
        else:
            self._finish(ready)

    async def _save_then(self, ready: Ready, state: HardState) -> None:
        """Have term and vote on the disk; only then may anything of this term leave this member."""
        while True:
            try:
                await asyncio.to_thread(self._term_file.save, Vote(state.term, state.voted_for, state.is_filling))
                break
            except StoreError as error:
                self._logs.warning("save", f"cannot save term {state.term}: {error}; retrying, and silent until then")
                await asyncio.sleep(_RETRY_S)
        if self._hard_state.is_filling and not state.is_filling:
            log.info("%s has all that was committed before it began: it votes from now on", self.id)
        self._hard_state = state
        self.is_busy = False
        try:
            self._finish(ready)
        except Exception as error:
            self._fail(error)
        self.wake()

    def _finish(self, ready: Ready) -> None:
        if ready.role is not None and ready.role.role is RaftRole.LEADER:
            self._change_role(ready.role)
        if ready.truncate_from is not None:
            self._truncate(ready.truncate_from)
        if ready.append is not None and not self._append(ready.append, ready.append_from):
            # The core counts on these entries. One that begins anew knows only what is there.
            self.core = self._new_core()
            self._change_role(RoleChange(self.core.role, self.core.term, self.core.leader))
            return
        theirs = self.links.theirs
        for message in ready.messages:
            if theirs is None or not theirs.send(message):
                self.links.send(message.receiver, pack_message(message, self._entries_of(message)))
        for node in ready.needs_copy:
            self.links.send(node, pack_gone(EntriesGone(self.core.term, self.log.first_index)))
        if ready.commit is not None:
            self._commit(ready.commit)

    def _change_role(self, change: RoleChange) -> None:
        self._term_end = None
        if change.role is RaftRole.LEADER:
            log.info("%s leads the group in term %d", self.id, change.term)
            self.log.term = change.term
            self._announced = self.log.last_index
            self._fold_soon()
        else:
            reason = NotMaster(
                f"{self.id} does not lead the group in term {change.term}"
                + (f"; {change.leader} does" if change.leader else "; there is no leader yet")
            )
            self._listener.lost(reason)
            self._answer_waiting()
            self._answer_unleased()
            # Their records may still be committed, by another leader; this member will not tell.
            self.store.safety.give_up()
            if change.leader is not None:
                log.info("%s follows %s in term %d", self.id, change.leader, change.term)
        self._changed.set()
        self._listener.changed(change)

    def _truncate(self, index: int) -> None:
        position = self.log.cut_before(index)
        if position >= self.log.end:
            return
        log.warning(
            "taking back %d entries from index %d on: another leader has others there",
            self.log.last_index - index + 1,
            index,
        )
        self.store.truncate(position, NotMaster("another leader was elected before a majority had the message"))
        self._stored = min(self._stored, index - 1)
        self._packed = (-1, -1, b"")
        self.members.see()

    def _append(self, message: Append, from_index: int) -> bool:
        """Take entries into the log; False if that was not possible."""
        try:
            at = check_entries(message, from_index) if from_index > message.first_index else 0
            data = memoryview(message.data)[at:]
            arrived = self.log.check_append(data)
            if (arrived.first_index, arrived.last_index) != (from_index, message.last_index):
                raise RemoteProtocolError(
                    f"they are {arrived.first_index} to {arrived.last_index}; expected {from_index} to "
                    f"{message.last_index}"
                )
            self.store.append_raw(arrived.position, data)
        except DiskFull as error:
            self._logs.warning("full", f"entries of {message.sender} are dropped: {error}")
            self._full_until = self._loop.time() + _FULL_PAUSE_S
            return False
        except BeginsElsewhere as error:
            self._ask_for_files(message.sender, str(error))
            # Each attempt makes a new core, which knows no leader.
            self._full_until = self._loop.time() + _FULL_PAUSE_S
            return False
        except RemoteProtocolError as error:
            self._logs.error("append", f"entries of {message.sender} are dropped: {error}")
            return False
        self.lack = ""
        self.members.see()
        return True

    def _entries_of(self, message: RaftMessage) -> Sequence[Buffer]:
        if not isinstance(message, Append) or message.last_index == message.prev_index:
            return ()
        first, last = message.first_index, message.last_index
        if self._packed[:2] != (first, last):
            # Copied: bytes that are not committed may change by a truncation while they wait to be sent.
            self._packed = (first, last, b"".join(self._views(first, last)))
        return (self._packed[2],)

    def _views(self, first: int, last: int) -> Iterator[memoryview]:
        """The bytes of these entries, file by file."""
        end = self.log.end_of(last)
        while first <= last:
            begin = self.log.position_of(first)
            assert begin is not None, "what the core sends is in the log"
            assert end is not None, "up to its end"
            sent, views = self.log.entries(first, end - begin)
            assert first <= sent <= last, "entries are there"
            yield from views
            first = sent + 1

    def _commit(self, index: int) -> None:
        position = self.log.end_of(index)
        assert position is not None, "what is committed is in the log"
        self.confirmed = index
        self.log.note_committed(index)
        self.store.confirm(position)
        self.committed.advance(position)
        if not self.is_leader or self._term_end is None:
            self._fold_soon()
        elif self.leads():
            self._answer_waiting()

    # --- Folding, and the beginning of a term -------------------------------------------------------------------------

    def _fold_soon(self) -> None:
        if not self._folds and self._is_open:
            self._folds = True
            self._loop.call_soon(self._fold)

    def _fold(self) -> None:
        self._folds = False
        if not self._is_open or self.trouble:
            return
        try:
            if not self.store.follow(_FOLD_S):
                self._fold_soon()
            elif self.is_leader and self._term_end is None:
                self._begin_term()
        except Exception as error:
            self._fail(error)

    def _begin_term(self) -> None:
        """Write the first record of the term, behind all that this leader has."""
        term = self.core.term
        body = msgspec.json.encode(TermRecord(term, self.id))
        now_ms = self._env.clock.now_ms()
        draft = Draft(names.RAFT_TERM_TOPIC, 0, body, "", now_ms, self._store_host)
        self.store.stop_following()
        try:
            self.store.refuse_writes(None)
            self._term_end = self.store.put(draft).end_offset
        except DiskFull as error:
            self._logs.warning("full", f"{self.id} cannot begin term {term}: {error}; it hands over")
            with contextlib.suppress(BrokerRefused):
                self.do_now(lambda now_ms: self.core.transfer(None, now_ms))
            self._loop.call_later(_RETRY_S, self._fold_soon)
        finally:
            self.store.refuse_writes(NotMaster(f"{self.id} has not begun term {term} yet"))
        self.wake()

    def leads(self) -> bool:
        """Whether the first record of this leader's term is committed, and all is dispatched."""
        end = self._term_end
        return self.is_leader and end is not None and self.committed.value >= end and self.store.dispatched >= end

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(self.leads() and self._is_open)

    def _answer_unleased(self) -> None:
        waiting, self._unleased = self._unleased, []
        _answer(waiting)

    async def turned(self) -> bool:
        """Wait for the end of the next turn, in which messages may have been handled; False if this node is closed."""
        turned: asyncio.Future[None] = self._loop.create_future()
        self._turned.append(turned)
        await turned
        return self._is_open

    def _answer_turned(self) -> None:
        waiting, self._turned = self._turned, []
        _answer(waiting)

    # ------------------------------------------------------------------------------------------------------------------

    async def _promote(self) -> None:
        try:
            await self.members.promote_now_and_then()
        except Exception as error:
            self._fail(error)

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.log.save_committed()
            except StoreError as error:
                self._logs.warning("checkpoint", f"the commit index could not be saved: {error}; retrying")
            self._leave_full_disk()
            self._alone_s = 0.0 if self.core.leader is not None else self._alone_s + _LOOK_S
            if self._alone_s > _TABLES_S and self.core.awaits_tables:
                log.warning("%s has not got the tables of a leader; there is none, and it may lead without", self.id)
                self._awaits_tables = self.core.awaits_tables = False

    def _leave_full_disk(self) -> None:
        """Let another member lead while the disk of this one takes no messages; it may be back soon if all are full."""
        now = self._loop.time()
        refusal = self.store.retention.refusal
        if refusal and self.leads() and self.core.heir is None and now >= self._leave_at:
            self._leave_at = now + _LEAVE_AGAIN_S
            with contextlib.suppress(BrokerRefused):
                self.do_now(lambda now_ms: self.core.transfer(self._best_linked(), now_ms))
                log.warning("%s hands the leadership over: %s", self.id, refusal)

    def _fail(self, error: Exception) -> None:
        """The disk has failed for good: take no part any more."""
        if not isinstance(error, StoreError):
            log.error("a fault in the Raft node %s", self.id, exc_info=error)
        log.error("%s takes no part in its group any more: %s; repair the disk, and restart the broker", self.id, error)
        self.trouble = str(error)
        self._inbox.clear()
        self._inbox_bytes = 0
        self._listener.lost(NotMaster(f"the disk of {self.id} has failed: {error}"))
        self._answer_waiting()
        self._answer_unleased()
        self.store.safety.give_up()
        # It is not registered as the master any more: the next leader is.
        self._changed.set()
        self._listener.changed(RoleChange(RaftRole.FOLLOWER, self.core.term, None))
        self.links.cut()


def _answer(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
