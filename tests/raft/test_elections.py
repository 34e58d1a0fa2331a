"""Elections: votes, pre-votes, promises (P1)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ternmq.errors import ConfigError, RemoteProtocolError
from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.messages import HardState, RaftMessage, TransferNow, VoteReply, VoteRequest
from ternmq.raft.ready import RaftRole, Ready, RoleChange
from tests.raft.group import THREE, Group, append, config, core, entries, reply, vote
from tests.raft.memory_log import Entry, MemoryLog

#: Later than any promise of a member that was started at 0.
LATER = 1000


def answer(ready: Ready) -> VoteReply:
    (message,) = ready.messages
    assert isinstance(message, VoteReply)
    return message


def test_a_member_votes_once_in_a_term() -> None:
    voter = core(1, 1)
    ready = voter.step(vote(2, 1, 1, sender="n1"), LATER)
    assert answer(ready).is_granted
    assert ready.hard_state == HardState(2, "n1")
    assert not answer(voter.step(vote(2, 1, 1, sender="n2"), LATER)).is_granted
    # The same candidate asks again: its first message, or the answer, was lost.
    ready = voter.step(vote(2, 1, 1, sender="n1"), LATER)
    assert answer(ready).is_granted
    assert ready.hard_state is None


@pytest.mark.parametrize(
    "message",
    [
        vote(2**63 - 1, 9, 2),
        append(2**63 - 1, 1, 1),
        VoteReply(sender="n1", receiver="n0", term=2**63 - 1, is_granted=False),
        reply("n1", 2**63 - 1, 1),
    ],
)
def test_a_term_that_no_group_reaches_is_ignored(message: RaftMessage) -> None:
    """It would be on all disks, and there would be no term after it."""
    voter = core(1, 1)
    with pytest.raises(RemoteProtocolError, match="no group gets so far"):
        voter.step(message, LATER)
    assert voter.term == 1
    assert answer(voter.step(vote(2, 1, 1), LATER)).is_granted


def test_a_vote_is_remembered_by_a_restarted_member() -> None:
    voter = core(1, 1, term=2, voted_for="n1")
    assert not answer(voter.step(vote(2, 1, 1, sender="n2"), LATER)).is_granted
    assert answer(voter.step(vote(2, 1, 1, sender="n1"), LATER)).is_granted


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_granted"),
    [(2, 2, True), (3, 2, True), (1, 2, False), (0, 3, True), (9, 1, False), (-1, -1, False)],
)
@pytest.mark.parametrize("is_pre", [False, True])
def test_a_vote_needs_a_log_that_has_everything(
    last_index: int, last_term: int, is_granted: bool, is_pre: bool
) -> None:
    """Raft's paper, 5.4.1: the later last term wins, then the longer log."""
    voter = core(1, 1, 2)
    assert answer(voter.step(vote(5, last_index, last_term, is_pre=is_pre), LATER)).is_granted is is_granted


def test_a_member_that_began_in_the_middle_votes_only_when_it_knows_its_last_term() -> None:
    voter = core(first_index=5, term=3)
    assert not answer(voter.step(vote(9, 100, 8), LATER)).is_granted
    assert voter.tick(10_000).messages == []
    assert voter.role is RaftRole.FOLLOWER


def test_a_pre_vote_changes_nothing() -> None:
    voter = core(1, 1)
    ready = voter.step(vote(7, 1, 1, is_pre=True), LATER)
    assert answer(ready).is_granted
    assert answer(ready).term == 7
    assert ready.hard_state is None
    assert ready.role is None
    assert voter.term == 1


def test_a_candidate_asks_for_pre_votes_then_for_votes_then_leads() -> None:
    """A transcript of an election."""
    member = core(1)
    ready = member.tick(member.deadline_ms)
    assert ready.role == RoleChange(RaftRole.CANDIDATE, 1, None)
    assert ready.hard_state is None
    assert [
        message for message in ready.messages if isinstance(message, VoteRequest) and message.is_pre
    ] == ready.messages
    now = LATER + 1000
    ready = member.step(VoteReply(sender="n1", receiver="n0", term=2, is_granted=True, is_pre=True), now)
    assert ready.hard_state == HardState(2, "n0")
    assert [(message.receiver, message.term) for message in ready.messages] == [("n1", 2), ("n2", 2)]
    ready = member.step(VoteReply(sender="n2", receiver="n0", term=2, is_granted=True), now)
    assert ready.role == RoleChange(RaftRole.LEADER, 2, "n0")
    assert ready.hard_state is None


