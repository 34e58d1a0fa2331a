"""A sender that costs little: frames from a template, replies only looked at for their code and opaque.

A client that takes longer for a send than the broker cannot overload it on the same machine. Here a send and its reply
take a few microseconds.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ternmq.net.latency import Latency
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import encode_request
from ternmq.wire.requests import SendMessageV2

#: The first eight bytes of a body are the number of the message; and the number stands in its unique key.
NUMBER: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">I")
_OPAQUE: Final = b'"opaque":'
#: Numbers of one width have frames of one length.
_NUMBER_MIN: Final = 1_000_000_000


class Template:
    """Frames of one queue that differ in the opaque, which is part of the unique key, and the body."""

    def __init__(self, topic: str, queue_id: int, body_bytes: int) -> None:
        number = _NUMBER_MIN
        header = SendMessageV2(
            producer_group="overload",
            topic=topic,
            queue_id=queue_id,
            born_time_ms=int(time.time() * 1000),
            properties=f"UNIQ_KEY\x01{number:032d}\x02",
        )
        body = bytes(NUMBER.size)
        text = b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, body + bytes(body_bytes), opaque=number))
        self._key, self._opaque = text.index(b"%032d" % number) + 22, text.index(_OPAQUE) + len(_OPAQUE)
        self._body = len(text) - body_bytes - NUMBER.size
        self._text = text

    def fill(self, number: int) -> bytes:
        """The frame of one message; ``number`` is also what the reply names."""
        text, key, opaque, body = self._text, self._key, self._opaque, self._body
        digits = b"%d" % (number + _NUMBER_MIN)
        return b"".join(
            (
                text[:key],
                digits,
                text[key + 10 : opaque],
                digits,
                text[opaque + 10 : body],
                NUMBER.pack(number),
                text[body + NUMBER.size :],
            )
        )


class Counts:
    """What became of sends."""

    def __init__(self) -> None:
        self.offered = 0
        #: Not sent, as the socket took no more.
        self.withheld = 0
        self.unanswered = 0
        self.codes: Counter[int] = Counter()
        #: From the call on, so with what waits in the client and in the kernel.
        self.accepted, self.refused = Latency(), Latency()


class RawSender(asyncio.Protocol):
    """One connection. ``on_reply`` is called after each read with the number of replies in it."""

    def __init__(self, on_reply: Callable[[RawSender, int], None], acknowledged: bytearray) -> None:
        """``acknowledged`` has a byte for each number, which is set when the broker has accepted it."""
        self._on_reply = on_reply
        self._acknowledged = acknowledged
        self._rest = b""
        self._transport: Any = None
        self._began: dict[int, float] = {}
        #: The socket takes no more: the broker does not read.
        self.is_full = False
        self.counts = Counts()

    @property
    def under_way(self) -> int:
        return len(self._began)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._began:
            print(f"the broker has closed the connection: {exc}; {len(self._began)} sends have no reply")
        self._transport = None

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def send(self, frames: list[bytes], numbers: range) -> None:
        """Send frames of these numbers."""
        if self._transport is None:
            return
        now = time.monotonic()
        self._began.update(dict.fromkeys(numbers, now))
        self.counts.offered += len(frames)
        self._transport.write(b"".join(frames))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, end, now, before = 0, len(data), time.monotonic(), len(self._began)
        counts, began = self.counts, self._began
        while end - at >= 8:
            frame_end = at + 4 + _LENGTH.unpack_from(data, at)[0]
            if frame_end > end:
                break
            opaque = data.index(_OPAQUE, at, frame_end) + len(_OPAQUE)
            number = int(data[opaque : opaque + 10]) - _NUMBER_MIN
            took_s = now - began.pop(number)
            if data.startswith(b'{"code":0,', at + 8):
                counts.codes[ResponseCode.SUCCESS] += 1
                counts.accepted.add(took_s)
                self._acknowledged[number] = 1
            else:
                code = data.index(b",", at + 16)
                counts.codes[int(data[at + 16 : code])] += 1
                counts.refused.add(took_s)
            at = frame_end
        self._rest = data[at:]
        self._on_reply(self, before - len(began))
