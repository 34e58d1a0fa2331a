"""What a follower takes, drops, refuses and answers (P3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.raft.core import RaftCore
from ternmq.raft.matching import runs
from ternmq.raft.messages import NO_TERM, AppendReply
from ternmq.raft.ready import RaftRole, Ready, RoleChange
from tests.raft.group import append, core
from tests.raft.memory_log import Entry, MemoryLog

NOW = 5000


def answer(ready: Ready) -> AppendReply:
    (message,) = ready.messages
    assert isinstance(message, AppendReply)
    return message


def test_entries_behind_a_common_one_are_taken_and_answered_when_stored() -> None:
    follower = core(1, 1)
    message = append(2, 1, 1, 2, 2, sent_ms=77)
    ready = follower.step(message, NOW)
    assert ready.role == RoleChange(RaftRole.FOLLOWER, 2, "n1")
    assert (ready.append, ready.append_from, ready.truncate_from) == (message, 2, None)
    assert ready.messages == []
    log = follower._terms
    assert isinstance(log, MemoryLog)
    log.append(2, [Entry(2, "a"), Entry(2, "b")])
    first = answer(follower.stored(2, NOW))
    assert (first.is_accepted, first.index, first.stored, first.sent_ms) == (True, 3, 2, 77)
    assert answer(follower.stored(3, NOW)).stored == 3
    assert follower.stored(3, NOW).messages == []


def test_a_heartbeat_is_answered_at_once_with_what_is_stored() -> None:
    follower = core(1, 1, 1, stored=0)
    reply = answer(follower.step(append(1, 2, 1, sent_ms=5), NOW))
    assert (reply.is_accepted, reply.index, reply.stored, reply.sent_ms) == (True, 2, 0, 5)


def test_what_differs_is_dropped() -> None:
    follower = core(1, 1, 2, 2, 2)
    ready = follower.step(append(3, 0, 1, 1, 3), NOW)
    assert (ready.truncate_from, ready.append_from) == (2, 2)
    assert follower.stored(1, NOW).messages == []


def test_a_late_append_drops_nothing_that_came_after_it() -> None:
    follower = core(1, 1, 1, 1)
    ready = follower.step(append(1, 0, 1, 1), NOW)
    assert (ready.truncate_from, ready.append) == (None, None)
    assert answer(ready).index == 1


@pytest.mark.parametrize(
    ("own", "prev_index", "prev_term", "hint_index", "hint_term"),
    [
        ((1, 1), 5, 1, 1, 1),  # it is shorter
        ((1, 1, 2, 2, 2), 4, 3, 3, 2),  # another entry there: the one before may be equal
        ((1, 1, 4, 4, 4), 4, 3, 1, 1),  # all of a term that the leader has not: over it in one step
        ((), 3, 1, -1, NO_TERM),
    ],
)
def test_a_refusal_says_where_to_try_next(
    own: tuple[int, ...], prev_index: int, prev_term: int, hint_index: int, hint_term: int
) -> None:
    follower = core(*own)
    reply = answer(follower.step(append(9, prev_index, prev_term, 9), NOW))
    assert not reply.is_accepted
    assert (reply.index, reply.hint_index, reply.hint_term) == (prev_index, hint_index, hint_term)


def test_what_is_committed_is_equal_without_a_question() -> None:
    """The leader may have deleted the entry before."""
    follower = core(1, 1, 1, commit=1)
    ready = follower.step(append(2, 1, NO_TERM, 1, 2), NOW)
    assert (ready.append_from, ready.truncate_from) == (3, None)
    assert not answer(core(1, 1, 1, commit=0).step(append(2, 1, NO_TERM, 1, 2), NOW)).is_accepted


def test_the_commit_index_covers_only_what_is_equal() -> None:
    follower = core(1, 1, 2, 2, 2)
    assert follower.step(append(3, 1, 1, commit=4), NOW).commit == 1
    assert follower.step(append(3, 1, 1, 3, commit=2), NOW).commit == 2


def test_an_old_leader_learns_of_the_new_term() -> None:
    follower = core(1, 1, term=4)
    reply = answer(follower.step(append(3, 1, 1, commit=1), NOW))
    assert (reply.term, reply.is_accepted) == (4, False)
    assert follower.commit == -1
    assert follower.leader is None


@pytest.mark.parametrize(
    "message",
    [
        append(2, 0, 2),
        append(2, -1, NO_TERM, 2),
        append(2, 0, 1, 2, 2),
        append(2, 1, 2, 2),
    ],
)
def test_other_entries_than_the_committed_ones_are_a_fault(message: object) -> None:
    follower = core(1, 1, 1, commit=1)
    with pytest.raises(RemoteProtocolError, match="is committed with term 1"):
        follower.step(message, NOW)  # type: ignore[arg-type]
    assert (follower.term, follower.leader) == (1, None)


@pytest.mark.parametrize(
    ("terms", "term"),
    [((3,), 2), ((2, 1), 2), ((0,), 2)],
)
def test_impossible_terms_are_a_fault(terms: tuple[int, ...], term: int) -> None:
    follower = core(1, 1)
    with pytest.raises(RemoteProtocolError, match="behind term 1 in term 2"):
        follower.step(append(term, 1, 1, *terms), NOW)
    assert follower.term == 1


def test_a_log_that_begins_in_the_middle_is_continued() -> None:
    follower = core(first_index=7)
    assert follower.commit == 6
    ready = follower.step(append(3, 6, 2, 2, 3), NOW)
    assert (ready.append_from, ready.truncate_from, ready.commit) == (7, None, 6)


def test_whether_a_copy_is_needed_is_the_follower_s_own_judgement() -> None:
    follower = core(1, 1, 1, commit=0)
    assert not follower.lacks(50)  # it has no leader
    follower.step(append(1, -1, NO_TERM), NOW)
    assert follower.lacks(2)
    follower.step(append(1, 2, 1), NOW)
    assert not follower.lacks(3)
    assert follower.lacks(4)


def test_a_log_that_reaches_to_the_leader_s_beginning_is_not_given_up() -> None:
    """What the leader has deleted was committed. The follower was restarted, and does not know that it has it."""
    follower = core(1, 1, 2, 2)
    follower.meets(1, 1)
    assert -1 == answer(follower.step(append(3, -1, NO_TERM), 1)).index
    assert follower.lacks(2)
    follower.meets(1, NO_TERM)  # the leader does not know
    assert follower.lacks(2)
    follower.meets(1, 2)  # it differs
    assert follower.lacks(2)
    follower.meets(1, 1)
    assert not follower.lacks(2)
    assert 1 == answer(follower.step(append(3, -1, NO_TERM), 2)).index, "the leader goes on from there"


Terms = st.lists(st.integers(1, 4), max_size=12).map(sorted)


@given(
    common=Terms,
    own=st.lists(st.integers(0, 3), max_size=8),
    leader=st.lists(st.integers(0, 3), max_size=8),
    data=st.data(),
)
def test_any_append_makes_the_logs_equal_up_to_its_end(
    common: list[int], own: list[int], leader: list[int], data: st.DataObject
) -> None:
    """Log matching, with any two logs that Raft allows: a common part, then terms that are not shared."""
    floor = common[-1] if common else 1
    # Odd terms were led by one, even ones by the other: no entry behind the common ones is in both logs.
    follower_terms = common + [floor + 1 + 2 * step for step in sorted(own)]
    leader_terms = common + [floor + 2 + 2 * step for step in sorted(leader)]
    commit = data.draw(st.integers(-1, len(common) - 1))
    first = data.draw(st.integers(0, len(leader_terms)))
    count = data.draw(st.integers(0, len(leader_terms) - first))
    log = MemoryLog([Entry(term, "leader") for term in leader_terms])
    prev_term = leader_terms[first - 1] if first else NO_TERM
    message = append(99, first - 1, prev_term, *leader_terms[first : first + count], commit=commit)
    assert runs(log, first, first + count - 1) == message.runs
    follower = core(*follower_terms, commit=commit)
    ready = follower.step(message, NOW)
    is_equal = first - 1 < len(common)
    taken = list(follower_terms)
    if ready.truncate_from is not None:
        assert ready.truncate_from > commit
        del taken[ready.truncate_from :]
    if ready.append is not None:
        assert is_equal
        assert ready.append_from == len(taken)
        taken += leader_terms[ready.append_from : first + count]
    if is_equal:
        assert taken[: first + count] == leader_terms[: first + count]
        # Nothing is dropped without need: what was equal and longer stays.
        assert taken[: len(common)] == follower_terms[: len(common)]
    else:
        assert taken == follower_terms
        hint = answer(ready).hint_index
        assert min(len(common) - 1, commit) <= hint < first - 1


@given(Terms, st.data())
def test_runs_describe_any_entries(terms: list[int], data: st.DataObject) -> None:
    log = MemoryLog([Entry(term, "") for term in terms])
    first = data.draw(st.integers(0, len(terms)))
    last = data.draw(st.integers(first - 1, len(terms) - 1))
    message = append(9, first - 1, terms[first - 1] if first else NO_TERM, *terms[first : last + 1])
    assert runs(log, first, last) == message.runs
    assert message.is_well_formed
    assert [message.term_of(index) for index in range(first, last + 1)] == terms[first : last + 1]


def test_a_core_asks_few_entries_of_a_long_log() -> None:
    """A leader's append and a follower's comparison look at the ends of runs, not at each entry."""

    class CountingLog(MemoryLog):
        asked = 0

        def term_of(self, index: int) -> int | None:
            self.asked += 1
            return super().term_of(index)

    log = CountingLog([Entry(1, "")] * 10_000 + [Entry(3, "")] * 10_000)
    assert runs(log, 0, 19_999) == ((0, 1), (10_000, 3))
    assert log.asked < 60
    follower = core(1)
    follower._terms = log
    log.asked = 0
    message = append(9, -1, NO_TERM, *([1] * 9_000), *([9] * 5))
    assert follower.step(message, NOW).truncate_from == 9_000
    assert log.asked < 60


def test_core_is_the_same_for_the_same_calls() -> None:
    def life() -> list[object]:
        member: RaftCore = core(1, 1)
        seen: list[object] = []
        for _ in range(5):
            seen.append(member.deadline_ms)
            seen.append(member.tick(member.deadline_ms))
        return seen

    assert life() == life()
