"""What a leader commits and sends, and how long it leads (P1, P3)."""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.errors import InvalidParameter, NotMaster, RemoteProtocolError, ServiceNotAvailable
from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members
from ternmq.raft.matching import RUNS_MAX
from ternmq.raft.messages import NO_INDEX, Append, AppendReply, TransferNow, VoteReply
from ternmq.raft.progress import HELD_MS, Pace
from ternmq.raft.ready import RaftRole, Ready
from ternmq.raft.wire import FRAME_EXTRA_BYTES, pack_message
from tests.raft.group import Group, Member, core, reply
from tests.raft.memory_log import Entry, MemoryLog

NOW = 5000


def leader(*terms: int, members: Members | None = None, **settings: Any) -> RaftCore:
    """n0, elected in the term after that of its last entry; nothing is written yet."""
    return elected(core(*terms, members=members or Members(("n0", "n1", "n2")), **settings))


def elected(member: RaftCore) -> RaftCore:
    member.tick(NOW)
    for is_pre in (True, False):
        for name in member.members.voters[1:]:
            term = member._asked_term if is_pre else member.term
            member.step(VoteReply(sender=name, receiver="n0", term=term, is_granted=True, is_pre=is_pre), NOW)
    assert member.role is RaftRole.LEADER
    return member


def write(member: RaftCore, count: int = 1, now_ms: int = NOW, *, is_stored: bool = True) -> Ready:
    log = member._terms
    assert isinstance(log, MemoryLog)
    log.append(log.last_index + 1, [Entry(member.term, "new")] * count)
    ready = member.appended(now_ms)
    if is_stored:
        stored = member.stored(log.last_index, now_ms)
        assert stored.messages == []
        ready.commit = stored.commit
    return ready


def sent(ready: Ready, to: str = "n1") -> list[tuple[int, int]]:
    """First and last entry of each append."""
    return [
        (message.first_index, message.last_index)
        for message in ready.messages
        if isinstance(message, Append) and message.receiver == to
    ]


def equal(member: RaftCore, node: str = "n1", *, now_ms: int = NOW, sent_ms: int = NOW) -> Ready:
    """The follower answers that it has everything."""
    index = member._terms.last_index
    return member.step(reply(node, member.term, index, sent_ms=sent_ms), now_ms)


def test_an_entry_of_this_term_is_committed_by_a_majority() -> None:
    member = leader(1, 1)
    assert write(member).commit is None
    assert equal(member).commit == 2


def test_entries_of_older_terms_are_not_committed_by_counting() -> None:
    """Raft's paper, figure 8: they are committed with the first of this term."""
    member = leader(1, 2)
    assert equal(member).commit is None
    assert equal(member, "n2").commit is None
    write(member)
    assert member.step(reply("n1", 3, 1, sent_ms=NOW), NOW).commit is None
    assert member.step(reply("n1", 3, 2, sent_ms=NOW), NOW).commit == 2


def test_a_leader_counts_its_own_entries_only_when_they_are_stored() -> None:
    member = leader(1)
    write(member, is_stored=False)
    assert equal(member).commit is None
    assert member.stored(1, NOW).commit == 1


def test_entries_may_be_committed_without_the_leader() -> None:
    member = leader(1)
    write(member, is_stored=False)
    equal(member, "n1")
    assert equal(member, "n2").commit == 1


@pytest.mark.parametrize(("index", "stored"), [(5, 1), (1, 5), (5, 5)])
def test_a_follower_that_says_it_has_more_than_the_leader_is_not_believed(index: int, stored: int) -> None:
    """P1: a number that is damaged would count for all entries to come."""
    member = leader(1)
    write(member)
    with pytest.raises(RemoteProtocolError, match="whose log ends with 1"):
        member.step(reply("n1", 2, index, stored=stored, sent_ms=NOW), NOW)
    assert [NO_INDEX, NO_INDEX] == [each.match for each in member.followers()]
    assert equal(member, "n2").commit == 1


def test_a_single_member_commits_what_it_has_stored() -> None:
    member = leader(1, members=Members(("n0",)))
    assert write(member).commit == 1


def test_learners_get_entries_and_do_not_count() -> None:
    member = leader(1, members=Members(("n0", "n1"), learners=("n2",)))
    equal(member, "n2")
    assert sent(write(member), "n2") == [(1, 1)]
    assert equal(member, "n2").commit is None
    assert equal(member, "n1").commit == 1


def test_nothing_is_sent_before_the_logs_are_known_to_be_equal() -> None:
    member = leader(1, 1)
    assert sent(write(member)) == []
    assert sent(member.step(reply("n1", 2, 1, sent_ms=NOW), NOW)) == [(2, 2)]


