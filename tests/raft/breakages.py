"""Raft with one rule broken at a time: what the simulation must find. The table is in
docs/decisions/0027-raft-core.md."""

from __future__ import annotations

from random import Random
from typing import Any

from ternmq.errors import ServiceNotAvailable
from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.leadership import Leadership
from ternmq.raft.messages import NO_INDEX, Append, AppendReply, HardState, NodeId, TransferNow, VoteRequest
from ternmq.raft.ready import EntryTerms, Ready
from tests.raft.memory_log import MemoryLog
from tests.raft.simulation import Breakage


class VotesTwice(RaftCore):
    def _grant(self, vote: VoteRequest) -> bool:
        self._voted_for = None if self._voted_for != self._config.self_id else self._voted_for
        return super()._grant(vote)


class VotesForAnyLog(RaftCore):
    def _is_up_to_date(self, vote: VoteRequest) -> bool:
        return True


class ComparesLengthsOnly(RaftCore):
    """The longer log wins, whatever the terms."""

    def _is_up_to_date(self, vote: VoteRequest) -> bool:
        return vote.last_index >= self._terms.last_index


class CommitsEarly(RaftCore):
    """Takes all entries of the leader as committed."""

    def _take(self, append: Append, ready: Ready) -> None:
        super()._take(append, ready)
        self._advance(self._matched)


class CommitsWhatItHas(RaftCore):
    """Takes the leader's commit index for its own entries, equal or not."""

    def _on_append(self, append: Append, now_ms: int, ready: Ready) -> None:
        super()._on_append(append, now_ms, ready)
        if ready.append is None and append.term == self._term:
            self._advance(min(append.commit, self._terms.last_index))


class TakesEntriesAnywhere(RaftCore):
    """Does not compare the entry before."""

    def _is_equal_at(self, index: int, term: int) -> bool:
        return index <= self._terms.last_index


class KeepsWhatDiffers(RaftCore):
    """Appends behind its own log, and truncates nothing."""

    def _first_difference(self, append: Append) -> int | None:
        fresh = super()._first_difference(append)
        if fresh is not None and fresh <= self._terms.last_index:
            last_index = self._terms.last_index
            return last_index + 1 if append.last_index > last_index else None
        return fresh


class TruncatesWhatIsEqual(RaftCore):
    """A late append, which the follower has had, cuts off what came after it."""

    def _first_difference(self, append: Append) -> int | None:
        return append.first_index if append.last_index > max(append.prev_index, self._commit) else None


class TruncatesCommitted(RaftCore):
    """Starts again from the entry before, also where entries are committed."""

    def _first_difference(self, append: Append) -> int | None:
        return append.first_index if self._terms.first_index <= append.first_index <= append.last_index else None


class AnswersBeforeStored(RaftCore):
    """Tells the leader of entries that are only in the log, not yet where they count."""

    def _accept(self, leader: NodeId, sent_ms: int, ready: Ready) -> None:
        stored, self._stored = self._stored, self._terms.last_index
        super()._accept(leader, sent_ms, ready)
        self._stored = stored


class RemembersOldLeader(RaftCore):
    """What was equal to the log of one leader counts for the next."""

    def _follow(self, term: int, leader: NodeId | None, now_ms: int) -> None:
        matched = self._matched
        super()._follow(term, leader, now_ms)
        self._matched = min(max(matched, self._matched), self._terms.last_index)


class VotesAgainstItsLeader(RaftCore):
    """Votes also while it hears a leader."""

    def _is_promised(self, candidate: NodeId, now_ms: int) -> bool:
        return False


class VotesWhileFilling(RaftCore):
    """A member that lost its disk votes at once."""

    def _grant(self, vote: VoteRequest) -> bool:
        self._gap.is_open = False
        return super()._grant(vote)


class ForgetsPromise(RaftCore):
    """A member that was restarted votes at once."""

    def __init__(
        self, config: RaftCoreConfig, hard_state: HardState, terms: EntryTerms, random: Random, now_ms: int, **rest: Any
    ) -> None:
        super().__init__(config, hard_state, terms, random, now_ms, **rest)
        self._heard_ms = now_ms - config.promise_ms


class ForgetsVote(RaftCore):
    """A member that was restarted knows its term, and not whom it voted for."""

    def __init__(
        self, config: RaftCoreConfig, hard_state: HardState, terms: EntryTerms, random: Random, now_ms: int, **rest: Any
    ) -> None:
        super().__init__(config, HardState(hard_state.term, None), terms, random, now_ms, **rest)


class LeadsMembersOfLongAgo(RaftCore):
    """A member that has only the beginning of a log leads the members that it names."""

    @property
    def _knows_of_commits(self) -> bool:
        return max(self._commit, self._gap.lost) != NO_INDEX


class TakesOverTooLate(RaftCore):
    """Obeys an order to take over though the leader has given the transfer up."""

    def _may_take_over(self, order: TransferNow) -> bool:
        self._heir = self._config.self_id
        return super()._may_take_over(order)


class TakesOverWhileFilling(RaftCore):
    """A member that lost its disk takes over."""

    def _may_take_over(self, order: TransferNow) -> bool:
        self._heir = self._config.self_id
        is_open, self._gap.is_open = self._gap.is_open, False
        try:
            return super()._may_take_over(order)
        finally:
            self._gap.is_open = is_open


class AsksForVotesAtOnce(RaftCore):
    """Raises the term without pre-votes."""

    def _campaign(self, now_ms: int, ready: Ready, *, is_pre: bool) -> None:
        super()._campaign(now_ms, ready, is_pre=False)


