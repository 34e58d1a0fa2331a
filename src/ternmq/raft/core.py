"""Raft, without a file, a socket or a clock (P1, P3): calls go in, a ``Ready`` that says what to do comes out.

The rules, each in one method of this class or of ``Leadership``:

1. A member votes once in a term, and the vote is on disk before it is told (``_grant``, ``Ready.hard_state``).
2. It votes for candidates only whose log has everything that its own has (``_is_up_to_date``): so each leader has
   everything that was committed before.
3. It asks for pre-votes first (``_campaign``): a member that is cut off does not raise terms, and does not disturb
   the others when it comes back.
4. It votes for no other while it hears a leader (``_is_promised``).
5. It takes entries only behind an entry that it has in common with the leader (``_is_equal_at``), drops what differs,
   and never what is committed (``_first_difference``).
6. It answers an append when the entries are where they count: page cache or disk (``stored``).
7. Who the members are is told by the newest entry that names them, committed or not (``_begin``); the next change waits
   until that one is committed, and until this leader has committed an entry of its own (``check_change``).
8. A leader counts entries of its own term only (``Leadership.committable``), and steps down when no majority answers
   (``Leadership.has_quorum``).

A member that begins again (``__init__``) does not know what it has promised. So it acts as if it
had just heard a leader, and gives no vote for that long.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Final

from ternmq.errors import InvalidParameter, NotMaster, RemoteProtocolError, ServiceNotAvailable
from ternmq.raft.gap import Gap
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.leadership import FollowerStatus, Leadership
from ternmq.raft.matching import first_difference, last_candidate
from ternmq.raft.messages import (
    NO_INDEX,
    NO_TERM,
    Append,
    AppendReply,
    HardState,
    NodeId,
    RaftMessage,
    TransferNow,
    VoteReply,
    VoteRequest,
)
from ternmq.raft.ready import EntryTerms, RaftRole, Ready, RoleChange


def _differences(one: Members, other: Members) -> set[NodeId]:
    """Who is in only one of them, or votes in only one."""
    return {*one.voters}.symmetric_difference(other.voters) | {*one.learners}.symmetric_difference(other.learners)


_LIFE_NUMBER_MAX: Final = 1 << 31
#: Terms grow by some a second at most. One that is damaged would be on all disks, and leave no room for the next term.
TERM_LEAP_MAX: Final = 1 << 32


class RaftCore:
    """One member. Each call returns what to do, which must be done before the next call."""

    def __init__(
        self,
        config: RaftCoreConfig,
        hard_state: HardState,
        terms: EntryTerms,
        random: Random,
        now_ms: int,
        *,
        commit: int = NO_INDEX,
        stored: int | None = None,
        lost: int = NO_INDEX,
    ) -> None:
        """``commit``: what is known as committed, a hint that may be too small. ``stored``: up to which entry the log
        is where it counts; None: all of it. In disk mode sync the log before, or tell how far it is synced. ``lost``:
        entries up to this were committed and are lost by damage: this member is filling."""
        last_index = terms.last_index
        assert commit <= last_index, f"entry {commit} is committed, but the log ends at {last_index}"
        self._config = config
        self._members = terms.members or config.members
        self._terms = terms
        self._random = random
        self._term = hard_state.term
        self._voted_for = hard_state.voted_for
        self._saved = hard_state
        self._gap = Gap(terms, is_open=hard_state.is_filling, lost=lost, is_mixed=config.is_mixed)
        #: What is not in the log is still to come: a member that leads without it would take consumers back.
        self.awaits_tables = False
        # The log may come from elsewhere (a single broker), or its leader's term file be older than the log.
        if (last_term := self._last_term()) is not None and last_term > self._term:
            self._term, self._voted_for = last_term, None
        #: Only committed entries are ever deleted.
        self._commit = max(commit, terms.first_index - 1)
        self._stored = last_index if stored is None else min(stored, last_index)
        #: Up to here the log is equal to that of this term's leader.
        self._matched = self._commit
        self._role = RaftRole.FOLLOWER
        self._leader: NodeId | None = None
        self._leadership: Leadership | None = None
        self._told = RoleChange(self._role, self._term, None)
        self._told_commit = commit
        #: When the leader was heard, and its time in the newest append.
        self._heard_ms = now_ms if self._term > 0 else now_ms - config.promise_ms
        self._heard_sent_ms = 0
        #: Whom the leader wants to be its successor.
        self._heir: NodeId | None = None
        #: Who has granted a vote in this term, if this member has asked for votes since it began, or last followed.
        self._votes: set[NodeId] | None = None
        #: Who would vote in the next term, if that is what this member asks at the moment.
        self._pre_votes: set[NodeId] | None = None
        #: No other life of this member asks with this number.
        self._life_number = 1 + now_ms % _LIFE_NUMBER_MAX
        self._election_ms = now_ms
        if len(self._members.voters) > 1:
            self._wait_for_leader(now_ms)

    # --- Calls

    def tick(self, now_ms: int) -> Ready:
        """Time has passed: at ``deadline_ms`` or later."""
        ready = self._begin(now_ms)
        if self._leadership is not None:
            if self._leadership.has_quorum(now_ms):
                self._leadership.tick(now_ms, ready)
            else:
                self._follow(self._term, None, now_ms)
        elif now_ms >= self._election_ms:
            if self._may_lead():
                self._campaign(now_ms, ready, is_pre=True)
            else:
                self._wait_for_leader(now_ms)
        return self._finish(ready)

    def step(self, message: RaftMessage, now_ms: int) -> Ready:
        """A message of another member has arrived; of one that this member has not heard of, too: it may be in a change
        of members that has not come here yet. Messages for other nodes are ignored.

        Raises ``RemoteProtocolError`` if the sender breaks Raft's rules: nothing has changed then.
        """
        ready = self._begin(now_ms)
        own = self._config.self_id
        if message.receiver != own or message.sender == own:
            return ready
        if message.term > self._term + TERM_LEAP_MAX:
            raise RemoteProtocolError(
                f"{message.sender} sent term {message.term} to a member in term {self._term}: no group gets so far"
            )
        match message:
            case VoteRequest():
                self._on_vote(message, now_ms, ready)
            case VoteReply():
                self._on_vote_reply(message, now_ms, ready)
            case Append():
                self._on_append(message, now_ms, ready)
            case AppendReply():
                self._on_append_reply(message, now_ms, ready)
            case TransferNow():
                if self._may_take_over(message):
                    self._campaign(now_ms, ready, is_pre=False)
        return self._finish(ready)

    def appended(self, now_ms: int) -> Ready:
        """As leader: the log has new entries of this term."""
        ready = self._begin(now_ms)
        if self._leadership is not None:
            self._leadership.grown(now_ms, ready)
        return self._finish(ready)

    def stored(self, index: int, now_ms: int) -> Ready:
        """The log as it is now is where it counts up to ``index`` (page cache, or disk). Never of truncated entries."""
        ready = self._begin(now_ms)
        if index > self._stored:
            assert index <= self._terms.last_index, f"entry {index} is stored, but not in the log"
            self._stored = index
            if self._leadership is not None:
                self._count(self._leadership, now_ms, ready)
            elif self._leader is not None:
                self._accept(self._leader, self._heard_sent_ms, ready)
        return self._finish(ready)

    def transfer(self, to: NodeId | None, now_ms: int) -> Ready:
        """As leader: hand over to ``to``, or to the follower that has most. Refuse new entries while ``heir`` is set,
        so that it can catch up."""
        ready = self._begin(now_ms)
        if self._leadership is None:
            raise NotMaster(f"{self._config.self_id} does not lead its Raft group: ask {self._leader or 'later'}")
        self._leadership.transfer(to, now_ms, ready)
        return self._finish(ready)

    def ask_all(self, now_ms: int) -> Ready:
        """As leader: have all members say how far they are, now and not with the next heartbeat."""
        ready = self._begin(now_ms)
        if self._leadership is not None:
            self._leadership.heartbeat(now_ms, ready)
        return self._finish(ready)

    def check_change(self, members: Members, now_ms: int, *, since_ms: int) -> None:
        """As leader: whether an entry may be appended that makes these the members. Raises ``BrokerRefused``.

        Call ``ask_all`` first, at ``since_ms``: answers to older appends do not count. A member that has lost its disk
        since then would be taken for one that has everything, and together with the one that leaves that is the loss of
        two. ``ServiceNotAvailable`` may be for want of answers: try again when there are more.
        """
        own = self._config.self_id
        if self._leadership is None or self._leadership.heir is not None:
            raise NotMaster(f"{own} does not lead its Raft group: ask {self._leader or 'later'}")
        self._check_alone()
        changed = _differences(self._members, members)
        if len(changed) != 1:
            raise InvalidParameter(f"one member at a time: {', '.join(sorted(changed)) or 'none'} would change")
        if own not in members.voters:
            raise InvalidParameter(f"{own} leads the group; hand over first (`tern raft transfer`)")
        if members.voters != self._members.voters:
            self._check_majority(self._leadership, members, now_ms, since_ms)

    def _check_majority(self, leadership: Leadership, members: Members, now_ms: int, since_ms: int) -> None:
        """Whether the new members could elect a leader: one that is not filled does not vote, and is not filled without
        a leader. The leader of a new group may be such a one: it has committed more than is on its own disk."""
        own = self._config.self_id
        behind = [
            node
            for node in members.voters
            if (self._gap.is_open if node == own else not leadership.keeps_up(node, now_ms, since_ms=since_ms))
        ]
        if len(members.voters) - len(behind) < members.quorum:
            raise ServiceNotAvailable(
                f"{', '.join(behind)} cannot be reached or lacks a part of the log, and with the new members the group "
                "would stop; wait, start it, or remove it first"
            )

    def _check_alone(self) -> None:
        """Whether no other change can still come true, or be taken back."""
        if self._terms.members_index > self._commit:
            raise ServiceNotAvailable("a change of members is in progress; try again when it is committed")
        if self._terms.term_of(self._commit) != self._term:
            # Else a change that an earlier leader has left on a minority could be counted by other majorities.
            raise ServiceNotAvailable("the leader has just been elected and has committed nothing yet; try again")

    def keeps_up(self, node: NodeId, now_ms: int) -> bool:
        """As leader: whether a learner could be a voter, without the group having to wait for it."""
        return self._leadership is not None and self._leadership.keeps_up(node, now_ms, since_ms=0)

    # --- State

    @property
    def deadline_ms(self) -> int:
        """When ``tick`` must be called next."""
        return self._election_ms if self._leadership is None else self._leadership.deadline_ms

    @property
    def role(self) -> RaftRole:
        return self._role

    @property
    def term(self) -> int:
        return self._term

    @property
    def leader(self) -> NodeId | None:
        return self._leader

    @property
    def heard_ms(self) -> int:
        """When a leader was heard last, by the time that was passed in."""
        return self._heard_ms

    @property
    def commit(self) -> int:
        return self._commit

    @property
    def is_filling(self) -> bool:
        """Whether this member does not have all yet that was committed before it began, and so does not vote."""
        return self._gap.is_open

    @property
    def members(self) -> Members:
        return self._members

    @property
    def heir(self) -> NodeId | None:
        """The member that this leader hands over to now."""
        return None if self._leadership is None else self._leadership.heir

    def has_lease(self, now_ms: int) -> bool:
        """Whether no other member can be leader now: this one may serve reads as the leader."""
        return self._leadership is not None and self._leadership.has_lease(now_ms)

    def lacks(self, leader_first_index: int) -> bool:
        """As follower: whether a leader whose log begins there, as it says in this term, cannot continue this log. Then
        all that this log has behind the leader's beginning differs from the leader's, and may be dropped."""
        return self._leader not in (None, self._config.self_id) and self._matched < leader_first_index - 1

    def meets(self, index: int, term: int) -> None:
        """As follower: a member has deleted this entry, so it is committed, and was in the log of each later leader. If
        this log has it, both are equal up to there. The leader may not know that: it asks no more once it takes this
        member for one that ``lacks``."""
        if self._leader not in (None, self._config.self_id) and term != NO_TERM and self._terms.term_of(index) == term:
            self._matched = max(self._matched, index)

    def followers(self) -> list[FollowerStatus]:
        """As leader: how far each follower is."""
        return [] if self._leadership is None else self._leadership.status()

    # --- Elections

    def _campaign(self, now_ms: int, ready: Ready, *, is_pre: bool) -> None:
        """Ask for votes in the next term, or first whether there would be a majority of them."""
        term = self._asked_term if is_pre else self._term + 1
        if is_pre:
            # Votes of this term count on: a voter whose disk is slow answers after this member has begun to ask again.
            self._pre_votes = {self._config.self_id}
        else:
            self._term, self._voted_for = term, self._config.self_id
            self._votes, self._pre_votes = {self._config.self_id}, None
        self._role, self._leader = RaftRole.CANDIDATE, None
        # Without a leader the next try comes sooner than the first: a split vote must not cost a second time-out.
        unit_ms = self._config.election_min_ms // 5
        self._election_ms = now_ms + self._random.randint(unit_ms, 3 * unit_ms)
        last_term = self._last_term()
        assert last_term is not None
        for node in self._members.voters:
            if node != self._config.self_id:
                ready.messages.append(
                    VoteRequest(
                        sender=self._config.self_id,
                        receiver=node,
                        term=term,
                        last_index=self._terms.last_index,
                        last_term=last_term,
                        commit=self._commit,
                        is_pre=is_pre,
                    )
                )
        self._poll(now_ms, ready)

    def _poll(self, now_ms: int, ready: Ready) -> None:
        if not self._is_majority(self._votes):
            if self._is_majority(self._pre_votes):
                self._campaign(now_ms, ready, is_pre=False)
            return
        self._role, self._leader = RaftRole.LEADER, self._config.self_id
        self._votes = self._pre_votes = None
        self._heir = None
        self._gap.forget()
        self._leadership = Leadership(self._config, self._members, self._term, self._terms, now_ms, commit=self._commit)
        self._leadership.heartbeat(now_ms, ready)

    @property
    def _asked_term(self) -> int:
        """The term of pre-votes, which begin none: usually the next one. A member that lost its disk may get votes that
        its life before has asked for, with the log that it had. So it goes on only if a majority would vote for it as
        it is now: it asks about a term that its life before has not asked about."""
        is_other_life = self._gap.is_open and self._term > 0
        return self._term + 1 + (self._life_number if is_other_life else 0)

    def _is_majority(self, votes: set[NodeId] | None) -> bool:
        return votes is not None and len(votes.intersection(self._members.voters)) >= self._members.quorum

    def _on_vote(self, vote: VoteRequest, now_ms: int, ready: Ready) -> None:
        if vote.term > self._term:
            # DLedger's candidates are heirs of their leader, or have heard none, like its voters: they get an answer.
            if (vote.is_pre or not self._config.is_mixed) and self._is_promised(vote.sender, now_ms):
                return
            if not vote.is_pre:
                self._follow(vote.term, None, now_ms)
        is_granted = self._grant(vote)
        if is_granted and not vote.is_pre:
            self._voted_for = vote.sender
            self._wait_for_leader(now_ms)
        ready.messages.append(
            VoteReply(
                sender=self._config.self_id,
                receiver=vote.sender,
                term=vote.term if is_granted else self._term,
                is_granted=is_granted,
                is_pre=vote.is_pre,
            )
        )

    def _grant(self, vote: VoteRequest) -> bool:
        if self._gap.is_open and vote.sender not in self._members.voters:
            # It may have left long ago, and know of no commit. With a log, this member could tell.
            return False
        knows = vote.commit != NO_INDEX or self._knows_of_commits
        # One that joined has settings of before: they say nothing of a group in which it votes (seed 71468351874).
        counts = self._config.self_id in self._config.members.voters
        settings = self._config.members if counts else self._members
        if self._gap.is_open and knows and not self._gap.takes_all(self._members, settings):
            return False
        if vote.is_pre:
            return vote.term > self._term and self._is_up_to_date(vote)
        return vote.term == self._term and self._voted_for in (None, vote.sender) and self._is_up_to_date(vote)

    @property
    def _knows_of_commits(self) -> bool:
        return self._gap.knows_of_commits(self._commit)

    def _is_up_to_date(self, vote: VoteRequest) -> bool:
        """Whether the candidate's log has everything that this one has, if that was committed (Raft's paper, 5.4.1)."""
        last_term = self._last_term()
        return last_term is not None and (vote.last_term, vote.last_index) >= (last_term, self._terms.last_index)

    def _is_promised(self, candidate: NodeId, now_ms: int) -> bool:
        """Whether this member leads or has heard a leader lately, and the candidate is not that leader's heir."""
        if self._leadership is not None:
            return candidate != self._leadership.told_heir
        return now_ms - self._heard_ms < self._config.promise_ms and candidate != self._heir

    def _on_vote_reply(self, reply: VoteReply, now_ms: int, ready: Ready) -> None:
        if not reply.is_granted:
            if reply.term > self._term:
                self._follow(reply.term, None, now_ms)
            return
        votes, term = (self._pre_votes, self._asked_term) if reply.is_pre else (self._votes, self._term)
        if self._role is RaftRole.CANDIDATE and votes is not None and reply.term == term:
            if reply.sender in self._members.voters:
                votes.add(reply.sender)
            self._poll(now_ms, ready)

    def _may_take_over(self, order: TransferNow) -> bool:
        """Whether an order of the leader holds. It may come late: when the leader has given the transfer up, and counts
        this member's answers for its lease again; or when this member has lost its disk, and forgotten that it has
        asked for votes in the next term already, with the log that it had. DLedger's leaders name no heir, and have no
        lease."""
        is_heir = self._heir == self._config.self_id or self._config.is_mixed
        is_of_leader = order.term == self._term and self._leader in (None, order.sender)
        is_free = self._role is RaftRole.FOLLOWER and not self._gap.is_open
        return is_heir and is_of_leader and is_free and self._may_lead()

    def _may_lead(self) -> bool:
        """A learner may not; nor a member whose log is empty because it begins in the middle of the group's, nor one
        that is filling and knows of committed entries."""
        is_partial = self.awaits_tables or (self._gap.is_open and self._knows_of_commits)
        # One that is to leave may still be the only one that can lead, until that is committed.
        may = self._config.self_id in self._members.voters or self._terms.members_index > self._commit
        return may and self._last_term() is not None and not is_partial

    def _follow(self, term: int, leader: NodeId | None, now_ms: int) -> None:
        """Follow ``leader``, or wait for one, in this term or a larger one."""
        if term > self._term:
            self._term, self._voted_for = term, None
        if self._leadership is not None:
            self._leadership = None
            self._wait_for_leader(now_ms)
        self._role, self._leader = RaftRole.FOLLOWER, leader
        self._votes = self._pre_votes = None
        # All that was known of a leader's log and clock ends with its term.
        self._matched = self._commit
        self._gap.forget()
        self._heard_sent_ms = 0
        self._heir = None

    def _wait_for_leader(self, now_ms: int) -> None:
        config = self._config
        self._election_ms = now_ms + self._random.randint(config.election_min_ms, config.election_max_ms)

    # --- Following

    def _on_append(self, append: Append, now_ms: int, ready: Ready) -> None:
        if append.term < self._term:
            # A leader of an older term, or a member whose term has run ahead: the larger term tells the other.
            self._refuse(append, ready)
            return
        if append.term == self._term and self._leader not in (None, append.sender):
            raise RemoteProtocolError(
                f"{append.sender} and {self._leader} both claim to lead term {append.term} of the Raft group"
            )
        self._check(append)
        if append.term > self._term or self._leader is None:
            self._follow(append.term, append.sender, now_ms)
        self._heard_ms = now_ms
        if append.sent_ms >= self._heard_sent_ms:
            self._heard_sent_ms = append.sent_ms
            self._heir = append.heir
        self._gap.heard(append.commit)
        self._wait_for_leader(now_ms)
        if self._is_equal_at(append.prev_index, append.prev_term):
            self._take(append, ready)
        else:
            self._refuse(append, ready)

    def _check(self, append: Append) -> None:
        """Refuse what no correct leader sends, before anything has changed."""
        if not append.is_well_formed:
            raise RemoteProtocolError(
                f"{append.sender} sent entries {append.first_index} to {append.last_index} with terms "
                f"{append.runs[:4]} behind term {append.prev_term} in term {append.term}"
            )
        for index in (append.prev_index, min(append.last_index, self._commit)):
            if max(append.prev_index, 0) <= index <= self._commit:
                own, other = self._terms.term_of(index), append.term_of(index)
                if own is not None and other not in (own, NO_TERM):
                    raise RemoteProtocolError(
                        f"{append.sender} sent entry {index} with term {other}: here it is committed with term {own}"
                    )

    def _is_equal_at(self, index: int, term: int) -> bool:
        """Whether the leader's entry ``index``, of this term, is in this log; then all before are equal, too. What is
        committed is in every leader's log."""
        return index <= self._commit or (term != NO_TERM and self._terms.term_of(index) == term)

    def _take(self, append: Append, ready: Ready) -> None:
        fresh = self._first_difference(append)
        if fresh is not None:
            if fresh <= self._terms.last_index:
                ready.truncate_from = fresh
                self._stored = min(self._stored, fresh - 1)
            ready.append, ready.append_from = append, fresh
        self._matched = max(self._matched, append.last_index)
        self._advance(min(append.commit, self._matched))
        if fresh is None:
            self._accept(append.sender, append.sent_ms, ready)

    def _first_difference(self, append: Append) -> int | None:
        return first_difference(self._terms, append, self._commit)

    def _accept(self, leader: NodeId, sent_ms: int, ready: Ready) -> None:
        ready.messages.append(
            AppendReply(
                sender=self._config.self_id,
                receiver=leader,
                term=self._term,
                is_accepted=True,
                index=self._matched,
                stored=min(self._matched, self._stored),
                sent_ms=sent_ms,
            )
        )

    def _refuse(self, append: Append, ready: Ready) -> None:
        """The entry before those of the message is not in this log. Say where it may be equal to the leader's."""
        index = last_candidate(self._terms, append, self._commit)
        hint_term = self._terms.term_of(index) if index >= 0 else None
        ready.messages.append(
            AppendReply(
                sender=self._config.self_id,
                receiver=append.sender,
                term=self._term,
                is_accepted=False,
                index=append.prev_index,
                stored=min(self._matched, self._stored),
                hint_index=index,
                hint_term=NO_TERM if hint_term is None else hint_term,
                sent_ms=append.sent_ms,
            )
        )

    # --- Leading

    def _on_append_reply(self, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        if reply.term > self._term:
            self._follow(reply.term, None, now_ms)
        elif reply.term == self._term and self._leadership is not None and self._leadership.knows(reply.sender):
            if max(reply.stored, reply.index if reply.is_accepted else NO_INDEX) > self._terms.last_index:
                # It would count for all entries to come.
                raise RemoteProtocolError(
                    f"{reply.sender} says that it has entry {max(reply.index, reply.stored)} of the leader, whose log "
                    f"ends with {self._terms.last_index}"
                )
            self._leadership.answered(reply, now_ms, ready)
            self._count(self._leadership, now_ms, ready)

    def _count(self, leadership: Leadership, now_ms: int, ready: Ready) -> None:
        index = leadership.committable(self._stored)
        if index > self._commit:
            self._advance(index)
            leadership.committed(index, now_ms)
        is_over = self._terms.members_index <= self._commit and leadership.heir is None
        if is_over and self._config.self_id not in self._members.voters:
            # It was needed only to bring the change to an end.
            with suppress(ServiceNotAvailable):
                leadership.transfer(None, now_ms, ready)

    # --- All roles

    def _begin(self, now_ms: int) -> Ready:
        """What was carried out since the last call may have changed who the members are: at once, not when committed.
        A majority of the new members and one of the old ones have a member in common only if all count alike."""
        members = self._terms.members or self._config.members
        if members is not self._members and members != self._members:
            self._members = members
            if self._leadership is not None:
                self._leadership.change(members, self._terms.members_index, now_ms)
        return Ready()

    def _advance(self, commit: int) -> None:
        self._commit = max(self._commit, commit)

    def _last_term(self) -> int | None:
        """The term of the last entry; ``NO_TERM`` if there never was one, None if it is not known."""
        last_index = self._terms.last_index
        return NO_TERM if last_index == NO_INDEX else self._terms.term_of(last_index)

    def _finish(self, ready: Ready) -> Ready:
        """Tell what has changed."""
        saved, told, gap = self._saved, self._told, self._gap
        if gap.is_open and self._leader is not None and ready.append is None:
            if self._leadership is not None:
                gap.led(self._commit, self._term)
            if gap.is_filled(self._stored, self._term):
                gap.is_open = False
                # Its vote in this term was lost with its disk. It may have been for this leader: no other one gets it.
                self._voted_for = self._voted_for or self._leader
        if saved.term != self._term or saved.voted_for != self._voted_for or saved.is_filling != gap.is_open:
            self._saved = ready.hard_state = HardState(self._term, self._voted_for, gap.is_open)
        if told.term != self._term or told.role is not self._role or told.leader != self._leader:
            self._told = ready.role = RoleChange(self._role, self._term, self._leader)
        if self._commit > self._told_commit:
            self._told_commit = ready.commit = self._commit
        return ready
