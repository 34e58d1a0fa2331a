"""``tern doctor``: judgements as functions, and the real program (T1)."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.admin.loads import BrokerLoad, GroupLoad, TopicLoad
from ternmq.cli import findings
from ternmq.cli.findings import DiskFacts, DoctorFinding, Severity
from ternmq.cli.machine import disk_facts, limits
from ternmq.cli.sizing import Sizing, size
from ternmq.store.disk.file_disk import FileDisk
from tests.cli.conftest import Serving, tern
from tests.net.address_servers import Listing, address_server

Tern = Callable[..., subprocess.CompletedProcess[str]]
GIB = 1 << 30


def levels(found: list[DoctorFinding]) -> list[Severity]:
    return [one.level for one in found]


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (DiskFacts("/d", 50 * GIB, 100 * GIB, "ext4", "mq-deadline", is_rotational=False), {Severity.OK}),
        (DiskFacts("/d", 20 * GIB, 100 * GIB, "xfs"), {Severity.OK, Severity.WARNING}),
        (DiskFacts("/d", 5 * GIB, 100 * GIB), {Severity.PROBLEM}),
        (DiskFacts("/d", 50 * GIB, 100 * GIB, "tmpfs"), {Severity.OK, Severity.PROBLEM}),
        (DiskFacts("/d", 50 * GIB, 100 * GIB, "nfs4"), {Severity.OK, Severity.PROBLEM}),
        (DiskFacts("/d", 50 * GIB, 100 * GIB, "", "bfq", is_rotational=False), {Severity.OK, Severity.WARNING}),
        (DiskFacts("/d", 50 * GIB, 100 * GIB, "", "none", is_rotational=True), {Severity.OK, Severity.WARNING}),
    ],
)
def test_a_disk_is_judged_by_space_file_system_and_scheduler(disk: DiskFacts, expected: set[Severity]) -> None:
    """T1"""
    assert expected == set(levels(findings.about_disk(disk)))


def test_limits_are_judged() -> None:
    """T1: a negative number is no limit; None is not known."""
    assert [Severity.OK, Severity.OK, Severity.OK] == levels(findings.about_limits(-1, -1, 262_144))
    assert [Severity.WARNING, Severity.OK, Severity.WARNING] == levels(findings.about_limits(20_000, 64 << 10, 1_000))
    assert [Severity.PROBLEM] == levels(findings.about_limits(1_024, None, None))


def test_name_servers_must_answer_and_know_the_same_brokers() -> None:
    """T1, A6: they do not copy from each other."""
    found = findings.about_name_servers({"a:1": ["b:1", "b:2"], "b:1": ["b:1"], "c:1": "connection refused"})

    assert [Severity.OK, Severity.PROBLEM, Severity.PROBLEM] == levels(found)
    assert "b:1 does not know b:2" == found[1].what
    assert [Severity.OK, Severity.WARNING] == levels(findings.about_name_servers({"a:1": ["b:1"]}))


def load(**fields: object) -> BrokerLoad:
    return BrokerLoad("c", "broker-a", 0, str(fields.pop("address", "10.0.0.1:10911")), **fields)  # type: ignore[arg-type]


def test_brokers_are_judged_by_answer_address_disk_and_version() -> None:
    """T1"""
    assert [Severity.PROBLEM] == levels(findings.about_brokers([load(trouble="refused")], is_remote=True))
    assert [Severity.PROBLEM] == levels(findings.about_brokers([load(address="127.0.0.1:1")], is_remote=True))
    assert [Severity.OK] == levels(findings.about_brokers([load(address="127.0.0.1:1")], is_remote=False))
    assert [Severity.OK, Severity.WARNING] == levels(findings.about_brokers([load(disk_ratio=0.8)], is_remote=True))
    assert [Severity.OK, Severity.PROBLEM] == levels(findings.about_brokers([load(disk_ratio=0.95)], is_remote=True))
    mixed = [load(version="TernMQ_1"), load(version="TernMQ_2")]
    assert [Severity.OK, Severity.OK, Severity.WARNING] == levels(findings.about_brokers(mixed, is_remote=True))


@pytest.mark.parametrize(
    ("time_ms", "level"),
    [
        (100_000, Severity.OK),
        (101_050, Severity.OK),
        (97_000, Severity.WARNING),
        (60_000, Severity.PROBLEM),
        (None, Severity.OK),
    ],
)
def test_clocks_are_compared_without_the_time_of_the_answer(time_ms: int | None, level: Severity) -> None:
    """T1"""
    (found,) = findings.about_clocks([load(time_ms=time_ms)], now_ms=100_000, took_ms=100)

    assert level is found.level


def test_topics_on_a_part_of_the_brokers_and_forgotten_groups_are_named() -> None:
    """T1: with the command that helps."""
    topics = [TopicLoad("half", ("a",), 8, 0.0, 1), TopicLoad("whole", ("a", "b"), 8, 0.0, 1)]
    groups = [GroupLoad("idle", 0, 0.0, 7), GroupLoad("busy", 1, 0.0, 7), GroupLoad("done", 0, 0.0, 0)]

    (half,) = findings.about_topics(topics, masters=2)
    (idle,) = findings.about_groups(groups)

    assert ("half is on 1 of 2 brokers (a)", "`tern topic create half --queues 8` puts it on all") == (
        half.what,
        half.cure,
    )
    assert "idle has no active consumers, and 7 messages wait" == idle.what


def test_this_machine_tells_its_disk_and_limits(tmp_path: Path) -> None:
    """T1: also of a directory that does not exist yet."""
    facts = disk_facts(tmp_path / "not" / "there")
    files, _, mappings = limits()

    assert 0 < facts.free_bytes <= facts.total_bytes
    usage = FileDisk().usage(tmp_path)
    assert usage.used_bytes + usage.free_bytes == facts.total_bytes, "as brokers count: without what is kept for root"
    assert (True, True) == (bool(facts.file_system), files is not None and mappings is not None)


def test_a_cluster_is_checked_and_a_topic_on_one_broker_is_found(on_cluster: Tern) -> None:
    """T1: `tern doctor` and `tern topic status` name it."""
    on_cluster("send", "auto-created", "one")

    done = on_cluster("doctor", "--json")
    found = json.loads(done.stdout)
    status = on_cluster("topic", "status", "auto-created")
    everything = on_cluster("topic", "status", "-o", "csv")

    assert any(one["area"] == "topics" and one["what"].startswith("auto-created is on 1 of 2 brokers") for one in found)
    assert 2 == sum(one["area"] == "brokers" and one["level"] == "ok" for one in found)
    assert "topic auto-created is on 1 of 2 brokers (broker-" in status.stderr
    assert any(line.startswith("auto-created,1 of 2,") for line in everything.stdout.splitlines())
    # The machine of the tests may have problems of its own.
    assert done.returncode == int(any(one["level"] == "PROBLEM" for one in found))


def test_a_name_server_that_is_away_is_a_problem(cluster: Serving) -> None:
    """T1: exit code 1."""
    done = tern("doctor", "-n", f"{cluster.name_server};127.0.0.1:1", "--output", "csv")

    assert 1 == done.returncode
    assert "PROBLEM,name servers,127.0.0.1:1 does not answer" in done.stdout


def test_the_ports_of_a_configuration_are_checked(tmp_path: Path) -> None:
    """T1: one is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = tmp_path / "broker.conf"
        settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nstorePathRootDir={tmp_path}\n")
        done = tern("doctor", "-c", str(settings), "--no-cluster", "--json")

    ports = [one for one in json.loads(done.stdout) if one["area"] == "ports"]
    assert ["warning"] == [one["level"] for one in ports if f"{port} for clients is not free" in one["what"]]


