"""Messages that wait, as an administrator sees them (I2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ternmq import Message, Producer
from ternmq.admin import Admin
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, IllegalOperation, InvalidHandle
from ternmq.wire.recall import RecallHandle

#: An hour that no test reaches.
HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=5)


async def test_waiting_messages_are_counted_shown_and_cancelled(cluster: EmbeddedCluster, admin: Admin) -> None:
    """I2: over all brokers, by topic and by hour."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        for number in range(4):
            at = HOUR + timedelta(minutes=10 * (4 - number))
            await producer.send(Message("orders", b"%d" % number, deliver_at=at))
        await producer.send(Message("bills", b"5", deliver_at=HOUR + timedelta(hours=1, minutes=1)))

    counts = await admin.delays.stats()
    waiting = await admin.delays.peek("orders")
    later = await admin.delays.peek("orders", begin=HOUR + timedelta(minutes=25))

    assert (5, {"bills": 1, "orders": 4}) == (counts.waiting, counts.topics)
    assert {HOUR: 4, HOUR + timedelta(hours=1): 1} == counts.hours
    assert {HOUR: 4} == (await admin.delays.stats("orders")).hours
    assert [b"3", b"2", b"1", b"0"] == [each.message.body for each in waiting]
    assert [b"1", b"0"] == [each.message.body for each in later]
    assert int((HOUR + timedelta(minutes=10)).timestamp() * 1000) == waiting[0].due_ms

    assert waiting[0].message.message_id == await admin.delays.cancel(waiting[0].recall_handle)
    assert {"bills": 1, "orders": 3} == (await admin.delays.stats()).topics
    with pytest.raises(IllegalOperation):
        await admin.delays.cancel(waiting[0].recall_handle)
    with pytest.raises(InvalidHandle):
        await admin.delays.cancel("nonsense")
    with pytest.raises(ConfigError, match="no registered master"):
        await admin.delays.cancel(RecallHandle("orders", "broker-z", 0, "A").text())
