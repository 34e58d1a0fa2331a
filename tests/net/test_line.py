"""A thread's own connection: one call at a time, with all that another end can do to it (B2, B5, P4)."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import pytest

from ternmq.errors import CallTimeout, MachineSilent, NetworkError
from ternmq.kernels import HAS_NATIVE
from ternmq.net import line as line_module
from ternmq.net.endpoint import dial_blocking
from ternmq.net.line import FRAME_BYTES_MAX, CallLine
from ternmq.wire.codes import FLAG_RESPONSE, JSON, RequestCode
from ternmq.wire.frame import encode_request, frame
from ternmq.wire.header import Response, encode_json
from tests.auth.certificates import Certificates

#: Far beyond what anything here takes, also on a busy machine.
LONG_S: Final = 60.0
STORED: Final = {"msgId": "0A", "queueId": "3", "queueOffset": "7"}

#: What the other end does with a connection.
Script = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "dev")


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, certificates: Certificates) -> Certificates | None:
    return certificates if request.param == "tls" else None


@pytest.fixture(params=["kernels", "python"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is read in both ways."""
    if request.param == "python":
        monkeypatch.setattr(line_module, "HAS_NATIVE", False)
    elif not HAS_NATIVE:
        pytest.skip("the compiled kernels are not installed")


@contextmanager
def line_to(
    script: Script, tls: Certificates | None = None, now: Callable[[], float] = time.monotonic
) -> Iterator[CallLine]:
    """A line whose other end follows a script, in a thread, and closes then."""
    ended: Future[None] = Future()

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            if tls is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(tls / "server.pem", tls / "server.key")
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                script(connection)
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        context = None if tls is None else tls.client().context()
        line = CallLine(address, dial_blocking(address, context, is_watched=True), now)
        stack.callback(line.close)
        yield line
        line.close()
        ended.result(LONG_S)


def answer(opaque: int, code: int = 0, fields: dict[str, str] = STORED) -> bytes:
    return b"".join(frame(encode_json(code, fields, opaque=opaque, flag=FLAG_RESPONSE), JSON, b""))


def request(opaque: int, body: bytes = b"x") -> list[Any]:
    return encode_request(RequestCode.HEART_BEAT, None, body, opaque=opaque)


def read_request(connection: socket.socket) -> int:
    """Read a request; returns how many bytes it has."""
    with connection.makefile("rb") as reader:
        length = struct.unpack(">I", reader.read(4))[0]
        return len(reader.read(length)) + 4


def call(line: CallLine, body: bytes = b"x", *, until: float | None = None) -> tuple[int, int]:
    """Make a call; returns its number and the queue offset in the answer."""
    opaque = line.next_opaque()
    found = line.call(opaque, request(opaque, body), time.monotonic() + LONG_S if until is None else until)
    return opaque, int((found.fields or {})["queueOffset"]) if isinstance(found, Response) else found[3]


def wait_readable(line: CallLine) -> None:
    assert line._readable.poll(LONG_S * 1_000)


@pytest.mark.usefixtures("_reader")
def test_calls_get_their_answers_one_after_the_other(tls: Certificates | None) -> None:
    """B2: also with what TLS sends by itself."""

    def serve(connection: socket.socket) -> None:
        for opaque in (1, 2, 3):
            read_request(connection)
            connection.sendall(answer(opaque))

    with line_to(serve, tls) as line:
        assert line.is_quiet()
        assert [(1, 7), (2, 7), (3, 7)] == [call(line) for _ in range(3)]
        assert line.has_answered


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("piece", [1, 7, 64])
def test_an_answer_may_come_in_any_pieces(tls: Certificates | None, piece: int) -> None:
    """B1."""

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = answer(1)
        for at in range(0, len(whole), piece):
            connection.sendall(whole[at : at + piece])

    with line_to(serve, tls) as line:
        assert (1, 7) == call(line)


@pytest.mark.usefixtures("_reader")
def test_what_is_not_the_answer_is_dropped(tls: Certificates | None) -> None:
    """A late answer, one to nothing, and requests of the other side; what comes with the answer, too."""
    strange = b"".join(
        (
            answer(77),
            b"".join(encode_request(RequestCode.CHECK_TRANSACTION_STATE, None, b"half", opaque=1, oneway=True)),
            b"".join(encode_request(9_999, None, b"", opaque=2)),
            answer(78, code=1, fields={}),
        )
    )

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(strange + answer(1) + strange)
        read_request(connection)
        connection.sendall(strange[:1000])
        connection.sendall(strange[1000:] + answer(2))

    with line_to(serve, tls) as line:
        assert [(1, 7), (2, 7)] == [call(line), call(line)]


@pytest.mark.usefixtures("_reader")
def test_a_refusal_is_an_answer() -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(1, code=2, fields={}))

    with line_to(serve) as line:
        found = line.call(line.next_opaque(), request(1), time.monotonic() + LONG_S)
    assert isinstance(found, Response)
    assert 2 == found.code


