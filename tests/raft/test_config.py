"""Settings of a Raft group (P1, T2): RocketMQ's names, and a sentence for each value that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.config import Settings
from ternmq.errors import ConfigError
from ternmq.raft.config import RaftConfig

PEERS = "n0-127.0.0.1:40911;n1-my-host:40912;n2-[::1]:40913"


def build(*flags: str) -> RaftConfig:
    return Settings.gather(flags=flags).build(RaftConfig)


def member(*flags: str) -> RaftConfig:
    return build("enableDLegerCommitLog=true", f"dLegerPeers={PEERS}", "dLegerSelfId=n1", *flags)


def test_members_are_read_from_rocketmq_s_settings() -> None:
    config = member("dLegerGroup=broker-a", "preferredLeaderId=n2;n0")

    assert [("n0", "127.0.0.1:40911"), ("n1", "my-host:40912"), ("n2", "[::1]:40913")] == list(config.members)
    assert ("n1", 2) == (config.me.id, config.me.broker_id)
    assert ["n0", "n2"] == [each.id for each in config.others]
    assert ("n2", "n0") == config.preferred_leader_id
    assert config.warning == ""


def test_a_plain_broker_needs_none_of_them() -> None:
    assert not build().enable_d_leger_commit_log
    assert "n0" == build("dLegerSelfId=n0").d_leger_self_id


def test_the_log_can_lie_elsewhere() -> None:
    assert member().store_path_d_ledger_commit_log is None
    assert Path("/fast/log") == member("storePathDLedgerCommitLog=/fast/log").store_path_d_ledger_commit_log


def test_a_group_with_rocketmq_brokers_has_dledgers_times() -> None:
    """P3: those of RocketMQ cannot be set."""
    config = member("raftPeerProtocol=dledger", "raftElectionTimeout=900", "raftAppendBytes=33554432")

    assert config.is_mixed
    assert (1_000, 6_000, 9_000) == (config.heartbeat_ms, config.election_ms, config.election_max_ms)
    assert 1 << 20 == config.append_bytes
    ours = member("raftElectionTimeout=900")
    assert (150, 900, 1_800) == (ours.heartbeat_ms, ours.election_ms, ours.election_max_ms)
    with pytest.raises(ConfigError, match="raftPeerProtocol"):
        member("raftPeerProtocol=kafka")


def test_an_even_number_of_members_is_worth_a_warning() -> None:
    config = build("enableDLegerCommitLog=true", "dLegerPeers=n0-a:1;n1-b:1", "dLegerSelfId=n0")

    assert "it stops when 1 of them are gone, as a group of 1 does" in config.warning


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("dLegerPeers=", "enableDLegerCommitLog=true needs dLegerPeers"),
        ("dLegerPeers=127.0.0.1:1", "invalid dLegerPeers '127.0.0.1:1': expected members such as n0-10.0.0.1:40911"),
        ("dLegerPeers=x1-127.0.0.1:1", "expected members such as"),
        ("dLegerPeers=n01-127.0.0.1:1", "expected members such as"),
        ("dLegerPeers=n0-127.0.0.1", "invalid address '127.0.0.1': expected host:port"),
        ("dLegerPeers=n0-a:1;n0-b:1", "n0 is there twice"),
        ("dLegerPeers=n0-a:1;n1-a:1", "a:1 is there twice"),
        ("dLegerPeers=" + ";".join(f"n{i}-a:{i + 1}" for i in range(10)), "10 members; expected at most 9"),
        ("dLegerSelfId=n3", r"invalid dLegerSelfId 'n3': expected one of the members in dLegerPeers \(n0, n1, n2\)"),
        ("preferredLeaderId=n7", "invalid preferredLeaderId 'n7'"),
        ("dLegerGroup=a b", "invalid dLegerGroup 'a b'"),
        ("raftHeartbeatInterval=0", "invalid raftHeartbeatInterval 0: expected 10 to 60000"),
        ("raftElectionTimeout=400", "expected at least three times raftHeartbeatInterval"),
        ("raftWindowBytes=1", "invalid raftWindowBytes 1"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(flag: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        member(flag)
