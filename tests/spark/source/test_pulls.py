"""One slice, read in order, each message once, whatever brokers do meanwhile (U1)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ternmq import Message, MessageQueue, SendStatus, SyncAdmin, SyncProducer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import MessagesLost, NetworkError
from ternmq.spark.runtime.cluster import cluster_at
from ternmq.spark.source import cursor, pulls
from ternmq.spark.source.cursor import PullParameters, gaps
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.pulls import read_slice
from tests.cli.conftest import Start, starter

QUEUE = MessageQueue("orders", "broker-a", 0)
ALL = PullParameters(tags="*", sql="", fail_on_data_loss=True, retry_timeout_ms=60_000)
BEST_EFFORT = PullParameters(tags="*", sql="", fail_on_data_loss=False, retry_timeout_ms=1_000)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starter(tmp_path) as start:
        yield start


def fill(name_servers: str, count: int, *, body_bytes: int = 20) -> None:
    with SyncAdmin(name_servers) as admin:
        admin.topics.create(QUEUE.topic, queues=1)
    with SyncProducer("tests", name_servers=name_servers) as producer:
        for number in range(0, count, 50):
            messages = [Message(QUEUE.topic, b"%06d" % one + b"." * body_bytes) for one in range(number, number + 50)]
            producer.send_batch(messages, queue=QUEUE)


def offsets(name_servers: str, part: Slice, wanted: PullParameters) -> list[int]:
    found = [records.queue_offsets for records in read_slice(cluster_at(name_servers), part, wanted)]
    return [int(offset) for chunk in found for offset in chunk]


@pytest.mark.parametrize("per_pull", [7, 32, 1_024])
def test_pulls_asked_ahead_come_in_order_each_once(per_pull: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """U1"""
    monkeypatch.setattr(cursor, "COUNT_MAX", per_pull)
    monkeypatch.setattr(pulls, "CHUNK_BYTES", 10_000)
    with EmbeddedCluster() as cluster:
        fill(cluster.name_servers, 1_000)

        assert list(range(13, 987)) == offsets(cluster.name_servers, Slice(QUEUE, 13, 987), ALL)


def test_cold_messages_whose_answers_overtake_each_other_come_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1, C9: all records are far back, so the broker reads each answer on a thread beside its loop."""
    monkeypatch.setattr(pulls, "CHUNK_BYTES", 100_000)
    settings = {"accessMessageInMemoryMaxRatio": 0}
    with EmbeddedCluster(directory=tmp_path, settings=settings) as cluster:
        fill(cluster.name_servers, 3_000, body_bytes=1_000)

        assert list(range(3_000)) == offsets(cluster.name_servers, Slice(QUEUE, 0, 3_000), ALL)


def test_a_broker_that_is_killed_while_it_is_read_costs_time_only(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1: kill -9 in the middle of a slice, and another start: no loss, no doubles."""
    monkeypatch.setattr(cursor, "COUNT_MAX", 32)
    monkeypatch.setattr(pulls, "CHUNK_BYTES", 10_000)
    names = start("namesrv", "--set", "listenPort=0")
    name_servers = names.name_server
    settings = {
        "namesrvAddr": name_servers,
        "storePathRootDir": tmp_path / "store",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": 0,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    broker = start("broker", *flags)
    fill(name_servers, 2_000)

    found: list[int] = []
    for records in read_slice(cluster_at(name_servers), Slice(QUEUE, 0, 2_000), ALL):
        if not found:
            broker.end(signal.SIGKILL)
            start("broker", *flags)
        found += records.queue_offsets.tolist()

    assert list(range(2_000)) == found


def test_a_slice_is_read_from_a_slave_while_the_master_is_dead(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1, O3: kill -9 of the master in the middle of a slice. What the slave does not have is not lost: the read waits
    for the master."""
    monkeypatch.setattr(cursor, "COUNT_MAX", 32)
    monkeypatch.setattr(pulls, "CHUNK_BYTES", 10_000)
    names = start("namesrv", "--set", "listenPort=0")
    name_servers = names.name_server
    settings = {
        "namesrvAddr": name_servers,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": 0,
        "haListenPort": 0,
    }

    def flags(**more: object) -> list[str]:
        return [part for key, value in {**settings, **more}.items() for part in ("--set", f"{key}={value}")]

    master = start("broker", *flags(storePathRootDir=tmp_path / "one", brokerRole="SYNC_MASTER"))
    start("broker", *flags(storePathRootDir=tmp_path / "two", brokerRole="SLAVE", brokerId=1))
    with SyncProducer("tests", name_servers=name_servers) as producer:
        while producer.send(Message("probes", b"is a slave there?")).status is not SendStatus.OK:
            time.sleep(0.1)
    fill(name_servers, 2_000)

    found: list[int] = []
    for records in read_slice(cluster_at(name_servers), Slice(QUEUE, 0, 2_000), ALL):
        if not found:
            master.end(signal.SIGKILL)
        found += records.queue_offsets.tolist()
    assert list(range(2_000)) == found
    cluster = cluster_at(name_servers)
    assert ({QUEUE: 2_000}, {}) == (cluster.ends([QUEUE]), cluster.ends_on_masters([QUEUE]))
    with pytest.raises(NetworkError, match=r"does not have orders@broker-a:0 at 2000 yet, and the master is away"):
        offsets(name_servers, Slice(QUEUE, 1_990, 2_010), BEST_EFFORT)


def test_a_broker_that_stays_away_is_one_sentence(tmp_path: Path) -> None:
    """U1"""
    with EmbeddedCluster() as cluster:
        fill(cluster.name_servers, 50)
        missing = Slice(QUEUE._replace(broker_name="broker-z"), 0, 10)

        with pytest.raises(NetworkError, match=r"cannot read orders@broker-z:0 within 1000 ms: .*retryTimeoutMs"):
            offsets(cluster.name_servers, missing, BEST_EFFORT)


def test_messages_that_are_gone_are_an_error_unless_they_may_be(tmp_path: Path) -> None:
    """U1, C9: the first segment was deleted, and the slice reaches beyond the end."""
    settings = {"mappedFileSizeCommitLog": 1 << 20}
    with EmbeddedCluster(directory=tmp_path, settings=settings) as cluster:
        fill(cluster.name_servers, 1_000, body_bytes=3_000)
    min((tmp_path / "broker-a" / "commitlog").iterdir()).unlink()
    with EmbeddedCluster(directory=tmp_path, settings=settings) as cluster:
        first = cluster_at(cluster.name_servers).bounds([QUEUE], timeout_ms=5_000)[QUEUE].first
        assert 0 < first < 1_000

        with pytest.raises(MessagesLost, match=rf"messages 5 to {first - 1} of orders@broker-a:0 were deleted"):
            offsets(cluster.name_servers, Slice(QUEUE, 5, 1_000), ALL)
        with pytest.raises(MessagesLost, match=r"messages 1000 to 1009 of orders"):
            offsets(cluster.name_servers, Slice(QUEUE, 990, 1_010), ALL)
        assert list(range(first, 1_000)) == offsets(cluster.name_servers, Slice(QUEUE, 5, 1_010), BEST_EFFORT)


def test_a_hole_between_messages_is_found() -> None:
    """U1"""
    assert [(5, 7), (8, 11)] == gaps(np.array([7, 11, 12]), 5)
    assert [] == gaps(np.array([5, 6]), 5)
    assert [] == gaps(np.array([], np.int64), 5)
