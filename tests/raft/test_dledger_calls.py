"""DLedger's calls as messages of our core, and the reverse (P3): one story a test, without a socket."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ternmq.errors import RemoteProtocolError
from ternmq.raft.dledger_answers import COMPARED_BYTES_MAX, DLedgerAnswers
from ternmq.raft.dledger_calls import DLedgerCalls
from ternmq.raft.dledger_view import Todo
from ternmq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, TransferNow, VoteReply, VoteRequest
from ternmq.raft.ready import RaftRole
from ternmq.raft.wire import EntriesGone
from ternmq.wire.bodies.codec import decode, encode
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
    TERM_NOT_READY,
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
)
from tests.raft.dledger_model import Log, entry_bytes

NOW = 1_000
#: Printed by DLedger's own classes (``PushEntryRequest``, 0.3.1.2).
PRINTED = (
    b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":6,"count":1,"entry":{"body":"AQL/","bodyCrc":0,'
    b'"chainCrc":0,"channel":0,"index":7,"magic":1,"pos":1000,"size":51,"term":3},"firstEntryIndex":7,"group":"g",'
    b'"lastEntryIndex":7,"leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"totalSize":0,"type":"APPEND"}'
)


class Member:
    """This member, n0, as the translation sees it."""

    def __init__(
        self, *terms: int, term: int = 0, role: RaftRole = RaftRole.FOLLOWER, leader: str | None = None
    ) -> None:
        self.log = Log()
        for number, each in enumerate(terms):
            self.log.add(each, f"entry {number}")
        self.term = term
        self.role = role
        self.leader = leader
        self.commit = NO_INDEX
        self.first_index = 0
        self.has_heard = True

    @property
    def last_index(self) -> int:
        return self.log.last_index

    def term_of(self, index: int) -> int | None:
        return self.log.term_of(index)

    def is_led(self, now_ms: int) -> bool:
        del now_ms
        return self.has_heard

    def entries(self, first: int, last: int) -> bytes | None:
        if first < self.first_index or last > self.last_index:
            return None
        return b"".join(entry.pack() for entry in self.log.entries[first : last + 1])

    def entry(self, index: int) -> DLedgerEntry:
        return self.log.entries[index]


def push(kind: str, *entries: DLedgerEntry, term: int = 3, commit: int = NO_INDEX) -> Push:
    one = entries[0] if len(entries) == 1 else None
    many = entries if len(entries) > 1 else ()
    return Push(type=kind, entry=one, batch_entry=many, term=term, commit_index=commit, leader_id="n1", group="g")


def entry(index: int, term: int, position: int = 0) -> DLedgerEntry:
    return DLedgerEntry.of(entry_bytes(index, term, position, f"entry {index}"))


def only(todo: Todo) -> Any:
    """The only message, call or answer."""
    found: list[Any] = list(todo.messages)
    found += [call for _, _, call in todo.calls]
    found += [answer for _, answer in todo.answers]
    (one,) = found
    return one


def accepted(message: Append, *, index: int, stored: int | None = None, term: int | None = None) -> AppendReply:
    return AppendReply(
        sender="n0",
        receiver="n1",
        term=message.term if term is None else term,
        is_accepted=True,
        index=index,
        stored=index if stored is None else stored,
        sent_ms=message.sent_ms,
    )


def refused(message: Append, *, term: int | None = None) -> AppendReply:
    return AppendReply(
        sender="n0",
        receiver="n1",
        term=message.term if term is None else term,
        is_accepted=False,
        index=message.prev_index,
        stored=NO_INDEX,
        sent_ms=message.sent_ms,
    )


# --- Bodies


def test_entries_keep_their_bytes_through_json() -> None:
    """P3: the CRCs of TernMQ's entries, too, which are unsigned here and signed there."""
    data = entry_bytes(7, 3, 1_000, "x" * 300)
    call = decode(encode(push(APPEND, DLedgerEntry.of(data), DLedgerEntry.of(data))), Push)

    assert [data, data] == [each.pack() for each in call.entries]


def test_what_dledger_prints_is_read() -> None:
    call = decode(PRINTED, Push)

    (found,) = call.entries
    assert (APPEND, 6, "n0", 3) == (call.type, call.commit_index, call.leader_id, call.term)
    assert (7, 3, 1_000, b"\x01\x02\xff") == (found.index, found.term, found.pos, found.body)
    assert 51 == len(found.pack())


