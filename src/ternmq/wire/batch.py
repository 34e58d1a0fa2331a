"""The body of SEND_BATCH_MESSAGE: several messages of one topic in one request (E6).

One after the other, big-endian::

    4      size of all this          4      0 (a record has its magic here)
    4      0 (its CRC)               4      flag
    4 + n  body                      2 + n  properties

Topic and queue stand once in the request's header. Each message becomes a record of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ternmq.errors import InvalidMessage, RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.record import PROPERTIES_BYTES_MAX

_HEAD: Final = struct.Struct(">iiiii")  # size, 0, 0, flag, body_bytes
_SHORT: Final = struct.Struct(">h")
_FIXED_BYTES: Final = _HEAD.size + _SHORT.size


@dataclass(slots=True)
class BatchedMessage:
    """One message of a batch. ``body`` is a view of the batch: copy what outlives it."""

    flag: int
    body: memoryview
    properties: str


def pack_messages(messages: Iterable[tuple[int, Buffer, str]]) -> bytes:
    """The body of a batch, of flag, body and properties each. Raises ``InvalidMessage`` for too many properties."""
    parts: list[Buffer] = []
    for flag, body, properties in messages:
        data = properties.encode()
        if len(data) > PROPERTIES_BYTES_MAX:
            raise InvalidMessage(f"properties of {len(data)} bytes are too long; use at most {PROPERTIES_BYTES_MAX}")
        body_bytes = len(body)
        parts += (_HEAD.pack(_FIXED_BYTES + body_bytes + len(data), 0, 0, flag, body_bytes), body)
        parts += (_SHORT.pack(len(data)), data)
    return b"".join(parts)


def unpack_messages(body: Buffer) -> list[BatchedMessage]:
    """The messages of a batch; raises ``RemoteProtocolError`` if its lengths do not add up."""
    messages: list[BatchedMessage] = []
    view = memoryview(body)
    at, end = 0, len(view)
    while at < end:
        if end - at < _FIXED_BYTES:
            raise RemoteProtocolError(f"the batch has {end - at} bytes after its last message")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(view, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_bytes + _SHORT.size
        message_end = at + size
        if body_bytes < 0 or message_end > end or properties_at > message_end:
            raise RemoteProtocolError(f"message {len(messages)} of the batch is cut short")
        (properties_bytes,) = _SHORT.unpack_from(view, properties_at - _SHORT.size)
        if properties_at + properties_bytes != message_end:
            raise RemoteProtocolError(f"the lengths inside message {len(messages)} of the batch do not add up")
        try:
            properties = str(view[properties_at:message_end], "utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"the properties of message {len(messages)} are not UTF-8") from None
        messages.append(BatchedMessage(flag, view[body_at : body_at + body_bytes], properties))
        at = message_end
    return messages
