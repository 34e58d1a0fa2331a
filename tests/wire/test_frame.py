"""Frames: real ones, and what is none."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.wire import requests as wire_requests
from ternmq.wire.codes import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, JSON
from ternmq.wire.frame import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX, FrameDecoder, encode_reply, encode_request
from ternmq.wire.header import Reply, Request, Response
from tests.wire.recorded import Recorded, frames

Command = Request[Any] | Response

SENT = wire_requests.QueueBounds(topic="t", queue_id=3)


def of_a_connection(frame: Recorded) -> tuple[str, int, str]:
    return frame.version, frame.connection, frame.to


STREAMS = {key: list(stream) for key, stream in groupby(sorted(frames(), key=of_a_connection), key=of_a_connection)}


def identity(command: Command) -> tuple[int, int, bytes]:
    return command.code, command.opaque, bytes(command.body)


def expected(stream: list[Recorded]) -> list[tuple[int, int, bytes]]:
    return [(frame.code, frame.opaque, frame.body) for frame in stream]


def test_whole_connections_decode() -> None:
    """B1"""
    for stream in STREAMS.values():
        commands = FrameDecoder().feed(b"".join(frame.data for frame in stream))
        assert expected(stream) == list(map(identity, commands))


def test_connections_decode_byte_by_byte() -> None:
    """B1"""
    for stream in STREAMS.values():
        decoder = FrameDecoder()
        data = b"".join(frame.data for frame in stream)
        commands = [command for at in range(len(data)) for command in decoder.feed(data[at : at + 1])]
        assert expected(stream) == list(map(identity, commands))


def test_bytes_of_the_next_frame_wait_for_the_rest() -> None:
    """B1"""
    for stream in STREAMS.values():
        *before, last = stream
        for kept_bytes in (1, 7, 8, len(last.data) - 1):
            decoder = FrameDecoder()
            first = decoder.feed(b"".join(frame.data for frame in before) + last.data[:kept_bytes])
            assert expected(before) == list(map(identity, first))
            assert expected([last]) == list(map(identity, decoder.feed(last.data[kept_bytes:])))


@given(st.data())
def test_frames_may_come_in_any_pieces(data: st.DataObject) -> None:
    """B1"""
    stream = data.draw(st.sampled_from(sorted(STREAMS.values(), key=len)[:40]))
    whole = b"".join(frame.data for frame in stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    decoder = FrameDecoder()
    commands = [
        command
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for command in decoder.feed(whole[start:end])
    ]
    assert expected(stream) == list(map(identity, commands))


@given(st.data())
def test_a_changed_byte_gives_a_frame_or_a_protocol_error(data: st.DataObject) -> None:
    """B5"""
    frame = data.draw(st.sampled_from(frames()))
    changed = bytearray(frame.data)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RemoteProtocolError):
        FrameDecoder().feed(bytes(changed))


@given(st.binary(max_size=200))
def test_garbage_gives_a_protocol_error_or_waits(data: bytes) -> None:
    """B5"""
    with suppress(RemoteProtocolError):
        FrameDecoder().feed(data)


@pytest.mark.parametrize(
    ("start", "complaint"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the peer speaks HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the peer speaks HTTP"),
        (bytes.fromhex("160301020001 0001fc0303"), "the peer speaks TLS, which this port does not; turn TLS off"),
        (bytes.fromhex("7fffffff 0000000a"), "2147483651 bytes is larger than the 16777216 allowed"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}", "a header of 5 bytes does not fit its frame of 12"),
        (b"\x00\x00\x00\x02\x00\x00\x00\x00", "a header of 0 bytes does not fit its frame of 6"),
        (b"\x00\xbf\x00\x00\x00\x10\x00\x01{", "a header of 1048577 bytes is larger than the 1048576 allowed"),
        (b"\x00\x00\x00\x06\x02\x00\x00\x02{}", "unknown header form 2"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02{}", "missing required field `code`"),
        (b"\x00\x00\x00\x06\x01\x00\x00\x02{}", "the binary header cannot be read"),
    ],
)
def test_what_is_no_frame_is_refused_with_the_reason(start: bytes, complaint: str) -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match=complaint):
        FrameDecoder().feed(start)


def test_an_oversized_frame_is_refused_before_its_body_arrives() -> None:
    """B5"""
    decoder = FrameDecoder(bytes_max=1000)
    with pytest.raises(RemoteProtocolError, match="1004 bytes is larger than the 1000 allowed"):
        decoder.feed((1000).to_bytes(4, "big") + b"\x00\x00\x00\x10")


def test_a_frame_in_tiny_pieces_takes_the_memory_of_its_bytes() -> None:
    """Issue 13, point 6: a frame sent two bytes at a time would take forty for each as objects of their own."""
    data = b"".join(encode_request(30, SENT, bytes(200_000), opaque=7))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(0, len(data) - 2, 2):
            assert not decoder.feed(data[at : at + 2])
        assert decoder.kept_bytes > 200_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    (request,) = decoder.feed(data[decoder.kept_bytes :])
    assert 200_000 == len(request.body)
    assert 0 == decoder.kept_bytes
    assert peak_bytes < 1_000_000


def test_a_larger_limit_lets_larger_frames_through_both_ways() -> None:
    """Issue 13, point 14: maxMessageSize above 16 MiB."""
    body = bytes(FRAME_BYTES_MAX)
    data = b"".join(encode_request(10, body=body, opaque=1, bytes_max=FRAME_BYTES_LIMIT))
    (request,) = FrameDecoder(bytes_max=FRAME_BYTES_LIMIT).feed(data)
    assert isinstance(request, Request)
    assert len(body) == len(request.body)
    with pytest.raises(LocalProtocolError, match="larger than the 16777216 allowed"):
        encode_reply(request, Reply(body=body))
    assert encode_reply(request, Reply(body=body), bytes_max=FRAME_BYTES_LIMIT)


def test_a_header_nested_without_end_is_refused() -> None:
    """B5: neither Python's stack nor msgspec's gives in."""
    head = b'{"code":10,"extFields":' + b"[" * 100_000
    frame = (4 + len(head)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head
    with pytest.raises(RemoteProtocolError, match="not a JSON object"):
        FrameDecoder().feed(frame)


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_a_request_arrives_as_it_was_sent(form: int) -> None:
    """B1"""
    buffers = encode_request(30, SENT, b"body", opaque=7, form=form, more_fields={"extra": "1"})
    (request,) = FrameDecoder().feed(b"".join(buffers))
    assert isinstance(request, Request)
    assert (30, 7, 0, form, b"body") == (
        request.code,
        request.opaque,
        request.flag,
        request.serial,
        bytes(request.body),
    )
    assert SENT == request.header
    assert "PYTHON" == request.language_name


def test_a_one_way_request_says_so() -> None:
    """B2"""
    (request,) = FrameDecoder().feed(b"".join(encode_request(15, opaque=1, oneway=True)))
    assert isinstance(request, Request)
    assert FLAG_ONEWAY == request.flag
    assert request.oneway


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_a_reply_comes_in_the_form_of_the_request(form: int) -> None:
    """B1"""
    (request,) = FrameDecoder().feed(b"".join(encode_request(30, SENT, opaque=9, form=form)))
    assert isinstance(request, Request)
    reply = Reply(0, header=wire_requests.OffsetReply(queue_offset=12), remark="fine", body=b"xyz")
    data = b"".join(encode_reply(request, reply))
    assert form == data[4]
    (response,) = FrameDecoder().feed(data)
    assert isinstance(response, Response)
    assert (0, 9, "fine", b"xyz") == (response.code, response.opaque, response.remark, bytes(response.body))
    assert wire_requests.OffsetReply(queue_offset=12) == response.read(wire_requests.OffsetReply)


def test_a_body_of_many_buffers_is_written_piece_by_piece() -> None:
    """F3: records go from the log to the socket as they are."""
    request: Request[Any] = Request(code=11, opaque=1)
    pieces = [memoryview(b"ab"), memoryview(b"cd")]
    buffers = encode_reply(request, Reply(0, body=pieces))
    assert pieces == buffers[1:]
    (response,) = FrameDecoder().feed(b"".join(buffers))
    assert b"abcd" == bytes(response.body)


def test_an_empty_body_is_no_body() -> None:
    """B1"""
    request: Request[Any] = Request(code=11, opaque=1)
    assert 1 == len(encode_reply(request, Reply(0, body=[])))
    (response,) = FrameDecoder().feed(b"".join(encode_reply(request, Reply(0))))
    assert b"" == bytes(response.body)


def test_a_frame_too_large_is_not_sent() -> None:
    """B5"""
    with pytest.raises(LocalProtocolError, match="larger than the 16777216 allowed"):
        encode_request(10, body=bytes(FRAME_BYTES_MAX), opaque=1)


def test_a_json_reply_has_all_that_clients_look_for() -> None:
    """V1: a version of 0 keeps SQL consumers of Java from starting; Go takes ext values of text alone."""
    request: Request[Any] = Request(code=310, opaque=5)
    header = wire_requests.SendReply(message_id="A", queue_id=1, queue_offset=2)
    data = b"".join(encode_reply(request, Reply(0, header=header)))
    assert {
        "code": 0,
        "extFields": {
            "msgId": "A",
            "queueId": "1",
            "queueOffset": "2",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        },
        "flag": FLAG_RESPONSE,
        "language": "PYTHON",
        "opaque": 5,
        "serializeTypeCurrentRPC": "JSON",
        "version": 401,
    } == json.loads(data[8:])


def test_a_body_is_a_view_of_the_bytes_read() -> None:
    """Nothing is copied between the read and the store."""
    data = b"".join(encode_request(310, body=b"hello", opaque=1))
    (request,) = FrameDecoder().feed(data)
    assert data is request.body.obj
