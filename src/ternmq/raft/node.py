"""One member of a Raft group: what the core decides is carried out here (P1, P3).

::

    links ──▶ inbox ──┐                          ┌─▶ role: step down at once; lead when the term's record is committed
    time ─────────────┼─▶ core ── Ready ─ in order ─▶ term and vote to the disk, on a thread
    records sealed ───┤                          ├─▶ log: truncate, append
    records flushed ──┘                          ├─▶ messages: one append for each follower and turn
                                                 └─▶ commit: the store confirms, senders are answered

All inputs of one turn of the loop are handled together, in ``_turn``. So the records of all sends that came in one turn
leave in one message. While a term or a vote is being written, inputs wait in the inbox. What ends a leadership does
not wait.

An entry counts for this member when it is in its page cache; under SYNC_FLUSH when it is on its disk.

The parts: ``raft.inbox`` bounds what waits for this member, ``raft.backlog`` what waits for a majority;
``raft.entries`` moves entries into the log and out of it, ``raft.term_start`` folds and begins a term, ``raft.missing``
knows what no entry can bring, ``raft.member_changes`` who the members are. What stays here is the order in which they
are done.

A disk that fails for good ends the member's part: it falls silent, and the others elect another leader. A full disk
does not: entries that it has no room for are dropped, and the leader sends them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from ternmq.env import Env
from ternmq.errors import (
    BrokerRefused,
    DiskFull,
    NotMaster,
    RemoteProtocolError,
    StoreError,
    TernError,
)
from ternmq.net.endpoint import Bound
from ternmq.raft.backlog import Backlog
from ternmq.raft.checked_entries import BeginsElsewhere
from ternmq.raft.config import RaftConfig
from ternmq.raft.copies import ANSWER_KIND, ASK_KIND
from ternmq.raft.core import RaftCore
from ternmq.raft.entries import Entries
from ternmq.raft.inbox import Inbox
from ternmq.raft.links import Links
from ternmq.raft.log import RaftLog
from ternmq.raft.member_changes import MemberChanges
from ternmq.raft.messages import Append, HardState, NodeId, RaftMessage, VoteReply
from ternmq.raft.missing import Missing
from ternmq.raft.ready import RaftRole, Ready, RoleChange
from ternmq.raft.status import status_of
from ternmq.raft.term_file import TermFile
from ternmq.raft.term_start import TermStart
from ternmq.raft.waiters import Waiters
from ternmq.raft.wire import EntriesGone, pack_gone, pack_message, unpack_message
from ternmq.rare_log import RareLog
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.raft import RaftStatus
from ternmq.wire.layouts.raft_state import Vote

log = logging.getLogger(__name__)

#: Bytes of messages that are handled in one turn of the loop.
_TURN_BYTES: Final = 4 << 20
#: How often the commit index is saved, which is only a hint for the next start, and the disk is looked at.
_LOOK_S: Final = 3.0
#: How long a follower takes no entries when its disk was full, or they could not be taken: each attempt makes a new
#: core.
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
        self._is_sync = is_sync
        self._loop = asyncio.get_running_loop()
        self._logs = RareLog(log, self._loop.time)
        self._tasks = Tasks()
        saved = term_file.load(has_entries=commit_log.last_index >= 0)
        #: Term and vote as they are on the disk.
        self._hard_state = HardState(*saved)
        #: The last entry that is where it counts.
        self._stored = commit_log.index_at(store.flushed.value) if is_sync else commit_log.last_index
        # Only confirmed records are dispatched, so the store may know more than the saved commit index.
        confirmed = max(commit_log.committed, commit_log.index_at(store.dispatched))
        #: What senders wait for, and are refused by when too many do.
        self.backlog: Final = Backlog(self.id, commit_log, lambda: self.core, confirmed, config.raft_commit_timeout)
        #: Who the members are, what no entry can bring, and how a term begins.
        self.members: Final = MemberChanges(self, env, store_host)
        self.missing: Final = Missing(self, self._logs)
        self._start: Final = TermStart(self, env, store_host, self._logs)
        self._entries: Final = Entries(store, commit_log)
        self.core: RaftCore = self._new_core()
        #: Position up to which a majority has the log. Senders wait for it.
        self.committed: Final = self.backlog.committed
        store.safety.add(self.backlog.level)
        store.confirm(self.committed.value)
        self.links = links(self)
        self._inbox: Final = Inbox(self.links.hold, self.links.go_on)
        #: A turn is on its way; a term is being written; the disk is waited for.
        self._is_woken = False
        self.is_busy = False
        self._awaits_flush = False
        self._is_closed = False
        #: Its log is given up: it takes and answers nothing until it begins anew.
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None
        #: The last entry that the core knows of as the leader's own.
        self._announced = commit_log.last_index
        #: What waits for the term to begin, for a lease, and for the next turn.
        self._unled: Final = Waiters[bool]()
        self._unleased: Final = Waiters[None]()
        self._unturned: Final = Waiters[None]()
        #: Set when the role changes, or a transfer is over.
        self._changed = asyncio.Event()
        #: Until then entries are dropped unread: the disk was full, or they could not be taken.
        self._full_until = 0.0
        #: When a leader with a full disk may hand over again.
        self._leave_at = 0.0
        #: Why this member takes no part any more; empty while it does.
        self.trouble = ""

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
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._answer_unled()
        self._unleased.answer(None)
        self._unturned.answer(None)
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
    def is_open(self) -> bool:
        """False: it is closed, or takes no part any more."""
        return not self._is_closed and not self.trouble

    @property
    def is_leader(self) -> bool:
        return self.core.role is RaftRole.LEADER and not self.trouble

    @property
    def confirmed(self) -> int:
        """The last entry that the store has confirmed."""
        return self.backlog.confirmed

    def has_lease(self) -> bool:
        """Whether no other member can be leader at this moment. In a group with RocketMQ brokers none can promise
        that: a leader is believed until it knows better, as in DLedger."""
        return self.is_leader and (self.config.is_mixed or self.core.has_lease(self.now_ms()))

    async def leased(self) -> None:
        """Wait until this leader has a lease again, or leads no more."""
        while self.is_leader and not self._is_closed and not self.has_lease():
            await self._unleased.wait()

    async def led(self) -> bool:
        """Wait until this leader has all earlier records committed and dispatched; False if it leads no more."""
        if self.leads():
            return True
        self.wake()
        return await self._unled.wait()

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
        """The voter that has most; the core does not know of one that has just closed its connection."""
        voters = self.core.members.voters
        linked = [
            (each.match, each.node)
            for each in self.core.followers()
            if each.node in voters and self.links.is_linked(each.node)
        ]
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
            trouble=self.trouble or self.members.removal or self.missing.reason,
            filling=self.missing.progress,
            has_failed=bool(self.trouble),
        )

    def _turn_if_late(self) -> None:
        """Where this process was stopped, and a request came before its timer: it may not lead any more."""
        if self.core.deadline_ms <= self.now_ms():
            self._turn()

    # --- Inputs -------------------------------------------------------------------------------------------------------

    def deliver(self, sender: NodeId, kind: int, body: bytes) -> None:
        """A frame of another member. Raises ``RemoteProtocolError``."""
        if self.trouble:
            return
        if kind in (ASK_KIND, ANSWER_KIND):
            if self.missing.files is not None:
                self.missing.files.deliver(sender, kind, body)
            return
        self.take(unpack_message(kind, body, sender=sender, receiver=self.id), sender, len(body))

    def take(self, message: RaftMessage | EntriesGone, sender: NodeId, body_bytes: int) -> None:
        """A message of another member."""
        if self.trouble:
            return
        if isinstance(message, EntriesGone):
            self.missing.told_gone(sender, message)
            return
        self._inbox.put(message, body_bytes)
        self.wake()

    def wake(self) -> None:
        """There is something to do; cheap to call after each record."""
        if not self._is_woken and not self._is_closed:
            self._is_woken = True
            # In the next turn: one message for all that is appended in this one.
            self._loop.call_soon(self._turn)

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
        core.awaits_tables = self.missing.awaits_tables
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
            self.fail(error)
        if self._unleased and self.has_lease():
            self._unleased.answer(None)
        self._unturned.answer(None)
        if self.core.heir is None:
            # A transfer is over also if the role has not changed.
            self._changed.set()
        if self._may_act:
            self._set_timer()

    def _handle_all(self) -> None:
        if self.store.failure is not None and not self.trouble:
            # The log takes nothing any more: a leader would refuse all senders, and keep its role by heartbeats.
            self.fail(self.store.failure)
        taken_bytes = 0
        while self._may_act:
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
                message, size = self._inbox.take()
                taken_bytes += size
                if not (isinstance(message, Append) and message.data and self._loop.time() < self._full_until):
                    self._step(message, now_ms)
            else:
                break
        self._inbox.ease()
        if self._inbox and self._may_act:
            self.wake()

    def _step(self, message: RaftMessage, now_ms: int) -> None:
        self.missing.see(message)
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
        if self._may_act:
            self._carry_out(call(self.now_ms()))
            self.wake()

    @property
    def _may_act(self) -> bool:
        return self.is_open and not self.is_busy and not self._is_held

    def hold(self) -> None:
        """As follower: take and answer nothing, as the log is given up (``raft.filling``)."""
        self._is_held = True

    def release(self) -> None:
        """It is not."""
        self._is_held = False
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
        if self.trouble:
            # The disk has failed meanwhile: nothing that was decided is told.
            return
        try:
            self._finish(ready)
        except Exception as error:
            self.fail(error)
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
                self.links.send(message.receiver, pack_message(message, self._entries.of(message)))
        for node in ready.needs_copy:
            self.links.send(node, pack_gone(EntriesGone(self.core.term, self.log.first_index)))
        if ready.commit is not None:
            self._commit(ready.commit)

    def _change_role(self, change: RoleChange) -> None:
        self._start.forget()
        if change.role is RaftRole.LEADER:
            log.info("%s leads the group in term %d", self.id, change.term)
            self.log.term = change.term
            self._announced = self.log.last_index
            self._start.fold_soon()
        else:
            reason = NotMaster(
                f"{self.id} does not lead the group in term {change.term}"
                + (f"; {change.leader} does" if change.leader else "; there is no leader yet")
            )
            self._listener.lost(reason)
            self._answer_unled()
            self._unleased.answer(None)
            # Their records may still be committed, by another leader; this member will not tell.
            self.store.safety.give_up()
            if change.leader is not None:
                log.info("%s follows %s in term %d", self.id, change.leader, change.term)
        self._changed.set()
        self._listener.changed(change)

    def _truncate(self, index: int) -> None:
        if self._entries.take_back(index):
            self._stored = min(self._stored, index - 1)
            self.members.see()

    def _append(self, message: Append, from_index: int) -> bool:
        """Take entries into the log; False if that was not possible."""
        try:
            self._entries.take(message, from_index)
        except DiskFull as error:
            self._logs.warning("full", f"entries of {message.sender} are dropped: {error}")
            self._full_until = self._loop.time() + _FULL_PAUSE_S
            return False
        except BeginsElsewhere as error:
            self.missing.ask_for_files(message.sender, str(error))
            # Each attempt makes a new core, which knows no leader.
            self._full_until = self._loop.time() + _FULL_PAUSE_S
            return False
        except RemoteProtocolError as error:
            self._logs.error("append", f"entries of {message.sender} are dropped: {error}")
            # They may be damaged there. Each attempt makes a new core, and asks for all that follows once more.
            self._full_until = self._loop.time() + _FULL_PAUSE_S
            self.missing.reason = f"entries of {message.sender} cannot be taken: {error}"
            return False
        self.missing.reason = ""
        self.members.see()
        return True

    def _commit(self, index: int) -> None:
        position = self.log.end_of(index)
        assert position is not None, "what is committed is in the log"
        self.backlog.confirmed = index
        self.log.note_committed(index)
        self.store.confirm(position)
        self.committed.advance(position)
        if not self.is_leader or not self._start.is_written:
            self._start.fold_soon()
        elif self.leads():
            self._answer_unled()

    def leads(self) -> bool:
        """Whether the first record of this leader's term is committed, and all is dispatched."""
        return self._start.leads()

    def _answer_unled(self) -> None:
        self._unled.answer(self.leads() and not self._is_closed)

    async def turned(self) -> bool:
        """Wait for the end of the next turn, in which messages may have been handled; False if this node is closed."""
        await self._unturned.wait()
        return not self._is_closed

    # ------------------------------------------------------------------------------------------------------------------

    async def _promote(self) -> None:
        try:
            await self.members.promote_now_and_then()
        except Exception as error:
            self.fail(error)

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.log.save_committed()
            except StoreError as error:
                self._logs.warning("checkpoint", f"the commit index could not be saved: {error}; retrying")
            self._leave_full_disk()
            self.missing.look(_LOOK_S)

    def _leave_full_disk(self) -> None:
        """Let another member lead while the disk of this one takes no messages; it may be back soon if all are full."""
        now = self._loop.time()
        refusal = self.store.retention.refusal
        if refusal and self.leads() and self.core.heir is None and now >= self._leave_at:
            self._leave_at = now + _LEAVE_AGAIN_S
            with contextlib.suppress(BrokerRefused):
                self.do_now(lambda now_ms: self.core.transfer(self._best_linked(), now_ms))
                log.warning("%s hands the leadership over: %s", self.id, refusal)

    def fail(self, error: Exception) -> None:
        """The disk has failed for good: take no part any more."""
        if not isinstance(error, StoreError):
            log.error("a fault in the Raft node %s", self.id, exc_info=error)
        log.error("%s takes no part in its group any more: %s; repair the disk, and restart the broker", self.id, error)
        self.trouble = str(error)
        self._inbox.clear()
        self._listener.lost(NotMaster(f"the disk of {self.id} has failed: {error}"))
        self._answer_unled()
        self._unleased.answer(None)
        self.store.safety.give_up()
        # It is not registered as the master any more: the next leader is.
        self._changed.set()
        self._listener.changed(RoleChange(RaftRole.FOLLOWER, self.core.term, None))
        self.links.cut()
