"""Frame headers: the envelope of every request and response, in JSON and in the compact binary form (B1).

The envelope has ``code``, ``language``, ``version``, ``opaque`` (matches a reply to its call), ``flag``, ``remark``
and the *ext fields*: a map from text to text, in which each request code keeps its own parameters. A ``Header`` is
the typed form of such a map; ``wire.requests`` has one for each code.

Both forms of the same envelope::

    JSON    {"code":14,"extFields":{"topic":"t"},"flag":0,"language":"JAVA","opaque":1,"version":401}
    binary  code 2 · language 1 · version 2 · opaque 4 · flag 4 · remark 4+n · ext fields 4+m, each 2+key 4+value

Lenient in: ext values may be JSON numbers and booleans (the Node client sends them so), the language may be a number
or unknown. Strict out: ext values are always text (the Go client takes nothing else), null fields are left out.

Decoding a request is on the hot path, so ext fields go straight from JSON text into the typed header of their code,
in one pass of a decoder that is prepared once per code; only what that pass refuses takes the slow way through a map.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.codes import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, LANGUAGE_CODES, LANGUAGES, VERSION

Fields = dict[str, str]


class Header(msgspec.Struct, kw_only=True, rename="camel"):
    """Base of the typed ext fields. Fields are ``int``, ``bool``, ``str`` or those with None; None is not sent."""

    def to_fields(self) -> Fields:
        """The ext fields as they go on the wire: text to text, None left out."""
        fields: Fields = {}
        for attribute, name in _plan(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                fields[name] = value if type(value) is str else _text(value)
        return fields


HeaderT = TypeVar("HeaderT", bound=Header)
#: A request decoded without a typed header keeps its ext fields as a map.
ExtT = TypeVar("ExtT")

_plans: dict[type, list[tuple[str, str]]] = {}


def _plan(kind: type[Header]) -> list[tuple[str, str]]:
    plan = _plans.get(kind)
    if plan is None:
        plan = [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]
        _plans[kind] = plan
    return plan


def _text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


class Request(
    msgspec.Struct,
    Generic[ExtT],
    rename={"header": "extFields", "body": " body", "serial": " serial", "fault": " fault"},
):
    """A request as it arrived. ``header`` is typed where the code is known, else a map of ext fields.

    ``body`` is a view of the bytes read; whoever keeps it beyond the request copies it.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = None
    remark: str | None = None
    header: ExtT | None = None
    # Set by the frame decoder after the header has been read; the names cannot occur as keys of a sane header.
    body: memoryview = memoryview(b"")
    serial: int = 0
    #: Why ``header`` could not be typed: a field missing or of the wrong kind. Such a request is refused, not handled.
    fault: str | None = None

    @property
    def fields(self) -> ExtT:
        """The header, for handlers: those of codes with a typed header run only when it could be typed."""
        assert self.header is not None
        return self.header

    @property
    def oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def language_name(self) -> str:
        language = self.language
        if isinstance(language, int):
            return LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
        return language or "OTHER"


class Response(msgspec.Struct):
    """A response as it arrived; ``read`` gives its ext fields a type."""

    code: int
    opaque: int
    remark: str | None
    fields: Fields
    body: memoryview
    version: int = 0

    def read(self, kind: type[HeaderT]) -> HeaderT:
        return typed(self.fields, kind)


class Reply:
    """What a handler answers: a response code, its ext fields, a remark and a body of one or many buffers."""

    __slots__ = ("body", "code", "header", "remark")

    SUCCESS: ClassVar[int] = 0

    def __init__(
        self,
        code: int = SUCCESS,
        *,
        header: Header | None = None,
        remark: str | None = None,
        body: Buffer | list[memoryview] = b"",
    ) -> None:
        self.code = code
        self.header = header
        self.remark = remark
        self.body = body