def test_a_large_request_is_written_as_the_other_end_reads(tls: Certificates | None) -> None:
    """E1: more than the buffers of the kernels hold."""
    body = bytes(range(256)) * (32 << 10)
    sizes: list[int] = []

    def serve(connection: socket.socket) -> None:
        sizes.append(read_request(connection))
        connection.sendall(answer(1))

    with line_to(serve, tls) as line:
        assert (1, 7) == call(line, body)
    assert [sum(map(len, request(1, body)))] == sizes


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">II", FRAME_BYTES_MAX, 10),
        struct.pack(">II", 0xFFFFFFFF, 10),
        struct.pack(">II", 14, 100) + bytes(10),
        struct.pack(">II", 14, 10) + b"{damaged!}",
        struct.pack(">II", 14, 7 << 24 | 10) + b"0123456789",
        # Behind the answer: then it does not count either, as on the loop.
        answer(1) + b"HTTP/1.1 ",
    ],
    ids=["http", "tls", "too-large", "huge", "long-header", "no-json", "form", "behind"],
)
def test_what_breaks_the_protocol_ends_the_call(said: bytes) -> None:
    """B5: at once, and not with memory for what is only announced."""

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(said)
        with suppress(ConnectionError):
            connection.recv(1)

    with line_to(serve) as line:
        with pytest.raises(NetworkError, match=r"the connection to 127\.0\.0\.1:\d+ was lost: ") as caught:
            call(line)
        assert type(caught.value) is NetworkError


@pytest.mark.parametrize("before", [0, 10], ids=["at-once", "within-the-answer"])
def test_the_end_of_the_connection_ends_the_call(tls: Certificates | None, before: int) -> None:
    """B2."""

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(1)[:before])

    with line_to(serve, tls) as line, pytest.raises(NetworkError, match="was lost") as caught:
        call(line)
    assert not isinstance(caught.value, CallTimeout | MachineSilent)


def test_a_reset_ends_the_call() -> None:
    """B2: as a killed broker whose buffers were not empty does it."""

    def serve(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with line_to(serve) as line, pytest.raises(NetworkError, match="was lost"):
        call(line)


def test_a_call_that_is_not_answered_ends_with_its_time(tls: Certificates | None) -> None:
    """E1."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        over.wait(LONG_S)

    # The time goes on while the thread waits.
    moments = itertools.chain([0.0, 10.0], itertools.repeat(100.0))
    with line_to(serve, tls, lambda: next(moments)) as line:
        with pytest.raises(CallTimeout):
            call(line, until=60.0)
        over.set()


def test_a_request_that_is_not_read_ends_with_its_time(tls: Certificates | None) -> None:
    """E1: the broker may have more than it can take."""
    over = threading.Event()
    clock = itertools.count(0.0, 5.0)

    def serve(_: socket.socket) -> None:
        over.wait(LONG_S)

    with line_to(serve, tls, lambda: next(clock)) as line:
        with pytest.raises(CallTimeout):
            call(line, bytes(15 << 20), until=60.0)
        over.set()


@pytest.mark.usefixtures("_reader")
def test_a_stream_of_other_answers_ends_with_the_time_of_the_call(tls: Certificates | None) -> None:
    """B5: a broker that never stops cannot hold a caller."""

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        with suppress(OSError):
            while True:
                connection.sendall(answer(99))

    clock = itertools.count(0.0, 0.5)
    with line_to(serve, tls, lambda: next(clock)) as line, pytest.raises(CallTimeout):
        call(line, until=60.0)


def test_a_line_is_not_quiet_when_something_has_come(tls: Certificates | None) -> None:
    """What was not asked for, an answer that is late, the end: then it is not used for another call."""

    answered = threading.Event()

    def begin_another(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(1) + answer(2)[:20])
        with suppress(OSError):
            connection.recv(1)

    def give_another(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(1))
        answered.wait(LONG_S)
        connection.sendall(answer(2))
        with suppress(OSError):
            connection.recv(1)

    def leave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(1))

    for script in (begin_another, give_another, leave):
        answered.clear()
        with line_to(script, tls) as line:
            call(line)
            answered.set()
            # A part of another answer may have come with the one that was asked for.
            while line.is_quiet():
                wait_readable(line)


def test_another_thread_can_end_a_call(tls: Certificates | None) -> None:
    """E1: the client is closed while a thread of it waits."""
    asked = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        asked.set()
        with suppress(OSError):
            connection.recv(1)

    with line_to(serve, tls) as line:

        def end() -> None:
            asked.wait(LONG_S)
            line.shut()

        other = threading.Thread(target=end)
        other.start()
        with pytest.raises(NetworkError, match="was lost"):
            call(line)
        other.join(LONG_S)
        line.close()
        line.shut()


def test_a_closed_line_is_closed_for_processes_that_have_it_too() -> None:
    """A fork has the socket, too: closing alone would leave the connection open as long as the child runs."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        assert not connection.recv(1)
        ended.set()

    with line_to(serve) as line:
        held = line._socket.dup()
        line.close()
        assert ended.wait(LONG_S)
        held.close()
