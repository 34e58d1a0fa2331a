"""The body of SEND_BATCH_MESSAGE: several messages of one topic in one request (E6).

One after the other, big-endian::

    4      size of all this          4      0 (a record has its magic here)
    4      0 (its CRC)               4      flag
    4 + n  body                      2 + n  properties

Topic and queue are given once, in the request's header. Each message becomes a record of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ternmq.errors import InvalidMessage, RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.record import PROPERTIES_BYTES_MAX

_HEAD: Final = struct.Struct(">i8xii")  # size, (magic and CRC in a record), flag, body_bytes
_SHORT: Final = struct.Struct(">h")
#: Bytes of a message besides its body and properties.
FIXED_BYTES: Final = _HEAD.size + _SHORT.size


def pack_messages(messages: Iterable[tuple[int, Buffer, str]]) -> bytes:
    """The body of a batch of messages (flag, body, properties). Raises ``InvalidMessage`` for too long properties."""
    parts: list[Buffer] = []
    for flag, body, properties in messages:
        data = properties.encode()
        if len(data) > PROPERTIES_BYTES_MAX:
            raise InvalidMessage(f"properties of {len(data)} bytes are too long; use at most {PROPERTIES_BYTES_MAX}")
        body_bytes = len(body)
        parts += (_HEAD.pack(FIXED_BYTES + body_bytes + len(data), flag, body_bytes), body)
        parts += (_SHORT.pack(len(data)), data)
    return b"".join(parts)


def unpack_messages(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Flag, body and properties of each message; raises ``RemoteProtocolError`` if the lengths do not add up.

    Properties stay bytes: a broker stores them as they are.
    """
    messages: list[tuple[int, bytes, bytes]] = []
    unpack_head, unpack_short = _HEAD.unpack_from, _SHORT.unpack_from
    at, end = 0, len(data)
    while at < end:
        if end - at < FIXED_BYTES:
            raise RemoteProtocolError(f"the batch has {end - at} bytes after its last message")
        size, flag, body_bytes = unpack_head(data, at)
        body_at = at + 20
        body_end = body_at + body_bytes
        at += size
        if body_bytes < 0 or at > end or body_end + 2 > at:
            raise RemoteProtocolError(f"message {len(messages)} of the batch is cut short")
        if body_end + 2 + unpack_short(data, body_end)[0] != at:
            raise RemoteProtocolError(f"the lengths inside message {len(messages)} of the batch do not add up")
        messages.append((flag, data[body_at:body_end], data[body_end + 2 : at]))
    return messages
