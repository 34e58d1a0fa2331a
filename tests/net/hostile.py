"""One connection of a program that may say anything, to the ports of members and slaves (N1)."""

from __future__ import annotations

import asyncio
from typing import Final

#: Far beyond what any answer takes, also on a busy machine.
LONG_S: Final = 60.0


class HostileLine:
    """``heard`` is all that the other side has said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.heard = b""

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    async def text(self, head_bytes: int) -> bytes:
        """What follows a head that ends with its length."""
        async with asyncio.timeout(LONG_S):
            head = await self._reader.readexactly(head_bytes)
            text = await self._reader.readexactly(int.from_bytes(head[-4:], "big"))
        self.heard += head + text
        return text

    async def ended(self) -> None:
        """Read until the other side closes."""
        try:
            async with asyncio.timeout(LONG_S):
                while data := await self._reader.read(65536):
                    self.heard += data
        except ConnectionError:
            pass
