"""Progress of broadcasting, in a file (F5), and where to start (F6)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ternmq.client.offsets import LocalOffsets, StartPosition
from ternmq.errors import ConfigError, CorruptFile
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import ConsumeFromWhere

QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_progress_is_there_after_a_restart(tmp_path: Path) -> None:
    """F5."""
    path = tmp_path / "deep" / "billing.json"
    with LocalOffsets(path, "billing") as offsets:
        assert None is await offsets.load(QUEUE)
        await offsets.save({QUEUE: 5}, wait=False)
        await offsets.save({QUEUE._replace(queue_id=1): 7}, wait=True)
    with LocalOffsets(path, "billing") as offsets:
        assert 5 == await offsets.load(QUEUE)
        assert 7 == await offsets.load(QUEUE._replace(queue_id=1))


async def test_a_broken_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    """F5: at the price of what was done since."""
    path = tmp_path / "billing.json"
    for queue_offset in (5, 6):
        with LocalOffsets(path, "billing") as offsets:
            await offsets.save({QUEUE: queue_offset}, wait=True)
    path.write_bytes(b'{"group": "bil')
    with LocalOffsets(path, "billing") as offsets:
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
    with LocalOffsets(path, "billing") as offsets:
        await offsets.save({QUEUE: 5}, wait=True)
    written = path.stat().st_mtime_ns, path.stat().st_ino
    with LocalOffsets(path, "billing") as offsets:
        await offsets.save({QUEUE: 5}, wait=True)
    assert written == (path.stat().st_mtime_ns, path.stat().st_ino)


def test_every_member_has_a_file_that_any_file_system_takes(tmp_path: Path) -> None:
    """F5."""
    path = LocalOffsets.path_of(tmp_path, "fe80::1@DEFAULT", "%RETRY%a|b")
    assert tmp_path / "fe80%3A%3A1@DEFAULT" / "%25RETRY%25a%7Cb.json" == path
    assert LocalOffsets.path_of(tmp_path, "m", "a|b") != LocalOffsets.path_of(tmp_path, "m", "a%7Cb")


def test_two_members_cannot_share_a_file(tmp_path: Path) -> None:
    """F5: the slower of them would skip messages after a restart."""
    path = tmp_path / "billing.json"
    with LocalOffsets(path, "billing"), pytest.raises(ConfigError, match="instance_name of its own"):
        LocalOffsets(path, "billing")
    with LocalOffsets(path, "billing"):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """F5."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="give an offsets_directory"):
        LocalOffsets(tmp_path / "file" / "billing.json", "billing")


def test_a_start_can_be_a_moment() -> None:
    """F6."""
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    start = StartPosition.at(moment)
    assert (ConsumeFromWhere.TIMESTAMP, 1_700_000_000_000) == (start.where, start.time_ms)
    assert start == StartPosition.at(1_700_000_000_000)
    assert StartPosition.LAST != StartPosition.FIRST
