"""``tern bench`` and its percentiles (T1)."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable

import pytest

from ternmq import Admin, EmbeddedCluster, Message, Producer
from ternmq.cli.bench import BenchTally, delete_made
from ternmq.cli.latency import Latencies
from tests.cli.conftest import Serving, tern
from tests.cli.terminal import terminal

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_percentiles_are_those_of_the_samples_to_two_percent() -> None:
    """T1: from microseconds to minutes, in fixed memory."""
    source = random.Random(4)
    samples = sorted(int(source.lognormvariate(8, 2)) for _ in range(20_000))
    latencies = Latencies()
    for sample in samples:
        latencies.add(sample)

    for share in (0.5, 0.9, 0.99, 0.999):
        exact = samples[int(share * len(samples)) - 1]
        assert exact <= latencies.percentile_us(share) <= exact * 1.02 + 1
    assert samples[-1] == latencies.max_us == latencies.percentile_us(1.0)


@pytest.mark.parametrize("value", [128, 129, 191, 1_000, 65_535, 65_536, 3_000_001, 10**9])
def test_a_large_value_is_known_to_a_64th(value: int) -> None:
    """T1"""
    latencies = Latencies()
    latencies.add(value)
    latencies.add(10**12)

    assert value <= latencies.percentile_us(0.5) < value + value / 64 + 1


def test_small_values_are_exact_and_nothing_is_zero() -> None:
    """T1"""
    latencies = Latencies()
    assert 0 == latencies.percentile_us(0.5)
    for value in (-5, 1, 100, 127):
        latencies.add(value)

    assert [0, 1, 100, 127] == [latencies.percentile_us(share) for share in (0.25, 0.5, 0.75, 1.0)]


def test_what_is_sent_is_consumed_and_measured(on_cluster: Tern) -> None:
    """T1"""
    done = on_cluster("bench", "benched", "--messages", "200", "--size", "64", "--in-flight", "8", "--json")

    told = json.loads(done.stdout)
    assert (0, 0, 200, 200) == (done.returncode, told["failed"], told["send"]["messages"], told["consume"]["messages"])
    for part in ("send", "consume"):
        ordered = [told[part][name] for name in ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")]
        assert sorted(ordered) == ordered
        assert ordered[0] > 0


def test_batches_and_a_rate_without_consuming(on_cluster: Tern) -> None:
    """T1: the last batch is smaller."""
    done = on_cluster("bench", "benched-2", "--messages", "50", "--batch", "16", "--rate", "5000", "--no-consume")

    heading, row = (line.split("\t") for line in done.stdout.splitlines())
    assert (0, "send", "50") == (done.returncode, row[0], row[heading.index("messages")])


def names_of(on_cluster: Tern, kind: str) -> set[str]:
    # Retry topics, too.
    more = ("--all",) if kind == "topic" else ()
    return {row[kind] for row in json.loads(on_cluster(kind, "list", *more, "--json").stdout)}


def test_nothing_is_left_behind(on_cluster: Tern) -> None:
    """T1: neither topic nor group, unless they were there before or are to be kept."""
    made = on_cluster("bench", "benched-gone", "--messages", "20", "--group", "bench_gone")
    assert 0 == made.returncode
    left = names_of(on_cluster, "topic") | names_of(on_cluster, "group")
    assert not {"benched-gone", "%RETRY%bench_gone", "bench_gone"} & left

    kept = on_cluster("bench", "benched-kept", "--messages", "20", "--group", "bench_kept", "--keep")
    assert 0 == kept.returncode
    again = on_cluster("bench", "benched-kept", "--messages", "20", "--group", "bench_kept")
    assert 0 == again.returncode
    assert "benched-kept" in names_of(on_cluster, "topic")
    assert "bench_kept" in names_of(on_cluster, "group")


async def test_a_topic_with_messages_of_others_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """T1: its broker was away when the topics were listed, and is back with all that it has."""
    async with EmbeddedCluster() as cluster, Admin(cluster.name_servers) as admin:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            for _ in range(3):
                await producer.send(Message("orders", b"paid"))
        await delete_made(admin, "orders", {"orders"}, None, BenchTally(begun=2))
        assert "topic orders has 3 messages, and 2 are of this command: it is kept" in capsys.readouterr().err
        assert "orders" in {topic.name for topic in await admin.topics.all()}
        await delete_made(admin, "orders", {"orders"}, None, BenchTally(begun=3))
        assert "orders" not in {topic.name for topic in await admin.topics.all()}


def test_a_terminal_gets_a_bar_and_a_summary(cluster: Serving) -> None:
    """T1: a line for each measure, which fits into any terminal."""
    with terminal("bench", "benched-seen", "--messages", "200", name_server=cluster.name_server) as screen:
        code = screen.end()

    lines = [line.split() for line in screen.text.replace("\r", "\n").splitlines()]
    assert (0, True) == (code, "200/200" in screen.text)
    assert ["send", "consume"] in lines
    assert ["messages", "200", "200"] in lines
    assert ["p99", "ms"] == next(line for line in lines if line[:1] == ["p99"])[:2]


def test_a_bench_without_a_cluster_is_an_error() -> None:
    """T1"""
    assert (5, "") == (tern("bench", "-n", "127.0.0.1:1").returncode, tern("bench", "-n", "127.0.0.1:1").stdout)
    assert 2 == tern("bench", "--messages", "1", "--seconds", "1").returncode