@pytest.mark.parametrize(
    "change",
    [b'"size":52', b'"magic":2', b'"index":-1', b'"pos":"x"', b'"channel":4294967296', b'"body":"%%"', b'"term":1e99'],
)
def test_entries_that_are_none_are_refused(change: bytes) -> None:
    name = change.split(b":")[0]
    start = PRINTED.index(name, PRINTED.index(b'"entry"'))
    end = min(at for at in (PRINTED.find(b",", start), PRINTED.find(b"}", start)) if at > 0)
    with pytest.raises(RemoteProtocolError):
        decode(PRINTED[:start] + change + PRINTED[end:], Push).entries[0].pack()


# --- Their calls


def test_a_heart_beat_is_an_append_behind_nothing() -> None:
    answers = DLedgerAnswers("n0", "n1", Member(1, 1))
    message = only(answers.heart_beat("told", Base(term=3, leader_id="n1"), NOW))

    assert (NO_INDEX, NO_INDEX, NO_INDEX) == (message.prev_index, message.last_index, message.commit)
    assert Code.SUCCESS == only(answers.replied(accepted(message, index=1), NOW)).code
    message = only(answers.heart_beat("told", Base(term=3, leader_id="n1"), NOW))
    answer = only(answers.replied(refused(message, term=5), NOW))
    assert (Code.EXPIRED_TERM, 5) == (answer.code, answer.term)


def test_entries_continue_what_was_compared() -> None:
    """P3: a push names no entry before, so the translation remembers it."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    assert Code.INCONSISTENT_STATE == only(answers.pushed("early", push(APPEND, entry(2, 3)), NOW)).code

    compare = only(answers.pushed("told", push(COMPARE, member.entry(1)), NOW))
    assert (1, 2, 1) == (compare.prev_index, compare.prev_term, compare.last_index)
    answer = only(answers.replied(accepted(compare, index=1), NOW))
    assert (Code.SUCCESS, 0, 1) == (answer.code, answer.begin_index, answer.end_index)

    first = only(answers.pushed("first", push(APPEND, entry(2, 3)), NOW))
    second = only(answers.pushed("second", push(APPEND, entry(3, 3), entry(4, 3)), NOW))
    assert (1, 2, 2, ((2, 3),)) == (first.prev_index, first.prev_term, first.last_index, first.runs)
    assert (2, 3, 4) == (second.prev_index, second.prev_term, second.last_index)
    assert entry(3, 3).pack() + entry(4, 3).pack() == second.data
    # One reply, when all is stored, answers both.
    todo = answers.replied(accepted(second, index=4, stored=3), NOW)
    assert ["first"] == [told for told, _ in todo.answers]
    todo = answers.replied(accepted(second, index=4), NOW)
    assert [("second", 3, 2)] == [(told, body.index, body.count) for told, body in todo.answers]  # type: ignore[attr-defined]
    # Nothing that leaves a gap.
    assert Code.INCONSISTENT_STATE == only(answers.pushed("gap", push(APPEND, entry(6, 3)), NOW)).code


def test_a_refused_push_has_to_be_compared_again() -> None:
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    compare = only(answers.pushed("told", push(COMPARE, member.entry(1)), NOW))
    answers.replied(accepted(compare, index=1), NOW)
    lost = only(answers.pushed("lost", push(APPEND, entry(2, 3)), NOW))

    assert Code.INCONSISTENT_STATE == only(answers.replied(refused(lost), NOW)).code
    assert Code.INCONSISTENT_STATE == only(answers.pushed("next", push(APPEND, entry(3, 3)), NOW)).code


def test_equal_terms_with_other_bytes_are_not_equal() -> None:
    """P3: it never happens between correct members; DLedger compares bytes, and so do we."""
    answers = DLedgerAnswers("n0", "n1", Member(1, 2))
    compare = only(answers.pushed("told", push(COMPARE, entry(1, 2, position=9)), NOW))

    assert Code.INCONSISTENT_STATE == only(answers.replied(accepted(compare, index=1), NOW)).code


def test_what_is_compared_counts_when_it_is_stored() -> None:
    """P1: the leader counts it. Under SYNC_FLUSH it may not be on the disk yet."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    compare = only(answers.pushed("told", push(COMPARE, member.entry(1)), NOW))

    assert Todo() == answers.replied(accepted(compare, index=1, stored=0), NOW)
    assert Code.SUCCESS == only(answers.replied(accepted(compare, index=1), NOW)).code