def test_votes_of_other_terms_and_of_pre_votes_do_not_count() -> None:
    member = core(1)
    member.tick(member.deadline_ms)
    granted: dict[str, Any] = {"receiver": "n0", "is_granted": True}
    member.step(VoteReply(sender="n1", term=2, **granted), LATER)
    member.step(VoteReply(sender="n1", term=5, is_pre=True, **granted), LATER)
    assert member.term == 1
    member.step(VoteReply(sender="n1", term=2, is_pre=True, **granted), LATER)
    assert member.term == 2
    member.step(VoteReply(sender="n2", term=2, is_pre=True, **granted), LATER)
    member.step(VoteReply(sender="n2", term=1, **granted), LATER)
    assert member.role is RaftRole.CANDIDATE


def test_a_learner_neither_campaigns_nor_counts() -> None:
    members = Members(("n0", "n1"), learners=("n2",))
    learner = core(self_id="n2", members=members)
    assert learner.tick(10_000).messages == []
    member = core(members=members)
    member.tick(member.deadline_ms)
    member.step(VoteReply(sender="n2", receiver="n0", term=1, is_granted=True, is_pre=True), LATER)
    assert member.term == 0


def test_a_single_member_leads_at_once() -> None:
    member = core(1, 1, members=Members(("n0",)), now_ms=50)
    assert member.deadline_ms == 50
    ready = member.tick(50)
    assert ready.role == RoleChange(RaftRole.LEADER, 2, "n0")
    assert ready.hard_state == HardState(2, "n0")
    assert ready.messages == []
    assert member.has_lease(10**9)


def test_a_member_that_hears_a_leader_gives_no_vote_to_others() -> None:
    voter = core(1, 1)
    voter.step(append(1, 1, 1), LATER)
    promise_ms = RaftCoreConfig(self_id="n0", members=Members(("n0",))).promise_ms
    for is_pre in (True, False):
        assert voter.step(vote(9, 1, 1, sender="n2", is_pre=is_pre), LATER + promise_ms - 1).messages == []
    assert voter.term == 1
    assert answer(voter.step(vote(9, 1, 1, sender="n2"), LATER + promise_ms)).is_granted


def test_in_a_mixed_group_a_member_that_hears_a_leader_votes() -> None:
    """P1: DLedger's candidates do not say whether they are their leader's heirs. Pre-votes are not given."""
    voter = core(1, 1, is_mixed=True)
    voter.step(append(1, 1, 1), LATER)
    assert voter.step(vote(9, 1, 1, sender="n2", is_pre=True), LATER + 1).messages == []
    assert answer(voter.step(vote(9, 1, 1, sender="n2"), LATER + 1)).is_granted
    assert voter.term == 9


def test_a_mixed_group_has_no_leases() -> None:
    """P1: DLedger's followers promise nothing."""
    config = RaftCoreConfig(self_id="n0", members=Members(("n0",)), is_mixed=True)
    assert 0 == config.lease_ms < config.promise_ms


def test_a_restarted_member_does_not_know_what_it_has_promised_and_waits() -> None:
    voter = core(1, 1, term=1)
    assert voter.step(vote(2, 1, 1), 100).messages == []
    # In a new group there is nothing to have promised.
    assert answer(core().step(vote(1, -1, -1), 0)).is_granted


def test_only_the_heir_of_a_leader_may_interrupt_it() -> None:
    voter = core(1, 1)
    voter.step(append(1, 1, 1, heir="n2"), LATER)
    assert voter.step(vote(2, 1, 1, sender="n1"), LATER).messages == []
    assert answer(voter.step(vote(2, 1, 1, sender="n2"), LATER)).is_granted


def test_an_older_append_does_not_bring_an_heir_back() -> None:
    voter = core(1, 1)
    voter.step(append(1, 1, 1, sent_ms=20), LATER)
    voter.step(append(1, 1, 1, sent_ms=10, heir="n2"), LATER)
    assert voter.step(vote(2, 1, 1, sender="n2"), LATER).messages == []


