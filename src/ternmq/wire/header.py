"""Frame headers: the envelope of every request and response, in JSON and in the compact binary form (B1).

The envelope has ``code``, ``language``, ``version``, ``opaque`` (matches a reply to its call), ``flag``, ``remark``
and the *ext fields*: a map from text to text, in which each request code keeps its own parameters. A ``Header`` is
the typed form of such a map; ``wire.requests`` has one for each code.

Both forms of the same envelope::

    JSON    {"code":14,"extFields":{"topic":"t"},"flag":0,"language":"JAVA","opaque":1,
             "serializeTypeCurrentRPC":"JSON","version":401}
    binary  code 2 · language 1 · version 2 · opaque 4 · flag 4 · remark 4+n · ext fields 4+m, each 2+key 4+value

Decoding is lenient: ext values may be JSON numbers and booleans (the Node client sends them), the language may be a
number or unknown. Encoding is strict: ext values are always text (the Go client accepts only text), null fields are
left out, and all members that Java always writes are present: the Rust client and broker require them.

Decoding a request is on the hot path, so ext fields are decoded from JSON text straight into the typed header of their
code, by a decoder that is prepared once per code. Input that it refuses takes the slow path, through a map.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.codes import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, LANGUAGE_CODES, LANGUAGES, VERSION

Fields = dict[str, str]

NO_BODY: Final = memoryview(b"")
_LANGUAGE_LENGTH_MAX: Final = 32


class Header(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Base of the typed ext fields. Fields are ``int``, ``bool``, ``str``, each possibly None; None is not sent."""

    def to_fields(self) -> Fields:
        """The ext fields as they go on the wire: text to text, None left out."""
        fields: Fields = {}
        for name, value in zip(self.__struct_encode_fields__, _astuple(self)):  # noqa: B905 - checking takes a tenth
            if value is not None:
                kind = type(value)
                if kind is str:
                    fields[name] = value
                elif kind is int:
                    fields[name] = f"{value}"
                else:
                    fields[name] = _text(value)
        return fields


HeaderT = TypeVar("HeaderT", bound=Header)
#: A request decoded without a typed header keeps its ext fields as a map.
ExtT = TypeVar("ExtT")

_astuple: Final = msgspec.structs.astuple


def _text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


class Arrival:
    """What the reader of a request notes of it. Members of a header cannot set it: it is beside what is decoded."""

    __slots__ = ("arrived", "is_held")

    #: When it was read. Set where that is measured (``net.rpc_latency``), and only there.
    arrived: float
    #: Whether it has waited for messages since.
    is_held: bool


class Request(
    Arrival,
    msgspec.Struct,
    Generic[ExtT],
    rename={
        "header": "extFields",
        "body": " body",
        "serial": " serial",
        "fault": " fault",
        "frame_bytes": " frame bytes",
    },
    gc=False,
):
    """A request as it arrived. ``header`` is typed if the code is known, else a map of ext fields.

    ``body`` is a view of the bytes read. Copy it to keep it after the request has ended.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = None
    remark: str | None = None
    header: ExtT | None = None
    # Set by the frame decoder after the header has been read. Their names do not occur as keys of a valid header.
    body: memoryview = NO_BODY
    serial: int = 0
    #: Why ``header`` could not be typed: a field is missing or has the wrong type. Such a request is refused.
    fault: str | None = None
    #: Bytes of the whole frame, which a waiting request keeps in memory.
    frame_bytes: int = 0

    @property
    def fields(self) -> ExtT:
        """The header, for handlers: a code with a typed header is handled only if its header could be typed."""
        assert self.header is not None
        return self.header

    def release(self) -> None:
        """Drop everything that can be large when only the reply is left to do: many requests may wait for that."""
        self.header = None
        self.body = NO_BODY
        self.remark = None
        self.language = None

    def drop_body(self) -> None:
        """Drop a body that is not needed, so that a waiting request does not keep it in memory."""
        self.frame_bytes -= len(self.body)
        self.body = NO_BODY

    def own_body(self) -> None:
        """Copy the body if it keeps much more in memory than the request has: what was read with it may be a frame of
        megabytes. For a request that waits long."""
        if self.body and memoryview(self.body.obj).nbytes > 2 * self.frame_bytes:
            self.body = memoryview(bytes(self.body))

    @property
    def oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def language_name(self) -> str:
        language = self.language
        if isinstance(language, int):
            return LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
        # It is kept for each client, and may be any text.
        return (language or "OTHER")[:_LANGUAGE_LENGTH_MAX]


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
    """The reply of a handler: a response code, ext fields, a remark and a body of one or many buffers.

    ``head`` is the whole header of a successful reply, if that was prepared (``wire.template``).
    """

    __slots__ = ("body", "code", "head", "header", "remark")

    SUCCESS: ClassVar[int] = 0

    def __init__(
        self,
        code: int = SUCCESS,
        *,
        header: Header | None = None,
        remark: str | None = None,
        body: Buffer | list[memoryview] = b"",
        head: bytes | None = None,
    ) -> None:
        self.code = code
        self.head = head
        self.header = header
        self.remark = remark
        self.body = body


def typed(fields: Mapping[str, str], kind: type[HeaderT]) -> HeaderT:
    """Ext fields as a typed header; raises ``RemoteProtocolError`` that names the invalid field."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"ext fields of {kind.__name__} cannot be read: {error}") from None


