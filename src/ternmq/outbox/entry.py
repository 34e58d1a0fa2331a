"""A message as a row of the outbox table, and back (J3).

What the table has of a message:

===========  ===========================================================================================
Column       Content
===========  ===========================================================================================
message_id   the unique id that all copies of the message carry; NULL: the relay makes one
topic, body  as they are
message      a JSON object with all else; each member may be left out: ``tags``, ``keys`` (a list), ``properties``,
             ``flag``, ``sharding_key``, ``delay_level``, ``delay_ms``, ``deliver_at_ms``, ``wait_store_ok``
order_key    rows with the same key are sent in the order of their ids; NULL: in any order
===========  ===========================================================================================

A ``NewRow`` is a row that is to be inserted, a ``Row`` one that was read. Applications write rows in Python through an
outbox, and in other languages with their own INSERT; so what is read back is input from outside, and checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ternmq.client.send.outgoing import prepare
from ternmq.client.send.validate import check_message, duration_ms, time_ms
from ternmq.errors import InvalidMessage
from ternmq.message import Message

#: The width of the columns.
MESSAGE_ID_LENGTH: Final = 64
ORDER_KEY_LENGTH: Final = 255
TOPIC_LENGTH: Final = 255
ERROR_LENGTH: Final = 1_000
OWNER_LENGTH: Final = 64
#: Body and column ``message`` of a row that a relay reads. No broker takes so much, but any program can insert it, and
#: then every relay would die of it, one after the other.
ROW_BYTES_MAX: Final = 64 * 1024 * 1024
#: The column ``message`` alone: a few bytes of JSON are an object of fifty. What brokers take of it has 32 KiB, escaped
#: at most six times as much.
DETAILS_BYTES_MAX: Final = 1024 * 1024
#: What a row takes in memory beside its body and message: a million tiny ones are not tiny.
_OBJECT_BYTES: Final = 500


class _Details(msgspec.Struct, omit_defaults=True):
    """The column ``message``."""

    tags: str = ""
    keys: list[str] = msgspec.field(default_factory=list)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    flag: int = 0
    sharding_key: str = ""
    delay_level: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    wait_store_ok: bool = True


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Details)


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """A row to insert."""

    message_id: str
    topic: str
    body: bytes
    message: str
    order_key: str | None
    #: What is saved, as the process that saves it sends it: a copy that the application cannot change any more.
    sendable: Message
    #: What it takes in memory, about.
    size_bytes: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row that was taken, to be sent."""

    id: int
    message_id: str | None
    topic: str
    body: bytes
    message: str
    order_key: str | None
    attempts: int = 0
    refusals: int = 0
    #: The bytes of a row that is too large to be read; its body and message are empty here.
    unread_bytes: int = 0
    #: The message, checked already, if this process has saved it.
    sendable: Message | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + text_bytes(self.message)

    @classmethod
    def of(cls, row_id: int, entry: NewRow) -> Row:
        """An entry of this process that was committed, without reading it back."""
        return cls(
            row_id,
            entry.message_id,
            entry.topic,
            entry.body,
            entry.message,
            entry.order_key,
            sendable=entry.sendable,
        )

    def to_message(self) -> Message:
        """The message; raises ``InvalidMessage`` for a row that is none."""
        if self.unread_bytes:
            raise InvalidMessage(
                f"row {self.id} of the outbox has {self.unread_bytes} bytes; relays read {ROW_BYTES_MAX} at most, and "
                f"{DETAILS_BYTES_MAX} of the column 'message'; discard it, and send its content in parts"
            )
        if self.order_key is not None and len(self.order_key) > ORDER_KEY_LENGTH:
            raise InvalidMessage(
                f"row {self.id} of the outbox has an order_key of more than {ORDER_KEY_LENGTH} characters; "
                "make it shorter"
            )
        if self.message_id is not None and len(self.message_id) > MESSAGE_ID_LENGTH:
            raise InvalidMessage(
                f"row {self.id} of the outbox has a message_id of more than {MESSAGE_ID_LENGTH} characters; "
                "shorten it, and retry the row"
            )
        try:
            details = _decoder.decode(self.message)
            deliver_at_ms, delay_ms = details.deliver_at_ms, details.delay_ms
            return Message(
                self.topic,
                self.body,
                tags=details.tags,
                keys=tuple(details.keys),
                properties=details.properties,
                flag=details.flag,
                delay_level=details.delay_level,
                sharding_key=details.sharding_key,
                wait_store_ok=details.wait_store_ok,
                deliver_at=None if deliver_at_ms is None else datetime.fromtimestamp(deliver_at_ms / 1000, UTC),
                delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
            )
        except (msgspec.MsgspecError, OverflowError, ValueError, OSError, RecursionError) as error:
            raise InvalidMessage(
                f"row {self.id} of the outbox has an invalid column 'message': {error}; correct it, and retry the row"
            ) from None


def to_entry(message: Message, *, message_id: str, body_bytes_max: int) -> NewRow:
    """Check a message as a producer does, and make it a row: what was saved can be sent.

    Raises ``InvalidMessage``, ``InvalidName`` and ``TypeError``, before any database is asked.
    """
    if not isinstance(message, Message):
        raise TypeError(f"invalid message of type {type(message).__name__}: expected a ternmq.Message")
    check_message(message, body_bytes_max=body_bytes_max)
    # Whether the properties fit a record is known only when they are joined.
    prepare(message, message_id=message_id)
    details = _Details(
        tags=message.tags,
        keys=message.keys_text.split(),
        properties=message.properties,
        flag=message.flag,
        sharding_key=message.sharding_key,
        delay_level=message.delay_level,
        delay_ms=None if message.delay is None else duration_ms(message.delay),
        deliver_at_ms=None if message.deliver_at is None else time_ms(message.deliver_at),
        wait_store_ok=message.wait_store_ok,
    )
    try:
        text = _encoder.encode(details).decode()
    except (TypeError, msgspec.MsgspecError) as error:
        raise InvalidMessage(f"the message to {message.topic!r} cannot be saved: {error}") from None
    body = bytes(message.body)
    sendable = Message(
        message.topic,
        body,
        message.tags,
        # As they are read back: what is sent at once and what is sent later are alike.
        " ".join(details.keys),
        dict(message.properties),
        message.flag,
        message.delay_level,
        message.sharding_key,
        message.wait_store_ok,
        message.deliver_at,
        message.delay,
    )
    size_bytes = len(body) + 2 * text_bytes(text) + _OBJECT_BYTES
    return NewRow(message_id, message.topic, body, text, order_key_of(message), sendable, size_bytes)


def fitting(entries: Iterable[NewRow], *, used_bytes: int, bytes_max: int) -> list[NewRow]:
    """Those without an order that may be kept in memory until the commit: a transaction may save gigabytes."""
    found: list[NewRow] = []
    for entry in entries:
        if entry.order_key is None and used_bytes < bytes_max:
            found.append(entry)
            used_bytes += entry.size_bytes
    return found


def text_bytes(text: str) -> int:
    """The length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def order_key_of(message: Message) -> str | None:
    """Messages with a sharding key keep their order, within their topic."""
    if not message.sharding_key:
        return None
    key = f"{message.topic}:{message.sharding_key}"
    if len(key) <= ORDER_KEY_LENGTH and key.isascii() and key.isprintable():
        return key
    # Not all databases have all characters, or tell all of them apart.
    return f"{message.topic}:#{hashlib.sha256(message.sharding_key.encode('utf-8', 'surrogatepass')).hexdigest()}"
