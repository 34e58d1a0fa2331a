"""The checkpoint file (C7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.checkpoint import Checkpoint


def test_it_is_written_and_read_in_rocketmqs_form(tmp_path: Path) -> None:
    """C7: values of RocketMQ 5 that we do not use are kept."""
    checkpoint = Checkpoint(1, 2, 3, 4, 5)
    data = checkpoint.pack()
    assert (4096, b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4, 5))) == (len(data), data[:40])

    FileDisk().write(tmp_path / "checkpoint", data)
    assert checkpoint == Checkpoint.load(FileDisk(), tmp_path / "checkpoint")


@pytest.mark.parametrize("data", [None, b"", b"\x01" * 39])
def test_without_one_nothing_is_trusted(data: bytes | None, tmp_path: Path) -> None:
    """C8: recovery then begins with the first segment."""
    if data is not None:
        (tmp_path / "checkpoint").write_bytes(data)

    assert 0 == Checkpoint.load(FileDisk(), tmp_path / "checkpoint").trusted_time_ms


def test_the_older_time_counts() -> None:
    """C8."""
    assert 7 == Checkpoint(log_time_ms=9, queue_time_ms=7).trusted_time_ms
    assert 7 == Checkpoint(log_time_ms=7, queue_time_ms=9).trusted_time_ms
