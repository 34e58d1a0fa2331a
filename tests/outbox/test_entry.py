"""A message as a row, and back (J3)."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from ternmq import Message
from ternmq.client.send.outgoing import prepare
from ternmq.outbox.entry import Row, to_entry


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x"),
        Message("t", b"x", tags="a", keys="one  two\tthree"),
        Message("t", b"x", keys=("one", "two three", "ключ"), flag=-1, wait_store_ok=False),
        Message("t", b"x", properties={"größe": "5\u4e2d"}, sharding_key="k"),
        Message("t", b"x", delay_level=3),
        Message("t", b"x", delay=timedelta(microseconds=1)),
        Message("t", b"x", deliver_at=datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_what_is_sent_at_once_and_what_is_sent_later_are_alike(message: Message) -> None:
    """J3: the first is a copy in memory, the second comes from the table."""
    entry = to_entry(message, message_id="1F", body_bytes_max=99)
    read = Row(1, entry.message_id, entry.topic, entry.body, entry.message, entry.order_key).to_message()

    at_once, later = (prepare(one, message_id="1F") for one in (entry.sendable, read))
    assert (at_once.properties, at_once.flag, at_once.topic) == (later.properties, later.flag, later.topic)
    assert entry.sendable.wait_store_ok == read.wait_store_ok


def test_an_entry_does_not_change_with_the_message() -> None:
    """J3: what was checked and saved is what is sent."""
    body = bytearray(b"before")
    message = Message("t", body, tags="before", properties={"a": "before"})  # type: ignore[arg-type]
    entry = to_entry(message, message_id="1F", body_bytes_max=99)
    expected = dataclasses.replace(entry.sendable)

    body[:] = b"after!"
    message.tags = "after"
    message.properties["a"] = "after"

    assert expected == entry.sendable
    assert (b"before", "before", {"a": "before"}) == (
        entry.sendable.body,
        entry.sendable.tags,
        entry.sendable.properties,
    )