def test_an_empty_member_begins_with_the_leader_s_first_entry() -> None:
    answers = DLedgerAnswers("n0", "n1", Member())
    message = only(answers.pushed("told", push(TRUNCATE, entry(0, 1)), NOW))

    assert (NO_INDEX, NO_TERM, 0) == (message.prev_index, message.prev_term, message.last_index)
    assert Code.SUCCESS == only(answers.replied(accepted(message, index=0), NOW)).code
    assert (0, 1) == (only(answers.pushed("told", push(APPEND, entry(1, 1)), NOW)).prev_index, 1)


def test_what_the_leader_has_deleted_is_told() -> None:
    todo = DLedgerAnswers("n0", "n1", Member(1)).pushed("told", push(TRUNCATE, entry(7, 3)), NOW)

    assert [EntriesGone(3, 7)] == todo.messages
    assert Code.INCONSISTENT_STATE == todo.answers[0][1].code


def test_truncate_cuts_nothing_that_both_have() -> None:
    member = Member(1, 2, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    message = only(answers.pushed("told", push(TRUNCATE, member.entry(0)), NOW))

    assert (0, 1, 0, ()) == (message.prev_index, message.prev_term, message.last_index, message.runs)
    assert Code.SUCCESS == only(answers.replied(accepted(message, index=0), NOW)).code


def test_entries_of_old_terms_that_were_counted_are_not_committed() -> None:
    """P1: DLedger counts them, and Raft's paper (5.4.2) says why that is wrong."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    compare = only(answers.pushed("told", push(COMPARE, member.entry(1), commit=1), NOW))
    assert NO_INDEX == compare.commit
    answers.replied(accepted(compare, index=1), NOW)
    assert NO_INDEX == only(answers.pushed("told", push(COMMIT, commit=1), NOW)).commit
    assert NO_INDEX == only(answers.pushed("told", push(APPEND, entry(2, 3), commit=1), NOW)).commit

    assert 2 == only(answers.pushed("told", push(COMMIT, commit=2), NOW)).commit
    # That was in another leader's term.
    assert NO_INDEX == only(answers.pushed("told", push(COMMIT, term=4, commit=2), NOW)).commit


@pytest.mark.parametrize(
    "call",
    [
        push("WHAT", entry(0, 1)),
        push(APPEND),
        push(COMPARE),
        push(APPEND, entry(0, 1), entry(2, 1)),
        push(APPEND, entry(0, 2), entry(1, 1)),
        push(APPEND, entry(0, 4)),
        push(TRUNCATE, entry(0, -1)),
    ],
)
def test_pushes_that_no_leader_sends_are_refused(call: Push) -> None:
    with pytest.raises(RemoteProtocolError):
        DLedgerAnswers("n0", "n1", Member()).pushed("told", call, NOW)


@pytest.mark.parametrize(
    ("call", "voter_term", "has_heard", "result"),
    [
        (VoteCall(term=3, ledger_end_index=9, ledger_end_term=1), 3, True, EXPIRED_LEDGER_TERM),
        (VoteCall(term=3, ledger_end_index=0, ledger_end_term=2), 3, True, SMALL_LEDGER_END_INDEX),
        (VoteCall(term=3, ledger_end_index=1, ledger_end_term=2), 5, True, EXPIRED_VOTE_TERM),
        (VoteCall(term=3, ledger_end_index=1, ledger_end_term=2), 3, True, ALREADY_HAS_LEADER),
        (VoteCall(term=3, ledger_end_index=1, ledger_end_term=2), 3, False, ALREADY_VOTED),
    ],
)
def test_a_candidate_hears_why(call: VoteCall, voter_term: int, has_heard: bool, result: str) -> None:
    """P1: a candidate that hears of a leader waits for 6 s, so it must not be one that is silent."""
    member = Member(1, 2, leader="n2")
    member.has_heard = has_heard
    answers = DLedgerAnswers("n0", "n1", member)
    vote = only(answers.voted("told", call, NOW))
    assert (vote.last_index, vote.last_term, vote.commit) == (
        call.ledger_end_index,
        call.ledger_end_term,
        call.ledger_end_index,
    )
    assert not vote.is_pre
    reply = VoteReply(sender="n0", receiver="n1", term=voter_term, is_granted=False)

    answer = only(answers.replied(reply, NOW))
    assert (result, voter_term) == (answer.vote_result, answer.term)


def test_a_vote_is_told_for_its_own_term_only() -> None:
    """P1: an answer that comes late is not taken for that of the next call."""
    answers = DLedgerAnswers("n0", "n1", Member())
    answers.voted("old", VoteCall(term=3), NOW)
    answers.voted("new", VoteCall(term=4), NOW)

    (answer,) = answers.replied(VoteReply(sender="n0", receiver="n1", term=4, is_granted=True), NOW).answers
    assert ("new", ACCEPT) == (answer[0], answer[1].vote_result)  # type: ignore[attr-defined]


def test_a_member_takes_over_when_it_has_all() -> None:
    member = Member(1, term=3, leader="n1")
    answers = DLedgerAnswers("n0", "n1", member)
    call = LeaderTransfer(term=3, transfer_id="n1", transferee_id="n0", take_leadership_ledger_index=1)
    assert Todo() == answers.transferred("told", call, NOW)
    member.log.add(1, "the last")

    assert TransferNow(sender="n1", receiver="n0", term=3) == only(answers.tick(NOW + 10))
    member.term, member.role, member.leader = 4, RaftRole.CANDIDATE, None
    assert Todo() == answers.tick(NOW + 20)
    member.role = RaftRole.LEADER
    assert Code.SUCCESS == only(answers.tick(NOW + 30)).code
    assert answers.deadline_ms is None


def test_a_transfer_that_fails_is_told() -> None:
    member = Member(1, term=3, leader="n1")
    answers = DLedgerAnswers("n0", "n1", member)
    call = LeaderTransfer(term=3, transfer_id="n1", transferee_id="n0", take_leadership_ledger_index=5)
    answers.transferred("told", call, NOW)
    assert Code.TAKE_LEADERSHIP_FAILED == only(answers.tick(NOW + 3_000)).code

    member.leader = "n2"
    assert Code.INCONSISTENT_LEADER == only(answers.transferred("told", call, NOW)).code
    other = LeaderTransfer(term=3, transfer_id="n1", transferee_id="n2")
    assert Code.UNSUPPORTED == only(answers.transferred("told", other, NOW)).code


# --- Our calls


def calls_of(member: Member) -> DLedgerCalls:
    return DLedgerCalls("g", "n0", "n1", member)


def append(prev_index: int, last_index: int, *, term: int = 3, commit: int = NO_INDEX, sent_ms: int = 50) -> Append:
    runs = ((prev_index + 1, term),) if last_index > prev_index else ()
    return Append(
        sender="n0",
        receiver="n1",
        term=term,
        prev_index=prev_index,
        prev_term=1,
        last_index=last_index,
        runs=runs,
        commit=commit,
        sent_ms=sent_ms,
    )


def following(calls: DLedgerCalls, *, prev_index: int) -> Push:
    """The first heart beat, taken; returns the comparison that follows."""
    todo = calls.send(append(prev_index, prev_index), NOW)
    ((number, code, body),) = todo.calls
    assert (DLedgerCode.HEART_BEAT, "g", "n1", "n0", 3) == (code, body.group, body.remote_id, body.leader_id, body.term)
    todo = calls.answered(number, Base(), NOW)
    (heard,) = todo.messages
    assert isinstance(heard, AppendReply)
    assert (False, 50) == (heard.is_accepted, heard.sent_ms)
    ((_, _, compare),) = todo.calls
    assert isinstance(compare, Push)
    return compare


def answer_to(calls: DLedgerCalls, code: Code, *, end: int, begin: int = 0) -> Todo:
    """The other member answers the newest call."""
    return calls.answered(calls._number, PushAnswer(code=code, begin_index=begin, end_index=end), NOW)


def test_a_pre_vote_asks_who_leads() -> None:
    """P1: DLedger has no pre-votes; a member that knows a leader would give none."""
    vote = VoteRequest(sender="n0", receiver="n1", term=4, last_index=0, last_term=1, is_pre=True)
    for leader, is_granted in ((None, True), ("n2", False), ("n1", False), ("n0", True)):
        calls = calls_of(Member(1))
        ((number, code, _),) = calls.send(vote, NOW).calls
        assert DLedgerCode.METADATA is code
        replies = calls.answered(number, Metadata(leader_id=leader), NOW).messages
        expected = [VoteReply(sender="n1", receiver="n0", term=4, is_granted=True, is_pre=True)]
        assert (expected if is_granted else []) == replies


def test_a_vote_is_asked_again_until_the_term_is_ready() -> None:
    member = Member(1, term=4, role=RaftRole.CANDIDATE)
    calls = calls_of(member)
    vote = VoteRequest(sender="n0", receiver="n1", term=4, last_index=0, last_term=1)
    ((number, _, body),) = calls.send(vote, NOW).calls
    assert isinstance(body, VoteCall)
    assert (4, 0, 1, "n0") == (body.term, body.ledger_end_index, body.ledger_end_term, body.leader_id)
    assert Todo() == calls.answered(number, VoteAnswer(vote_result=TERM_NOT_READY), NOW)
    assert calls.deadline_ms is not None
    ((number, _, again),) = calls.tick(calls.deadline_ms).calls
    assert again == body

    reply = only(calls.answered(number, VoteAnswer(vote_result=ACCEPT, term=4), NOW))
    assert VoteReply(sender="n1", receiver="n0", term=4, is_granted=True) == reply
    ((number, _, _),) = calls.send(vote, NOW).calls
    reply = only(calls.answered(number, VoteAnswer(vote_result=EXPIRED_VOTE_TERM, term=9), NOW))
    assert VoteReply(sender="n1", receiver="n0", term=9, is_granted=False) == reply
    # Not when this member stands no more.
    ((number, _, _),) = calls.send(vote, NOW).calls
    calls.answered(number, VoteAnswer(vote_result=TERM_NOT_READY), NOW)
    member.role = RaftRole.FOLLOWER
    assert Todo() == calls.tick(NOW + 100)


def test_logs_are_compared_downwards_and_then_entries_flow() -> None:
    """P3: the core hears of it as of an accepted probe."""
    member = Member(1, 1, 2, 2, term=3, role=RaftRole.LEADER)
    calls = calls_of(member)
    assert 3 == following(calls, prev_index=3).entries[0].index
    # It has more, all different from index 2 on.
    for index in (2, 1):
        compare = only(answer_to(calls, Code.INCONSISTENT_STATE, end=5))
        assert (COMPARE, index) == (compare.type, compare.entry.index)
    truncate = only(answer_to(calls, Code.SUCCESS, end=5))
    assert (TRUNCATE, 1) == (truncate.type, truncate.entry.index)
    reply = only(answer_to(calls, Code.SUCCESS, end=1))
    assert (True, 1, 1) == (reply.is_accepted, reply.index, reply.stored)

    many = only(calls.send(append(1, 3), NOW))
    assert (APPEND, [2, 3]) == (many.type, [each.index for each in many.batch_entry])
    reply = only(answer_to(calls, Code.SUCCESS, end=3))
    assert (True, 3, 3, 50) == (reply.is_accepted, reply.index, reply.stored, reply.sent_ms)
    member.commit = 3
    assert (COMMIT, 3) == ((told := only(calls.send(append(3, 3, commit=3), NOW))).type, told.commit_index)
    assert Todo() == calls.send(append(3, 3, commit=3), NOW)


def test_equal_entries_are_never_cut() -> None:
    """P1: a follower that is shorter is compared at its end: cutting what is equal would take it from a majority."""
    calls = calls_of(Member(1, 1, 1, 1, term=3, role=RaftRole.LEADER))
    following(calls, prev_index=3)

    compare = only(answer_to(calls, Code.INCONSISTENT_STATE, end=1))
    assert (COMPARE, 1) == (compare.type, compare.entry.index)
    assert 1 == only(answer_to(calls, Code.SUCCESS, end=1)).index


def test_a_follower_without_a_log_gets_the_first_entry() -> None:
    calls = calls_of(Member(1, 1, term=3, role=RaftRole.LEADER))
    following(calls, prev_index=1)

    truncate = only(answer_to(calls, Code.INCONSISTENT_STATE, begin=-1, end=-1))
    assert (TRUNCATE, 0) == (truncate.type, truncate.entry.index)


def test_lost_entries_are_compared_again() -> None:
    """P3: the core begins to probe, and does not count what may be lost."""
    calls = calls_of(Member(1, 1, 3, term=3, role=RaftRole.LEADER))
    following(calls, prev_index=1)
    answer_to(calls, Code.INCONSISTENT_STATE, end=1)
    answer_to(calls, Code.SUCCESS, end=1)
    ((number, _, _),) = calls.send(append(1, 2), NOW).calls
    assert calls.deadline_ms is not None

    refusal = only(Todo(messages=calls.tick(calls.deadline_ms).messages))
    assert (False, 1, 1) == (refusal.is_accepted, refusal.hint_index, refusal.index)
    # An answer that comes now is too late.
    assert Todo() == calls.answered(number, PushAnswer(code=Code.SUCCESS, end_index=2), NOW)


def test_a_lost_connection_ends_the_stream() -> None:
    calls = calls_of(Member(1, term=3, role=RaftRole.LEADER))
    following(calls, prev_index=0)
    answer_to(calls, Code.SUCCESS, end=0)

    assert not only(calls.lost(NOW)).is_accepted
    assert Todo() == calls.lost(NOW)
    assert calls.deadline_ms is None


def test_a_larger_term_ends_the_leadership() -> None:
    calls = calls_of(Member(1, term=3, role=RaftRole.LEADER))
    ((number, _, _),) = calls.send(append(0, 0), NOW).calls

    reply = only(calls.answered(number, Base(code=Code.EXPIRED_TERM, term=7), NOW))
    assert (7, False) == (reply.term, reply.is_accepted)


def test_heart_beats_go_out_under_load_too() -> None:
    """P1: pushes are no heart beats for DLedger."""
    calls = calls_of(Member(*[1] * 40, term=3, role=RaftRole.LEADER))
    following(calls, prev_index=0)
    answer_to(calls, Code.SUCCESS, end=39)
    found = [
        code for number in range(40) for _, code, _ in calls.send(append(number, number), NOW + 100 * number).calls
    ]

    assert 3 == found.count(DLedgerCode.HEART_BEAT)


def test_a_transfer_is_asked_for_once() -> None:
    calls = calls_of(Member(1, 1, term=3, role=RaftRole.LEADER))
    message = TransferNow(sender="n0", receiver="n1", term=3)
    call = only(calls.send(message, NOW))

    assert ("n0", "n1", 1, 3) == (call.transfer_id, call.transferee_id, call.take_leadership_ledger_index, call.term)
    assert Todo() == calls.send(message, NOW)


@pytest.mark.parametrize("kind", [COMPARE, TRUNCATE])
def test_an_entry_to_compare_may_be_the_only_one_of_several(kind: str) -> None:
    """P3: DLedger does not send it so; a member that gets it must not end."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    call = Push(type=kind, batch_entry=(member.entry(1),), term=3, leader_id="n1", group="g")
    message = only(answers.pushed("told", call, NOW))
    assert Code.SUCCESS == only(answers.replied(accepted(message, index=1), NOW)).code


@pytest.mark.parametrize("kind", [COMPARE, TRUNCATE, APPEND])
def test_an_entry_that_is_none_is_refused_before_the_core_hears_of_it(kind: str) -> None:
    """P3: found out later, it would look like a fault of this member."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    if kind == APPEND:
        compare = only(answers.pushed("told", push(COMPARE, member.entry(0)), NOW))
        answers.replied(accepted(compare, index=0), NOW)
    wrong = msgspec.structs.replace(member.entry(1), magic=7)
    with pytest.raises(RemoteProtocolError, match="magic 7"):
        answers.pushed("told", push(kind, wrong), NOW)


def test_what_is_to_be_compared_is_bounded_in_bytes() -> None:
    """P3: entries of calls that are not answered are kept in memory; those of other calls never are."""
    member = Member(1, 2)
    answers = DLedgerAnswers("n0", "n1", member)
    large = DLedgerEntry.of(entry_bytes(1, 2, 0, "x" * (COMPARED_BYTES_MAX // 4)))
    for number in range(50):
        answers.pushed(number, push(COMPARE, large), NOW)
        answers.pushed(number, push(COMMIT, large, large), NOW)
    kept = [each.compared for each in answers._pending.values() if each.compared is not None]
    assert COMPARED_BYTES_MAX >= sum(len(each.body) for each in kept) > 0
    assert not any(isinstance(each.call, Push) and each.call.entries for each in answers._pending.values())

    newest = only(answers.pushed("newest", push(COMPARE, member.entry(1)), NOW))
    told = [told for told, _ in answers.replied(accepted(newest, index=1), NOW).answers]
    assert "newest" in told
    assert 0 == answers._compared_bytes