def test_an_old_order_to_take_over_is_ignored() -> None:
    member = core(1, 1, term=2)
    member.step(append(2, 1, 1, heir="n0"), LATER)
    assert member.step(TransferNow(sender="n1", receiver="n0", term=1), LATER).messages == []
    ready = member.step(TransferNow(sender="n1", receiver="n0", term=2), LATER)
    assert ready.hard_state == HardState(3, "n0")
    assert not any(isinstance(message, VoteRequest) and message.is_pre for message in ready.messages)


def test_a_member_that_lost_its_disk_does_not_vote_for_one_that_has_left() -> None:
    """P1: the settings of the empty one name the present members. The one that has left knows neither of that nor of
    what was committed since (seed 1100716 of the simulation of changes)."""
    voter = core(members=Members(("n0", "n1", "n3")))
    for is_pre in (True, False):
        ready = voter.step(vote(4, 4, 1, sender="n2", is_pre=is_pre), LATER)
        assert not answer(ready).is_granted
    # In a group that is new, the others know of no commit either.
    assert answer(voter.step(vote(5, 4, 1, sender="n1"), LATER)).is_granted


def test_only_the_leader_lets_a_member_take_over() -> None:
    """P1: any other member could depose it, again and again."""
    member = core(1, 1)
    member.step(append(1, 1, 1, heir="n0"), LATER)
    ready = member.step(TransferNow(sender="n2", receiver="n0", term=1), LATER)
    assert (ready.messages, ready.role) == ([], None)
    ready = member.step(TransferNow(sender="n1", receiver="n0", term=1), LATER)
    assert ready.role == RoleChange(RaftRole.CANDIDATE, 2, None)


def test_an_order_to_take_over_that_comes_when_the_transfer_has_failed_is_ignored() -> None:
    """P1, P4: the leader counts this member's answers for its lease again, and another one may not have heard of that,
    and vote for this one (seed 68320944626)."""
    member = core(1, 1)
    member.step(append(1, 1, 1, sent_ms=10, heir="n0"), LATER)
    member.step(append(1, 1, 1, sent_ms=20), LATER)
    ready = member.step(TransferNow(sender="n1", receiver="n0", term=1), LATER)
    assert (ready.messages, ready.role, member.term) == ([], None, 1)


def test_a_member_with_the_beginning_of_a_log_does_not_lead_the_members_of_long_ago() -> None:
    """P1: the group was this member alone once, and has grown since. It lost its disk, and has got only entries of that
    time; as a group of one it would elect itself (seed 69023643863 of changes of members)."""
    log = MemoryLog([Entry(1, "p"), Entry(1, "alone", Members(("n0",)))])
    partial = RaftCore(config("n0", THREE), HardState(1, is_filling=True), log, Random(0), 0)
    ready = partial.tick(partial.deadline_ms + 10_000)
    assert (ready.messages, ready.role, partial.term) == ([], None, 1)


@pytest.mark.parametrize(
    ("settings", "lost", "is_granted"),
    [
        (Members(("n0", "n1")), -1, True),
        (Members(("n0", "n1", "n2")), -1, False),
        (Members(("n0", "n1", "n2")), 5, True),
        # It joined: these are the members of before.
        (Members(("n1", "n2", "n3"), learners=("n0",)), -1, True),
    ],
)
def test_a_member_with_the_beginning_of_a_log_votes_as_one_of_two_if_the_settings_say_so(
    settings: Members, lost: int, is_granted: bool
) -> None:
    """P1: of two members a candidate has all that was committed. But the group may have grown since the entry that
    names two. After damage only the end of the log is missing."""
    log = MemoryLog([Entry(1, "p"), Entry(1, "two", Members(("n0", "n1")))])
    partial = RaftCore(config("n0", settings), HardState(1, is_filling=True), log, Random(0), 0, lost=lost)
    assert answer(partial.step(vote(2, 9, 1, commit=9), LATER)).is_granted is is_granted


