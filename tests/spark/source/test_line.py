"""A line: answers in any order and any pieces, looked at where they fell (U1)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import CallTimeout, NetworkError
from ternmq.spark.source.line import BrokerLine, LineResponse
from ternmq.wire.codes import JSON, RequestCode
from ternmq.wire.frame import FrameDecoder, encode_reply, encode_request
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PullMessage

HEADER = PullMessage(
    consumer_group="tests", topic="orders", queue_id=0, queue_offset=0, count_max=32, sysflag=4, subscription="*"
)


@contextmanager
def broker(answer: Callable[[socket.socket, list[Request[PullMessage]]], None], *, requests: int) -> Iterator[str]:
    """A socket on which ``answer`` is called once so many requests have come; its address."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            decoder = FrameDecoder()
            got: list[Any] = []
            while len(got) < requests and (data := connection.recv(65_536)):
                got += decoder.feed(data)
            answer(connection, got)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


def line_to(address: str, *, room_bytes: int = 4_096, timeout_ms: int = 5_000) -> closing[BrokerLine]:
    return closing(BrokerLine(address, form=JSON, room_bytes=room_bytes, timeout_ms=timeout_ms))


def frame(request: Request[PullMessage], body: bytes) -> bytes:
    return b"".join(encode_reply(request, Reply(0, body=body)))


def ask(line: BrokerLine, count: int) -> range:
    """Send so many requests; their numbers."""
    last = line.ask(RequestCode.PULL_MESSAGE, [HEADER] * count)
    return range(last + 1 - count, last + 1)


def body_of(line: BrokerLine, answer: LineResponse) -> bytes:
    return bytes(line.data[answer.begin : answer.end])


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_answers_in_any_order_are_found_by_their_number(order: tuple[int, ...]) -> None:
    """U1"""
    bodies = [b"a" * 700, b"b" * 1_300, b"c" * 5_000]

    def answer(connection: socket.socket, requests: list[Request[PullMessage]]) -> None:
        connection.sendall(b"".join(frame(requests[number], bodies[number]) for number in order))

    with broker(answer, requests=3) as address, line_to(address) as line:
        for number, body in zip(ask(line, 3), bodies, strict=True):
            line.turn()
            assert body == body_of(line, line.answer(number))


@given(sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=30), piece=st.integers(1, 4_000))
def test_frames_in_any_pieces_stay_where_they_fell_until_the_next_turn(sizes: list[int], piece: int) -> None:
    """U1: the room is smaller than most rounds, so it grows in the middle of them."""
    bodies = [bytes([number % 256]) * size for number, size in enumerate(sizes)]

    def answer(connection: socket.socket, requests: list[Request[PullMessage]]) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b"".join(map(frame, requests, bodies))
        for at in range(0, len(data), piece):
            connection.sendall(data[at : at + piece])

    with broker(answer, requests=len(sizes)) as address, line_to(address, room_bytes=100) as line:
        numbers = ask(line, len(sizes))
        found: list[bytes] = []
        for begin in range(0, len(numbers), 4):
            line.turn()
            answers = [line.answer(number) for number in numbers[begin : begin + 4]]
            found += [body_of(line, answer) for answer in answers]

    assert bodies == found


def test_answers_that_nobody_asks_for_any_more_are_passed_over() -> None:
    """U1: after a wrong guess"""

    def answer(connection: socket.socket, requests: list[Request[PullMessage]]) -> None:
        connection.sendall(b"".join(frame(requests[number], b"%d" % number) for number in (2, 1, 0, 3)))

    with broker(answer, requests=4) as address, line_to(address) as line:
        first, *_, last = ask(line, 4)
        assert b"0" == body_of(line, line.answer(first))
        assert b"3" == body_of(line, line.answer(last))


def test_whatever_breaks_a_line_is_one_sentence() -> None:
    """U1"""

    def cut(connection: socket.socket, requests: list[Request[PullMessage]]) -> None:
        connection.sendall(frame(requests[0], b"x" * 1_000)[:-1])

    def babble(connection: socket.socket, _: list[Request[PullMessage]]) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def call(connection: socket.socket, _: list[Request[PullMessage]]) -> None:
        connection.sendall(b"".join(encode_request(RequestCode.PULL_MESSAGE, HEADER, opaque=1)))

    for answer, sentence in (
        (cut, r"the connection to 127\.0\.0\.1:\d+ was lost$"),
        (babble, r"127\.0\.0\.1:\d+ broke the protocol: a frame of \d+ bytes is larger"),
        (call, r"broke the protocol: received a request of code 11 where only responses are expected"),
    ):
        with broker(answer, requests=1) as address, line_to(address) as line:
            (number,) = ask(line, 1)
            with pytest.raises(NetworkError, match=sentence):
                line.answer(number)


def test_a_silent_broker_is_not_waited_for_for_ever() -> None:
    """U1"""
    end = threading.Event()

    def wait(_: socket.socket, __: list[Request[PullMessage]]) -> None:
        end.wait(30)

    with broker(wait, requests=1) as address, line_to(address, timeout_ms=50) as line:
        (number,) = ask(line, 1)
        with pytest.raises(CallTimeout, match="was silent for 50 ms"):
            line.answer(number)
        end.set()


def test_nobody_there_is_one_sentence() -> None:
    """U1"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NetworkError, match=rf"cannot connect to 127\.0\.0\.1:{port}: Connection refused"):
        line_to(f"127.0.0.1:{port}")
