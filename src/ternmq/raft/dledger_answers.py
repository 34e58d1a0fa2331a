"""Calls of a DLedger member, as messages for our core, and the core's replies as answers (P3).

::

    VOTE                  VoteRequest                                   VoteReply    ─▶ ACCEPT, or why not
    HEART_BEAT            Append behind no entry                        AppendReply  ─▶ 200, or 403 with a larger term
    PUSH COMPARE          Append without entries, behind this entry     AppendReply  ─▶ 200, or 406 with what we have
    PUSH TRUNCATE         the same; with the entry, if it is the leader's first and we do not have it
    PUSH APPEND           Append of these entries                       stored       ─▶ 200, or 406
    PUSH COMMIT           Append behind no entry, with a commit index
    LEADERSHIP_TRANSFER   TransferNow, when we have the leader's last entry

**Which entry is before?** An append of Raft names the entry before its first; a push does not. DLedger relies on the
COMPARE before: it found one entry equal, so all before are. Here it is the same: the *tail* is the last entry that this
term's leader has sent, or has compared with success. What does not continue it is refused with 406, and the leader
compares again.

**Nothing is cut by TRUNCATE.** It says that the follower has more than the leader, all of it uncommitted. As in Raft it
stays until the leader has an entry of its own for that place, which replaces it.

**What counts as committed.** A DLedger leader counts entries of older terms, which a later leader may still replace
(Raft's paper, 5.4.2). So its commit index is believed only if that entry is of its own term: all before it are safe
then. It writes no entry at the start of its term, so followers of ours may know less than it does until the next
message. That costs nothing else: what DLedger has acknowledged to a sender is always of the leader's own term.

**Which answer to which call?** Appends are numbered, in ``sent_ms``, which is the sender's business: replies return it.
An accepted reply that comes later, when entries are stored, answers all pushes up to that entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.raft.dledger_view import CALL_MS, Todo, View
from ternmq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, NodeId, TransferNow, VoteReply, VoteRequest
from ternmq.raft.ready import RaftRole
from ternmq.raft.wire import EntriesGone
from ternmq.wire.bodies.dledger import (
    ACCEPT,
    ALREADY_HAS_LEADER,
    ALREADY_VOTED,
    APPEND,
    COMMIT,
    COMPARE,
    EXPIRED_LEDGER_TERM,
    EXPIRED_VOTE_TERM,
    SMALL_LEDGER_END_INDEX,
    TRUNCATE,
    Base,
    Code,
    DLedgerEntry,
    LeaderTransfer,
    Push,
    PushAnswer,
    VoteAnswer,
    VoteCall,
)

#: Calls of one member that wait for an answer: DLedger has at most 1,000 pushes under way, and some others.
PENDING_MAX: Final = 2_000
#: Bytes of the records among them that are to be compared. DLedger compares one at a time.
COMPARED_BYTES_MAX: Final = 16 << 20
#: How often a member that is to take over looks whether it has all.
_LOOK_MS: Final = 10


@dataclass(slots=True, frozen=True)
class _Pending:
    #: What the shell knows the call by.
    told: object
    call: Base
    #: An answer after this time is not waited for any more.
    until_ms: int
    #: The entry that must be stored; None: the reply to this very append counts.
    stored: int | None = None
    #: The first entry of a push, and how many.
    index: int | None = None
    count: int = 0
    #: The entry of a COMPARE or TRUNCATE. ``call`` has no entries: they would be kept in memory.
    compared: DLedgerEntry | None = None


@dataclass(slots=True, frozen=True)
class _Tail:
    #: Of the leader.
    term: int
    #: The last entry that both have, or that the leader has sent.
    index: int
    entry_term: int


class DLedgerAnswers:
    """What one other member asks of this one."""

    def __init__(self, own_id: NodeId, sender: NodeId, view: View) -> None:
        self._own_id = own_id
        self._sender = sender
        self._view = view
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._compared_bytes = 0
        self._votes: list[_Pending] = []
        self._transfer: _Pending | None = None
        self._transfer_is_told = False
        self._tail: _Tail | None = None
        #: The first entry of the leader's own term that it has shown, and that term.
        self._own_term = NO_TERM
        self._own_from: int | None = None
        #: When ``tick`` must be called; None: need not.
        self.deadline_ms: int | None = None

    # --- Calls

    def voted(self, told: object, call: VoteCall, now_ms: int) -> Todo:
        self._votes = [each for each in self._votes if each.until_ms > now_ms][-PENDING_MAX:]
        self._votes.append(_Pending(told, call, now_ms + CALL_MS))
        return Todo(
            [
                VoteRequest(
                    sender=self._sender,
                    receiver=self._own_id,
                    term=call.term,
                    last_index=call.ledger_end_index,
                    last_term=call.ledger_end_term,
                    # It does not say what is committed: a member that lost its disk takes all of it to be.
                    commit=call.ledger_end_index,
                )
            ]
        )

    def heart_beat(self, told: object, call: Base, now_ms: int) -> Todo:
        return Todo([self._append(told, call, now_ms)])

    def pushed(self, told: object, call: Push, now_ms: int) -> Todo:
        """Raises ``RemoteProtocolError`` for a push that no correct leader sends."""
        if call.type == COMMIT:
            return Todo([self._append(told, call, now_ms, commit=self._commit(call))])
        entries = call.entries
        if not entries or call.type not in (APPEND, COMPARE, TRUNCATE):
            raise RemoteProtocolError(f"a push of type {call.type[:20]!r} has {len(entries)} entries")
        self._check(call, entries)
        for entry in entries:
            if entry.term == call.term:
                self._see_own(call.term, entry.index)
                break
        if call.type == APPEND:
            return self._appended(told, call, entries, now_ms)
        entry = entries[0]
        entry.pack()  # Raises for one that is none, before our core has heard of it.
        if call.type == TRUNCATE and self._view.term_of(entry.index) != entry.term:
            return self._begun(told, call, entry, now_ms)
        compare = self._append(
            told,
            call,
            now_ms,
            prev_index=entry.index,
            prev_term=entry.term,
            commit=self._commit(call),
            # The leader counts what was compared: so it must be where it counts.
            stored=entry.index,
        )
        return Todo([compare])

    def transferred(self, told: object, call: LeaderTransfer, now_ms: int) -> Todo:
        todo = Todo()
        if call.transferee_id != self._own_id:
            # DLedger's command line tells a leader so; ours is `tern raft transfer`.
            todo.answers.append((told, self._answer(call, Code.UNSUPPORTED)))
            return todo
        if self._transfer is not None:
            todo.answers.append((self._transfer.told, self._answer(self._transfer.call, Code.TAKE_LEADERSHIP_FAILED)))
        self._transfer, self._transfer_is_told = _Pending(told, call, now_ms + CALL_MS), False
        todo += self.tick(now_ms)
        return todo

    def _check(self, call: Push, entries: tuple[DLedgerEntry, ...]) -> None:
        for before, entry in zip((None, *entries), entries, strict=False):
            if before is not None and (entry.index != before.index + 1 or entry.term < before.term):
                raise RemoteProtocolError(f"entry {entry.index} of term {entry.term} follows {before.index} in a push")
            if not 0 <= entry.term <= call.term:
                raise RemoteProtocolError(f"entry {entry.index} has term {entry.term} in a push of term {call.term}")

    def _appended(self, told: object, call: Push, entries: tuple[DLedgerEntry, ...], now_ms: int) -> Todo:
        tail, first, last = self._tail, entries[0].index, entries[-1]
        prev_term: int | None = None
        if tail is not None and tail.term == call.term:
            if first == tail.index + 1:
                prev_term = tail.entry_term
            elif first <= tail.index:
                # Again: its answer was lost.
                prev_term = NO_TERM if first == 0 else self._view.term_of(first - 1)
        if prev_term is None:
            return Todo(answers=[(told, self._push_answer(call, Code.INCONSISTENT_STATE, first, len(entries)))])
        if tail is not None and last.index > tail.index:
            self._tail = _Tail(call.term, last.index, last.term)
        return Todo([self._entries(told, call, entries, prev_term, now_ms)])

    def _begun(self, told: object, call: Push, entry: DLedgerEntry, now_ms: int) -> Todo:
        """The leader's first entry, because it found nothing in common, or more than it could compare."""
        if entry.index - 1 > self._view.commit:
            # What is between was deleted there.
            return Todo(
                [EntriesGone(call.term, entry.index)],
                answers=[(told, self._push_answer(call, Code.INCONSISTENT_STATE, entry.index, 1))],
            )
        self._tail = _Tail(call.term, entry.index, entry.term)
        return Todo([self._entries(told, call, (entry,), NO_TERM, now_ms)])

    def _entries(
        self, told: object, call: Push, entries: tuple[DLedgerEntry, ...], prev_term: int, now_ms: int
    ) -> Append:
        runs: list[tuple[int, int]] = []
        for entry in entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        return self._append(
            told,
            call,
            now_ms,
            prev_index=entries[0].index - 1,
            prev_term=prev_term,
            last_index=entries[-1].index,
            runs=tuple(runs),
            commit=self._commit(call),
            data=b"".join(entry.pack() for entry in entries),
        )

    def _append(
        self,
        told: object,
        call: Base,
        now_ms: int,
        *,
        prev_index: int = NO_INDEX,
        prev_term: int = NO_TERM,
        last_index: int | None = None,
        runs: tuple[tuple[int, int], ...] = (),
        commit: int = NO_INDEX,
        data: bytes = b"",
        stored: int | None = None,
    ) -> Append:
        index, count, compared = None, 0, None
        if isinstance(call, Push) and call.entries:
            index, count = call.entries[0].index, len(call.entries)
            compared = call.entries[0] if call.type in (COMPARE, TRUNCATE) and not data else None
            # The bytes of those that are appended are in the message, whose way to the log is bounded.
            call = msgspec.structs.replace(call, entry=None, batch_entry=())
        self._compared_bytes += 0 if compared is None else len(compared.body)
        while self._pending:
            oldest = next(iter(self._pending))
            is_full = len(self._pending) >= PENDING_MAX or self._compared_bytes > COMPARED_BYTES_MAX
            if self._pending[oldest].until_ms > now_ms and not is_full:
                break
            self._settle(oldest)
        self._number += 1
        self._pending[self._number] = _Pending(
            told, call, now_ms + CALL_MS, last_index if stored is None else stored, index, count, compared
        )
        return Append(
            sender=self._sender,
            receiver=self._own_id,
            term=call.term,
            prev_index=prev_index,
            prev_term=prev_term,
            last_index=prev_index if last_index is None else last_index,
            runs=runs,
            commit=commit,
            sent_ms=self._number,
            data=data,
        )

    def _settle(self, number: int) -> _Pending | None:
        """A call that is answered, or not waited for any more."""
        settled = self._pending.pop(number, None)
        if settled is not None and settled.compared is not None:
            self._compared_bytes -= len(settled.compared.body)
        return settled

    def _see_own(self, term: int, index: int) -> None:
        if term != self._own_term or self._own_from is None:
            self._own_term, self._own_from = term, index
        else:
            self._own_from = min(self._own_from, index)

    def _commit(self, call: Push) -> int:
        if self._own_term == call.term and self._own_from is not None and call.commit_index >= self._own_from:
            return call.commit_index
        return NO_INDEX

    # --- Replies of our core

    def replied(self, reply: AppendReply | VoteReply, now_ms: int) -> Todo:
        """The answers that this reply is for; none if it is for no call."""
        if isinstance(reply, VoteReply):
            return self._vote_replied(reply, now_ms)
        todo = Todo()
        pending = self._pending
        if not reply.is_accepted:
            if (refused := self._settle(reply.sent_ms)) is not None:
                todo.answers.append((refused.told, self._refusal(refused, reply)))
            return todo
        for number in [
            number
            for number, each in pending.items()
            if each.call.term == reply.term
            and (number == reply.sent_ms if each.stored is None else each.stored <= reply.stored)
        ]:
            each = pending[number]
            self._settle(number)
            call = each.call
            if isinstance(call, Push):
                code = Code.SUCCESS if each.compared is None else self._compared(call.term, each.compared)
                todo.answers.append((each.told, self._push_answer(call, code, each.index, each.count)))
            else:
                todo.answers.append((each.told, self._answer(call, Code.SUCCESS)))
        return todo

    def _compared(self, term: int, entry: DLedgerEntry) -> Code:
        """Our core has found that this entry is in both logs; DLedger compares every byte, too."""
        if (found := self._view.entries(entry.index, entry.index)) is not None and found != entry.pack():
            return Code.INCONSISTENT_STATE
        self._tail = _Tail(term, entry.index, entry.term)
        return Code.SUCCESS

    def _refusal(self, refused: _Pending, reply: AppendReply) -> Base:
        call = refused.call
        if isinstance(call, Push):
            if call.type == APPEND:
                self._tail = None
            return self._push_answer(call, Code.INCONSISTENT_STATE, refused.index, refused.count)
        code = Code.EXPIRED_TERM if reply.term > call.term else Code.INCONSISTENT_STATE
        return self._answer(call, code, reply.term)

    def _vote_replied(self, reply: VoteReply, now_ms: int) -> Todo:
        for at, vote in enumerate(self._votes):
            if not reply.is_granted or vote.call.term == reply.term:
                del self._votes[at]
                call = vote.call
                assert isinstance(call, VoteCall)
                result = ACCEPT if reply.is_granted else self._rejection(call, reply, now_ms)
                answer = VoteAnswer(
                    group=call.group,
                    remote_id=call.remote_id,
                    local_id=call.local_id,
                    leader_id=call.leader_id,
                    term=reply.term,
                    vote_result=result,
                )
                return Todo(answers=[(vote.told, answer)])
        return Todo()

    def _rejection(self, call: VoteCall, reply: VoteReply, now_ms: int) -> str:
        """Why, as DLedger's candidate wants to know: what it does next depends on it."""
        view = self._view
        last_index = view.last_index
        last_term = NO_TERM if last_index == NO_INDEX else view.term_of(last_index)
        if last_term is not None and call.ledger_end_term < last_term:
            return EXPIRED_LEDGER_TERM
        if call.ledger_end_term == last_term and call.ledger_end_index < last_index:
            return SMALL_LEDGER_END_INDEX
        if reply.term > call.term:
            return EXPIRED_VOTE_TERM
        # A candidate that hears of a leader waits for 6 s: not for one that is silent here, too.
        is_led = view.leader not in (None, self._sender) and view.is_led(now_ms)
        return ALREADY_HAS_LEADER if is_led else ALREADY_VOTED

    # --- Time

    def tick(self, now_ms: int) -> Todo:
        """Go on with a transfer."""
        todo, transfer, view = Todo(), self._transfer, self._view
        self.deadline_ms = None
        if transfer is None:
            return todo
        call = transfer.call
        assert isinstance(call, LeaderTransfer)
        result: Code | None = None
        if view.role is RaftRole.LEADER and view.term > call.term:
            result = Code.SUCCESS
        elif view.term > call.term + 1 or now_ms >= transfer.until_ms:
            result = Code.TAKE_LEADERSHIP_FAILED
        elif not self._transfer_is_told and (view.term != call.term or view.leader != self._sender):
            result = Code.INCONSISTENT_LEADER
        elif not self._transfer_is_told and view.last_index >= call.take_leadership_ledger_index:
            self._transfer_is_told = True
            todo.messages.append(TransferNow(sender=self._sender, receiver=self._own_id, term=call.term))
        self.deadline_ms = now_ms + _LOOK_MS
        if result is not None:
            self._transfer = self.deadline_ms = None
            todo.answers.append((transfer.told, self._answer(call, result, view.term)))
        return todo

    # --- Bodies

    def _answer(self, call: Base, code: Code, term: int | None = None) -> Base:
        return Base(group=call.group, code=code, term=call.term if term is None else term, leader_id=self._view.leader)

    def _push_answer(self, call: Push, code: Code, index: int | None, count: int) -> PushAnswer:
        view = self._view
        has_entries = view.first_index <= view.last_index
        return PushAnswer(
            group=call.group,
            code=code,
            term=call.term,
            index=index,
            count=count,
            begin_index=view.first_index if has_entries else NO_INDEX,
            end_index=view.last_index,
        )