def test_an_empty_member_does_not_take_over() -> None:
    """P1: the order was for the life before its disk was lost. That life may have asked for votes in the next term, and
    votes for its log would count for an empty one (seed 67341409621 of changes of members)."""
    empty = core()
    empty.step(append(1, 5, 1, heir="n0"), LATER)
    ready = empty.step(TransferNow(sender="n1", receiver="n0", term=1), LATER)
    assert (ready.messages, ready.role, empty.term) == ([], None, 1)


def test_votes_for_its_life_before_do_not_elect_a_member_that_lost_its_disk() -> None:
    """P1: a voter with a slow disk has them still to answer when the member comes back, empty. It does not know yet
    that anything is committed; nobody would vote for its empty log now."""
    empty = core(now_ms=300)
    empty.step(VoteReply(sender="n2", receiver="n0", term=4, is_granted=False, is_pre=True), LATER)
    ready = empty.tick(empty.deadline_ms)
    (asked,) = {message.term for message in ready.messages if isinstance(message, VoteRequest) and message.is_pre}
    for is_pre in (True, False, True, False):
        empty.step(VoteReply(sender="n1", receiver="n0", term=5, is_granted=True, is_pre=is_pre), LATER)
    assert (empty.role, empty.term) == (RaftRole.CANDIDATE, 4)
    # In a new group, whose first leader has written nothing, others do vote for an empty log: in the term that is next.
    ready = empty.step(VoteReply(sender="n1", receiver="n0", term=asked, is_granted=True, is_pre=True), LATER)
    assert {message.term for message in ready.messages if isinstance(message, VoteRequest)} == {5}
    assert answer(core(term=4).step(vote(asked, -1, -1, is_pre=True), LATER)).is_granted
    empty.step(VoteReply(sender="n1", receiver="n0", term=5, is_granted=True), LATER)
    assert (empty.role, empty.term) == (RaftRole.LEADER, 5)


def test_a_vote_counts_also_after_the_candidate_has_begun_to_ask_again() -> None:
    """P1: a voter with a slow disk answers late. The candidate asks for pre-votes of the next term meanwhile, and its
    own term is still the same."""
    member = core(1, 1, term=2)
    member.step(append(2, 1, 1, heir="n0"), LATER)
    member.step(TransferNow(sender="n1", receiver="n0", term=2), LATER)
    assert (member.role, member.term) == (RaftRole.CANDIDATE, 3)
    ready = member.tick(member.deadline_ms)
    assert [message.is_pre for message in ready.messages if isinstance(message, VoteRequest)] == [True, True]

    ready = member.step(VoteReply(sender="n1", receiver="n0", term=3, is_granted=True), LATER + 500)
    assert ready.role == RoleChange(RaftRole.LEADER, 3, "n0")


def test_a_late_vote_does_not_count_for_a_term_that_the_candidate_has_left() -> None:
    """P1: nor for one in which it has followed, nor for one of an earlier life, whose log may have had more."""
    asked = core(1, 1, term=2)
    asked.step(append(2, 1, 1, heir="n0"), LATER)
    asked.step(TransferNow(sender="n1", receiver="n0", term=2), LATER)
    late = VoteReply(sender="n1", receiver="n0", term=3, is_granted=True)
    asked.step(append(3, 1, 1, sender="n2"), LATER)
    asked.tick(asked.deadline_ms)
    assert asked.role is RaftRole.CANDIDATE
    assert asked.step(late, LATER + 2000).role is None

    restarted = core(1, 1, term=3, voted_for="n0")
    restarted.tick(restarted.deadline_ms)
    assert restarted.role is RaftRole.CANDIDATE
    restarted.step(late, LATER + 2000)
    restarted.step(VoteReply(sender="n2", receiver="n0", term=3, is_granted=True), LATER + 2000)
    assert restarted.role is RaftRole.CANDIDATE


def test_two_leaders_of_one_term_are_a_fault() -> None:
    member = core(1, 1, term=2)
    member.step(append(2, 1, 1, sender="n1"), LATER)
    with pytest.raises(RemoteProtocolError, match="n2 and n1 both claim to lead term 2"):
        member.step(append(2, 1, 1, sender="n2"), LATER)


