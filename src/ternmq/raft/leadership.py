"""One term of a member as leader: what to send to whom, what is committed, and how long it may lead (P1, P3).

**Commit.** An entry is committed when a majority of voters has it where it counts *and it is of this term*; all before
it are committed with it. An entry of an older term is not, however many have it: a later leader could still replace it
(Raft's paper, 5.4.2). So a new leader's first act is to write an entry.

**Quorum.** Every reply returns the time at which the append was sent. The newest time that a majority has answered says
how long ago this member was surely the leader. Is that longer than an election takes, it steps down: it may be cut off.

**Lease.** A follower that hears a leader votes for no other for ``promise_ms`` from then on, which is later than the
append was sent. So until ``lease_ms`` after the newest time that a majority has answered no other leader can be
elected. The one exception is made by the leader: followers vote at once for the *heir* it has told them of. From then
on it has no lease, and gets one again only by appends that it sent after the transfer had failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.errors import InvalidParameter, ServiceNotAvailable
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.matching import RUNS_MAX, last_up_to, runs
from ternmq.raft.messages import NO_INDEX, NO_TERM, Append, AppendReply, NodeId, TransferNow
from ternmq.raft.progress import Pace, Progress
from ternmq.raft.ready import EntryTerms, Ready

#: After a failed attempt to hand over to a preferred leader, the next one waits for this many checks: senders are
#: refused while it lasts.
_CHECKS_AFTER_FAILURE: Final = 10


@dataclass(slots=True, frozen=True)
class FollowerStatus:
    node: NodeId
    pace: Pace
    match: int
    next_index: int
    #: When the newest append that it has answered was sent.
    heard_ms: int | None


class Leadership:
    def __init__(
        self, config: RaftCoreConfig, members: Members, term: int, terms: EntryTerms, now_ms: int, *, commit: int
    ) -> None:
        self._config = config
        self._members = members
        self._term = term
        self._terms = terms
        self._since_ms = now_ms
        self._commit = commit
        self._followers = {
            node: Progress(config, terms.last_index + 1)
            for node in (*members.voters, *members.learners)
            if node != config.self_id
        }
        #: Followers that are no members any more, and until when they are told so: the entry, and its commit.
        self._leaving: dict[NodeId, int] = {}
        self._members_index = NO_INDEX
        #: When followers are told of a commit, unless an append does so before.
        self._notice_ms: int | None = None
        #: Appends sent at this time or before do not count for the lease.
        self._no_lease_ms = now_ms - 1
        self._heir: NodeId | None = None
        self._heir_is_told = False
        self._heir_until_ms = 0
        self._preferred_ms = now_ms + config.preferred_check_ms
        #: When followers that are behind get their next entries, and whether one waits for that.
        self._catch_up_ms = float(now_ms)
        self._is_slowed = False

    @property
    def heir(self) -> NodeId | None:
        return self._heir

    @property
    def told_heir(self) -> NodeId | None:
        """The heir, once it may begin its election: everything else waits for the end of the transfer."""
        return self._heir if self._heir_is_told else None

    @property
    def deadline_ms(self) -> int:
        config = self._config
        times = [self._quorum_ms(self._since_ms) + config.election_max_ms + 1]
        for progress in self._followers.values():
            sent_ms = self._since_ms if progress.sent_ms is None else progress.sent_ms
            times.append(sent_ms + config.heartbeat_ms)
        if self._notice_ms is not None:
            times.append(self._notice_ms)
        if self._is_slowed:
            times.append(int(self._catch_up_ms) + 1)
        if self._heir is not None:
            times.append(self._heir_until_ms)
        elif self._wants_preferred:
            times.append(self._preferred_ms)
        return min(times)

    def status(self) -> list[FollowerStatus]:
        return [
            FollowerStatus(node, progress.pace, progress.match, progress.next_index, progress.heard_ms)
            for node, progress in self._followers.items()
        ]

    # --- Members

    def knows(self, node: NodeId) -> bool:
        return node in self._followers

    def keeps_up(self, node: NodeId, now_ms: int, *, since_ms: int) -> bool:
        """Whether a follower has all but what was written in the last moment, by its answers to what was sent at
        ``since_ms`` or later."""
        progress = self._followers.get(node)
        return (
            progress is not None
            and progress.pace is Pace.STREAM
            and progress.is_filled
            and progress.heard_ms is not None
            and progress.heard_ms >= since_ms
            and progress.match >= max(self._commit - self._config.learner_lag_max, 0)
            and self._is_live(progress, now_ms)
        )

    def change(self, members: Members, index: int, now_ms: int) -> None:
        """Entry ``index`` makes these the members."""
        self._members = members
        self._members_index = index
        for node in (*members.voters, *members.learners):
            self._leaving.pop(node, None)
            if node != self._config.self_id and node not in self._followers:
                self._followers[node] = Progress(self._config, self._terms.last_index + 1)
        for node in self._followers:
            if node not in members:
                self._leaving.setdefault(node, now_ms + 4 * self._config.election_max_ms)
        if self._heir is not None and self._heir not in members.voters:
            self._give_up(now_ms)

    def _let_go(self, now_ms: int) -> None:
        """Forget followers that know that they are no members any more, or cannot be told."""
        for node, until_ms in list(self._leaving.items()):
            progress = self._followers[node]
            is_told = progress.match >= self._members_index <= progress.commit_sent
            if is_told or now_ms >= until_ms:
                del self._leaving[node], self._followers[node]

    # --- Quorum and lease

    def has_quorum(self, now_ms: int) -> bool:
        """Whether a majority has answered within an election time-out."""
        return now_ms - self._quorum_ms(self._since_ms) <= self._config.election_max_ms

    def has_lease(self, now_ms: int) -> bool:
        """Whether no other leader can have been elected until now."""
        if self._heir_is_told:
            return False
        since_ms = self._quorum_ms(self._no_lease_ms)
        return since_ms > self._no_lease_ms and now_ms < since_ms + self._config.lease_ms

    def _quorum_ms(self, never_ms: int) -> int:
        """The newest time whose appends a majority has answered, this member included. ``never_ms`` stands for none."""
        others = sorted(
            (
                never_ms if (heard_ms := self._followers[node].heard_ms) is None else heard_ms
                for node in self._members.voters
                if node != self._config.self_id
            ),
            reverse=True,
        )
        needed = self._members.quorum - (self._config.self_id in self._members.voters)
        return others[needed - 1] if needed else 1 << 62

    # --- Commit

    def committable(self, own_stored: int) -> int:
        """The last entry that is committed by what is known; the present one if there is no news."""
        matches = sorted(
            (
                own_stored if node == self._config.self_id else self._followers[node].match
                for node in self._members.voters
            ),
            reverse=True,
        )
        index = matches[self._members.quorum - 1]
        return index if index > self._commit and self._terms.term_of(index) == self._term else self._commit

    def committed(self, index: int, now_ms: int) -> None:
        self._commit = index
        if self._notice_ms is None:
            self._notice_ms = now_ms + self._config.commit_notice_ms

    # --- Sending

    def grown(self, now_ms: int, ready: Ready) -> None:
        """The log has new entries: send what the windows allow."""
        for node, progress in self._followers.items():
            self._stream(node, progress, now_ms, ready)

    def heartbeat(self, now_ms: int, ready: Ready) -> None:
        """Tell all followers who leads."""
        for node, progress in self._followers.items():
            self._say(node, progress, now_ms, ready)

    def tick(self, now_ms: int, ready: Ready) -> None:
        self._let_go(now_ms)
        is_notice = self._notice_ms is not None and now_ms >= self._notice_ms
        if is_notice:
            self._notice_ms = None
        if self._heir is not None and now_ms >= self._heir_until_ms:
            self._give_up(now_ms)
        if self._wants_preferred and self._heir is None and now_ms >= self._preferred_ms:
            self._preferred_ms = now_ms + self._config.preferred_check_ms
            self._prefer(now_ms, ready)
        if self._is_slowed and now_ms >= self._catch_up_ms:
            self._is_slowed = False
            self.grown(now_ms, ready)
        for node, progress in self._followers.items():
            is_due = progress.sent_ms is None or now_ms - progress.sent_ms >= self._config.heartbeat_ms
            if is_due or (is_notice and progress.pace is Pace.STREAM and progress.commit_sent < self._commit):
                self._say(node, progress, now_ms, ready)

    def _say(self, node: NodeId, progress: Progress, now_ms: int, ready: Ready) -> None:
        """An append without entries: a heartbeat, a probe, or news of a commit."""
        if progress.pace is Pace.PROBE and not self._reaches(progress.next_index):
            progress.copy()
            ready.needs_copy.append(node)
        prev_index = NO_INDEX if progress.pace is Pace.COPY else progress.next_index - 1
        self._append(node, progress, prev_index, prev_index, (), now_ms, ready)

    def _stream(self, node: NodeId, progress: Progress, now_ms: int, ready: Ready) -> None:
        last_index = self._terms.last_index
        while progress.next_index <= last_index and progress.has_room:
            first = progress.next_index
            if not self._reaches(first):
                self._say_again(node, progress, now_ms, ready)
                return
            last, size_bytes = self._terms.span(first, self._config.append_bytes)
            if self._config.catch_up_bytes_s and last < self._commit and not self._may_catch_up(size_bytes, now_ms):
                return
            found = runs(self._terms, first, last)
            if len(found) > RUNS_MAX:
                last = found[RUNS_MAX][0] - 1
            self._append(node, progress, first - 1, last, found[:RUNS_MAX], now_ms, ready)
            progress.sent(last, size_bytes)

    def _may_catch_up(self, size_bytes: int, now_ms: int) -> bool:
        """Whether entries that others have long since may be sent now; all followers together share the rate."""
        if now_ms < self._catch_up_ms:
            self._is_slowed = True
            return False
        self._catch_up_ms = max(self._catch_up_ms, now_ms - 100) + size_bytes * 1000 / self._config.catch_up_bytes_s
        return True

    def _say_again(self, node: NodeId, progress: Progress, now_ms: int, ready: Ready) -> None:
        progress.probe(progress.next_index)
        self._say(node, progress, now_ms, ready)

    def _append(
        self,
        node: NodeId,
        progress: Progress,
        prev_index: int,
        last_index: int,
        found: tuple[tuple[int, int], ...],
        now_ms: int,
        ready: Ready,
    ) -> None:
        prev_term = self._terms.term_of(prev_index) if prev_index >= 0 else None
        ready.messages.append(
            Append(
                sender=self._config.self_id,
                receiver=node,
                term=self._term,
                prev_index=prev_index,
                prev_term=NO_TERM if prev_term is None else prev_term,
                last_index=last_index,
                runs=found,
                commit=self._commit,
                sent_ms=now_ms,
                heir=self.told_heir,
            )
        )
        progress.sent_ms = now_ms
        progress.commit_sent = self._commit

    def _reaches(self, index: int) -> bool:
        """Whether the log still has what a follower needs whose next entry is this. The first one needs nothing before
        it: only committed entries are deleted, and a follower knows that it has those."""
        return index >= self._terms.first_index

    # --- Replies

    def answered(self, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        """A follower has answered in this term. The caller asks ``committable`` afterwards."""
        node, progress = reply.sender, self._followers[reply.sender]
        # No append was sent later than now: a time that is damaged must not be a lease for ever.
        sent_ms = min(reply.sent_ms, now_ms)
        is_newest = progress.heard_ms is None or sent_ms >= progress.heard_ms
        if is_newest:
            progress.heard_ms = sent_ms
        if progress.goal is None and self._terms.term_of(self._commit) == self._term:
            progress.goal = self._commit
        if reply.is_accepted:
            self._accepted(node, progress, reply, now_ms, ready)
        elif is_newest and (
            progress.pace is Pace.STREAM or (progress.pace is Pace.PROBE and reply.index == progress.next_index - 1)
        ):
            # One that refuses what it had before has lost it (a power cut in page cache mode). Replies that others have
            # overtaken tell nothing: a heartbeat will bring the next one.
            if reply.hint_index < progress.match:
                progress.lost(reply.hint_index)
            if progress.pace is Pace.STREAM:
                progress.refused(now_ms)
            self._retreat(node, progress, reply, now_ms, ready)
        if node == self._heir:
            self._hand_over(now_ms, ready)

    def _accepted(self, node: NodeId, progress: Progress, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        progress.stored(reply.stored)
        progress.took(reply.index)
        if progress.pace is Pace.COPY:
            # A heartbeat names no entry: so what is equal is what the follower knows as committed. Anything else has
            # been refused before.
            progress.probe(reply.index + 1)
            if self._reaches(progress.next_index):
                self._say(node, progress, now_ms, ready)
            else:
                # Told again each time: while a copy was made more may have been deleted.
                progress.copy()
                ready.needs_copy.append(node)
            return
        if progress.pace is Pace.PROBE:
            if now_ms < progress.held_until_ms:
                progress.probe(reply.index + 1)
                return
            progress.stream(reply.index + 1)
        self._stream(node, progress, now_ms, ready)

    def _retreat(self, node: NodeId, progress: Progress, reply: AppendReply, now_ms: int, ready: Ready) -> None:
        """Probe where both logs may be equal: at the last entry whose term is not larger than the follower's there."""
        index = min(reply.hint_index, self._terms.last_index)
        if progress.pace is Pace.PROBE:
            # The place that was probed differs. A follower that names it again, or a later one, gains nothing by it.
            index = max(min(index, reply.index - 1), NO_INDEX)
        if reply.hint_term != NO_TERM:
            index = last_up_to(self._terms, index, reply.hint_term)
        progress.probe(index + 1)
        self._say(node, progress, now_ms, ready)

    # --- Transfer

    def transfer(self, to: NodeId | None, now_ms: int, ready: Ready) -> None:
        """Hand over to ``to``, or to the voter that has most."""
        if to is None:
            to = self._most_advanced(now_ms)
        elif to == self._config.self_id:
            raise InvalidParameter(f"{to} leads the group already")
        elif to not in self._members.voters:
            raise InvalidParameter(f"{to!r} cannot lead: the voting members are {', '.join(self._members.voters)}")
        if self._heir is not None and self._heir != to:
            self._give_up(now_ms)
        self._heir = to
        self._heir_until_ms = now_ms + self._config.transfer_ms
        self._hand_over(now_ms, ready)

    def _most_advanced(self, now_ms: int) -> NodeId:
        found = [
            (progress.match, node)
            for node, progress in self._followers.items()
            if node in self._members.voters and self._is_live(progress, now_ms)
        ]
        if not found:
            raise ServiceNotAvailable("no other voting member of the Raft group can be reached: none can take over")
        return max(found)[1]

    def _hand_over(self, now_ms: int, ready: Ready) -> None:
        """Let the heir begin if it has everything. Told again with each of its replies: the message may be lost."""
        assert self._heir is not None
        if self._followers[self._heir].match < self._terms.last_index:
            return
        if not self._heir_is_told:
            self._heir_is_told = True
            self.heartbeat(now_ms, ready)
        ready.messages.append(TransferNow(sender=self._config.self_id, receiver=self._heir, term=self._term))

    def _give_up(self, now_ms: int) -> None:
        self._heir, self._heir_is_told = None, False
        self._no_lease_ms = now_ms
        self._preferred_ms = now_ms + _CHECKS_AFTER_FAILURE * self._config.preferred_check_ms

    @property
    def _wants_preferred(self) -> bool:
        return bool(self._config.preferred) and self._config.self_id not in self._config.preferred

    def _prefer(self, now_ms: int, ready: Ready) -> None:
        floor = self._terms.last_index - self._config.preferred_lag_max
        found = [
            (progress.match, node)
            for node in self._config.preferred
            if node in self._members.voters
            and self._is_live(progress := self._followers[node], now_ms)
            and progress.match >= floor
        ]
        if found:
            self.transfer(max(found)[1], now_ms, ready)

    def _is_live(self, progress: Progress, now_ms: int) -> bool:
        return progress.heard_ms is not None and now_ms - progress.heard_ms < self._config.election_min_ms
