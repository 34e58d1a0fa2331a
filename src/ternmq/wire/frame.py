"""Frames: the units that a connection carries, one after the other (B1, B5).

::

    4  bytes after this field = 4 + H + body
    4  top byte: form of the header (0 JSON, 1 binary); low 24 bits: H, its length
    H  header
       body; a missing and an empty body are the same

``FrameDecoder`` takes bytes as they arrive, split anywhere, and returns each complete request and response. A frame
that is too long, a header longer than its frame or than 1 MiB, an unknown form or an unreadable header raises
``RemoteProtocolError``: the position of the next frame is then unknown, so the connection must be closed. An
incomplete frame takes as much memory as has arrived, never as much as its length announces.

Bytes read are immutable, so the body of a request is a view of them, valid as long as there is a reference to it:
no copy is made between the read and the store.

Where compiled kernels are used, sends that follow each other, and ends of transactions among them, can stay together as
a *run* (``Sends``), for one call that stores them all. Each of them can still be taken out as a request
(``request_in``), and what is not of the usual shape is a request of its own from the start. On a connection with access
control, a run has only sends that are signed by the account whose sends were admitted before (``wire.shapes``), so the
first ones are never in a run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.types import Buffer
from ternmq.wire import requests, requests_admin  # noqa: F401 - registers the typed headers that frames decode into
from ternmq.wire.auth import ACCESS_KEY, Credentials, Secret
from ternmq.wire.codes import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, JSON, RequestCode
from ternmq.wire.header import (
    NO_BODY,
    Fields,
    Header,
    Reply,
    Request,
    Response,
    decode_binary,
    decode_json,
    decode_untyped,
    encode_binary,
    encode_json,
)
from ternmq.wire.shapes import BODY_BYTES_MAX, TOPIC_FIELDS, Admitted, Shape, SignedSend, shape_of

if TYPE_CHECKING:
    from ternmq._native import Sends

#: Whether runs can be made of what is read now.
TakesRuns: TypeAlias = Callable[[], bool]

#: RocketMQ's limit for a frame, the length field included (``com.rocketmq.remoting.frameMaxLength``).
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: The largest limit that a server can have. Clients accept this, since the limit of the server decides. The first bytes
#: of TLS and HTTP, read as a length, are above it.
FRAME_BYTES_LIMIT: Final = 256 * 1024 * 1024
#: The longest header that is written or read. The longest that a client has reason to send holds 32 KiB of
#: properties, six times as long where JSON escapes them. A header of the 16 MiB that its length field allows could have
#: a million fields, and reading them would hold up all other clients for a second.
HEADER_BYTES_MAX: Final = 1024 * 1024
#: Smaller pieces of a frame are gathered in one buffer: each would cost more as an object than its bytes.
_PIECE_BYTES_MIN: Final = 4096

#: As many bytes of a header as tell its code, and who writes headers like this.
_START_BYTES: Final = 16
#: Shapes that a connection knows. A client can begin its headers in any number of ways.
_SHAPES_MAX: Final = 8
#: Sends of a connection that were learnt and could not be read the short way, less those that could, until it is given
#: up: such a send is read twice, and its signature may be checked twice.
MISSES_MAX: Final = 100

#: As many requests as there are.
_ALL: Final = 1 << 30

#: Attempts at a run that bring none, until no more are made with the same read, or with the rest of a run.
RUN_MISSES_MAX: Final = 4
#: Requests of these codes can stay together; signed ones only if they are sends.
SEND_CODES: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)
RUN_CODES: Final = (*SEND_CODES, RequestCode.END_TRANSACTION)
#: How their headers begin then.
_SIGNED_STARTS: Final = tuple(b'{"code":%d,' % code for code in SEND_CODES)
_RUN_STARTS: Final = tuple(b'{"code":%d,' % code for code in RUN_CODES)

_TLS_HANDSHAKE: Final = b"\x16\x03"
TLS_SPOKEN: Final = "the peer speaks TLS, which this port does not; turn TLS off in the client (useTLS, tls.enable)"
_HTTP_STARTS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI ")

_PREFIX: Final = struct.Struct(">II")


class FrameDecoder:
    """Bytes in, requests and responses out."""

    __slots__ = (
        "_access_key",
        "_bytes_max",
        "_codes",
        "_decode",
        "_is_typed",
        "_kept",
        "_misses",
        "_secret",
        "_sends",
        "_shapes",
        "_starts",
        "_wanted_bytes",
        "kept_bytes",
    )

    def __init__(self, *, bytes_max: int = FRAME_BYTES_MAX, typed: bool = True) -> None:
        """If not ``typed``, the headers of requests are maps of all ext fields (``header.give_header``), or those of
        sends that were learnt (``shapes.SignedSend``)."""
        self._bytes_max = bytes_max
        self._is_typed = typed
        self._decode = _decode_header if typed else self._decode_fields
        #: Of the account whose sends were admitted (``wire.shapes``).
        self._access_key = ""
        self._secret: Secret | None = None
        #: Codes of these, and what reads them, where that is compiled.
        self._codes: set[int] = set()
        self._sends: native.SignedSends | None = None
        #: Shapes of requests by the first bytes of their header, and these bytes by the code (``wire.shapes``).
        self._shapes: dict[bytes, Shape] = {}
        self._starts: dict[int, bytes] = {}
        self._misses = 0
        # Pieces of an incomplete frame. They are joined when it is complete, so that a large body is copied once.
        self._kept: list[bytes | bytearray] = []
        #: How much of it has arrived; 0 between two frames.
        self.kept_bytes = 0
        self._wanted_bytes = 0

    @overload
    def feed(self, data: bytes) -> list[Request[Any] | Response]: ...

    @overload
    def feed(self, data: bytes, takes_runs: TakesRuns | None) -> list[Request[Any] | Response | Sends]: ...

    def feed(self, data: bytes, takes_runs: TakesRuns | None = None) -> list[Any]:
        """Return all complete commands; keep the rest for the next call.

        Plain sends that follow each other stay together if ``takes_runs`` says so; it is asked when there are some.
        """
        if self._kept:
            data = self.whole(data)
        commands: list[Any] = []
        tries = RUN_MISSES_MAX if HAS_NATIVE and takes_runs is not None else 0
        run_end = -1
        starts = _RUN_STARTS if self._is_typed else _SIGNED_STARTS
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at >= 8:
            length, header_field = _PREFIX.unpack_from(data, at)
            frame_end = at + 4 + length
            # A send alone costs less than a run of one. What has ended a run does not begin another one.
            if tries and frame_end < end and at != run_end and data.startswith(starts, at + 8):
                assert takes_runs is not None, "there are no tries without it"
                if not takes_runs():
                    tries = 0
                elif (sends := self._run_at(data, at)) is not None:
                    commands.append(sends)
                    at = sends.end
                    run_end = -1 if sends.is_full else at
                    continue
                else:
                    # A client that writes its headers in another way does so in each of them.
                    tries -= 1
            if self._sends is not None:
                before = len(commands)
                # All that follow, if there cannot be a run among them.
                read_to = self._sends.read(data, view, at, self._bytes_max, 1 if tries else _ALL, commands)
                if read_to > at:
                    self._misses = max(0, self._misses + before - len(commands))
                    at = read_to
                    continue
            header_bytes = header_field & 0xFFFFFF
            if length + 4 > self._bytes_max or header_bytes > length - 4 or header_bytes > HEADER_BYTES_MAX:
                raise _refused(data[at : at + 8], length, header_bytes, self._bytes_max)
            if frame_end > end:
                break
            body_at = at + 8 + header_bytes
            # A copy, not a view: a header is short, and the decoders take bytes more quickly.
            header = data[at + 8 : body_at]
            body = view[body_at:frame_end] if body_at < frame_end else NO_BODY
            command = self._decode(header_field >> 24, header, body)
            if command.flag & FLAG_RESPONSE:
                commands.append(_response(command, body))
            else:
                command.body = body
                command.frame_bytes = frame_end - at
                commands.append(command)
            at = frame_end
        if at < end:
            self._keep(data, at, end)
        return commands

    def whole(self, data: bytes) -> bytes:
        """What was read, from the start of a frame on: with what is kept of it. Empty while it is not complete, and
        ``data`` is kept then."""
        if not self._kept:
            return data
        self._append(data)
        if self.kept_bytes < self._wanted_bytes:
            return b""
        data = b"".join(self._kept)
        self._kept.clear()
        self.kept_bytes = 0
        return data

    def _run_at(self, data: bytes, at: int) -> Sends | None:
        """Sends from ``at`` on that can stay together; None if these are not at least two."""
        account = self._sends
        if account is None and not self._is_typed:
            return None  # the sender was not checked
        sends = native.parse_sends(data, at, self._bytes_max, account)
        if sends is None or sends.count == 1:
            return None
        self._misses = max(0, self._misses - sends.count)
        return sends

    def learn(self, code: int, admitted: Admitted) -> None:
        """A send of this code was admitted; expect more of its kind."""
        if self._misses >= MISSES_MAX:
            return
        fields, secret = admitted
        if secret is not self._secret:
            self._access_key, self._secret, self._sends = fields[ACCESS_KEY], secret, None
        # Other texts may have no UTF-8; shapes take them all.
        if HAS_NATIVE and secret.native is not None and self._access_key.isascii():
            if self._sends is not None and code in self._codes:
                return
            self._codes.add(code)
            self._sends = native.SignedSends(
                self._access_key,
                secret.native,
                secret,
                codes=sorted(self._codes),
                body_bytes_max=BODY_BYTES_MAX,
                request_type=Request,
                header_type=SignedSend,
                no_body=NO_BODY,
            )
            return
        start = self._starts.get(code)
        if start is not None and (shape := shape_of(code, fields)) is not None:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[start] = shape
            self._codes.add(code)

    def _decode_fields(self, form: int, header: bytes, body: Buffer) -> Request[Any]:
        if form == JSON:
            shape = self._shapes.get(header[:_START_BYTES])
            if shape is not None and self._secret is not None and len(body) <= BODY_BYTES_MAX:
                command = shape.read(header, body, self._access_key, self._secret)
                if command is not None:
                    if self._misses:
                        self._misses -= 1
                    return command
        elif form != BINARY:
            raise RemoteProtocolError(f"unknown header form {form}; this port speaks RocketMQ's remoting protocol")
        command = decode_untyped(header, form)
        command.serial = form
        if form == JSON and command.code in TOPIC_FIELDS:
            self._starts[command.code] = header[:_START_BYTES]
            if command.code in self._codes and len(body) <= BODY_BYTES_MAX and self._misses < MISSES_MAX:
                self._misses += 1
                if self._misses == MISSES_MAX:
                    self._sends = None
                    self._shapes.clear()
        return command

    def _keep(self, data: bytes, at: int, end: int) -> None:
        rest = data[at:] if at else data
        self._kept.append(rest)
        self.kept_bytes = end - at
        # First enough for the lengths, then enough for the whole frame.
        self._wanted_bytes = 8 if self.kept_bytes < 8 else 4 + int.from_bytes(rest[:4], "big")

    def _append(self, data: bytes) -> None:
        self.kept_bytes += len(data)
        last = self._kept[-1]
        if len(data) >= _PIECE_BYTES_MIN:
            self._kept.append(data)
        elif type(last) is bytearray:
            last += data
        else:
            self._kept.append(bytearray(data))


def request_in(sends: Sends, number: int) -> Request[Any]:
    """One send of a run, as it would be alone."""
    begin, end = sends.frame(number)
    data, view = sends.data, memoryview(sends.data)
    account = sends.account
    if account is not None:
        requests_in: list[Request[Any]] = []
        account.read(data, view, begin, end - begin, 1, requests_in)
        if requests_in:
            return requests_in[0]
    body_at = begin + 8 + int.from_bytes(data[begin + 4 : begin + 8], "big")
    header = data[begin + 8 : body_at]
    request = _decode_header(JSON, header) if account is None else decode_untyped(header, JSON)
    request.body = view[body_at:end] if body_at < end else NO_BODY
    request.frame_bytes = end - begin
    return request


def response_at(data: bytearray, at: int, end: int) -> tuple[Response | None, int]:
    """The response whose frame begins at ``at``, and the end of the frame; None while ``data`` ends before it.

    For callers that read into their own buffer: the body is a view of that buffer, without a copy.
    """
    if end - at < 8:
        return None, at + 8
    length, header_field = _PREFIX.unpack_from(data, at)
    frame_end = at + 4 + length
    header_bytes = header_field & 0xFFFFFF
    if length + 4 > FRAME_BYTES_LIMIT or header_bytes > length - 4 or header_bytes > HEADER_BYTES_MAX:
        raise _refused(bytes(data[at : at + 8]), length, header_bytes, FRAME_BYTES_LIMIT)
    if frame_end > end:
        return None, frame_end
    view = memoryview(data)
    body_at = at + 8 + header_bytes
    command = _decode_header(header_field >> 24, bytes(view[at + 8 : body_at]))
    if not command.flag & FLAG_RESPONSE:
        raise RemoteProtocolError(f"received a request of code {command.code} where only responses are expected")
    return _response(command, view[body_at:frame_end]), frame_end


def _decode_header(form: int, header: bytes, _body: Buffer = b"") -> Request[Any]:
    if form == JSON:
        command = decode_json(header)
    elif form == BINARY:
        command = decode_binary(header)
    else:
        raise RemoteProtocolError(f"unknown header form {form}; this port speaks RocketMQ's remoting protocol")
    command.serial = form
    return command


def _response(command: Request[Any], body: memoryview) -> Response:
    return Response(command.code, command.opaque, command.remark, command.header or {}, body, command.version)


def speaks_tls(start: bytes) -> bool:
    """Whether the first bytes of a plain connection are those of a TLS handshake; say ``TLS_SPOKEN`` then."""
    return start.startswith(_TLS_HANDSHAKE)


def _refused(start: bytes, length: int, header_bytes: int, bytes_max: int) -> RemoteProtocolError:
    """The error for eight bytes that cannot be the start of a frame."""
    if speaks_tls(start):
        return RemoteProtocolError(TLS_SPOKEN)
    if start.startswith(_HTTP_STARTS):
        return RemoteProtocolError("the peer speaks HTTP; this port speaks RocketMQ's remoting protocol only")
    if length + 4 > bytes_max:
        return RemoteProtocolError(
            f"a frame of {length + 4} bytes is larger than the {bytes_max} allowed; send smaller messages, raise "
            "frameMaxLength, or check that the peer speaks RocketMQ's remoting protocol"
        )
    if header_bytes > length - 4:
        return RemoteProtocolError(f"a header of {header_bytes} bytes does not fit its frame of {length + 4}")
    return RemoteProtocolError(
        f"a header of {header_bytes} bytes is larger than the {HEADER_BYTES_MAX} allowed; send fewer or shorter fields"
    )


def encode_request(
    code: int,
    header: Header | None = None,
    body: Buffer = b"",
    *,
    opaque: int,
    oneway: bool = False,
    form: int = JSON,
    more_fields: Fields | None = None,
    credentials: Credentials | None = None,
    bytes_max: int = FRAME_BYTES_MAX,
) -> list[Buffer]:
    """The buffers of one request, to be written one after the other; signed, if there are ``credentials``.

    Raises ``LocalProtocolError`` if the frame has more than ``bytes_max`` bytes.
    """
    fields = header.to_fields() if header is not None else {}
    if more_fields:
        fields |= more_fields
    if credentials is not None:
        credentials.sign(fields, body)
    encode = encode_binary if form == BINARY else encode_json
    head = encode(code, fields, opaque=opaque, flag=FLAG_ONEWAY if oneway else 0)
    return frame(head, form, body, bytes_max)


def encode_reply(request: Request[Any], reply: Reply, *, bytes_max: int = FRAME_BYTES_MAX) -> list[Buffer]:
    """The buffers of the response to ``request``, in the header form of the request. Raises as ``encode_request``."""
    if reply.frame:
        return [reply.frame]
    fields = reply.header.to_fields() if reply.header is not None else {}
    encode = encode_binary if request.serial == BINARY else encode_json
    if reply.header is None and reply.code != Reply.SUCCESS:
        fields = requests.ERROR_FIELDS.get(request.code, fields)
    head = encode(reply.code, fields, opaque=request.opaque, flag=FLAG_RESPONSE, remark=reply.remark)
    return frame(head, request.serial, reply.body, bytes_max)


def frame(head: bytes, form: int, body: Buffer | list[memoryview], bytes_max: int = FRAME_BYTES_MAX) -> list[Buffer]:
    """The buffers of one frame with an encoded header. Raises ``LocalProtocolError`` if it is too large."""
    head_bytes = len(head)
    body_bytes = sum(map(len, body)) if isinstance(body, list) else len(body)
    length = 4 + head_bytes + body_bytes
    if head_bytes > HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"a header of {head_bytes} bytes is larger than the {HEADER_BYTES_MAX} allowed; use fewer or shorter fields"
        )
    if length + 4 > bytes_max:
        raise LocalProtocolError(
            f"a frame of {length + 4} bytes is larger than the {bytes_max} allowed; ask for less or send less at once, "
            "or raise frameMaxLength of the server"
        )
    start = _PREFIX.pack(length, form << 24 | head_bytes) + head
    if not body_bytes:
        return [start]
    return [start, *body] if isinstance(body, list) else [start, body]
