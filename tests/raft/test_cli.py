"""``tern up --raft``, ``tern raft`` and ``tern broker status|transfer``, with the real program (P4, T1)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import starter, tern


def test_a_group_is_started_shown_and_handed_over(tmp_path: Path) -> None:
    with starter(tmp_path) as start:
        up = start(
            "up", "--brokers", "3", "--raft", "--port", "0", "--broker-port", "0", "--dir", str(tmp_path / "data")
        )
        assert ["broker-a-n0", "broker-a-n1", "broker-a-n2"] == sorted(up.ready["brokers"])
        names = ("-n", up.name_server)

        members = json.loads(tern("raft", "status", "--json", *names).stdout)
        [leader] = [member for member in members if member["role"] == "leader"]
        to = next(member["member"] for member in members if member["role"] == "follower")
        assert ["n0", "n1", "n2"] == [member["member"] for member in members]
        assert {0} == {member["lag_bytes"] for member in members}

        assert f"{to} leads the group\n" == tern("broker", "transfer", to, *names).stdout
        text = tern("raft", "status", *names).stdout.splitlines()
        assert "broker\tmember\taddress\trole\tterm\tleader\tcommit\tlast\tlag\tlag_bytes" == text[0]
        assert [to] == [line.split("\t")[1] for line in text[1:] if line.split("\t")[3] == "leader"]

        roles = [line.split("\t") for line in tern("broker", "status", *names).stdout.splitlines()]
        assert {"RAFT_LEADER": 1, "RAFT_FOLLOWER": 2} == {
            role: sum(role in row for row in roles) for role in ("RAFT_LEADER", "RAFT_FOLLOWER")
        }
        refused = tern("broker", "promote", leader["address"], "--yes", *names)
        assert (4, True) == (refused.returncode, "use `tern broker transfer`" in refused.stderr)
        assert "'n9' cannot lead" in tern("raft", "transfer", "n9", *names).stderr


def test_what_cannot_be_is_refused_with_a_sentence(tmp_path: Path) -> None:
    both = tern("up", "--raft", "--slaves", "1", "--dir", str(tmp_path))
    many = tern("up", "--raft", "--brokers", "10", "--dir", str(tmp_path))
    alone = tern("broker", "--set", "enableDLegerCommitLog=true", "--set", f"storePathRootDir={tmp_path}")

    assert "--raft and --slaves exclude each other" in both.stderr
    assert "a Raft group has at most 9 members" in many.stderr
    assert "enableDLegerCommitLog=true needs dLegerPeers" in alone.stderr
    assert {2} == {both.returncode, many.returncode, alone.returncode}