# --- Decoding -------------------------------------------------------------------------------------------------

_CODE: Final = re.compile(rb'\{"code":([0-9]{1,7})[,}]')
#: As many bytes as the code and the characters around it take in a header.
_START_BYTES: Final = 16
_STARTS_MAX: Final = 1000
_BINARY_FIXED: Final = struct.Struct(">hBhiiI")  # code, language, version, opaque, flag, remark_bytes
_UINT: Final = struct.Struct(">I")
_USHORT: Final = struct.Struct(">H")

_text_decoder: Final = msgspec.json.Decoder(Request[Fields], strict=False)
_any_decoder: Final = msgspec.json.Decoder(Request[dict[str, Any]], strict=False)
_decoders: dict[int, msgspec.json.Decoder[Request[Any]]] = {}
_headers: dict[int, type[Header]] = {}
#: Code and decoder by the first bytes of a header; None for codes without a decoder (such as those of responses). One
#: lookup instead of parsing the number.
_starts: dict[bytes, tuple[int, msgspec.json.Decoder[Request[Any]]] | None] = {}


def register(code: int, kind: type[Header]) -> None:
    """Make ``kind`` the typed header of a request code (called by ``wire.requests`` when it is imported)."""
    _headers[code] = kind
    _decoders[code] = msgspec.json.Decoder(Request[kind], strict=False)  # type: ignore[valid-type]  # built at run time


def decode_json(data: bytes) -> Request[Any]:
    """Decode a JSON header; responses come back as a ``Request`` with the response bit and a map as header."""
    start = data[:_START_BYTES]
    found = _starts[start] if start in _starts else _find_decoder(start)
    if found is not None:
        code, decoder = found
        try:
            request = decoder.decode(data)
        except (ValueError, RecursionError):
            pass  # Ext values that are not text, or invalid JSON: the slow path finds out.
        else:
            # Of two members "code" the second one counts, but the decoder was chosen by the first.
            if not request.flag & FLAG_RESPONSE and request.code == code:
                if request.header is None:  # no ext fields: the type decides whether that is valid
                    _give_type(request, _headers[code])
                return request
    untyped: Request[Any] = _decode_untyped(data)
    kind = _headers.get(untyped.code)
    if kind is not None and not untyped.flag & FLAG_RESPONSE:
        _give_type(untyped, kind)
    return untyped


def _find_decoder(start: bytes) -> tuple[int, msgspec.json.Decoder[Request[Any]]] | None:
    """Code and decoder, if the header begins with the code, as most clients write it."""
    match = _CODE.match(start)
    if match is None:
        return None
    code = int(match[1])
    decoder = _decoders.get(code)
    found = (code, decoder) if decoder is not None else None
    if len(_starts) < _STARTS_MAX:
        _starts[start] = found
    return found


def _give_type(request: Request[Any], kind: type[Header]) -> None:
    try:
        request.header = typed(request.header or {}, kind)
    except RemoteProtocolError as error:
        request.fault = str(error)


def header_type(code: int) -> type[Header] | None:
    """The typed header of a request code, if there is one."""
    return _headers.get(code)


def decode_untyped(data: bytes, form: int) -> Request[Any]:
    """A request whose header is the map of all its ext fields, also of those that its typed form leaves out.

    ``give_header`` makes the typed form of them.
    """
    if form != BINARY:
        return _decode_untyped(data)
    request = _unpack_binary(data)
    _widen_code(request)
    return request


