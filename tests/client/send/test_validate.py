"""What is refused before the network, with the reason and the cure (E2, E6)."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from ternmq.client.send.validate import (
    PROPERTIES_BYTES_MAX,
    check_batch,
    check_batch_bytes,
    check_message,
    check_properties_text,
    check_queue,
)
from ternmq.errors import InvalidMessage, InvalidName
from ternmq.message import Message, MessageQueue
from ternmq.names import UNSENDABLE_TOPICS


def test_an_ordinary_message_passes() -> None:
    """E2."""
    check_message(Message("Orders_1-2|%", b"x", tags="a", keys=("k1", "k2"), properties={"colour": "red"}))
    check_message(Message("t" * 127, b"x" * 10), body_bytes_max=10)
    check_message(Message("%RETRY%" + "g" * 120, b"x"))


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "the topic name is empty"),
        ("a b", "characters that are not allowed; use letters, digits"),
        ("订单", "characters that are not allowed"),
        ("orders\n", "characters that are not allowed"),
        ("t" * 128, "has 128 characters; use at most 127"),
    ],
)
def test_a_wrong_topic_is_refused(topic: str, reason: str) -> None:
    """E2: pattern and length 127."""
    with pytest.raises(InvalidName, match=reason):
        check_message(Message(topic, b"x"))


@pytest.mark.parametrize("topic", sorted(UNSENDABLE_TOPICS))
def test_system_topics_cannot_be_sent_to(topic: str) -> None:
    """E2."""
    with pytest.raises(InvalidMessage, match="is a system topic; send to another topic"):
        check_message(Message(topic, b"x"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"body": b""}, "has an empty body; send at least one byte"),
        ({"body": b"x" * 11}, "11 bytes to 'orders' is larger than the 10 allowed; split it"),
        ({"tags": "a || b"}, "which separates tags in subscriptions; give a single tag"),
        ({"delay_level": -1}, "invalid delay_level -1: expected 1 to 18"),
        ({"properties": {"TAGS": "a"}}, "'TAGS' is reserved; set Message.tags instead"),
        ({"properties": {"UNIQ_KEY": "a"}}, "'UNIQ_KEY' is reserved; choose another name"),
    ],
)
def test_what_no_broker_takes_is_refused(settings: dict[str, Any], reason: str) -> None:
    """E2."""
    with pytest.raises(InvalidMessage, match=reason):
        check_message(Message(**{"topic": "orders", "body": b"x"} | settings), body_bytes_max=10)


def test_a_text_as_body_is_the_callers_mistake() -> None:
    with pytest.raises(TypeError, match=r"expected bytes; for text use text\.encode\(\)"):
        check_message(Message("orders", "text"))  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(
    "body", [memoryview(array("i", [1, 2])), memoryview(b"abcd")[::2], memoryview(b"abcd").cast("B", (2, 2))]
)
def test_a_view_that_is_not_bytes_in_a_row_is_refused(body: Any) -> None:
    """B1, E2: the frame had the length of its items, and the rest of its bytes was read as the next frame."""
    with pytest.raises(TypeError, match=r"use view\.tobytes\(\)"):
        check_message(Message("orders", body))
    row: Any = memoryview(b"abcd")[1:3]
    check_message(Message("orders", row))


def test_a_queue_of_another_topic_is_refused() -> None:
    """E5."""
    with pytest.raises(InvalidMessage, match=r"choose from producer\.queues\(\)"):
        check_queue(Message("orders", b"x"), MessageQueue("bills", "a", 0))


@pytest.mark.parametrize("character", ["a", "单"])
def test_properties_must_fit_a_record(character: str) -> None:
    """C1: two bytes for their length."""
    room = PROPERTIES_BYTES_MAX // len(character.encode())
    check_properties_text(character * room)
    with pytest.raises(InvalidMessage, match="put long values into the body"):
        check_properties_text(character * (room + 1))


def test_half_a_character_is_refused_with_where_it_comes_from() -> None:
    """E2."""
    with pytest.raises(InvalidMessage, match=r"a lone surrogate \('\\udce9'\).*surrogateescape"):
        check_properties_text("TAGS\x01" + b"caf\xe9".decode(errors="surrogateescape") + "\x02")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "the batch is empty"),
        ([Message("a", b"x"), Message("b", b"x")], "contains the topics 'a' and 'b'; send one batch per topic"),
        ([Message("a", b"x"), Message("a", b"x", wait_store_ok=False)], "contains different values of wait_store_ok"),
        ([Message("a", b"x", delay_level=3)], "a batch cannot be delayed"),
        ([Message("%RETRY%g", b"x")], "cannot go to the retry topic"),
        ([Message("a", b"x"), Message("a", b"")], "has an empty body"),
    ],
)
def test_a_batch_is_of_one_kind(messages: list[Message], reason: str) -> None:
    """E6."""
    with pytest.raises(InvalidMessage, match=reason):
        check_batch(messages)


def test_a_batch_has_a_largest_size() -> None:
    """E6."""
    check_batch_bytes(10, body_bytes_max=10)
    with pytest.raises(InvalidMessage, match=r"split it with ternmq\.split_batch\(\)"):
        check_batch_bytes(11, body_bytes_max=10)
