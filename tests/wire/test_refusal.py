"""Sends that are refused before they are decoded."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.kernels import HAS_NATIVE
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Response
from ternmq.wire.refusal import SEND_BYTES_MIN, SendRefusal
from ternmq.wire.requests import SendMessage, SendMessageV2

REFUSAL = SendRefusal("[OVERLOAD]system busy, start flow control for a while")
BYTES_MAX = 1 << 20


def send(opaque: int, *, oneway: bool = False, code: int = RequestCode.SEND_MESSAGE_V2, form: int = 0) -> bytes:
    header = SendMessageV2 if code != RequestCode.SEND_MESSAGE else SendMessage
    fields = header(producer_group="g", topic="orders", queue_id=0, properties='KEYS\x01"opaque":9,\x02')
    return b"".join(encode_request(code, fields, b"body", opaque=opaque, oneway=oneway, form=form))


def heartbeat(opaque: int) -> bytes:
    return b"".join(encode_request(RequestCode.HEART_BEAT, None, b"{}", opaque=opaque))


def raw(header: bytes) -> bytes:
    return struct.pack(">II", len(header) + 4, len(header)) + header


def split(data: bytes, room: int) -> tuple[bytes, bytes, int]:
    """By both versions, which must agree."""
    found = REFUSAL.split_python(data, room, BYTES_MAX)
    assert found == REFUSAL.split(data, room, BYTES_MAX)
    return found


def opaques(replies: bytes) -> list[int]:
    found = FrameDecoder().feed(replies)
    for reply in found:
        assert isinstance(reply, Response)
        assert (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while") == (
            reply.code,
            reply.remark,
        )
    return [reply.opaque for reply in found]


def test_sends_beyond_the_room_are_refused_and_all_else_is_left() -> None:
    """M1"""
    batch, old = send(5, code=RequestCode.SEND_BATCH_MESSAGE), send(6, code=RequestCode.SEND_MESSAGE)
    data = send(1) + heartbeat(2) + send(3) + batch + old + send(7)[:30]

    left, replies, count = split(data, 1)

    assert (send(1) + heartbeat(2) + send(7)[:30], 3) == (left, count)
    assert [3, 5, 6] == opaques(replies)


def test_a_one_way_send_is_refused_without_a_reply() -> None:
    """M1, B2"""
    assert (b"", b"", 1) == split(send(1, oneway=True), 0)


def test_no_send_is_shorter_than_the_rule_says() -> None:
    """M1: a short read is looked at as soon as it could hold too many sends."""
    assert len(raw(b'{"code":310,"extFields":{"a":"g","b":"t","e":"0"},"flag":0,"opaque":1}')) >= SEND_BYTES_MIN


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":310,"extFields":{"opaque":5},"flag":0,"opaque":7}',
        b'{"code":310,"extFields":{"flag":0,"x":1},"flag":0,"opaque":7}',
        b'{"code":310,"flag":0,"opaque":-7}',
        b'{"code":310,"flag":0,"opaque":"7"}',
        b'{"code":310,"flag":1,"opaque":7}',
        b'{"code":310,"opaque":7}',
        b'{"code":310,"flag":0,"opaque":12345678901}',
        b'{"flag":0,"code":310,"opaque":7}',
    ],
)
def test_what_is_not_plain_takes_the_usual_way(header: bytes) -> None:
    """B1"""
    assert (raw(header), b"", 0) == split(raw(header), 0)


def test_a_binary_header_takes_the_usual_way() -> None:
    """B1"""
    data = send(1, form=BINARY)
    assert (data, b"", 0) == split(data, 0)


def test_nothing_behind_a_frame_that_cannot_be_is_touched() -> None:
    """B5: the decoder refuses the frame."""
    broken = struct.pack(">II", 4, 100) + send(1)
    assert (broken, b"", 0) == split(broken, 0)


@given(st.lists(st.sampled_from([send(1), send(22, oneway=True), heartbeat(3), b"\0\0\0\x04\0\0\0\0"])), st.data())
def test_any_cut_gives_the_same_replies(frames: list[bytes], data: st.DataObject) -> None:
    """B1, M1: what is left, with the rest of the read, is what a whole read would have left."""
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))

    first, replies, count = split(whole[:cut], 0)
    second, more, others = split(first + whole[cut:], 0)

    assert split(whole, 0) == (second, replies + more, count + others)


@pytest.mark.skipif(not HAS_NATIVE, reason="there is no kernel")
@given(st.binary(max_size=200), st.integers(-1, 3))
def test_the_kernel_leaves_what_python_leaves(text: bytes, room: int) -> None:
    """B1: any bytes."""
    split(text, room)
    split(send(1) + text, room)
    split(raw(b'{"code":310,' + text), room)