def give_header(request: Request[Any], fields: Fields) -> None:
    """Set the header of a request from these fields, typed if the code is known."""
    request.header = fields
    request.fault = None
    kind = _headers.get(request.code)
    if kind is not None:
        try:
            request.header = msgspec.convert(fields, kind, strict=False)
        except msgspec.ValidationError:
            _give_type(request, kind)


def _decode_untyped(data: bytes) -> Request[Fields]:
    try:
        try:
            return _text_decoder.decode(data)
        except msgspec.ValidationError:
            request = _any_decoder.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors, and invalid UTF-8
        raise RemoteProtocolError(f"the header is not a JSON object of a request or response: {error}") from None
    fields = {name: _text(value) for name, value in (request.header or {}).items() if value is not None}
    request.header = fields
    return request


def decode_binary(data: bytes) -> Request[Any]:
    request: Request[Any] = _unpack_binary(data)
    _widen_code(request)
    if not request.flag & FLAG_RESPONSE:
        kind = _headers.get(request.code)
        if kind is not None:
            _give_type(request, kind)
    return request


def _widen_code(request: Request[Any]) -> None:
    """Pop's codes do not fit 16 bits: POP_MESSAGE 200050 arrives as 3442. No other code lies there."""
    if not request.flag & FLAG_RESPONSE:
        request.code = _WIDE_CODES.get(request.code, request.code)


def _unpack_binary(data: bytes) -> Request[Fields]:
    end = len(data)
    fields: Fields = {}
    remark: str | None = None
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_FIXED.unpack_from(data)
        at = _BINARY_FIXED.size + remark_bytes
        if remark_bytes:
            remark = data[at - remark_bytes : at].decode()
        if at < end:
            (fields_bytes,) = _UINT.unpack_from(data, at)
            at += 4
            fields_end = at + fields_bytes
            while at < fields_end:
                (key_bytes,) = _USHORT.unpack_from(data, at)
                key_at = at + 2
                value_at = key_at + key_bytes + 4
                (value_bytes,) = _UINT.unpack_from(data, value_at - 4)
                at = value_at + value_bytes
                if value_bytes:  # an empty value means null in this form
                    fields[data[key_at : value_at - 4].decode()] = data[value_at:at].decode()
            if at != fields_end:
                at = end + 1
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}") from None
    if at > end:
        raise RemoteProtocolError("the binary header is cut short, or its lengths do not add up")
    return Request(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=language,
        remark=remark,
        header=fields,
        serial=BINARY,
    )


_WIDE_CODES: Final = {wide & 0xFFFF: wide for wide in (*range(200050, 200057), 200151)}


# --- Encoding -------------------------------------------------------------------------------------------------

_encoder: Final = msgspec.json.Encoder()


def encode_json(
    code: int,
    fields: Fields | None,
    *,
    opaque: int,
    flag: int,
    remark: str | None = None,
    language: str = "PYTHON",
    version: int = VERSION,
) -> bytes:
    """A JSON header: Java's members in Java's order, ``remark`` only if there is one."""
    try:
        ext = _encoder.encode(fields) if fields else b"{}"
        note = b',"remark":%b' % _encoder.encode(remark) if remark is not None else b""
    except UnicodeEncodeError:
        # Half of a surrogate pair, which file names can contain. Java would also send "?".
        fields = {name: _encodable(value) for name, value in (fields or {}).items()}
        remark = _encodable(remark) if remark is not None else None
        return encode_json(code, fields, opaque=opaque, flag=flag, remark=remark, language=language, version=version)
    # Formatting takes half the time of a struct for the envelope, and language names need no escaping.
    return (
        b'{"code":%d,"extFields":%b,"flag":%d,"language":"%b","opaque":%d%b,"serializeTypeCurrentRPC":"JSON",'
        b'"version":%d}' % (code, ext, flag, language.encode(), opaque, note, version)
    )


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


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
    text = remark.encode(errors="replace") if remark else b""
    entries: list[bytes] = []
    for name, value in (fields or {}).items():
        key_data, value_data = name.encode(), value.encode(errors="replace")
        entries += (_USHORT.pack(len(key_data)), key_data, _UINT.pack(len(value_data)), value_data)
    ext = b"".join(entries)
    fixed = _BINARY_FIXED.pack(code, LANGUAGE_CODES[language], version, opaque, flag, len(text))
    return b"".join((fixed, text, _UINT.pack(len(ext)), ext))
