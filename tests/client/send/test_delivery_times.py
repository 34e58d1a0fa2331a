"""Delivery times and recalls in Python: what travels, what is refused, and what comes (I2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ternmq import Message, Producer, PushConsumer, StartPosition
from ternmq.client.send.outgoing import prepare
from ternmq.client.send.validate import check_batch, check_message
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import IllegalOperation, InvalidHandle, InvalidMessage, MessageIllegal
from ternmq.wire.properties import parse

MOMENT = datetime(2026, 12, 24, 18, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("message", "properties"),
    [
        (Message("a", b"x", deliver_at=MOMENT), {"TIMER_DELIVER_MS": "1798131600000"}),
        # Never early: a part of a ms is a whole one.
        (Message("a", b"x", deliver_at=MOMENT + timedelta(microseconds=1)), {"TIMER_DELIVER_MS": "1798131600001"}),
        (Message("a", b"x", delay=timedelta(seconds=90)), {"TIMER_DELAY_MS": "90000"}),
        (Message("a", b"x", delay=timedelta(microseconds=1)), {"TIMER_DELAY_MS": "1"}),
        (Message("a", b"x", delay=timedelta(0)), {"TIMER_DELAY_MS": "0"}),
        (Message("a", b"x", delay=timedelta.max), {"TIMER_DELAY_MS": "86400000000000000"}),
        (Message("a", b"x", deliver_at=datetime.max.replace(tzinfo=UTC)), {"TIMER_DELIVER_MS": "253402300800000"}),
    ],
)
def test_a_delivery_time_travels_in_a_property(message: Message, properties: dict[str, str]) -> None:
    """I2: a delay as such, so that a wrong clock of the client does not matter."""
    check_message(message)
    assert {"UNIQ_KEY": "U", **properties} == parse(prepare(message, message_id="U").properties)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"deliver_at": datetime(2026, 12, 24, 18, 0)}, InvalidMessage, "it has no time zone"),  # noqa: DTZ001
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, InvalidMessage, "expected a time after 1970"),
        ({"deliver_at": 1_798_131_600_000}, TypeError, "invalid deliver_at of type int: expected a datetime"),
        ({"delay": 90}, TypeError, "invalid delay of type int: expected a timedelta"),
        ({"delay": timedelta(seconds=-1)}, InvalidMessage, "expected 0 or more"),
        ({"delay": timedelta(1), "deliver_at": MOMENT}, InvalidMessage, "more than one of deliver_at, delay"),
        ({"delay": timedelta(1), "delay_level": 3}, InvalidMessage, "more than one of deliver_at, delay"),
        ({"properties": {"TIMER_DELIVER_MS": "1"}}, InvalidMessage, "set Message.deliver_at instead"),
        ({"properties": {"TIMER_OUT_MS": "1"}}, InvalidMessage, "choose another name"),
    ],
)
def test_a_delivery_time_that_says_nothing_clear_is_refused(
    changes: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    """I2: before anything is sent."""
    with pytest.raises(kind, match=sentence):
        check_message(Message("a", b"x", **changes))


def test_a_batch_has_no_delivery_time() -> None:
    """E6, I2."""
    with pytest.raises(InvalidMessage, match="a batch cannot be delayed"):
        check_batch([Message("a", b"x", delay=timedelta(1))])


async def test_messages_come_at_their_time_and_can_be_recalled() -> None:
    """I2: one by delay, one by moment, one that is taken back, one that is beyond the limit."""
    async with EmbeddedCluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        gone = await producer.send(Message("orders", b"gone", delay=timedelta(milliseconds=4000)))
        assert gone.message_id == await producer.recall(gone.recall_handle)
        await producer.send(Message("orders", b"delay", delay=timedelta(milliseconds=4100)))
        last = await producer.send(
            Message("orders", b"moment", deliver_at=datetime.now(UTC) + timedelta(milliseconds=9000))
        )
        assert "" == (await producer.send(Message("orders", b"plain"))).recall_handle
        with pytest.raises(MessageIllegal, match="timerMaxDelaySec"):
            await producer.send(Message("orders", b"too far", delay=timedelta(days=41)))

        consumer = PushConsumer("readers", name_servers=cluster.name_servers, start=StartPosition.FIRST)
        consumer.subscribe("orders")
        came: list[bytes] = []
        async with consumer:
            async for message in consumer:
                with message:
                    came.append(message.body)
                if message.body == b"moment":
                    break
        assert [b"plain", b"delay", b"moment"] == came

        with pytest.raises(IllegalOperation, match="was delivered"):
            await producer.recall(last.recall_handle)
        with pytest.raises(InvalidHandle, match="expected the recall_handle of the receipt"):
            await producer.recall("nonsense")
        with pytest.raises(TypeError, match="invalid recall handle of type NoneType: expected a str"):
            await producer.recall(None)  # type: ignore[arg-type]
