"""Deleted topics stay deleted (D1, C5)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.deleted import DeletedTopics
from tests.store.small import bodies, crash, draft, quiet_store, small_config


def test_a_deleted_topic_stays_deleted_whatever_is_folded_again(tmp_path: Path) -> None:
    """D1: after a crash, and when the queues were thrown away."""
    with quiet_store(small_config(tmp_path / "a")) as store:
        for number in range(10):
            store.put(draft("gone", number % 2))
            store.put(draft("kept"))
        store.delete_topics(["gone"])
        config = crash(store, tmp_path / "b")
    shutil.rmtree(config.store_path_root_dir / "consumequeue", ignore_errors=True)
    with quiet_store(config) as store:
        assert [("kept", 0)] == list(store.queues())
        assert 10 == len(bodies(store, "kept"))
        store.put(draft("gone", 0, b"new"))
    shutil.rmtree(config.store_path_root_dir / "consumequeue")
    with quiet_store(config) as store:
        assert [b"new"] == bodies(store, "gone")


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    """D1: the note is written first."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(10):
            store.put(draft("gone"))
            store.put(draft("kept"))
        end = store.written
        store.put(draft("kept"))
    note = DeletedTopics(FileDisk(), tmp_path / "deletedTopics.json")
    note.add(["gone"], log_end=end, log_min=0)
    with quiet_store(small_config(tmp_path)) as store:
        assert [("kept", 0)] == list(store.queues())
    assert not (tmp_path / "consumequeue" / "gone").exists()


def test_notes_are_dropped_when_the_log_forgets(tmp_path: Path) -> None:
    """D1: the file does not grow for ever."""
    deleted = DeletedTopics(FileDisk(), tmp_path / "file")
    deleted.load()
    deleted.add(["a", "b"], log_end=100, log_min=0)
    deleted.add(["c"], log_end=300, log_min=100)
    again = DeletedTopics(FileDisk(), tmp_path / "file")
    again.load()

    assert (False, False, True) == tuple(topic in again for topic in "abc")
    assert (True, False) == (again.is_deleted("c", 299), again.is_deleted("c", 300))
    assert not again.is_deleted("a", 0)


@pytest.mark.parametrize("data", [b"\xff{", b'{"a\xe7":100}', b'{"a":"b"}', b"[" * 100_000])
def test_a_note_that_cannot_be_read_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """C8: a byte that is no text, too."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
    (tmp_path / "deletedTopics.json").write_bytes(data)
    with caplog.at_level(logging.WARNING), quiet_store(small_config(tmp_path)) as store:
        assert [b"hello"] == bodies(store)
    assert "deleted topics are not known" in caplog.text