def test_a_leader_looks_for_the_common_part_in_large_steps() -> None:
    member = leader(*[1] * 50, *[5] * 50)
    ready = member.step(reply("n1", 6, 99, refused=True, hint_index=80, hint_term=3, sent_ms=NOW), NOW)
    # All of term 5 is skipped, down to the last entry of a term that the follower can have.
    assert sent(ready) == [(50, 49)]
    ready = member.step(reply("n1", 6, 49, sent_ms=NOW, stored=20), NOW)
    assert sent(ready)[0] == (50, 59)
    assert next(status for status in member.followers() if status.node == "n1").match == 20


def test_a_window_is_bounded_by_bytes_and_opens_with_replies() -> None:
    member = leader(1)
    equal(member)
    assert sent(write(member, 100)) == [(1, 10), (11, 20), (21, 30), (31, 40)]
    assert sent(write(member, 5)) == []
    assert sent(member.step(reply("n1", 2, 10, sent_ms=NOW), NOW)) == [(41, 50)]
    # What is equal, but not where it counts, is still under way.
    assert sent(member.step(reply("n1", 2, 30, stored=10, sent_ms=NOW), NOW)) == []


def test_a_window_is_bounded_by_count() -> None:
    member = leader(1, window_count=2)
    equal(member)
    assert sent(write(member)) == [(1, 1)]
    assert sent(write(member)) == [(2, 2)]
    assert sent(write(member)) == []
    assert sent(write(member)) == []
    assert sent(member.step(reply("n1", 2, 1, sent_ms=NOW), NOW)) == [(3, 4)]


def test_what_was_lost_is_sent_again_after_the_next_heartbeat() -> None:
    member = leader(1)
    equal(member)
    write(member, 3)
    heartbeat = member.tick(NOW + 150)
    assert sent(heartbeat) == [(4, 3)]
    ready = member.step(reply("n1", 2, 3, refused=True, hint_index=0, hint_term=1, sent_ms=NOW + 150), NOW + 151)
    assert sent(ready) == [(1, 0)]
    assert sent(member.step(reply("n1", 2, 0, sent_ms=NOW + 151), NOW + 152)) == [(1, 3)]


def test_a_refusal_that_was_overtaken_tells_nothing() -> None:
    member = leader(1)
    equal(member)
    write(member, 3)
    equal(member, sent_ms=NOW + 10, now_ms=NOW + 10)
    ready = member.step(reply("n1", 2, 0, refused=True, hint_index=-1, sent_ms=NOW), NOW + 11)
    assert ready.messages == []


def test_a_follower_that_lost_what_it_had_gets_it_again() -> None:
    """Page cache mode, and a power cut."""
    member = leader(1)
    equal(member)
    write(member, 3)
    equal(member)
    ready = member.step(reply("n1", 2, 3, refused=True, hint_index=1, hint_term=2, sent_ms=NOW + 1), NOW + 1)
    assert sent(ready) == [(2, 1)]
    assert next(status for status in member.followers() if status.node == "n1").match == 1


def test_followers_hear_of_a_commit_soon_and_not_with_each_one() -> None:
    member = leader(1)
    equal(member)
    equal(member, "n2")
    write(member)
    assert equal(member).commit == 1
    assert member.deadline_ms == NOW + 20
    commits = [message.commit for message in member.tick(NOW + 20).messages if isinstance(message, Append)]
    assert commits == [1, 1]
    assert member.deadline_ms > NOW + 20


def test_a_follower_behind_the_first_entry_needs_a_copy_until_it_is_back() -> None:
    member = core(2, 2, 2, first_index=10, term=2)
    member.tick(NOW)
    for is_pre in (True, False):
        member.step(VoteReply(sender="n1", receiver="n0", term=3, is_granted=True, is_pre=is_pre), NOW)
    ready = member.step(reply("n1", 3, 12, refused=True, hint_index=4, hint_term=1, sent_ms=NOW), NOW)
    assert ready.needs_copy == ["n1"]
    assert sent(ready) == [(0, -1)]
    assert member.followers()[0].pace is Pace.COPY
    assert sent(write(member)) == []
    ready = member.step(reply("n1", 3, 4, sent_ms=NOW), NOW)
    assert (ready.needs_copy, ready.messages) == (["n1"], [])
    ready = member.step(reply("n1", 3, 9, sent_ms=NOW), NOW)
    assert (ready.needs_copy, sent(ready)) == ([], [(10, 9)])
    assert sent(member.step(reply("n1", 3, 9, sent_ms=NOW), NOW)) == [(10, 13)]


# --- Quorum, lease


def test_a_leader_that_no_majority_answers_steps_down() -> None:
    group = Group()
    group.run(5000)
    old = group.leader
    # Others hear it, and it hears no other member: without this rule there would be no leader for ever.
    group.cut = {(name, old.name) for name in group.nodes}
    old.put("to no avail")
    group.run_until(lambda: bool(group.leaders) and group.leaders != [old.name], at_most_ms=4000)
    assert old.core.role is not RaftRole.LEADER
    assert old.commit < old.log.last_index


