"""Signed sends, decoded in the order of their signature (N1).

A signature covers the texts of all ext fields in the order of their names, and the handler wants a typed header. By way
of a map, that costs a signed send 5 µs more than one that is not checked. But a producer's sends all have fields of
the same names. That is their *shape*: once a request of some shape was admitted, the next ones on its connection are
decoded into a struct with one slot for each name, in the order of the signature. It holds exactly what is to be signed,
and the typed header is made from the same texts.

Whatever does not fit (another name, a missing one, a value that is not a text, invalid JSON) is decoded to a map, as if
there were no shapes. A name that comes twice has its last value, as in a map.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, ClassVar, Final

import msgspec

from ternmq.wire.auth import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from ternmq.wire.codes import FLAG_RESPONSE, RequestCode
from ternmq.wire.header import Fields, Request, header_type

#: Codes that have shapes: their handlers ask for the attributes of ``SendFields``, not for one class.
CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
#: What clients of RocketMQ add to any request: those of a signature, and names of namespaces, brokers and channels.
_COMMON: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, "bname", "lo", "ns", "nsd", "OnsChannel", "oway"})
#: Shapes of all connections. Each kind of client has one or two. When there are too many, no more are made: an account
#: that sends all combinations of fields costs others the short way, but never more time or memory than this.
SHAPES_MAX: Final = 100

#: All values of a ``Texts`` in the order of their names, and the signature behind them.
values_of: Final = msgspec.structs.astuple


class Texts(msgspec.Struct, gc=False):
    """Base of the structs: the ext fields of a request of one shape."""

    shape: ClassVar[Shape]

    def to_map(self) -> Fields:
        return dict(zip(self.shape.names, values_of(self), strict=True))


class Shape:
    """The names of a request's fields, and what is prepared for them."""

    __slots__ = ("_code", "_decoder", "_pick", "_typed", "key_at", "names", "places")

    def __init__(self, code: int, names: Iterable[str]) -> None:
        kind = header_type(code)
        assert kind is not None, "sends have typed headers"
        self._code = code
        self.names = (*sorted(set(names) - {SIGNATURE}), SIGNATURE)
        #: Where the value of a name is, and that of the access key.
        self.places = {name: place for place, name in enumerate(self.names)}
        self.key_at = self.places[ACCESS_KEY]
        slots = [f"f{place}" for place in range(len(self.names))]
        texts = msgspec.defstruct(
            f"TextsOf{kind.__name__}",
            [(slot, str) for slot in slots],
            bases=(Texts,),
            namespace={"shape": self},
            rename=dict(zip(slots, self.names, strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decoder: Final = msgspec.json.Decoder(Request[texts])  # type: ignore[valid-type]  # made just now
        # A header with the same attributes, from an array: names are not looked up again.
        fields = msgspec.structs.fields(kind)
        given = [field for field in fields if field.encode_name in self.places]
        self._pick = itemgetter(*(self.places[field.encode_name] for field in given))
        self._typed = msgspec.defstruct(
            f"Shaped{kind.__name__}",
            [
                *((field.name, field.type) for field in given),
                *((field.name, field.type, field.default) for field in fields if field not in given),
            ],
            array_like=True,
            gc=False,
        )

    def decode(self, data: bytes) -> Request[Any] | None:
        """A request whose header is a ``Texts``; None if it has another shape, or cannot be read."""
        try:
            request: Request[Any] = self._decoder.decode(data)
        except (ValueError, RecursionError):
            return None
        # Of two members "code" the second one counts.
        if request.code != self._code or request.flag & FLAG_RESPONSE or request.header is None:
            return None
        return request

    def typed(self, values: tuple[str, ...]) -> Any:
        """The header of a request with these values; raises ``msgspec.ValidationError``."""
        return msgspec.convert(self._pick(values), self._typed, strict=False)


_shapes: dict[tuple[int, frozenset[str]], Shape] = {}


def shape_of(code: int, fields: Fields) -> Shape | None:
    """The shape of a request that was admitted; None if it is unusual, or there are too many."""
    what = code, frozenset(fields)
    shape = _shapes.get(what)
    if shape is None and len(_shapes) < SHAPES_MAX and code in CODES and _is_usual(code, what[1]):
        shape = _shapes[what] = Shape(code, fields)
    return shape


def _is_usual(code: int, names: frozenset[str]) -> bool:
    kind = header_type(code)
    if kind is None or not {ACCESS_KEY, SIGNATURE} <= names:
        return False
    fields = msgspec.structs.fields(kind)
    # What the header needs must be there, and nothing that no client sends: the rest is for the map.
    needed = {field.encode_name for field in fields if field.required}
    return needed <= names <= {field.encode_name for field in fields} | _COMMON
