"""Compressed bodies become readable, without holding up the loop and within a limit of memory (E1, M2).

Decompressing is the one step of reading whose cost the sender decides: a few hundred bytes may become megabytes. So the
bodies of an answer are decompressed on the loop only up to ``INLINE_BYTES`` in total. The rest goes to threads, one
body of an answer after the other, so that messages keep their order. A source says how many bytes it has room for: what
does not fit stays compressed until there is room.

Many sources read at the same time. A body may take up to ``decompressed_bytes_max`` before it is counted in any limit
of a queue, so a client decompresses only as many in threads at once as fit into ``AT_ONCE_BYTES``, at least one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ternmq.types import Buffer
from ternmq.wire.record import Sysflag
from ternmq.wire.stored import StoredMessage, inflate

#: What zlib makes in less than a millisecond. A thread costs a tenth of that, and more waiting.
INLINE_BYTES: Final = 256 * 1024
#: A compressed body of this size hardly ever becomes so little.
_INLINE_COMPRESSED_BYTES: Final = INLINE_BYTES // 8
#: M2: the bodies that all threads of a client decompress at the same time, if each is as large as allowed.
AT_ONCE_BYTES: Final = 128 * 1024 * 1024

_COMPRESSED: Final = Sysflag.COMPRESSED


class Inflater:
    """Decompresses for all readers of one client. All methods belong to the loop's thread."""

    def __init__(self, body_bytes_max: int, *, at_once_bytes_max: int = AT_ONCE_BYTES) -> None:
        self._body_bytes_max = body_bytes_max
        self._places = asyncio.Semaphore(max(1, at_once_bytes_max // body_bytes_max))
        #: Bodies that threads decompress now.
        self.at_work = 0

    async def messages(self, messages: Sequence[StoredMessage], *, room_bytes: int | None = None) -> int:
        """Make the bodies of messages readable, or of the first ones: no more than bodies of ``room_bytes`` and the one
        that fills it. Returns how many messages these are. A body that cannot be read has a ``body_error`` then."""
        inline_bytes = INLINE_BYTES
        for number, message in enumerate(messages, 1):
            if not message.sysflag & _COMPRESSED or message.body_error:
                continue
            body, sysflag, error = await self.body(message.body, message.sysflag, inline_bytes=inline_bytes)
            message.body, message.sysflag, message.body_error = body, sysflag, error
            # Only what was compressed can be larger than the answer that brought it.
            inline_bytes -= len(body)
            if room_bytes is not None:
                room_bytes -= len(body)
                if room_bytes <= 0:
                    return number
        return len(messages)

    async def body(self, body: Buffer, sysflag: int, *, inline_bytes: int = INLINE_BYTES) -> tuple[bytes, int, str]:
        """One compressed body, as ``wire.stored.inflate`` gives it; on the loop if it has ``inline_bytes`` at most."""
        if inline_bytes > 0 and len(body) <= _INLINE_COMPRESSED_BYTES:
            result = inflate(body, sysflag, bytes_max=min(inline_bytes, self._body_bytes_max))
            if not result[2]:
                return result
        # It is large; or it cannot be read, which the thread will find, too.
        async with self._places:
            self.at_work += 1
            try:
                return await asyncio.to_thread(inflate, body, sysflag, bytes_max=self._body_bytes_max)
            finally:
                self.at_work -= 1