def test_a_lease_lasts_from_when_the_append_was_sent() -> None:
    member = leader(1)
    assert not member.has_lease(NOW)
    equal(member, sent_ms=NOW, now_ms=NOW + 100)
    assert member.has_lease(NOW + 539)
    assert not member.has_lease(NOW + 540)


def test_a_reply_from_the_future_is_no_lease_for_ever() -> None:
    member = leader(1)
    equal(member, sent_ms=2**63 - 1, now_ms=NOW)
    assert not member.has_lease(NOW + 540)
    member.tick(NOW + 1501)
    assert member.role is not RaftRole.LEADER


def test_a_lease_ends_before_another_leader_is_elected() -> None:
    group = Group()
    group.run(5000)
    old = group.leader
    group.isolate(old.name)
    group.run_until(lambda: not old.core.has_lease(group.now_ms))
    assert group.leaders == [old.name]
    group.run_until(lambda: len(group.leaders) == 2)


def test_a_leader_has_no_lease_while_it_hands_over_and_gets_one_after_a_failure() -> None:
    member = leader(1)
    write(member)
    equal(member)
    assert member.has_lease(NOW)
    ready = member.transfer("n1", NOW)
    assert any(isinstance(message, TransferNow) for message in ready.messages)
    assert not member.has_lease(NOW)
    later = NOW + 750
    member.tick(later)
    assert member.heir is None
    assert not member.has_lease(later)
    # Replies to appends that were sent while followers knew of an heir do not count.
    equal(member, sent_ms=later, now_ms=later)
    assert not member.has_lease(later)
    equal(member, sent_ms=later + 1, now_ms=later + 1)
    assert member.has_lease(later + 1)


# --- Transfer


def followers_of(group: Group) -> list[Member]:
    return [node for node in group.nodes.values() if node is not group.leader]


def test_a_transfer_takes_no_time_out() -> None:
    group = Group()
    group.run(5000)
    old, (heir, _) = group.leader, followers_of(group)
    old.put("last words")
    old.do(old.core.transfer(heir.name, group.now_ms))
    group.deliver()
    assert group.leader is heir
    assert group.run_until(lambda: old.core.leader == heir.name) == 0
    assert heir.commit == heir.log.last_index


def test_a_transfer_without_a_name_goes_to_the_one_that_has_most() -> None:
    group = Group()
    group.run(5000)
    old, (behind, ahead) = group.leader, followers_of(group)
    group.cut = {(old.name, behind.name)}
    old.put("only two have it")
    group.deliver()
    old.do(old.core.transfer(None, group.now_ms))
    group.deliver()
    assert group.leader is ahead


def test_an_heir_that_lacks_entries_gets_them_first() -> None:
    group = Group()
    group.run(5000)
    old, (heir, _) = group.leader, followers_of(group)
    group.isolate(heir.name)
    for number in range(30):
        old.put(str(number))
    group.run(200)
    group.cut.clear()
    old.do(old.core.transfer(heir.name, group.now_ms))
    assert old.core.heir == heir.name
    group.run(400)
    assert group.leader is heir


def test_a_transfer_to_a_member_that_is_away_fails_and_the_leader_goes_on() -> None:
    group = Group()
    group.run(5000)
    old, (heir, _) = group.leader, followers_of(group)
    group.isolate(heir.name)
    old.put("the heir lacks this")
    old.do(old.core.transfer(heir.name, group.now_ms))
    group.run(700)
    assert old.core.heir == heir.name
    group.run(100)
    assert old.core.heir is None
    old.put("as before")
    group.run(100)
    assert group.leader is old
    assert old.commit == old.log.last_index


def test_a_transfer_needs_a_leader_and_a_voter() -> None:
    with pytest.raises(NotMaster, match="n0 does not lead its Raft group"):
        core(1).transfer("n1", NOW)
    member = leader(1, members=Members(("n0", "n1"), learners=("n2",)))
    with pytest.raises(InvalidParameter, match="the voting members are n0, n1"):
        member.transfer("n2", NOW)
    with pytest.raises(InvalidParameter, match="leads the group already"):
        member.transfer("n0", NOW)
    with pytest.raises(ServiceNotAvailable, match="no other voting member"):
        member.transfer(None, NOW)


@pytest.mark.parametrize("seed", range(5))
def test_a_preferred_member_becomes_the_leader(seed: int) -> None:
    """P1, RocketMQ's preferredLeaderIds."""
    group = Group(seed=seed, preferred=("n2",))
    group.run(8000)
    assert group.leaders == ["n2"]
    group.isolate("n2")
    group.run(4000)
    assert len(group.leaders) == 1
    group.cut.clear()
    group.run(15_000)
    assert group.leaders == ["n2"]