def test_messages_for_others_are_ignored() -> None:
    member = core(1)
    assert member.step(VoteRequest(sender="n1", receiver="n2", term=9, last_index=9, last_term=9), LATER) == Ready()
    assert member.step(VoteRequest(sender="n0", receiver="n0", term=9, last_index=9, last_term=9), LATER) == Ready()


def test_a_group_elects_one_leader_and_keeps_it() -> None:
    group = Group()
    group.run(5000)
    leader, term = group.leader, group.leader.core.term
    group.run(60_000)
    assert group.leader is leader
    assert leader.core.term == term
    assert {node.commit for node in group.nodes.values()} == {0}


def test_two_candidates_of_one_term_do_not_both_win_by_a_voter_that_was_restarted() -> None:
    group = Group()
    one, other, voter = group.nodes.values()
    for candidate in (one, other):
        # Both get the pre-vote, and ask for votes in term 1; the messages wait.
        group.now_ms = max(group.now_ms, candidate.core.deadline_ms)
        candidate.do(candidate.core.tick(group.now_ms))
        pre_vote = VoteReply(sender="n2", receiver=candidate.name, term=1, is_granted=True, is_pre=True)
        candidate.do(candidate.core.step(pre_vote, group.now_ms))
    group.under_way.clear()
    for candidate in (one, other):
        asks = VoteRequest(sender=candidate.name, receiver="n2", term=1, last_index=-1, last_term=-1)
        voter.do(voter.core.step(asks, group.now_ms))
        group.cut = {(candidate.name, name) for name in group.nodes}
        group.deliver()
        voter.restart()
    assert group.leaders == ["n0"]


@pytest.mark.parametrize("seed", range(20))
def test_a_new_leader_comes_within_two_seconds_of_a_death(seed: int) -> None:
    """P1: with the default times. Messages take no time here; the node's test has real ones."""
    group = Group(seed=seed)
    group.run(5000)
    dead = group.leader.name
    group.run(seed * 7)
    group.isolate(dead)
    took_ms = group.run_until(lambda: any(name != dead for name in group.leaders))
    assert took_ms <= 2000


def test_a_member_that_was_cut_off_does_not_disturb_the_others() -> None:
    """Pre-vote: Raft's thesis, 9.6."""
    group = Group()
    group.run(5000)
    leader = group.leader
    away = next(name for name in group.nodes if name != leader.name)
    group.isolate(away)
    group.run(20_000)
    assert group[away].core.role is RaftRole.CANDIDATE
    term = leader.core.term
    assert group[away].core.term == term
    group.cut.clear()
    group.run(5000)
    assert group.leader is leader
    assert leader.core.term == term


def test_a_member_whose_term_ran_ahead_is_taken_back() -> None:
    group = Group()
    group.run(5000)
    away = next(name for name in group.nodes if name != group.leader.name)
    node = group[away]
    group.isolate(away)
    # It has won pre-votes before, and lost its election.
    node.hard_state = HardState(9, away)
    node.restart()
    group.run(2000)
    group.cut.clear()
    group.run(5000)
    assert group.leader.core.term > 9
    assert group[away].core.leader == group.leader.name


