"""Settings of a Raft group, under the names of RocketMQ's DLedger where it has them (P1, P3, T2). Times are in ms.

The members of a group have the same ``brokerName``, ``dLegerGroup`` and ``dLegerPeers``; ``dLegerSelfId`` says which of
them this broker is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ternmq.errors import ConfigError
from ternmq.net.endpoint import split_address
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.wire.layouts.raft_entry import INDEX_FILE_BYTES, INDEX_UNIT_BYTES

#: A member id as DLedger has it: the number becomes the broker id of a follower (number + 1).
MEMBER_ID: Final = re.compile(r"n(0|[1-9][0-9]{0,3})\Z")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9._@-]{1,127}\Z")
#: A group is larger only by mistake: each member more makes every message wait for more machines.
MEMBERS_MAX: Final = 9
_MIB: Final = 1 << 20
#: In a group with RocketMQ brokers, in ms: DLedger's leaders say every 2 s that they are there, and its followers wait
#: for three of that. Ours say it twice as often.
_DLEDGER_HEARTBEAT: Final = 1_000
_DLEDGER_ELECTION: Final = 6_000
_DLEDGER_TRANSFER: Final = 3_000
#: Bytes of entries in one call: as JSON they are a third more, and RocketMQ takes frames of 16 MiB.
_DLEDGER_APPEND_BYTES: Final = _MIB


class Member(NamedTuple):
    """A member of a group."""

    id: str
    #: ``host:port`` of its Raft port.
    address: str

    @property
    def broker_id(self) -> int:
        """The broker id under which it is registered while it follows; a leader has 0."""
        return int(self.id[1:]) + 1


@dataclass(slots=True, frozen=True, kw_only=True)
class RaftConfig:
    """What a member of a group needs to know. Raises ``ConfigError``."""

    #: Whether this broker is a member of a group; without it, all other settings here have no effect.
    enable_d_leger_commit_log: bool = False
    #: The name of the group; empty: the broker's name.
    d_leger_group: str = ""
    #: All members, this one included: ``n0-host:port;n1-host:port;n2-host:port``.
    d_leger_peers: tuple[str, ...] = ()
    #: Which of them this broker is.
    d_leger_self_id: str = ""
    #: It is not a member yet: it waits until it is added to the group (``tern raft add``), and never votes before.
    raft_join: bool = False
    #: Members that shall lead, the best first; a leader that is not one of them gives its role to one that has all.
    preferred_leader_id: tuple[str, ...] = ()
    #: Where the data files of the log are; none: ``dledger-n0/data`` below the store's directory.
    store_path_d_ledger_commit_log: Path | None = None
    #: Who may be a member: TernMQ brokers only, or RocketMQ brokers, too, which speak DLedger's protocol. The same on
    #: all TernMQ members; they find out who is what.
    raft_peer_protocol: Literal["ternmq", "dledger"] = "ternmq"
    #: How often a leader tells the others that it is there.
    raft_heartbeat_interval: int = 150
    #: A member that has heard nothing for this long, or up to twice as long at random, asks to be elected. A leader
    #: that has not heard a majority for this long steps down.
    raft_election_timeout: int = 750
    #: How long a sender waits for a majority (DLedger's ``maxWaitAckTimeMs``).
    raft_commit_timeout: int = 2_500
    #: Bytes of the log on their way to one follower.
    raft_window_bytes: int = 4 * _MIB
    #: Bytes of the log in one message to a follower; a larger entry is sent alone.
    raft_append_bytes: int = _MIB
    #: Bytes a second for members that are behind or lost their disk, all together; 0: no limit. Smaller than what
    #: producers send, they never catch up.
    raft_catch_up_bytes_per_second: int = 0
    #: Bytes of an index file, sparse: 32 for each entry. RocketMQ opens a directory with this size only.
    raft_index_file_bytes: int = INDEX_FILE_BYTES

    def __post_init__(self) -> None:
        for key, value, least, most in (
            ("raftHeartbeatInterval", self.raft_heartbeat_interval, 10, 60_000),
            ("raftElectionTimeout", self.raft_election_timeout, 30, 600_000),
            ("raftCommitTimeout", self.raft_commit_timeout, 1, 3_600_000),
            ("raftWindowBytes", self.raft_window_bytes, 64 * 1024, 1 << 30),
            ("raftAppendBytes", self.raft_append_bytes, 4 * 1024, 64 * _MIB),
            ("raftCatchUpBytesPerSecond", self.raft_catch_up_bytes_per_second, 0, 1 << 40),
            ("raftIndexFileBytes", self.raft_index_file_bytes, INDEX_UNIT_BYTES, 1 << 40),
        ):
            if not least <= value <= most:
                raise ConfigError(f"invalid {key} {value}: expected {least} to {most}")
        if self.raft_index_file_bytes % INDEX_UNIT_BYTES:
            raise ConfigError(
                f"invalid raftIndexFileBytes {self.raft_index_file_bytes}: expected a multiple of {INDEX_UNIT_BYTES}"
            )
        if self.raft_election_timeout < 3 * self.raft_heartbeat_interval:
            raise ConfigError(
                f"invalid raftElectionTimeout {self.raft_election_timeout}: expected at least three times "
                f"raftHeartbeatInterval ({self.raft_heartbeat_interval}), or one late message causes an election"
            )
        if self.d_leger_group and not _GROUP.match(self.d_leger_group):
            raise ConfigError(
                f"invalid dLegerGroup {self.d_leger_group!r}: expected 1 to 127 letters, digits, '.', '-', '_' and '@'"
            )
        if self.enable_d_leger_commit_log:
            self._check_members()

    def _check_members(self) -> None:
        members = self.members
        if not members:
            raise ConfigError(
                "enableDLegerCommitLog=true needs dLegerPeers: all members of the group, as in "
                "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911"
            )
        if len(members) > MEMBERS_MAX:
            raise ConfigError(f"invalid dLegerPeers: {len(members)} members; expected at most {MEMBERS_MAX}")
        ids = [member.id for member in members]
        for values in (ids, [member.address for member in members]):
            if doubled := next((value for value in values if values.count(value) > 1), None):
                raise ConfigError(f"invalid dLegerPeers: {doubled} is there twice; each member needs its own")
        if self.d_leger_self_id not in ids:
            raise ConfigError(
                f"invalid dLegerSelfId {self.d_leger_self_id!r}: expected one of the members in dLegerPeers "
                f"({', '.join(ids)})"
            )
        if self.raft_join and len(members) == 1:
            raise ConfigError("invalid raftJoin: dLegerPeers must name the members of the group that this one joins")
        for preferred in self.preferred_leader_id:
            if preferred not in ids:
                raise ConfigError(
                    f"invalid preferredLeaderId {preferred!r}: expected members of dLegerPeers ({', '.join(ids)})"
                )

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, this one included, as they are in ``dLegerPeers``."""
        return tuple(parse_member(text) for text in self.d_leger_peers)

    @property
    def me(self) -> Member:
        return next(member for member in self.members if member.id == self.d_leger_self_id)

    @property
    def others(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.id != self.d_leger_self_id)

    @property
    def is_mixed(self) -> bool:
        """Whether RocketMQ brokers may be members."""
        return self.raft_peer_protocol == "dledger"

    @property
    def heartbeat_ms(self) -> int:
        return _DLEDGER_HEARTBEAT if self.is_mixed else self.raft_heartbeat_interval

    @property
    def election_ms(self) -> int:
        """The shortest time without a leader before this member asks to be elected."""
        return _DLEDGER_ELECTION if self.is_mixed else self.raft_election_timeout

    @property
    def election_max_ms(self) -> int:
        return self.election_ms * 3 // 2 if self.is_mixed else 2 * self.election_ms

    @property
    def append_bytes(self) -> int:
        most = min(self.raft_append_bytes, self.raft_window_bytes)
        return min(most, _DLEDGER_APPEND_BYTES) if self.is_mixed else most

    @property
    def transfer_ms(self) -> int:
        """How long a leader that hands over refuses messages; DLedger's candidates take up to a second to begin."""
        return _DLEDGER_TRANSFER if self.is_mixed else 750

    def of_core(self) -> RaftCoreConfig:
        """What the core is told of the group. The members count until an entry of the log names others."""
        members = Members(tuple(member.id for member in self.members))
        if self.raft_join:
            members = Members(tuple(member.id for member in self.others), (self.d_leger_self_id,))
        return RaftCoreConfig(
            self_id=self.d_leger_self_id,
            members=members,
            preferred=self.preferred_leader_id,
            heartbeat_ms=self.heartbeat_ms,
            election_min_ms=self.election_ms,
            election_max_ms=self.election_max_ms,
            transfer_ms=self.transfer_ms,
            is_mixed=self.is_mixed,
            append_bytes=self.append_bytes,
            window_bytes=self.raft_window_bytes,
            catch_up_bytes_s=self.raft_catch_up_bytes_per_second,
        )

    @property
    def warning(self) -> str:
        """What an operator should know about this choice of members; empty if there is nothing."""
        count = len(self.members)
        if not self.enable_d_leger_commit_log or count % 2:
            return ""
        return (
            f"the Raft group has {count} members: it stops when {count // 2} of them are gone, as a group of "
            f"{count - 1} does. Use an odd number of members (dLegerPeers)"
        )


def parse_member(text: str) -> Member:
    """A member as ``dLegerPeers`` has it. Raises ``ConfigError``."""
    # The first hyphen: host names may have more of them.
    member_id, hyphen, address = text.strip().partition("-")
    if not hyphen or not MEMBER_ID.match(member_id):
        raise ConfigError(
            f"invalid dLegerPeers {text!r}: expected members such as n0-10.0.0.1:40911, with ids n0, n1, n2, …"
        )
    split_address(address)
    return Member(member_id, address)
