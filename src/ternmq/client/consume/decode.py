"""From the records of an answer to messages with readable bodies, without holding up the loop (E1, M2).

Decompressing is the one step of reading whose cost the sender decides: a few hundred bytes may become megabytes. So the
bodies of an answer are decompressed on the loop only up to ``INLINE_BYTES`` in all; the rest goes to a thread, one body
after the other, so that messages keep their order. And a reader says how many bytes it has room for: what does not fit
stays compressed until it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ternmq.message import ReceivedMessage
from ternmq.types import Buffer
from ternmq.wire.received import inflate, to_message
from ternmq.wire.record import Record, Sysflag

#: What zlib makes in less than a millisecond. A thread costs a tenth of that, and more waiting.
INLINE_BYTES: Final = 256 * 1024
#: A compressed body of this size hardly ever becomes so little.
_INLINE_COMPRESSED_BYTES: Final = INLINE_BYTES // 8


async def to_messages(
    records: Sequence[Record],
    broker_name: str,
    min_offset: int = -1,
    max_offset: int = -1,
    *,
    bytes_max: int,
    room_bytes: int | None = None,
) -> list[ReceivedMessage]:
    """The messages of records, or of the first ones: no more than bodies of ``room_bytes`` and the one that fills it.

    The offsets are the bounds of the queue, if they are known. ``bytes_max`` is for one body. The bytes of the records
    must stay as they are until this returns.
    """
    messages: list[ReceivedMessage] = []
    inline_bytes, compressed = INLINE_BYTES, Sysflag.COMPRESSED
    for record in records:
        if not record.sysflag & compressed:
            messages.append(to_message(record, broker_name, min_offset, max_offset))
            continue
        message = None
        if inline_bytes > 0 and len(record.body) <= _INLINE_COMPRESSED_BYTES:
            inline_max = min(inline_bytes, bytes_max)
            message = to_message(record, broker_name, min_offset, max_offset, bytes_max=inline_max)
        if message is None or message.body_error:
            # It is large; or it cannot be read, which the thread will find, too.
            message = await asyncio.to_thread(
                to_message, record, broker_name, min_offset, max_offset, bytes_max=bytes_max
            )
        messages.append(message)
        # Only what was compressed can be larger than the answer that brought it.
        inline_bytes -= len(message.body)
        if room_bytes is not None:
            room_bytes -= len(message.body)
            if room_bytes <= 0:
                break
    return messages


async def inflated(body: Buffer, sysflag: int, *, bytes_max: int) -> tuple[bytes, int, str]:
    """One compressed body, as ``wire.received.inflate`` gives it."""
    if len(body) <= _INLINE_COMPRESSED_BYTES:
        result = inflate(body, sysflag, bytes_max=min(INLINE_BYTES, bytes_max))
        if not result[2]:
            return result
    return await asyncio.to_thread(inflate, body, sysflag, bytes_max=bytes_max)