def ports_of(*lines: str, directory: Path) -> set[str]:
    """The ports that a configuration needs, with their uses."""
    settings = directory / "broker.conf"
    settings.write_text("\n".join((*lines, "bindAddress=127.0.0.1", f"storePathRootDir={directory}")))
    found = json.loads(tern("doctor", "-c", str(settings), "--no-cluster", "--json").stdout)
    return {one["what"] for one in found if one["area"] == "ports"}


def test_the_port_for_slaves_is_the_one_that_is_set(tmp_path: Path) -> None:
    """T1: haListenPort, or the next one; a member of a Raft group has a port for the others instead."""
    peers = "dLegerPeers=n0-127.0.0.1:41911;n1-127.0.0.1:41912;n2-127.0.0.1:41913"
    listen = "listenPort=21911"

    given = ports_of(listen, "haListenPort=21913", directory=tmp_path)
    assert any("21913 for slaves" in one for one in given), given
    default = ports_of(listen, directory=tmp_path)
    assert any("21912 for slaves" in one for one in default), default
    raft = ports_of(listen, "enableDLegerCommitLog=true", peers, "dLegerSelfId=n1", directory=tmp_path)
    assert any("41912 for members" in one for one in raft), raft
    assert not any("slaves" in one for one in raft), raft


def test_an_address_server_that_is_away_is_a_problem(cluster: Serving) -> None:
    """A6, T1: and one that answers is followed."""
    away = tern("doctor", "-n", "http://127.0.0.1:1/rocketmq/nsaddr", "--output", "csv")
    assert (1, True) == (away.returncode, "http://127.0.0.1:1/rocketmq/nsaddr does not list them" in away.stdout)
    with address_server(Listing(cluster.name_server)) as listing:
        found = json.loads(tern("doctor", "-n", listing.url, "--json").stdout)
    assert f"{cluster.name_server} knows 2 brokers" in [one["what"] for one in found]


def test_a_load_is_sized_by_littles_law() -> None:
    """T1: 1000/s × 50 ms × 2 are 100 at once: 5 members of 20 threads; orderly, 100 queues."""
    common = {"rate": 1_000.0, "body_bytes": 724, "retention_h": 1.0, "work_ms": 50.0, "threads": 20, "members_min": 2}
    more = {"broker_rate": 1_000.0, "replicas": 1, "groups": 1}

    plain = size(**common, orderly=False, **more)  # type: ignore[arg-type]
    orderly = size(**common, orderly=True, **more)  # type: ignore[arg-type]

    disk = 1_000 * 3_600 * 1_000 / 2 / 0.7
    assert Sizing(100, 5, 10, 2, plain.disk_bytes, 500 * 924 * 3) == plain
    assert (100, True) == (orderly.queues, abs(plain.disk_bytes - disk) <= 1)


@pytest.mark.parametrize("rate", ["inf", "nan", "1e308", "0"])
def test_sizing_takes_loads_that_can_be(rate: str) -> None:
    """T1: a number beyond all use is wrong usage, and no internal error."""
    done = tern("doctor", "sizing", "--rate", rate)

    assert (2, True) == (done.returncode, "Invalid value for '--rate'" in done.stderr)


def test_sizing_is_a_table_for_people_and_numbers_for_programs() -> None:
    """T1"""
    people, program = (tern("doctor", "sizing", "--rate", "10", *more) for more in ((), ("--json",)))

    assert "queues of the topic\t4\t4 on each master: `tern topic create TOPIC --queues 4`" in people.stdout
    assert 4 == json.loads(program.stdout)["queues"]
