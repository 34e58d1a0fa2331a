"""Each rule broken on purpose is found by a seed (P1, P3): else the simulation proves nothing.

The seeds are those of the table in docs/decisions/0027-raft-core.md. After a change of the simulation other seeds find
them: ``python -m tests.raft.test_broken_rules`` searches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final
from unittest.mock import patch

import pytest

from ternmq.errors import TernError
from ternmq.raft.core import RaftCore
from ternmq.raft.leadership import Leadership
from tests.raft import breakages, test_elections, test_leading, test_members
from tests.raft.breakages import Broken
from tests.raft.checkers import Wrong
from tests.raft.member_simulation import MemberSimulation
from tests.raft.simulation import Simulation
from tests.raft.storm_simulation import StormSimulation

#: Rule → how it is broken in the core and shell, in the leadership, and the seed that finds it.
RULES: Final[dict[str, tuple[Broken, type[Leadership], int]]] = {
    "one vote a term": (Broken(breakages.VotesTwice), Leadership, 13),
    "votes only for logs that have everything": (Broken(breakages.VotesForAnyLog), Leadership, 10),
    "the last term counts before the length": (Broken(breakages.ComparesLengthsOnly), Leadership, 158),
    "the term is remembered at a restart": (Broken(forgets_term=True), Leadership, 4),
    "no vote while a leader is heard": (Broken(breakages.VotesAgainstItsLeader), Leadership, 41),
    "the entry before is compared": (Broken(breakages.TakesEntriesAnywhere), Leadership, 149),
    "what differs is dropped": (Broken(breakages.KeepsWhatDiffers), Leadership, 13),
    "what is equal is not dropped": (Broken(breakages.TruncatesWhatIsEqual), Leadership, 3),
    "what is committed is not dropped": (Broken(breakages.TruncatesCommitted), Leadership, 3),
    "nothing is applied before it is committed": (Broken(breakages.CommitsEarly), Leadership, 40),
    "the commit index covers only what is equal": (Broken(breakages.CommitsWhatItHas), Leadership, 14),
    "what was equal to an old leader's log is forgotten": (Broken(breakages.RemembersOldLeader), Leadership, 14),
    "a follower answers when entries are stored": (Broken(breakages.AnswersBeforeStored), Leadership, 3),
    "the shell tells of entries when they are stored": (Broken(stores_early=True), Leadership, 2),
    "a leader counts itself when entries are stored": (Broken(), breakages.CountsItselfEarly, 2),
    "more than half are a majority": (Broken(), breakages.CountsHalf, 0),
    "a leader goes back when it is refused": (Broken(), breakages.SendsWithoutAsking, 0),
    "a lease is shorter than a promise": (Broken(), breakages.LeaseTooLong, 3),
    "a lease counts from when the append was sent": (Broken(), breakages.LeaseFromReply, 10),
    "no lease while an heir is elected": (Broken(), breakages.LeaseInTransfer, 117),
    "an order to take over ends with its transfer": (Broken(breakages.TakesOverTooLate), Leadership, 68320944626),
}


#: The same for rules of changes of members.
MEMBER_RULES: Final[dict[str, tuple[Broken, type[Leadership], int]]] = {
    "a change waits until the one before is committed": (
        Broken(breakages.ChangesBeforeTheLastIsCommitted),
        Leadership,
        133,
    ),
    "a change counts when it is in the log": (Broken(breakages.ChangesWhenCommitted), Leadership, 9),
    "members that have left, and learners, are not counted": (Broken(), breakages.CountsThoseThatLeft, 0),
    "the new members can elect a leader": (Broken(breakages.TakesAnyVoter), Leadership, 158),
    "a change counts on what members answer now": (Broken(breakages.BelievesOldAnswers), Leadership, 394),
    "the beginning of a log tells of no members": (Broken(breakages.LeadsMembersOfLongAgo), Leadership, 69023643863),
    "an empty member does not take over": (Broken(breakages.TakesOverWhileFilling), Leadership, 67341409621),
}


#: The same for rules that only several deaths in a row can show.
STORM_RULES: Final[dict[str, tuple[Broken, type[Leadership], int]]] = {
    "entries of old terms are not counted": (Broken(), breakages.CountsOldTerms, 32),
    "the vote is remembered at a restart": (Broken(forgets_vote=True), Leadership, 656),
    "the vote is on the disk before it is sent": (Broken(sends_before_vote_is_saved=True), Leadership, 76),
}


def finds(
    seed: int, broken: Broken, leadership: type[Leadership], simulation: type[Simulation] = Simulation
) -> str | None:
    """What the checkers say about this life, if anything."""
    try:
        with patch("ternmq.raft.core.Leadership", leadership):
            simulation(seed, breakage=broken).run()
    except Wrong as wrong:
        return str(wrong)
    return None


KINDS: Final[dict[type[Simulation], dict[str, tuple[Broken, type[Leadership], int]]]] = {
    Simulation: RULES,
    MemberSimulation: MEMBER_RULES,
    StormSimulation: STORM_RULES,
}


@pytest.mark.parametrize(
    ("simulation", "rule"), [(simulation, rule) for simulation, rules in KINDS.items() for rule in rules]
)
def test_a_broken_rule_is_found(simulation: type[Simulation], rule: str) -> None:
    broken, leadership, seed = KINDS[simulation][rule]
    assert finds(seed, Broken(), Leadership, simulation) is None, "nothing is wrong with this life"
    assert finds(seed, broken, leadership, simulation) is not None


#: Rules that take rare coincidences, or break no promise but that the group works: the test that tells their story.
STORIES: Final[dict[str, tuple[type[RaftCore], type[Leadership], Callable[[], None]]]] = {
    "the vote is remembered at a restart": (
        breakages.ForgetsVote,
        Leadership,
        test_elections.test_two_candidates_of_one_term_do_not_both_win_by_a_voter_that_was_restarted,
    ),
    "a restarted member keeps what it may have promised": (
        breakages.ForgetsPromise,
        Leadership,
        test_elections.test_a_restarted_member_does_not_know_what_it_has_promised_and_waits,
    ),
    "a member that lost its disk votes when it is filled": (
        breakages.VotesWhileFilling,
        Leadership,
        test_elections.test_a_member_that_lost_its_disk_votes_again_when_it_has_all_that_was_committed,
    ),
    "a leader commits an entry of its own before it changes members": (
        breakages.ChangesBeforeItsTerm,
        Leadership,
        test_members.test_a_leader_that_has_committed_nothing_in_its_term_changes_no_members,
    ),
    "one that is to leave may lead until that is committed": (
        breakages.LeavesTooSoon,
        Leadership,
        test_members.test_one_that_is_to_leave_leads_until_that_is_committed,
    ),
    "one member changes at a time": (
        breakages.ChangesSeveralAtOnce,
        Leadership,
        test_members.test_several_members_do_not_change_at_once,
    ),
    "a change that is taken back counts no more": (
        breakages.KeepsChangesThatAreTakenBack,
        Leadership,
        test_members.test_a_change_that_is_taken_back_counts_no_more,
    ),
    "pre-votes come first": (
        breakages.AsksForVotesAtOnce,
        Leadership,
        test_elections.test_a_member_that_was_cut_off_does_not_disturb_the_others,
    ),
    "entries of old terms are not counted": (
        RaftCore,
        breakages.CountsOldTerms,
        test_leading.test_entries_of_older_terms_are_not_committed_by_counting,
    ),
    "a leader that no majority answers steps down": (
        RaftCore,
        breakages.LeadsWithoutAnswers,
        test_leading.test_a_leader_that_no_majority_answers_steps_down,
    ),
    "a refusal that was overtaken tells nothing": (
        RaftCore,
        breakages.BelievesOldRefusals,
        test_leading.test_a_refusal_that_was_overtaken_tells_nothing,
    ),
}


@pytest.mark.parametrize("rule", STORIES)
def test_a_broken_rule_changes_its_story(rule: str) -> None:
    core, leadership, story = STORIES[rule]
    with (
        patch("tests.raft.group.RaftCore", core),
        patch("tests.raft.test_elections.RaftCore", core),
        patch("ternmq.raft.core.Leadership", leadership),
        pytest.raises((AssertionError, TernError, pytest.fail.Exception)),
    ):
        story()


def search(seeds: int) -> None:
    """Print the first seed that finds each rule, as rows of the table in the decision."""
    for simulation, rules in KINDS.items():
        for rule, (broken, leadership, _) in rules.items():
            lives = ((seed, finds(seed, broken, leadership, simulation)) for seed in range(seeds))
            seed, wrong = next((life for life in lives if life[1]), (-1, ""))
            sys.stdout.write(f"| {rule} | {seed} | {wrong} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    search(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
