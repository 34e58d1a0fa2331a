"""Bodies to bytes and back (B1, V1, V2).

Encoding gives compact, valid JSON with text keys: Java reads it as well as its own dialect, and Go's route parser fails
on blanks. None is left out, as in Java; all other values are written, also defaults. Decoding takes the same, and what
Java's fastjson writes (``wire.fastjson``): JSON goes through a decoder prepared for its type; input that it refuses
takes the slow path. Unknown members are ignored, missing ones have the defaults of RocketMQ's classes.

Some tables have a queue as key. On the wire it is an object inside a text (``QueueKey``), whose members may have any
order, so keys are parsed before they are compared: ``by_queue`` and ``by_key`` convert whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NewType, TypeVar

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.message import MessageQueue
from ternmq.types import Buffer
from ternmq.wire.fastjson import to_json

T = TypeVar("T")

#: As much as a frame can have, so that only smaller limits count.
BYTES_MAX: Final = 1 << 30


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of all bodies and their parts."""

    #: A larger one is refused before it is read. Less for what any client may send: 16 MiB, which a frame may have, can
    #: take a second, and meanwhile a server does nothing else.
    bytes_max: ClassVar[int] = BYTES_MAX


BodyT = TypeVar("BodyT", bound=Body)


def always(make: Callable[[], T], *, name: str | None = None) -> T:
    """A default that is written, too: ``omit_defaults``, which leaves None out, does not apply to it."""
    made: T = msgspec.field(default_factory=lambda: make(), name=name)
    return made


_encoder: Final = msgspec.json.Encoder()
_decoders: dict[type[Body], msgspec.json.Decoder[Any]] = {}


def encode(body: Body) -> bytes:
    return _encoder.encode(body)


def decode(data: Buffer, kind: type[BodyT]) -> BodyT:
    """The body as ``kind``; raises ``RemoteProtocolError`` with the reason if it does not match, or is too large."""
    if len(data) > kind.bytes_max:
        raise RemoteProtocolError(
            f"the body has {len(data)} bytes, more than the {kind.bytes_max} that a {kind.__name__} may have; name "
            "less in one request"
        )
    decoder = _decoders.get(kind)
    if decoder is None:
        # Not strict: numbers may be texts.
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=False)
    data = bytes(data)
    if b'"$ref"' not in data:
        try:
            body: BodyT = decoder.decode(data)
        except (ValueError, RecursionError):
            pass
        else:
            return body
    try:
        body = decoder.decode(to_json(data))
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"the body is not a valid {kind.__name__}: {error}") from None
    return body


# --- Queues ---------------------------------------------------------------------------------------------------


class Queue(Body, frozen=True, kw_only=True):
    """A queue, as bodies name it."""

    broker_name: str
    queue_id: int
    topic: str

    @staticmethod
    def of(queue: MessageQueue) -> Queue:
        return Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    @property
    def message_queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


#: A queue as a key: the JSON of a ``Queue``.
QueueKey = NewType("QueueKey", str)


def queue_key(queue: MessageQueue) -> QueueKey:
    return QueueKey(encode(Queue.of(queue)).decode())


def read_queue_key(key: QueueKey) -> MessageQueue:
    return decode(key.encode(), Queue).message_queue


def by_key(table: Mapping[MessageQueue, T]) -> dict[QueueKey, T]:
    """A table in the form that bodies have."""
    return {queue_key(queue): value for queue, value in table.items()}


def by_queue(table: Mapping[QueueKey, T]) -> dict[MessageQueue, T]:
    """A table of a body with queues as keys; raises ``RemoteProtocolError`` for a key that is not a queue."""
    return {read_queue_key(key): value for key, value in table.items()}
