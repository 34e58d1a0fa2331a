"""Delayed messages in a real broker, over real connections, in real time (I1)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from ternmq.names import SCHEDULE_TOPIC
from ternmq.wire.properties import parse
from ternmq.wire.record import Record
from tests.broker.calls import Caller, dialled, serving

ROOT = Path(__file__).parents[2]
LEVELS: dict[str, Any] = {"message_delay_level": "2s 3s"}
#: A broker in a process of its own, to be killed.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from ternmq.broker.broker import Broker
from tests.broker.calls import settings, small_store
from tests.broker.test_delayed import LEVELS

async def main():
    async with Broker(settings(), small_store(Path(sys.argv[1]), **LEVELS)) as broker:
        print(broker.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def send_delayed(caller: Caller, count: int) -> None:
    for number in range(count):
        for level in (1, 2):
            await caller.sent("orders", b"%d %d" % (level, number), properties={"TAGS": "A", "DELAY": str(level)})


async def waiting_since(caller: Caller, count: int) -> dict[bytes, int]:
    """When each message of the two levels was stored."""
    return {
        bytes(record.body): record.store_time_ms
        for queue_id in (0, 1)
        for record in await caller.arrived(SCHEDULE_TOPIC, count, queue_id=queue_id, consumer_group="TOOLS_CONSUMER")
    }


def waited_ms(record: Record, since: dict[bytes, int]) -> int:
    return record.store_time_ms - since[bytes(record.body)]


async def test_a_consumer_that_waits_gets_a_message_when_it_is_due(tmp_path: Path) -> None:
    """I1, F8: held pulls wake up; a filter by tag works as for any other message."""
    async with serving(tmp_path, store={"message_delay_level": "1s"}) as caller:
        await caller.sent("orders", b"now", properties={"TAGS": "A"})
        await caller.sent("orders", b"not yours", properties={"TAGS": "B", "DELAY": "1"})
        await caller.sent("orders", b"later", properties={"TAGS": "A", "DELAY": "1"})

        [now, later] = await caller.arrived("orders", 2, subscription="A")

        assert (b"now", b"later") == (bytes(now.body), bytes(later.body))
        assert later.store_time_ms - now.store_time_ms >= 1_000
        assert parse(later.properties)["REAL_TOPIC"] == "orders"


async def test_delayed_messages_survive_a_killed_broker(tmp_path: Path) -> None:
    """I1, C8: all come, in order and never early; what was delivered just before the kill may come twice."""
    count = 20
    program = (sys.executable, "-c", PROGRAM, str(tmp_path))
    killed = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert killed.stdout is not None
    try:
        async with dialled((await killed.stdout.readline()).decode().strip()) as caller:
            await send_delayed(caller, count)
            since = await waiting_since(caller, count)
            # Some of the first level are delivered, none of the second.
            before = await caller.arrived("orders", 1)
            killed.kill()
    finally:
        with contextlib.suppress(ProcessLookupError):
            killed.kill()
        await killed.communicate()

    async with serving(tmp_path, store=LEVELS) as caller:
        found: list[Record] = []
        while len({bytes(record.body) for record in found}) < 2 * count:
            found = await caller.arrived("orders", len(found) + 1)

    assert bytes(before[0].body) == bytes(found[0].body) == b"1 0"
    for level, delay_ms in ((1, 2_000), (2, 3_000)):
        bodies = [bytes(record.body) for record in found if record.body[0] == ord(str(level))]
        assert [b"%d %d" % (level, number) for number in range(count)] == list(dict.fromkeys(bodies))
        assert all(waited_ms(record, since) >= delay_ms for record in found if bytes(record.body) in bodies)


async def test_a_broker_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """I1: it repeats nothing."""
    async with serving(tmp_path, store=LEVELS) as caller:
        await send_delayed(caller, 3)
        assert 3 == len(await caller.arrived("orders", 3))

    async with serving(tmp_path, store=LEVELS) as caller:
        found = await caller.arrived("orders", 6)
        await caller.sent("orders", b"last", properties={"DELAY": "1"})
        found = await caller.arrived("orders", 7)

    assert [b"1 0", b"1 1", b"1 2", b"2 0", b"2 1", b"2 2", b"last"] == [bytes(record.body) for record in found]