class LeadsWithoutAnswers(Leadership):
    """Does not step down when no majority answers."""

    def _quorum_ms(self, never_ms: int) -> int:
        return super()._quorum_ms(never_ms) + (1 << 40)


class BelievesOldRefusals(Leadership):
    """Goes back also for a refusal that a newer reply has overtaken."""

    def answered(self, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        self._followers[reply.sender].heard_ms = None
        super().answered(reply, now_ms, ready)


class CountsOldTerms(Leadership):
    def committable(self, own_stored: int) -> int:
        self._term, term = self._terms.term_of(self._middle(own_stored)) or 0, self._term
        try:
            return super().committable(own_stored)
        finally:
            self._term = term

    def _middle(self, own_stored: int) -> int:
        matches = [
            own_stored if node == self._config.self_id else self._followers[node].match for node in self._members.voters
        ]
        return sorted(matches, reverse=True)[self._members.quorum - 1]


class CountsItselfEarly(Leadership):
    """The leader's own entries count when they are written."""

    def committable(self, own_stored: int) -> int:
        return super().committable(self._terms.last_index)


class CountsHalf(Leadership):
    """Half of the members is enough."""

    def committable(self, own_stored: int) -> int:
        matches = [
            own_stored if node == self._config.self_id else self._followers[node].match for node in self._members.voters
        ]
        index = sorted(matches, reverse=True)[max(len(matches) // 2 - 1, 0)]
        return index if index > self._commit and self._terms.term_of(index) == self._term else self._commit


class LeaseTooLong(Leadership):
    def has_lease(self, now_ms: int) -> bool:
        return super().has_lease(now_ms - self._config.election_max_ms)


class LeaseFromReply(Leadership):
    """Counts the lease from when a reply arrives, not from when its append was sent."""

    def answered(self, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        super().answered(reply, now_ms, ready)
        self._followers[reply.sender].heard_ms = now_ms


class LeaseInTransfer(Leadership):
    """Keeps its lease while the heir is elected."""

    def has_lease(self, now_ms: int) -> bool:
        self._heir_is_told, is_told = False, self._heir_is_told
        try:
            return super().has_lease(now_ms)
        finally:
            self._heir_is_told = is_told


class SendsWithoutAsking(Leadership):
    """Takes a follower for equal before it has answered a probe, and never goes back."""

    def _retreat(self, *_: Any) -> None:
        pass


class ChangesBeforeTheLastIsCommitted(RaftCore):
    """Two changes of members may be under way."""

    def _check_alone(self) -> None:
        if self._terms.term_of(self._commit) != self._term:
            raise ServiceNotAvailable("later")


class ChangesBeforeItsTerm(RaftCore):
    """A new leader changes members before it has committed an entry of its own."""

    def _check_alone(self) -> None:
        if self._terms.members_index > self._commit:
            raise ServiceNotAvailable("later")


class ChangesSeveralAtOnce(RaftCore):
    def check_change(self, members: Members, now_ms: int, *, since_ms: int) -> None:
        if self._leadership is None or self._config.self_id not in members.voters:
            raise ServiceNotAvailable("later")
        self._check_alone()
        if members.voters != self._members.voters:
            self._check_majority(self._leadership, members, now_ms, since_ms)


class ChangesWhenCommitted(RaftCore):
    """A change counts when it is committed, not when it is in the log."""

    def _begin(self, now_ms: int) -> Ready:
        assert isinstance(self._terms, MemoryLog)
        members = self._terms.members_at(self._commit) or self._config.members
        if members != self._members:
            self._members = members
            if self._leadership is not None:
                self._leadership.change(members, self._terms.members_index, now_ms)
        return Ready()


class KeepsChangesThatAreTakenBack(RaftCore):
    """Entries are taken back, and the members that they named stay."""

    def _begin(self, now_ms: int) -> Ready:
        if self._terms.members_index < self._named:
            return Ready()
        self._named = self._terms.members_index
        return super()._begin(now_ms)

    _named = -1


class CountsThoseThatLeft(Leadership):
    """An entry counts as stored by a majority if members that have left are among it."""

    def committable(self, own_stored: int) -> int:
        matches = [progress.match for progress in self._followers.values()] + [own_stored]
        index = sorted(matches, reverse=True)[min(self._members.quorum, len(matches)) - 1]
        return index if index > self._commit and self._terms.term_of(index) == self._term else self._commit


class TakesAnyVoter(RaftCore):
    """A change is made also if the new members could not elect a leader."""

    def _check_majority(self, leadership: Leadership, members: Members, now_ms: int, since_ms: int) -> None:
        pass


class BelievesOldAnswers(RaftCore):
    """A change counts on members by what they have answered before it was asked for."""

    def check_change(self, members: Members, now_ms: int, *, since_ms: int) -> None:
        super().check_change(members, now_ms, since_ms=0)


class LeavesTooSoon(RaftCore):
    """A member that is to leave does not lead, though the change is not committed."""

    def _may_lead(self) -> bool:
        return super()._may_lead() and self._config.self_id in self._members.voters


class Broken(Breakage):
    def __init__(
        self,
        core: type[RaftCore] = RaftCore,
        *,
        stores_early: bool = False,
        forgets_vote: bool = False,
        forgets_term: bool = False,
        sends_before_vote_is_saved: bool = False,
    ) -> None:
        self.core = core
        self.stores_early = stores_early
        self.forgets_vote = forgets_vote
        self.forgets_term = forgets_term
        self.sends_before_vote_is_saved = sends_before_vote_is_saved
