"""Signed sends, checked while they are decoded (N1).

A signature covers the texts of all ext fields in the order of their names, and the handler wants a typed header. By way
of a map, that costs a signed send 5 µs more than one that is not checked. But after the first send that was admitted, a
connection knows what follows: sends of the same account. From then on its decoder checks the signature of each of them
together with the header, all requests of a read in a row, and makes a ``SignedSend``: the typed header, and by which
secret it is signed. Admission then only asks whether that is still the secret of the account (``net.gate``). Doing the
two in turns with the work of the handlers took more than both alone: each drives the other's code out of the caches.

Compiled (``native.signed_sends``), this is one pass over the bytes of the header. In Python a *shape* does it: a
producer's sends all have fields of the same names, and are decoded into a struct with one slot for each name, in the
order of the signature.

Whatever does not fit (another name, a missing one, a value that is not a text, invalid JSON, a wrong signature, another
account) is decoded to a map, as if there were no short way. A name that comes twice has its last value, as in a map. A
connection on which that happens to most sends has no short way any more: it would be read twice for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from ternmq.types import Buffer
from ternmq.wire.auth import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Secret
from ternmq.wire.codes import FLAG_RESPONSE, RequestCode
from ternmq.wire.header import Fields, Request, header_type
from ternmq.wire.requests import Int32, Int64

#: Codes of sends that are checked while they are decoded, and under which name each has its topic.
TOPIC_FIELDS: Final[dict[int, str]] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
#: The signature of a longer body is checked when it is the request's turn: it takes more time than all else.
BODY_BYTES_MAX: Final = 64 * 1024
#: What clients of RocketMQ add to any request: those of a signature, and names of namespaces, brokers and channels.
_COMMON: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, "bname", "lo", "ns", "nsd", "OnsChannel", "oway"})
#: Shapes of all connections. Each kind of client has one or two. When there are too many, no more are made: an account
#: that sends all combinations of fields costs others the short way, but never more time or memory than this.
SHAPES_MAX: Final = 100

#: All values of a struct in the order of their names, and the signature behind them.
_values_of: Final = msgspec.structs.astuple


class SignedSend(msgspec.Struct, array_like=True, gc=False):
    """The header of a send whose signature is right (``requests.SendFields``). One class for all codes and shapes: the
    interpreter reads attributes of one class faster."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sysflag: Int32
    born_time_ms: Int64
    flag: Int32
    properties: str | None
    reconsume_times: Int32 | None
    unit_mode: bool
    batch: bool
    max_reconsume_times: Int32 | None
    broker_name: str | None
    #: By which it is signed.
    secret: Any = None
    #: The bytes in which the header arrived, and where: its begin · 2²⁴ + its length.
    source: bytes = b""
    span: int = 0

    @property
    def raw(self) -> bytes:
        """The header as it arrived, for admission that wants all fields."""
        at = self.span >> 24
        return self.source[at : at + (self.span & 0xFFFFFF)]


_SEND_FIELDS: Final = SignedSend.__struct_fields__[:-3]


class Admitted(NamedTuple):
    """What to expect after a send that was admitted: more of its code and fields, signed by the same account."""

    fields: Fields
    secret: Secret


class Shape:
    """The names of a request's fields, and what is prepared for them."""

    __slots__ = ("_code", "_decoder", "_defaults", "_key_at", "_pick", "names")

    def __init__(self, code: int, names: Iterable[str]) -> None:
        kind = header_type(code)
        assert kind is not None, "sends have typed headers"
        self._code = code
        self.names = (*sorted(set(names) - {SIGNATURE}), SIGNATURE)
        places = {name: place for place, name in enumerate(self.names)}
        self._key_at = places[ACCESS_KEY]
        slots = [f"f{place}" for place in range(len(self.names))]
        texts = msgspec.defstruct(
            f"TextsOf{kind.__name__}",
            [(slot, str) for slot in slots],
            rename=dict(zip(slots, self.names, strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decoder: Final = msgspec.json.Decoder(Request[texts])  # type: ignore[valid-type]  # made just now
        # The typed header is made from an array: names are not looked up again. What the request does not have comes
        # from the defaults, behind its values.
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        absent = [name for name in _SEND_FIELDS if fields[name].encode_name not in places]
        self._defaults = tuple(fields[name].default for name in absent)
        self._pick = itemgetter(
            *(
                len(places) + absent.index(name) if name in absent else places[fields[name].encode_name]
                for name in _SEND_FIELDS
            )
        )

    def read(self, data: bytes, body: Buffer, access_key: str, secret: Secret) -> Request[Any] | None:
        """A request whose header is a ``SignedSend``; None if it has another shape, is not signed by this account, or
        cannot be read."""
        try:
            request: Request[Any] = self._decoder.decode(data)
            # Of two members "code" the second one counts.
            if request.code != self._code or request.flag & FLAG_RESPONSE or request.header is None:
                return None
            values = _values_of(request.header)
            if values[self._key_at] != access_key or not secret.has_signed_values(values, body):
                return None
            header = msgspec.convert(self._pick(values + self._defaults), SignedSend, strict=False)
        except (ValueError, RecursionError):
            return None
        header.secret = secret
        header.source, header.span = data, len(data)
        request.header = header
        return request


_shapes: dict[tuple[int, frozenset[str]], Shape] = {}


def shape_of(code: int, fields: Fields) -> Shape | None:
    """The shape of a request that was admitted; None if it is unusual, or there are too many."""
    what = code, frozenset(fields)
    shape = _shapes.get(what)
    if shape is None and len(_shapes) < SHAPES_MAX and code in TOPIC_FIELDS and _is_usual(code, what[1]):
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