def test_an_even_number_of_members_works_while_more_than_half_are_there() -> None:
    group = Group(members=Members(("n0", "n1", "n2", "n3")))
    group.run(5000)
    leader = group.leader
    others = [name for name in group.nodes if name != leader.name]
    group.isolate(others[0])
    group.run(3000)
    leader.put("three of four")
    group.run(500)
    assert leader.commit == leader.log.last_index
    group.isolate(others[1])
    leader.put("two of four")
    group.run(500)
    assert leader.commit < leader.log.last_index


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({"election_min_ms": 400}, "three heartbeats"),
        ({"election_max_ms": 700}, "must be a range"),
        ({"append_bytes": 10 << 20}, "at least one append"),
        ({"self_id": "n9"}, "not a member"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        RaftCoreConfig(**({"self_id": "n0", "members": Members(("n0", "n1"))} | settings))  # type: ignore[arg-type]


def test_members_are_named_once() -> None:
    with pytest.raises(ConfigError, match="names a member twice: n0, n0"):
        Members(("n0", "n0"))
    with pytest.raises(ConfigError, match="at least one member"):
        Members(())


# --- A member that lost its disk


@pytest.mark.parametrize("is_pre", [False, True])
def test_a_member_that_lost_its_disk_helps_no_candidate_that_may_lack_committed_entries(is_pre: bool) -> None:
    """n0 and n1 had entries 0 and 1, so they are committed. n0 has lost its disk, n1 is away, n2 has entry 0 only."""
    wiped = core()
    assert not answer(wiped.step(vote(2, 0, 1, sender="n2", commit=0, is_pre=is_pre), LATER)).is_granted


def test_members_of_a_new_group_elect_a_leader() -> None:
    """Also one whose first record no other member has: it knows of nothing that is committed."""
    assert answer(core().step(vote(1, -1, -1), LATER)).is_granted
    assert answer(core().step(vote(2, 0, 1), LATER)).is_granted


def test_a_member_that_lost_its_disk_votes_again_when_it_has_all_that_was_committed() -> None:
    log = MemoryLog()
    wiped = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    first = wiped.step(append(3, -1, -1, 1, 1, commit=3), LATER)
    assert first.hard_state == HardState(3, None, is_filling=True)
    log.append(0, entries(1, 1))
    # What it has is committed, but the leader has more.
    assert wiped.stored(1, LATER).hard_state is None
    assert not answer(wiped.step(vote(4, 3, 3, sender="n2", commit=3), 10 * LATER)).is_granted

    restarted = RaftCore(config("n0", THREE), HardState(3, None, is_filling=True), log, Random(0), 0, commit=1)
    assert restarted.tick(10 * LATER).messages == [], "it does not lead with a part of the log"
    restarted.step(append(3, 1, 1, 2, 3, commit=3), 10 * LATER)
    log.append(2, entries(2, 3))
    assert restarted.stored(3, 10 * LATER).hard_state == HardState(3, "n1")
    assert answer(restarted.step(vote(4, 3, 3, sender="n2", commit=3), 20 * LATER)).is_granted


def test_the_first_leader_of_a_group_is_filled_though_its_disk_is_slower_than_the_others() -> None:
    """What it must have is its own first commit. What is committed later may always be ahead of its disk."""
    log = MemoryLog()
    first = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    now = first.deadline_ms
    first.tick(now)
    first.step(VoteReply(sender="n1", receiver="n0", term=1, is_granted=True, is_pre=True), now)
    ready = first.step(VoteReply(sender="n1", receiver="n0", term=1, is_granted=True), now)
    assert ready.role == RoleChange(RaftRole.LEADER, 1, "n0")
    for index in range(5):
        log.append(index, entries(*[1] * 5)[index : index + 1])
        first.appended(now)
        first.step(reply("n1", 1, index, sent_ms=now), now)
        ready = first.step(reply("n2", 1, index, sent_ms=now), now)
        assert (ready.commit, first.is_filling) == (index, True)
    assert first.stored(0, now).hard_state == HardState(1, "n0")


def test_a_member_of_a_new_group_votes_with_the_first_entry() -> None:
    """Its leader had committed nothing when it was first heard, and the log begins in its term: nothing is lost."""
    log = MemoryLog()
    new = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    new.step(append(1, -1, -1), LATER)
    assert new.is_filling
    new.step(append(1, -1, -1, 1, 1), LATER)
    log.append(0, entries(1, 1))
    assert new.stored(0, LATER).hard_state == HardState(1, "n1")
    assert answer(new.step(vote(2, 1, 1, commit=0), 10 * LATER)).is_granted


@pytest.mark.parametrize("lost", [-1, 2])
@pytest.mark.parametrize(
    ("terms", "commit", "is_mixed", "is_filled"),
    [
        ((1, 2), -1, False, True),
        ((1, 1), -1, False, False),
        ((1, 2), 0, False, True),
        ((1, 2), 1, False, True),
        ((1, 2), 2, False, False),
        ((2, 2), -1, False, True),
        ((2, 2), -1, True, False),
        ((1, 2), 0, True, False),
        ((1, 2), 1, True, True),
    ],
)
def test_the_first_entry_of_a_leader_that_has_committed_none_of_its_own_ends_the_filling(
    terms: tuple[int, ...], commit: int, is_mixed: bool, is_filled: bool, lost: int
) -> None:
    """P1: what was committed in earlier terms is before it. Members of a new group whose leaders died one after the
    other waited for a commit, and two of four never voted (seed 67341406695 of changes of members). DLedger's leaders
    do not always tell what they have committed: an entry of their own must be known as committed."""
    log = MemoryLog()
    wiped = RaftCore(config("n0", THREE, is_mixed=is_mixed), HardState(), log, Random(0), 0, lost=lost)
    wiped.step(append(2, -1, -1, *terms, commit=commit), LATER)
    log.append(0, entries(*terms))
    assert wiped.stored(1, LATER).hard_state == (HardState(2, "n1") if is_filled else None)
    assert wiped.is_filling is not is_filled


def test_what_is_committed_until_the_first_entry_of_the_term_has_come_is_needed_too() -> None:
    """P1: the leader may have counted answers of the life before."""
    log = MemoryLog()
    wiped = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    wiped.step(append(2, -1, -1, 1, commit=0), LATER)
    log.append(0, entries(1))
    wiped.stored(0, LATER)
    wiped.step(append(2, 0, 1, 2, commit=2), LATER)
    log.append(1, entries(1, 2)[1:])
    wiped.stored(1, LATER)
    assert wiped.is_filling
    wiped.step(append(2, 1, 2, 2, commit=3), LATER)
    log.append(2, entries(1, 2, 2)[2:])
    assert wiped.stored(2, LATER).hard_state == HardState(2, "n1"), "what is committed later does not count"


def test_the_first_entries_of_a_leader_that_leads_since_long_do_not_end_the_filling() -> None:
    """All entries are of its term: what counts is how much it has committed, not how much has come."""
    log = MemoryLog()
    wiped = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    wiped.step(append(3, -1, -1, 3, 3, commit=1000), LATER)
    log.append(0, entries(3, 3))
    assert wiped.stored(1, LATER).hard_state is None
    assert wiped.commit == 1
    assert not answer(wiped.step(vote(4, 900, 3, sender="n2", commit=900, is_pre=True), 10 * LATER)).is_granted
    wiped.step(append(3, 1, 3, *[3] * 999, commit=1000), 20 * LATER)
    log.append(2, entries(*[3] * 1001)[2:])
    assert wiped.stored(1000, 20 * LATER).hard_state == HardState(3, "n1")
    assert answer(wiped.step(vote(4, 1000, 3, sender="n2", commit=900), 40 * LATER)).is_granted


def test_a_member_that_lost_committed_entries_does_not_vote_without_them() -> None:
    """By damage of its disk: the candidate may be one that never had them, and knows of no commit at all."""
    damaged = RaftCore(
        config("n0", THREE), HardState(2, None), MemoryLog(entries(1, 1)), Random(0), 0, commit=1, lost=5
    )
    assert damaged.tick(10 * LATER).messages == [], "it does not lead without them"
    assert not answer(damaged.step(vote(3, 2, 1, sender="n2", commit=-1), 20 * LATER)).is_granted

    empty = RaftCore(config("n0", THREE), HardState(2, None), MemoryLog(), Random(0), 0, lost=5)
    assert not answer(empty.step(vote(3, 2, 1, sender="n2", commit=-1), 20 * LATER)).is_granted


def test_one_of_two_members_votes_while_it_is_filling() -> None:
    """Each committed entry is on both, so the other one has them all; and without this vote there is no leader."""
    wiped = core(members=Members(("n0", "n1")))
    assert answer(wiped.step(vote(4, 9, 3, commit=9), LATER)).is_granted


def test_a_commit_index_of_an_older_term_does_not_end_the_filling() -> None:
    """A new leader knows late what was committed before it: only an entry of its own tells."""
    log = MemoryLog()
    wiped = RaftCore(config("n0", THREE), HardState(), log, Random(0), 0)
    wiped.step(append(3, -1, -1, 1, 1, commit=1), LATER)
    log.append(0, entries(1, 1))
    wiped.stored(1, LATER)
    assert not answer(wiped.step(vote(4, 5, 3, sender="n2", commit=1), 10 * LATER)).is_granted
