"""How far delay levels are delivered, on disk (I1)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.errors import CorruptFile
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import DelayOffsets
from tests.delay.world import ROOT, World, in_virtual_time

FILE = ROOT / "config" / "delayOffset.json"


def saved(world: World) -> dict[int, int]:
    data = world.files.saved.get(FILE)
    return decode(data, DelayOffsets).offset_table if data is not None else {}


def test_progress_is_saved_every_10_s_and_at_the_end() -> None:
    """I1: by level, as RocketMQ's file has it; a file that nothing changes is not written again."""

    async def program() -> None:
        world = World()
        world.start()
        for level in (1, 3, 1):
            world.send(level)
        await asyncio.sleep(8)
        assert {} == saved(world)
        # Two more for the sleepers' turns, and ten for the log's next flush.
        await asyncio.sleep(14)
        assert {1: 2, 3: 1} == saved(world)
        written = world.files.saved[FILE]
        await asyncio.sleep(20)
        assert written is world.files.saved[FILE]
        world.send(2)
        await asyncio.sleep(3)
        await world.stop()
        assert {1: 2, 2: 1, 3: 1} == saved(world)
        assert b'"offsetTable"' in world.files.saved[FILE]

    in_virtual_time(program())


def test_the_file_never_knows_more_than_the_disk() -> None:
    """I1, C6: or a power cut would take the copy, and the file would say that it was delivered."""

    async def program() -> None:
        world = World(flush_interval_commit_log=60_000)
        world.start()
        world.send(1)
        world.store.flush_now()
        await asyncio.sleep(2)
        world.progress.save()
        assert (1, {}) == (len(world.delivered()), saved(world))
        world.store.flush_now()
        assert {1: 1} == saved(world)
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{1:1}}',
        b'{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":5},"offsetTable":{"1":1}}',
    ],
)
def test_files_of_both_rocketmqs_are_read(text: bytes) -> None:
    """I1, V2: 4.9.4's with unquoted keys and without a version, 5.2.0's with one."""

    async def program() -> None:
        world = World()
        world.start()
        first, second = world.send(1), world.send(1)
        await world.stop()
        world.files.saved[FILE] = text
        world.start()
        await asyncio.sleep(2)
        assert [second.body] == [bytes(record.body) for record in world.delivered()]
        assert first.body != second.body
        await world.stop()

    in_virtual_time(program())


def test_progress_outside_of_the_queue_is_moved_to_its_nearer_end() -> None:
    """I1: as RocketMQ does, when the file is of another time than the store."""

    async def program() -> None:
        world = World()
        world.start()
        world.send(1)
        await world.stop()
        world.files.saved[FILE] = b'{"offsetTable":{"1":50}}'
        world.start()
        await asyncio.sleep(2)
        late = world.send(1)
        await asyncio.sleep(2)
        assert [late.body] == [bytes(record.body) for record in world.delivered()]
        await world.stop()

    in_virtual_time(program())


def test_a_file_that_cannot_be_read_stops_the_start() -> None:
    """I1: rather than to deliver everything once more."""

    async def program() -> None:
        world = World()
        world.files.saved[FILE] = b"{"
        with pytest.raises(CorruptFile, match=r"delayOffset\.json"):
            world.start()
        world.store.close()

    in_virtual_time(program())
