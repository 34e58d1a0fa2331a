"""Messages of our core as calls of a DLedger member, and its answers as replies for the core (P3).

::

    VoteRequest, pre-vote METADATA: granted if that member knows no leader
    VoteRequest           VOTE; asked again while it says that its term is not ready
    Append                HEART_BEAT, if the last one is long ago; and
                            not aligned    COMPARE … TRUNCATE, until both logs are equal up to some entry
                            aligned        PUSH APPEND of its entries, or PUSH COMMIT
    TransferNow           LEADERSHIP_TRANSFER

DLedger has no pre-votes. A member that knows a leader would give none, and METADATA tells whom it follows. So a member
of ours that comes back after it was cut off does not raise the term, here, too.

**Alignment** is that of DLedger's own leaders: from the last entry downwards, or from the follower's end, until one is
equal in both logs. Only then is what the follower has behind it cut, because it differs: cutting it before that would
take acknowledged entries from a majority. When it is done the core is told as if the follower had accepted a probe.
Until then the core hears only that the follower lives (``_heard``). When entries are lost on their way, or refused, the
core is told so (``_realign``), and it begins again.

An entry that a follower has answered is in its page cache, never surely on its disk (DLedger flushes every 10 ms).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from ternmq.raft.dledger_view import CALL_MS, Todo, View
from ternmq.raft.messages import NO_INDEX, Append, AppendReply, NodeId, TransferNow, VoteReply, VoteRequest
from ternmq.raft.ready import RaftRole
from ternmq.wire.bodies.dledger import (
    ACCEPT,
    APPEND,
    COMMIT,
    COMPARE,
    EXPIRED_VOTE_TERM,
    TERM_NOT_READY,
    TERM_SMALL_THAN_LEDGER,
    TRUNCATE,
    Base,
    Code,
    DLedgerCode,
    DLedgerEntry,
    LeaderTransfer,
    Metadata,
    Push,
    PushAnswer,
    VoteAnswer,
    VoteCall,
    split_entries,
)

#: A follower hears this often of its leader; it waits for 6 s before it asks to be elected.
HEART_BEAT_MS: Final = 1_000
#: DLedger's state loop runs every 10 ms: a term that is not ready is so soon.
_SOON_MS: Final = 20
#: After an answer that cannot be helped at once: its disk may be full.
_PAUSE_MS: Final = 200
#: The index of a refusal that refuses nothing: only the time in it counts.
_NO_APPEND: Final = NO_INDEX - 1


class _Phase(Enum):
    COMPARE = "compare"
    APPEND = "append"


@dataclass(slots=True, frozen=True)
class _Sent:
    """A call that is not answered."""

    code: DLedgerCode
    term: int
    until_ms: int
    #: The type of a push.
    kind: str = ""
    #: Time of the append that it belongs to, by the core's clock.
    sent_ms: int = 0
    #: The entry that is compared or cut behind; the last of those that are pushed.
    index: int = NO_INDEX
    is_pre: bool = False


class DLedgerCalls:
    """What this member asks of one other. The answers come by ``answered``, or not at all."""

    def __init__(self, group: str, own_id: NodeId, other: NodeId, view: View) -> None:
        self._group = group
        self._own_id = own_id
        self._other = other
        self._view = view
        self._number = 0
        self._sent: dict[int, _Sent] = {}
        # As candidate.
        self._vote: VoteRequest | None = None
        self._vote_again_ms: int | None = None
        # As leader of a term.
        self._term = -1
        self._phase = _Phase.COMPARE
        #: Whether it has taken a heart beat of this term: before that it takes no entries.
        self._is_followed = False
        self._beat_ms: int | None = None
        self._beat_again_ms: int | None = None
        #: When the next comparison may begin.
        self._compare_ms = 0
        #: Aligned: both have the log up to here; sent up to here; and the commit index that it was told.
        self._matched = NO_INDEX
        self._pushed = NO_INDEX
        self._told_commit = NO_INDEX
        #: Times of appends by the core's clock: of the newest one, and of the newest one that was answered.
        self._sent_ms = 0
        self._heard_ms: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        """When ``tick`` must be called; None: need not."""
        times = [each.until_ms for each in self._sent.values()]
        times += [at for at in (self._vote_again_ms, self._beat_again_ms) if at is not None]
        if self._is_leading and self._wants_compare:
            times.append(self._compare_ms)
        return min(times, default=None)

    def code_of(self, number: int) -> DLedgerCode | None:
        """Which call an answer is for; None if it is not waited for any more."""
        sent = self._sent.get(number)
        return None if sent is None else sent.code

    # --- What our core says

    def send(self, message: VoteRequest | Append | TransferNow, now_ms: int) -> Todo:
        todo = Todo()
        match message:
            case VoteRequest():
                self._ask(message, now_ms, todo)
            case Append():
                self._append(message, now_ms, todo)
            case TransferNow():
                if not any(each.code is DLedgerCode.LEADERSHIP_TRANSFER for each in self._sent.values()):
                    body = LeaderTransfer(
                        term=message.term,
                        transfer_id=self._own_id,
                        transferee_id=self._other,
                        take_leadership_ledger_index=self._view.last_index,
                    )
                    self._call(DLedgerCode.LEADERSHIP_TRANSFER, body, now_ms, todo)
        return todo

    def lost(self, now_ms: int) -> Todo:
        """The connection is gone, and all that was under way."""
        todo = Todo()
        self._sent.clear()
        self._vote_again_ms = self._beat_again_ms = self._beat_ms = None
        self._is_followed = False
        self._realign(now_ms, todo)
        return todo

    def tick(self, now_ms: int) -> Todo:
        todo = Todo()
        late = [number for number, each in self._sent.items() if each.until_ms <= now_ms]
        if any(self._is_push(self._sent.pop(number)) for number in late):
            self._realign(now_ms, todo)
        if self._vote_again_ms is not None and now_ms >= self._vote_again_ms:
            self._vote_again_ms = None
            vote = self._vote
            if vote is not None and self._view.role is RaftRole.CANDIDATE and self._view.term == vote.term:
                self._ask(vote, now_ms, todo)
        if self._beat_again_ms is not None and now_ms >= self._beat_again_ms:
            self._beat_again_ms = None
            if self._is_leading:
                self._beat(now_ms, todo)
        self._compare_if_due(now_ms, todo)
        return todo

    def answered(self, number: int, answer: Base, now_ms: int) -> Todo:
        """Its answer to a call (``code_of`` tells which); one that comes too late is ignored."""
        todo = Todo()
        sent = self._sent.pop(number, None)
        if sent is None:
            return todo
        if isinstance(answer, Metadata):
            if sent.is_pre and answer.code == Code.SUCCESS and answer.leader_id in (None, "", self._own_id):
                todo.messages.append(self._vote_reply(sent.term, is_granted=True, is_pre=True))
        elif isinstance(answer, VoteAnswer):
            self._voted(sent, answer, now_ms, todo)
        elif sent.term != self._term or not self._is_leading:
            pass
        elif sent.code is DLedgerCode.HEART_BEAT:
            self._beaten(sent, answer, now_ms, todo)
        elif isinstance(answer, PushAnswer):
            self._heard(sent)
            if sent.kind == APPEND:
                self._appended(sent, answer, now_ms, todo)
            elif sent.kind == COMPARE:
                self._compared(sent, answer, now_ms, todo)
            elif sent.kind == TRUNCATE:
                self._aligned_or_again(sent, answer.code, now_ms, todo)
        return todo

    # --- Votes

    def _ask(self, vote: VoteRequest, now_ms: int, todo: Todo) -> None:
        if vote.is_pre:
            self._call(DLedgerCode.METADATA, Metadata(term=vote.term), now_ms, todo, is_pre=True)
            return
        self._vote = vote
        body = VoteCall(term=vote.term, ledger_end_index=vote.last_index, ledger_end_term=vote.last_term)
        self._call(DLedgerCode.VOTE, body, now_ms, todo)

    def _voted(self, sent: _Sent, answer: VoteAnswer, now_ms: int, todo: Todo) -> None:
        term = sent.term
        if answer.code != Code.SUCCESS:
            return
        if answer.vote_result == ACCEPT:
            todo.messages.append(self._vote_reply(term, is_granted=True))
        elif answer.vote_result == TERM_NOT_READY:
            self._vote_again_ms = now_ms + _SOON_MS
        elif answer.vote_result in (EXPIRED_VOTE_TERM, TERM_SMALL_THAN_LEDGER):
            todo.messages.append(self._vote_reply(answer.term, is_granted=False))

    # --- Leading

    @property
    def _is_leading(self) -> bool:
        return self._view.role is RaftRole.LEADER and self._view.term == self._term

    @property
    def _wants_compare(self) -> bool:
        return (
            self._phase is _Phase.COMPARE
            and self._is_followed
            and not any(self._is_push(each) for each in self._sent.values())
        )

    def _append(self, append: Append, now_ms: int, todo: Todo) -> None:
        if append.term != self._term:
            self._begin_term(append.term)
        self._sent_ms = append.sent_ms
        if self._beat_ms is None or now_ms - self._beat_ms >= HEART_BEAT_MS:
            self._beat(now_ms, todo)
        if self._phase is _Phase.COMPARE:
            self._compare_if_due(now_ms, todo)
        elif append.last_index > append.prev_index:
            self._push(append, now_ms, todo)
        elif append.commit > self._told_commit:
            self._told_commit = append.commit
            self._push_call(COMMIT, now_ms, todo)

    def _begin_term(self, term: int) -> None:
        self._term = term
        self._phase = _Phase.COMPARE
        self._is_followed = False
        self._beat_ms = self._beat_again_ms = self._heard_ms = None
        self._compare_ms = 0
        self._matched = self._pushed = self._told_commit = NO_INDEX
        self._sent = {number: each for number, each in self._sent.items() if not self._is_push(each)}

    def _beat(self, now_ms: int, todo: Todo) -> None:
        self._beat_ms = now_ms
        self._call(DLedgerCode.HEART_BEAT, Base(term=self._term), now_ms, todo)

    def _beaten(self, sent: _Sent, answer: Base, now_ms: int, todo: Todo) -> None:
        if answer.code == Code.SUCCESS:
            self._is_followed = True
            self._heard(sent)
            is_aligned = self._phase is _Phase.APPEND
            # Before both logs are aligned, the core learns only that it was heard.
            index = self._matched if is_aligned else _NO_APPEND
            todo.messages.append(self._reply(is_accepted=is_aligned, index=index, hint_index=self._matched))
            self._compare_if_due(now_ms, todo)
        elif answer.code == Code.TERM_NOT_READY:
            self._beat_again_ms = now_ms + _SOON_MS
        elif answer.term > self._term:
            todo.messages.append(self._reply(is_accepted=False, index=_NO_APPEND, term=answer.term))

    def _push(self, append: Append, now_ms: int, todo: Todo) -> None:
        data = self._view.entries(append.first_index, append.last_index)
        if append.prev_index != self._pushed or data is None:
            self._realign(now_ms, todo)
            return
        self._pushed = append.last_index
        self._told_commit = append.commit
        self._push_call(APPEND, now_ms, todo, *split_entries(data))

    def _appended(self, sent: _Sent, answer: PushAnswer, now_ms: int, todo: Todo) -> None:
        if self._phase is not _Phase.APPEND:
            return
        if answer.code != Code.SUCCESS:
            self._compare_ms = now_ms + _PAUSE_MS
            self._realign(now_ms, todo)
            return
        self._matched = max(self._matched, sent.index)
        todo.messages.append(self._reply(is_accepted=True, index=self._matched))

    def _realign(self, now_ms: int, todo: Todo) -> None:
        """What was pushed may be lost: compare again, and tell the core that its stream has ended."""
        self._sent = {number: each for number, each in self._sent.items() if not self._is_push(each)}
        if self._phase is _Phase.APPEND:
            self._phase = _Phase.COMPARE
            if self._is_leading and self._heard_ms is not None:
                hint = min(self._matched, self._view.last_index)
                todo.messages.append(self._reply(is_accepted=False, index=hint, hint_index=hint))
        elif self._compare_ms <= now_ms:
            self._compare_ms = now_ms + _PAUSE_MS

    # --- Alignment

    def _compare_if_due(self, now_ms: int, todo: Todo) -> None:
        if self._is_leading and self._wants_compare and now_ms >= self._compare_ms:
            last = self._view.last_index
            if last == NO_INDEX:
                self._align(NO_INDEX, todo)
            else:
                self._compare(COMPARE, last, now_ms, todo)

    def _compare(self, kind: str, index: int, now_ms: int, todo: Todo) -> None:
        data = self._view.entries(index, index)
        if data is None:
            # Deleted since; the next attempt begins at the end again.
            self._compare_ms = now_ms + _PAUSE_MS
            return
        self._push_call(kind, now_ms, todo, *split_entries(data))

    def _compared(self, sent: _Sent, answer: PushAnswer, now_ms: int, todo: Todo) -> None:
        if self._phase is not _Phase.COMPARE:
            return
        index, first, last = sent.index, self._view.first_index, self._view.last_index
        if answer.code == Code.SUCCESS:
            if index == answer.end_index:
                self._align(index, todo)
            else:
                self._compare(TRUNCATE, index, now_ms, todo)
        elif answer.code != Code.INCONSISTENT_STATE:
            self._again(now_ms)
        elif answer.end_index < first or answer.begin_index > last or index < answer.begin_index:
            # Nothing in common: it begins anew with our first entry.
            self._compare(TRUNCATE, first, now_ms, todo)
        elif (index := min(index - 1, answer.end_index)) < first:
            self._compare(TRUNCATE, first, now_ms, todo)
        else:
            self._compare(COMPARE, index, now_ms, todo)

    def _aligned_or_again(self, sent: _Sent, code: int, now_ms: int, todo: Todo) -> None:
        if self._phase is _Phase.COMPARE and code == Code.SUCCESS:
            self._align(sent.index, todo)
        else:
            self._again(now_ms)

    def _again(self, now_ms: int) -> None:
        """It may not follow us any more: it says so to the next heart beat."""
        self._is_followed = False
        self._beat_again_ms = self._compare_ms = now_ms + _PAUSE_MS

    def _align(self, index: int, todo: Todo) -> None:
        self._phase = _Phase.APPEND
        self._matched = self._pushed = index
        todo.messages.append(self._reply(is_accepted=True, index=index))

    # --- Small things

    def _heard(self, sent: _Sent) -> None:
        self._heard_ms = sent.sent_ms if self._heard_ms is None else max(self._heard_ms, sent.sent_ms)

    @staticmethod
    def _is_push(sent: _Sent) -> bool:
        return sent.kind in (APPEND, COMPARE, TRUNCATE)

    def _call(
        self, code: DLedgerCode, body: Base, now_ms: int, todo: Todo, *, index: int = NO_INDEX, is_pre: bool = False
    ) -> None:
        self._number += 1
        kind = body.type if isinstance(body, Push) else ""
        self._sent[self._number] = _Sent(code, body.term, now_ms + CALL_MS, kind, self._sent_ms, index, is_pre)
        addressed = msgspec.structs.replace(
            body, group=self._group, remote_id=self._other, local_id=self._own_id, leader_id=self._own_id
        )
        todo.calls.append((self._number, code, addressed))

    def _push_call(self, kind: str, now_ms: int, todo: Todo, *entries: DLedgerEntry) -> None:
        """DLedger has a field for one entry, and one for several."""
        body = Push(
            term=self._term,
            type=kind,
            commit_index=self._view.commit,
            entry=entries[0] if len(entries) == 1 else None,
            batch_entry=entries if len(entries) > 1 else (),
        )
        self._call(DLedgerCode.PUSH, body, now_ms, todo, index=entries[-1].index if entries else NO_INDEX)

    def _vote_reply(self, term: int, *, is_granted: bool, is_pre: bool = False) -> VoteReply:
        return VoteReply(sender=self._other, receiver=self._own_id, term=term, is_granted=is_granted, is_pre=is_pre)

    def _reply(
        self, *, is_accepted: bool, index: int, hint_index: int = NO_INDEX, term: int | None = None
    ) -> AppendReply:
        return AppendReply(
            sender=self._other,
            receiver=self._own_id,
            term=self._term if term is None else term,
            is_accepted=is_accepted,
            index=index,
            stored=index if is_accepted else NO_INDEX,
            hint_index=hint_index,
            sent_ms=self._sent_ms if self._heard_ms is None else self._heard_ms,
        )
