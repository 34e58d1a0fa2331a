"""A group as its members see it: who they are, and the times and sizes by which they act (P1, P3).

Times are in ms of a clock that only goes forward. How they depend on each other, and why the defaults are what they
are, is in docs/decisions/0027-raft-core.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ternmq.errors import ConfigError
from ternmq.raft.messages import NodeId


@dataclass(slots=True, frozen=True)
class Members:
    """Voters elect and count for commits. Learners get the log, and nothing depends on them."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        everyone = (*self.voters, *self.learners)
        if not self.voters:
            raise ConfigError("a Raft group needs at least one member that votes")
        if len(set(everyone)) < len(everyone):
            raise ConfigError(f"a Raft group names a member twice: {', '.join(everyone)}")

    @property
    def quorum(self) -> int:
        """How many voters decide: more than half. An even number of members survives no more losses than one less."""
        return len(self.voters) // 2 + 1

    def __contains__(self, node: NodeId) -> bool:
        return node in self.voters or node in self.learners


@dataclass(slots=True, frozen=True, kw_only=True)
class RaftCoreConfig:
    self_id: NodeId
    members: Members
    #: A leader that is not one of these hands over to one of them that keeps up (RocketMQ: preferredLeaderIds).
    preferred: tuple[NodeId, ...] = ()
    #: A leader is heard at least this often.
    heartbeat_ms: int = 150
    #: A follower that has not heard a leader for a random time between these asks for votes. Random, so that two rarely
    #: ask at once. A leader that has not heard a majority for the longer one steps down.
    election_min_ms: int = 750
    election_max_ms: int = 1500
    #: How long news of a commit wait for entries to travel with. Shorter: followers serve reads sooner, for more
    #: frames.
    commit_notice_ms: int = 20
    #: How long a leader that hands over waits for its heir. Senders are refused in this time.
    transfer_ms: int = 750
    #: How often a leader looks for a preferred one, and how many entries that one may lack.
    preferred_check_ms: int = 1000
    preferred_lag_max: int = 1000
    #: How many committed entries a learner may lack when it is made a voter.
    learner_lag_max: int = 1000
    #: Bytes of one append. Larger ones keep heartbeats waiting behind them.
    append_bytes: int = 1 << 20
    #: What may be under way to one follower.
    window_bytes: int = 4 << 20
    window_count: int = 64
    #: Bytes a second of entries that were committed before, to all followers that are behind; 0: no limit.
    catch_up_bytes_s: int = 0
    #: Whether members may be RocketMQ's DLedger: they promise nothing, so nor do we, and there are no leases.
    is_mixed: bool = False

    def __post_init__(self) -> None:
        if self.self_id not in self.members:
            everyone = ", ".join((*self.members.voters, *self.members.learners))
            raise ConfigError(f"{self.self_id!r} is not a member of its Raft group ({everyone})")
        if not 0 < 3 * self.heartbeat_ms <= self.election_min_ms < self.election_max_ms:
            raise ConfigError(
                f"invalid Raft times: the election time-out ({self.election_min_ms} to {self.election_max_ms} ms) must "
                f"be a range that begins at three heartbeats ({self.heartbeat_ms} ms) or more"
            )
        if not 0 < self.append_bytes <= self.window_bytes or self.window_count < 1:
            raise ConfigError("invalid Raft window: it must hold at least one append")

    @property
    def promise_ms(self) -> int:
        """How long a follower that has heard a leader votes for no other.

        A heartbeat shorter than the election time-out: two followers of a dead leader may have heard its last heartbeat
        or the one before, and the first that asks must find the other free to vote.
        """
        return self.election_min_ms - self.heartbeat_ms

    @property
    def lease_ms(self) -> int:
        """How long a leader relies on that promise: a tenth less, as clocks do not run at the same speed."""
        return 0 if self.is_mixed else self.promise_ms * 9 // 10
