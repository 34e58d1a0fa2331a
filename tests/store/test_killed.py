"""kill -9 in the middle of everything: what was acknowledged is served (C8)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ternmq.kernels import HAS_NATIVE, NATIVE_SETTING
from ternmq.store.store import GetStatus
from ternmq.wire.record import unpack_record
from tests.store.killed import body_of, config_for
from tests.store.small import log_queues_index, quiet_store

ROUNDS = 4


def test_every_acknowledged_message_survives_kill_9(tmp_path: Path) -> None:
    """C8: in several rounds on one directory, each killed at another moment, with all threads at work."""
    choice = random.Random(20261115)
    acknowledged: list[tuple[int, int, int, int]] = []
    for seed in range(1, ROUNDS + 1):
        acknowledged += put_until_killed(tmp_path, seed, lines=choice.randrange(1, 4000))

        are_served(tmp_path, acknowledged)
    derived_files_equal_a_fresh_fold(tmp_path)


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")
def test_each_version_recovers_what_the_other_left(tmp_path: Path) -> None:
    """C8, issue 21: processes with and without kernels in turns, on one directory."""
    choice = random.Random(20261118)
    acknowledged: list[tuple[int, int, int, int]] = []
    for seed, version in enumerate(("0", "require", "0", "require"), 1):
        acknowledged += put_until_killed(tmp_path, seed, lines=choice.randrange(1, 4000), version=version)
    are_served(tmp_path, acknowledged)
    derived_files_equal_a_fresh_fold(tmp_path)


def are_served(root: Path, acknowledged: list[tuple[int, int, int, int]]) -> None:
    with quiet_store(config_for(root)) as store:
        for queue_id, queue_offset, log_offset, number in acknowledged:
            result = store.get("orders", queue_id, queue_offset, count_max=1)
            assert GetStatus.FOUND is result.status
            record = unpack_record(result.buffers[0])
            assert (log_offset, body_of(number)) == (record.log_offset, bytes(record.body))
        for _, _, log_offset, number in acknowledged[-200:]:
            found = store.query("orders", f"k{number}", count_max=9, begin_ms=0, end_ms=1 << 62).buffers
            assert [log_offset] == [unpack_record(view).log_offset for view in found]


def put_until_killed(
    root: Path, seed: int, *, lines: int, version: str | None = None
) -> list[tuple[int, int, int, int]]:
    """Start the process, let it acknowledge so many messages, kill it; returns all it acknowledged. ``version`` is its
    ``TERNMQ_NATIVE``, unless it has ours."""
    command = [sys.executable, "-m", "tests.store.killed", str(root), str(seed)]
    environment = {**os.environ, **({} if version is None else {NATIVE_SETTING: version})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        read = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        # The last line may be cut off.
        read += [line for line in process.stdout if line.endswith(b"\n")]
    numbers = [tuple(map(int, line.split())) for line in read]
    return [(row[0], row[1], row[2], row[3]) for row in numbers]


def derived_files_equal_a_fresh_fold(root: Path) -> None:
    """C5: queues and index are what the log says, however often they were cut."""
    before = log_queues_index(root)
    for kind in ("consumequeue", "index"):
        (root / kind).rename(root / f"{kind}.old")
    with quiet_store(config_for(root)):
        pass
    assert before == log_queues_index(root)