def test_a_refused_reply_of_a_later_term_ends_the_leadership() -> None:
    member = leader(1)
    late = AppendReply(sender="n1", receiver="n0", term=9, is_accepted=False, index=0, stored=0, sent_ms=NOW)
    ready = member.step(late, NOW)
    assert ready.role is not None
    assert (ready.role.role, ready.role.term, ready.role.leader) == (RaftRole.FOLLOWER, 9, None)
    assert ready.hard_state is not None
    assert write(member).messages == []


def test_an_append_has_no_more_terms_than_its_frame_has_room_for() -> None:
    """P3: after thousands of elections without a message. The rest comes with the next one."""
    terms = range(1, 3 * RUNS_MAX)
    member = leader(*terms, append_bytes=1 << 20, window_bytes=1 << 22)
    member.step(reply("n1", member.term, len(terms) - 1, sent_ms=NOW, refused=True), NOW)
    ready = member.step(reply("n1", member.term, NO_INDEX, sent_ms=NOW), NOW)

    appends = [each for each in ready.messages if isinstance(each, Append) and each.receiver == "n1" and each.runs]
    assert [(0, RUNS_MAX - 1), (RUNS_MAX, 2 * RUNS_MAX - 1), (2 * RUNS_MAX, 3 * RUNS_MAX - 2)] == sent(ready)
    assert all(each.is_well_formed for each in appends)
    assert all(len(pack_message(each)[0]) < FRAME_EXTRA_BYTES for each in appends)


def test_one_that_is_to_leave_has_a_lease_by_the_answers_of_the_only_voter() -> None:
    """P3: the one that stays can elect itself at any time."""
    alone = leader(members=Members(("n0",)))
    assert alone.has_lease(NOW + 10_000)
    member = leader(1, members=Members(("n0", "n1")))
    log = member._terms
    assert isinstance(log, MemoryLog)
    log.append(1, [Entry(1, "n0 leaves", Members(("n1",))), Entry(member.term, "new")])
    member.appended(NOW)
    assert not member.has_lease(NOW)
    member.step(reply("n1", member.term, 0, sent_ms=NOW), NOW + 10)
    assert member.has_lease(NOW + 500)
    assert not member.has_lease(NOW + 600)


def test_a_leader_that_is_filling_is_none_of_those_that_could_elect_another() -> None:
    """P1: the others have committed what is not on its own disk yet. It would not vote without a leader, so those that
    a change leaves must be able to elect one without it (changes of members, seed 88112204582)."""
    member = leader()
    write(member, is_stored=False)
    for node in ("n1", "n2"):
        equal(member, node)
        equal(member, node, sent_ms=NOW + 1, now_ms=NOW + 1)
    assert (0, True) == (member.commit, member.is_filling)
    with pytest.raises(ServiceNotAvailable, match="n0 cannot be reached or lacks a part of the log"):
        member.check_change(Members(("n0", "n2")), NOW + 1, since_ms=NOW)
    member.stored(0, NOW + 1)
    member.check_change(Members(("n0", "n2")), NOW + 1, since_ms=NOW)


def test_a_follower_that_takes_nothing_gets_entries_once_a_second() -> None:
    """P3: its disk is full. It is heard all the same, and gets entries at once when it has taken some."""
    member = leader(*[1] * 10)
    equal(member)
    write(member, 3)

    def attempt(now_ms: int) -> list[tuple[int, int]]:
        """It has dropped them, and refuses the next heartbeat."""
        member.step(reply("n1", 2, 12, refused=True, hint_index=9, hint_term=1, sent_ms=now_ms), now_ms)
        return sent(member.step(reply("n1", 2, 9, sent_ms=now_ms), now_ms))

    assert [[(10, 12)]] * 4 == [attempt(NOW + 150 * number) for number in range(4)]
    assert [(10, 12)] == attempt(NOW + 460), "it is the same refusal"
    assert [[]] * 3 == [attempt(NOW + 600 + 150 * number) for number in range(3)]
    assert member.followers()[0].heard_ms == NOW + 900
    later = NOW + 600 + HELD_MS
    assert [(10, 12)] == sent(member.step(reply("n1", 2, 9, sent_ms=later), later))
    assert [] == attempt(later + 10), "it has still taken nothing"
    later += 10 + HELD_MS
    assert [(10, 12)] == sent(member.step(reply("n1", 2, 9, sent_ms=later), later))
    member.step(reply("n1", 2, 11, sent_ms=later), later)
    member.step(reply("n1", 2, 12, refused=True, hint_index=11, hint_term=2, sent_ms=later + 10), later + 10)
    assert [(12, 12)] == sent(member.step(reply("n1", 2, 11, sent_ms=later + 10), later + 10))
