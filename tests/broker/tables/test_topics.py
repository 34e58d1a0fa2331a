"""The topics of a broker (D1)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter, TopicMissing
from ternmq.files import TableFile
from ternmq.wire.bodies.topics import TopicConfig
from tests.manual_clock import ManualClock
from tests.recordings import DATA


def table(path: Path, *, auto_create: bool = True, delay_levels: int = 18) -> Topics:
    topics = Topics(
        TableFile(path / "topics.json"),
        ManualClock(),
        broker_name="broker-a",
        cluster_name="DefaultCluster",
        auto_create=auto_create,
        delay_levels=delay_levels,
    )
    topics.load()
    return topics


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return table(tmp_path)


def send_to(topics: Topics, topic: str, *, default_topic: str = "TBW102", queues: int = 4) -> TopicConfig:
    return topics.for_send(topic, default_topic=default_topic, default_queue_nums=queues, from_address="10.0.0.1:1234")


@pytest.mark.parametrize(
    ("topic", "queues", "perm"),
    [
        ("TBW102", 8, 7),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("SELF_TEST_TOPIC", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
    ],
)
def test_a_broker_has_the_topics_of_the_system_from_its_start(
    topics: Topics, topic: str, queues: int, perm: int
) -> None:
    """D1: as RocketMQ's brokers do (store.md §2)."""
    config = topics.find(topic)

    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, perm)


def test_each_delay_level_has_a_queue(tmp_path: Path) -> None:
    """I1: also levels that are added later; RocketMQ's topic has 18 queues, whatever its levels are."""
    queues = []
    for levels in (3, 20, 18):
        schedule = table(tmp_path, delay_levels=levels).find("SCHEDULE_TOPIC_XXXX")
        queues.append((schedule.read_queue_nums, schedule.write_queue_nums))

    assert [(18, 18), (20, 20), (20, 20)] == queues


def test_a_first_send_creates_the_topic_from_its_template(topics: Topics) -> None:
    """D1: queues are what producer and broker agree to, and copies cannot be copied."""
    assert (send_to(topics, "orders").write_queue_nums, send_to(topics, "orders").perm) == (4, 6)
    assert send_to(topics, "wide", queues=100).write_queue_nums == 8
    assert send_to(topics, "odd", queues=0).write_queue_nums == 1
    with pytest.raises(TopicMissing):
        send_to(topics, "copy", default_topic="orders")


def test_without_auto_creation_an_unknown_topic_is_refused_with_the_cure(tmp_path: Path) -> None:
    """D1."""
    topics = table(tmp_path, auto_create=False)

    assert topics.get("TBW102") is None
    with pytest.raises(TopicMissing, match=r"topic\[orders\] not exist, apply first please!.*tern topic create orders"):
        send_to(topics, "orders")


@pytest.mark.parametrize(("topic", "cure"), [("a/b", "characters that are not allowed"), ("x" * 5_000, "at most 127")])
def test_a_topic_that_cannot_be_is_not_said_to_be_created(tmp_path: Path, topic: str, cure: str) -> None:
    """D1, R1: the cure was a command that is refused; and the answer was as long as the name."""
    topics = table(tmp_path, auto_create=False)

    with pytest.raises(TopicMissing, match=cure) as caught:
        topics.find(topic)
    assert "tern topic create" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_template_left_over_from_before_does_not_create_topics(tmp_path: Path) -> None:
    """D1: TBW102 is still in the file when the setting is switched off."""
    table(tmp_path)

    with pytest.raises(TopicMissing):
        send_to(table(tmp_path, auto_create=False), "orders")


def test_a_retry_topic_is_created_by_the_message_that_comes_back(tmp_path: Path) -> None:
    """H1: whatever the setting for other topics."""
    assert send_to(table(tmp_path, auto_create=False), "%RETRY%group").write_queue_nums == 1


def test_a_change_is_on_disk_told_and_counted(topics: Topics, tmp_path: Path) -> None:
    """D1: kill -9 after the acknowledgement loses no topic."""
    told: list[TopicConfig | None] = []
    topics.on_change = told.append
    before = topics.data_version.counter

    config = topics.ensure("orders", queues=3)
    topics.ensure("orders", queues=9)

    assert told == [config]
    assert topics.data_version.counter == before + 1
    assert table(tmp_path).find("orders") == config
    assert table(tmp_path).data_version == topics.data_version


def test_deleting_forgets_a_topic_and_spares_the_systems(topics: Topics) -> None:
    """D1: system topics are protected."""
    told: list[TopicConfig | None] = []
    topics.ensure("orders", queues=3)
    topics.on_change = told.append

    topics.delete("orders")
    topics.delete("never-there")

    assert topics.get("orders") is None
    assert told == [None]
    for topic in topics.system_names():
        with pytest.raises(InvalidParameter, match="is a system topic"):
            topics.delete(topic)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (TopicConfig(topic_name="a b"), "not allowed"),
        (TopicConfig(topic_name=""), "empty"),
        (TopicConfig(topic_name="../escape"), "not allowed"),
        (TopicConfig(topic_name="t" * 128), "at most 127"),
        (TopicConfig(topic_name="t", read_queue_nums=-1), "read queues"),
        (TopicConfig(topic_name="t", write_queue_nums=1_000_000), "write queues"),
        (TopicConfig(topic_name="t", perm=99), "permission"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_rule(topics: Topics, config: TopicConfig, complaint: str) -> None:
    with pytest.raises(InvalidParameter, match=complaint):
        topics.put(config)

    assert topics.get(config.topic_name) is None


def test_a_send_cannot_create_a_topic_outside_the_store(topics: Topics) -> None:
    """D1, B5: topics are directories; the name comes from the network."""
    with pytest.raises(InvalidParameter):
        send_to(topics, "../../etc")


@pytest.mark.parametrize("version", ["4.9.4", "5.2.0"])
def test_a_file_of_rocketmq_is_read(tmp_path: Path, version: str) -> None:
    """C11."""
    name = f"rocketmq-{version}-clean"
    shutil.unpack_archive(DATA / "stores" / f"{name}.tar.gz", tmp_path, filter="data")

    topics = table(tmp_path / name / "config")

    assert topics.find("GoldenTopic").write_queue_nums == 4
    assert topics.find("TBW102").perm == 7
    assert "%RETRY%golden_push" in topics.names()
