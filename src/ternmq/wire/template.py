"""Replies prepared in advance, for the few that go out ten thousand times a second (B1).

One reply to a send differs from the next in a handful of values. A template has all the rest ready as bytes, in the
form that ``wire.frame`` would give it, and fills in the values with one formatting operation: 0.8 µs instead of 4 for
making a header, a map of its fields, an envelope, and encoding that.

Only JSON replies of success without a body or a remark; whoever asked in the binary form gets the general way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ternmq.wire.codes import FLAG_RESPONSE
from ternmq.wire.header import encode_json

_PREFIX: Final = struct.Struct(">II")
#: Stands for the opaque while the template is made.
_OPAQUE: Final = 2_000_000_011
_FIELDS: Final = b'"extFields":{'


class ReplyTemplate:
    """``holes`` are fields with conversions of bytes formatting (``%d``, ``%016X``, ``%b``) where values go.

    A ``%b`` takes bytes that need no escaping in JSON: the caller has made sure.
    """

    __slots__ = ("_format",)

    def __init__(self, constant: Mapping[str, str], holes: Mapping[str, str]) -> None:
        text = encode_json(0, dict(holes), opaque=_OPAQUE, flag=FLAG_RESPONSE)
        text = text.replace(b"%d" % _OPAQUE, b"%d", 1)
        # The constant fields come last, as they may hold anything: a percent sign, or the digits of the opaque.
        fields = msgspec.json.encode(constant).replace(b"%", b"%%")[1:-1]
        self._format = text.replace(_FIELDS, _FIELDS + fields + b"," * bool(fields), 1)

    def fill(self, values: tuple[Any, ...]) -> bytes:
        """The whole frame; ``values`` are those of the holes in their order, then the opaque."""
        head = self._format % values
        size = len(head)
        return _PREFIX.pack(size + 4, size) + head
