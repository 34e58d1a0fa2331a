"""Progress of broadcasting, in a file (F5), that of groups, on brokers (D4), and where to start (F6)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets, LocalOffsets, StartPosition, start_offset
from ternmq.errors import ConfigError, CorruptFile, SystemFailure
from ternmq.message import MessageQueue
from ternmq.names import retry_topic
from ternmq.wire.bodies.clients import ConsumeFromWhere
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply
from tests.client.consumer_script import ConsumerScript

QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_progress_is_there_after_a_restart(tmp_path: Path) -> None:
    """F5."""
    path = tmp_path / "deep" / "billing.json"
    async with LocalOffsets(path, "billing") as offsets:
        assert None is await offsets.load(QUEUE)
        await offsets.save({QUEUE: 5}, wait=False)
        await offsets.save({QUEUE._replace(queue_id=1): 7}, wait=True)
    async with LocalOffsets(path, "billing") as offsets:
        assert 5 == await offsets.load(QUEUE)
        assert 7 == await offsets.load(QUEUE._replace(queue_id=1))


async def test_a_broken_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    """F5: at the price of what was done since."""
    path = tmp_path / "billing.json"
    for queue_offset in (5, 6):
        async with LocalOffsets(path, "billing") as offsets:
            await offsets.save({QUEUE: queue_offset}, wait=True)
    path.write_bytes(b'{"group": "bil')
    async with LocalOffsets(path, "billing") as offsets:
        assert 5 == await offsets.load(QUEUE)


def test_two_broken_files_are_not_taken_for_none(tmp_path: Path) -> None:
    """F5: or all would be read again, or skipped."""
    path = tmp_path / "billing.json"
    for broken in (path, tmp_path / "billing.json.bak"):
        broken.write_bytes(b"not JSON")
    with pytest.raises(CorruptFile, match="restore one of these files"):
        LocalOffsets(path, "billing")


async def test_what_has_not_changed_is_not_written(tmp_path: Path) -> None:
    """F5."""
    path = tmp_path / "billing.json"
    async with LocalOffsets(path, "billing") as offsets:
        await offsets.save({QUEUE: 5}, wait=True)
    written = path.stat().st_mtime_ns, path.stat().st_ino
    async with LocalOffsets(path, "billing") as offsets:
        await offsets.save({QUEUE: 5}, wait=True)
    assert written == (path.stat().st_mtime_ns, path.stat().st_ino)


def test_every_member_has_a_file_that_any_file_system_takes(tmp_path: Path) -> None:
    """F5."""
    path = LocalOffsets.path_of(tmp_path, "fe80::1@DEFAULT", "%RETRY%a|b")
    assert tmp_path / "fe80%3A%3A1@DEFAULT" / "%25RETRY%25a%7Cb.json" == path
    assert LocalOffsets.path_of(tmp_path, "m", "a|b") != LocalOffsets.path_of(tmp_path, "m", "a%7Cb")


async def test_two_members_cannot_share_a_file(tmp_path: Path) -> None:
    """F5: the slower of them would skip messages after a restart."""
    path = tmp_path / "billing.json"
    async with LocalOffsets(path, "billing"):
        with pytest.raises(ConfigError, match="a different instance_name"):
            LocalOffsets(path, "billing")
    async with LocalOffsets(path, "billing"):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """F5."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="give a writable offsets_directory"):
        LocalOffsets(tmp_path / "file" / "billing.json", "billing")


def test_a_start_can_be_a_moment() -> None:
    """F6."""
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    start = StartPosition.at(moment)
    assert (ConsumeFromWhere.TIMESTAMP, 1_700_000_000_000) == (start.where, start.time_ms)
    assert start == StartPosition.at(1_700_000_000_000)
    assert StartPosition.LAST != StartPosition.FIRST


@pytest.mark.parametrize(
    ("start", "offset"),
    [(StartPosition.FIRST, 0), (StartPosition.LAST, 100), (StartPosition.at(1), 50)],
)
async def test_a_group_without_progress_starts_where_it_is_told_but_leaves_out_no_retry(
    start: StartPosition, offset: int
) -> None:
    """F6, H1: what is in the group's retry topic, is its own."""
    async with ConsumerScript().running() as script, ClientInstance(ClientConfig(script.address)) as instance:
        script.topics.add(retry_topic("billing"))
        brokers = BrokerOffsets(instance, "billing")
        assert offset == await start_offset(QUEUE, start, brokers)
        assert 0 == await start_offset(QUEUE._replace(topic=retry_topic("billing")), start, brokers)


async def test_the_first_commit_of_a_group_in_a_topic_is_answered_before_the_others_go_out() -> None:
    """D4: of two that are the first at the same time, RocketMQ forgets one."""
    queues = [QUEUE._replace(topic=topic, queue_id=number) for topic in ("orders", "bills") for number in range(3)]
    async with ConsumerScript().running() as script, ClientInstance(ClientConfig(script.address)) as instance:
        script.topics.add("bills")
        for topic in sorted(script.topics):
            await instance.routes.of(topic)
        brokers = BrokerOffsets(instance, "billing")
        answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
        script.say(RequestCode.UPDATE_CONSUMER_OFFSET, *answers)

        commits = asyncio.ensure_future(brokers.commit_all(dict.fromkeys(queues, 7)))
        # What is sent after them has arrived, so all that were sent have.
        await script.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 2)
        await brokers.max(QUEUE)
        first = script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert [("bills", 7), ("orders", 7)] == sorted((header.topic, header.commit_offset) for header in first)

        for answer in answers:
            answer.set_result(Reply())
        assert {} == await commits
        all_of_them = script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert sorted((queue.topic, queue.queue_id) for queue in queues) == sorted(
            (header.topic, header.queue_id) for header in all_of_them
        )


async def test_once_a_topic_has_progress_its_commits_go_out_together() -> None:
    """D4: and each failure is told with its queue."""
    queues = [QUEUE._replace(queue_id=number) for number in range(3)]
    async with ConsumerScript().running() as script, ClientInstance(ClientConfig(script.address)) as instance:
        await instance.routes.of("orders")
        brokers = BrokerOffsets(instance, "billing")
        await brokers.commit(queues[0], 1)
        answers = [asyncio.get_running_loop().create_future() for _ in queues]
        script.say(RequestCode.UPDATE_CONSUMER_OFFSET, *answers)

        commits = asyncio.ensure_future(brokers.commit_all(dict.fromkeys(queues, 2)))
        headers = (await script.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 4))[1:]
        assert [0, 1, 2] == sorted(header.queue_id for header in headers)
        for header, answer in zip(headers, answers, strict=True):
            answer.set_result(Reply(1 if header.queue_id == 1 else 0))
        failures = await commits
        assert [queues[1]] == list(failures)
        assert isinstance(failures[queues[1]], SystemFailure)