def typed(fields: Mapping[str, str], kind: type[HeaderT]) -> HeaderT:
    """Ext fields as a typed header; raises ``RemoteProtocolError`` that names the field that does not fit."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"ext fields of {kind.__name__} cannot be read: {error}") from None


# --- Decoding -------------------------------------------------------------------------------------------------

_CODE_FIRST: Final = b'{"code":'
_BINARY_FIXED: Final = struct.Struct(">hBhii")
_UINT: Final = struct.Struct(">I")
_USHORT: Final = struct.Struct(">H")

_untyped: Final = msgspec.json.Decoder(Request[dict[str, Any]], strict=False)
_decoders: dict[int, msgspec.json.Decoder[Request[Any]]] = {}
_headers: dict[int, type[Header]] = {}


def register(code: int, kind: type[Header]) -> None:
    """Make ``kind`` the typed header of a request code (called by ``wire.requests`` when it is imported)."""
    _headers[code] = kind
    _decoders[code] = msgspec.json.Decoder(Request[kind], strict=False)  # type: ignore[valid-type]  # built at run time


def decode_json(data: bytes | memoryview) -> Request[Any]:
    """Decode a JSON header; responses come back as a ``Request`` with the response bit and a map as header."""
    code = _peek_code(data)
    decoder = _decoders.get(code)
    if decoder is not None:
        try:
            request = decoder.decode(data)
        except msgspec.ValidationError:
            # A response whose number is also a request code, or ext values that are not text: the slow way tells.
            pass
        except msgspec.DecodeError as error:
            raise RemoteProtocolError(f"the header is not JSON: {error}") from None
        else:
            if not request.flag & FLAG_RESPONSE:
                if request.header is None:  # no ext fields at all; whether that will do, the type tells
                    _give_type(request, _headers[code])
                return request
    untyped: Request[Any] = _decode_untyped(data)
    kind = _headers.get(untyped.code)
    if kind is not None and not untyped.flag & FLAG_RESPONSE:
        _give_type(untyped, kind)
    return untyped


def _give_type(request: Request[Any], kind: type[Header]) -> None:
    try:
        request.header = typed(request.header or {}, kind)
    except RemoteProtocolError as error:
        request.fault = str(error)


def decode_fields(data: bytes | memoryview) -> Fields:
    """All ext fields of a JSON header, also those that its typed form leaves out."""
    return _decode_untyped(data).header or {}


def _peek_code(data: bytes | memoryview) -> int:
    """The request code where it stands first, as all clients but a few write it; -1 where it does not."""
    if data[:8] != _CODE_FIRST:
        return -1
    code = 0
    for digit in data[8:16]:
        if not 48 <= digit <= 57:
            break
        code = code * 10 + digit - 48
    return code


def _decode_untyped(data: bytes | memoryview) -> Request[Fields]:
    try:
        request = _untyped.decode(data)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the header is not a JSON object of a request or response: {error}") from None
    if request.header:
        request.header = {
            name: value if type(value) is str else _text(value)
            for name, value in request.header.items()
            if value is not None
        }
    return request


def decode_binary(data: memoryview) -> Request[Any]:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(data, 0)
        at = _BINARY_FIXED.size
        (remark_bytes,) = _UINT.unpack_from(data, at)
        at += 4
        remark = str(_slice(data, at, remark_bytes), "utf-8") if remark_bytes else None
        at += remark_bytes
        fields: Fields = {}
        if at < len(data):
            (fields_bytes,) = _UINT.unpack_from(data, at)
            at += 4
            end = at + fields_bytes
            if end > len(data):
                raise RemoteProtocolError("the ext fields of the binary header are cut short")
            while at < end:
                (key_bytes,) = _USHORT.unpack_from(data, at)
                key = str(_slice(data, at + 2, key_bytes), "utf-8")
                at += 2 + key_bytes
                (value_bytes,) = _UINT.unpack_from(data, at)
                if value_bytes:  # an empty value means null in this form
                    fields[key] = str(_slice(data, at + 4, value_bytes), "utf-8")
                at += 4 + value_bytes
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}") from None
    request: Request[Any] = Request(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=language,
        remark=remark,
        header=fields,
        serial=BINARY,
    )
    if not flag & FLAG_RESPONSE:
        # Pop's codes do not fit 16 bits: POP_MESSAGE 200050 arrives as 3442. No other code lies there.
        request.code = _WIDE_CODES.get(code, code)
        kind = _headers.get(request.code)
        if kind is not None:
            _give_type(request, kind)
    return request


_WIDE_CODES: Final = {wide & 0xFFFF: wide for wide in (*range(200050, 200057), 200151)}


def _slice(data: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(data):
        raise RemoteProtocolError("the binary header is cut short")
    return data[at : at + length]


# --- Encoding -------------------------------------------------------------------------------------------------

_encoder: Final = msgspec.json.Encoder()


class _Envelope(msgspec.Struct, omit_defaults=True, rename="camel"):
    # In the order in which Java writes it. No defaults for what every reader expects to find.
    code: int
    ext_fields: Fields | None
    flag: int
    language: str
    opaque: int
    version: int
    remark: str | None = None
    serialize_type_current_rPC: str = "JSON"  # noqa: N815 - becomes serializeTypeCurrentRPC


def encode_json(
    code: int,
    fields: Fields | None,
    *,
    opaque: int,
    flag: int,
    remark: str | None = None,
    language: str = "PYTHON",
) -> bytes:
    return _encoder.encode(_Envelope(code, fields or {}, flag, language, opaque, VERSION, remark))


def encode_binary(
    code: int,
    fields: Fields | None,
    *,
    opaque: int,
    flag: int,
    remark: str | None = None,
    language: str = "PYTHON",
    version: int = VERSION,
) -> bytes:
    if not -0x8000 <= code <= 0x7FFF:
        raise LocalProtocolError(f"code {code} does not fit the binary header; use the JSON form for this call")
    text = remark.encode() if remark else b""
    parts = [
        _BINARY_FIXED.pack(code, LANGUAGE_CODES[language], version, opaque, flag),
        _UINT.pack(len(text)),
        text,
    ]
    entries: list[bytes] = []
    for name, value in (fields or {}).items():
        key_data, value_data = name.encode(), value.encode()
        entries += (_USHORT.pack(len(key_data)), key_data, _UINT.pack(len(value_data)), value_data)
    parts.append(_UINT.pack(sum(map(len, entries))))
    return b"".join(parts + entries)
