"""Refusing sends of a read at once, without decoding them (B1, M1).

A broker that gets more than it can take must refuse for much less than it serves, or it serves nothing. Of a request
that is refused only its opaque is needed, and whether it wants an answer. ``SendRefusal.split`` finds both in the bytes
of the header, and returns the replies of all that are refused as one piece.

It takes sends with a JSON header whose code comes first, as all clients write it, in which the opaque, and one of the
two usual flags, stand once as plain numbers. (A header that has a member twice may be read in another way than by the
decoder; that misleads its own sender only.) A quote within a JSON text is escaped, so what looks like a member is one;
where a field of the request has the same name, there are two, and the request is left to the usual way. So is
everything else. A request that is refused was not checked any further: neither its signature nor the rest of its
header.

This is the same for both: a compiled kernel, and Python where there is none.
"""

from __future__ import annotations

import struct
from typing import Final

from ternmq.kernels import HAS_NATIVE, native
from ternmq.wire.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from ternmq.wire.header import encode_json

#: No send has a shorter frame: so many bytes hold at most so many sends.
SEND_BYTES_MIN: Final = 64

_STARTS: Final = tuple(
    b'{"code":%d,' % code
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE)
)
_OPAQUE: Final = b'"opaque":'
_OPAQUE_DIGITS_MAX: Final = 10
_TWO_WAY: Final = b'"flag":0,'
_ONE_WAY: Final = b'"flag":2,'
_PREFIX: Final = struct.Struct(">II")
#: Stands for the opaque while the reply is prepared.
_PLACE: Final = 2_000_000_011


class SendRefusal:
    """The reply SYSTEM_BUSY with one remark."""

    __slots__ = ("_before", "_behind", "_heads")

    def __init__(self, remark: str) -> None:
        text = encode_json(ResponseCode.SYSTEM_BUSY, None, opaque=_PLACE, flag=FLAG_RESPONSE, remark=remark)
        # The remark comes behind the opaque.
        self._before, self._behind = text.split(b"%d" % _PLACE, 1)
        size = len(self._before) + len(self._behind)
        #: What stands before the opaque, by the number of its digits.
        self._heads = [
            _PREFIX.pack(size + digits + 4, size + digits) + self._before for digits in range(_OPAQUE_DIGITS_MAX + 1)
        ]

    def split(self, data: bytes, room: int, bytes_max: int) -> tuple[bytes, bytes, int]:
        """Of the frames in ``data``, which begins with one, leave the first ``room`` sends and all that are no sends,
        and refuse the others: what is left, the replies as frames, and how many were refused.

        What is left ends with the part of a frame that ``data`` ends with. Nothing after a frame that cannot be is
        touched: the decoder refuses it.
        """
        if HAS_NATIVE:
            found = native.refuse_sends(data, room, bytes_max, self._before, self._behind)
            if found is not None:
                return found
        return self.split_python(data, room, bytes_max)

    def split_python(self, data: bytes, room: int, bytes_max: int) -> tuple[bytes, bytes, int]:
        """The same without a kernel."""
        heads, behind = self._heads, self._behind
        left: list[bytes] = []
        replies: list[bytes] = []
        count = left_from = at = 0
        end = len(data)
        while end - at >= 8:
            length, header_field = _PREFIX.unpack_from(data, at)
            header_bytes, frame_end = header_field & 0xFFFFFF, at + 4 + length
            if frame_end > end or length + 4 > bytes_max or header_bytes + 4 > length:
                break
            header_at, header_end = at + 8, at + 8 + header_bytes
            # A header of another form has its number in the top byte.
            if header_bytes == header_field and data.startswith(_STARTS, header_at, header_end):
                if room > 0:
                    room -= 1
                else:
                    opaque = _opaque_in(data, header_at, header_end)
                    is_two_way = data.count(_TWO_WAY, header_at, header_end)
                    if opaque and is_two_way + data.count(_ONE_WAY, header_at, header_end) == 1:
                        count += 1
                        if is_two_way:
                            replies += (heads[len(opaque)], opaque, behind)
                        if left_from < at:
                            left.append(data[left_from:at])
                        left_from = frame_end
            at = frame_end
        if not count:
            return data, b"", 0
        left.append(data[left_from:])
        return b"".join(left), b"".join(replies), count


def _opaque_in(data: bytes, begin: int, end: int) -> bytes:
    """The digits of the opaque of a header; empty if they are not plain."""
    at = data.find(_OPAQUE, begin, end)
    if at < 0 or data.find(_OPAQUE, at + 1, end) >= 0:
        return b""
    at += len(_OPAQUE)
    rest = data[at : min(end, at + _OPAQUE_DIGITS_MAX + 1)]
    digits = rest.replace(b"}", b",").partition(b",")[0]
    return digits if len(digits) < len(rest) and digits.isdigit() else b""
