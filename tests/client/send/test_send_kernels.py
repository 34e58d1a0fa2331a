"""Kernels of sends do what the Python version does, byte for byte, or leave it to that (E1, B1; issue 21)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.client.send import outgoing as outgoing_module
from ternmq.client.send.outgoing import Outgoing, SendHeads, prepare, prepare_batch
from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Message, MessageQueue, SendReceipt
from ternmq.net.callers import SendCaller
from ternmq.wire.codes import FLAG_RESPONSE, JSON
from ternmq.wire.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameDecoder, frame
from ternmq.wire.header import Response, encode_json
from tests.manual_clock import ManualClock

#: Without a Rust compiler there is nothing to compare; `script/test` has one, and asks for it (TERNMQ_NATIVE=require).
pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

QUEUE = MessageQueue("orders", "broker-a", 3)


class Waiting(SendCaller):
    """A send that waits for its answer."""


# --- Requests ---------------------------------------------------------------------------------------------------------


def heads() -> SendHeads:
    return SendHeads("shop%g", clock=ManualClock(), form=JSON, default_topic_queue_nums=8, unit_mode=False)


def requests(
    outgoing: Outgoing, queue_id: int, opaque: int, monkeypatch: pytest.MonkeyPatch, frame_bytes_max: int
) -> list[bytes | str]:
    """What each version makes of a send, or the error that it raises: Python's, and the kernel's."""
    made: list[bytes | str] = []
    for has_native in (False, True):
        ours = heads()
        ours.encode(outgoing, queue_id, opaque=opaque)  # the first one makes the template
        with monkeypatch.context() as patched:
            patched.setattr(outgoing_module, "HAS_NATIVE", has_native)
            try:
                made.append(b"".join(ours.request(outgoing, queue_id, opaque, False, frame_bytes_max)))
            except LocalProtocolError as error:
                made.append(str(error))
    return made


@given(
    topic=st.sampled_from(["orders", "%RETRY%100%d", "a%b"]),
    texts=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=20), max_size=3),
    body=st.binary(max_size=5),
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 4),
    flag=st.integers(-(2**31), 2**31 - 1),
    frame_bytes_max=st.sampled_from([100, 400, 420, 500, FRAME_BYTES_MAX]),
)
@example("orders", {'"\\\x00\x1f\x7f\n\r\t\b\f/': "杭州𝄞"}, b"x", (0, 0, 1, 2), -1, FRAME_BYTES_MAX)
def test_a_request_is_the_one_of_the_python_version(
    topic: str,
    texts: dict[str, str],
    body: bytes,
    numbers: tuple[int, int, int, int],
    flag: int,
    frame_bytes_max: int,
) -> None:
    queue_id, opaque, sysflag, reconsume_times = numbers
    message = Message(topic, body, flag=flag)
    properties = "".join(f"{name}\x01{value}\x02" for name, value in texts.items())
    outgoing = Outgoing((message,), topic, "ID", body, properties, flag, sysflag, reconsume_times=reconsume_times)
    with pytest.MonkeyPatch.context() as monkeypatch:
        by_python, by_kernel = requests(outgoing, queue_id, opaque, monkeypatch, frame_bytes_max)
    assert by_python == by_kernel


@pytest.mark.parametrize(
    "outgoing",
    [
        prepare_batch([Message("orders", b"1"), Message("orders", b"2")], message_ids=["ID1", "ID2"]),
        prepare(Message("%RETRY%g", b"x"), message_id="ID", reconsume_times=3, max_reconsume_times=16),
        Outgoing((Message("orders", b"x"),), "orders", "ID", memoryview(b"a view"), "A\x01b\x02"),
        Outgoing((Message("orders", b"x"),), "orders", "ID", b"", "A\x01b\x02"),
        Outgoing((Message("orders", b"x"),), "orders", "ID", b"x", "x" * HEADER_BYTES_MAX),
    ],
)
def test_other_sends_are_those_of_the_python_version(outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    by_python, by_kernel = requests(outgoing, 3, 9, monkeypatch, FRAME_BYTES_MAX)
    assert by_python == by_kernel


def test_half_a_surrogate_pair_is_left_to_python() -> None:
    head = native.SendHead([b"%d" % number for number in range(8)])
    assert head.start(0, 0, 0, 0, "\ud800", 0, 0, 1, 1_000) is None
    assert head.start(0, 0, 0, 0, "é", 0, 0, 1, 1_000) is not None


def test_the_largest_frame_is_hit_exactly() -> None:
    head = native.SendHead([b"x"] * 8)
    start = head.start(0, 0, 0, 0, "p", 0, 0, 10, 1_000)
    assert start is not None
    whole = len(start) + 10
    assert head.start(0, 0, 0, 0, "p", 0, 0, 10, whole) == start
    assert head.start(0, 0, 0, 0, "p", 0, 0, 10, whole - 1) is None
    assert head.start(0, 0, 0, 0, "p", 0, 0, 2**63, 2**64 - 1) is None
    with pytest.raises(ValueError, match="eight parts"):
        native.SendHead([b"x"] * 7)


# --- Answers ----------------------------------------------------------------------------------------------------------


def answer(header: bytes, body: bytes = b"") -> bytes:
    return b"".join(frame(header, JSON, body))


def stored(opaque: int, **fields: str) -> bytes:
    """An ordinary answer."""
    fields = {"msgId": "0A", "queueId": "3", "queueOffset": "7"} | fields
    return answer(encode_json(0, fields, opaque=opaque, flag=FLAG_RESPONSE))


def receipt(response: Response) -> SendReceipt:
    return sent().receipt(response, QUEUE)


def sent() -> Outgoing:
    return prepare(Message("orders", b"x"), message_id="ID")


def read(data: bytes, opaques: list[int], frame_bytes_max: int = FRAME_BYTES_MAX) -> tuple[list[Any], int]:
    return native.read_sent(data, frame_bytes_max, dict.fromkeys(opaques, Waiting()), SendCaller)


values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["", "0", "7", "-1", "-0", "01", "1.0", "1e2", "+1", " 1", "2147483648", "9" * 18, "9" * 19]),
    st.sampled_from(
        ["true", "false", "True", "null", "é", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")]
    ),
    st.sampled_from([None, 7, True, 1.5, [], {}]),
    st.text(max_size=3),
)
fields = st.dictionaries(
    st.sampled_from(
        ["msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON", "recallHandle", "x"]
    ),
    values,
)
members = st.dictionaries(
    st.sampled_from(["code", "flag", "opaque", "language", "version", "remark", "serializeTypeCurrentRPC", "y"]),
    st.one_of(st.sampled_from([0, 1, 2, 3, 9, 2**31, -1, None, "0", "JAVA"]), st.text(max_size=3)),
)


@given(fields, members, st.booleans(), st.binary(max_size=2), st.booleans())
@example({"transactionId": "T", "MSG_REGION": "R", "TRACE_ON": "false"}, {}, False, b"", True)
@example({"msgId": '\x00"\\é'}, {}, True, b"", True)
def test_an_answer_tells_what_it_tells_the_python_version(
    more_fields: dict[str, Any], more: dict[str, Any], escapes: bool, body: bytes, is_empty: bool
) -> None:
    """Whatever the kernel takes is the same receipt; what it leaves, Python has."""
    ext = {"msgId": "0A", "queueId": "3", "queueOffset": "7"} | more_fields
    header = {"code": 0, "extFields": ext, "flag": 1, "language": "JAVA", "opaque": 9, "version": 401} | more
    data = answer(json.dumps(header, ensure_ascii=escapes).encode(), b"" if is_empty else body)
    rows, behind = read(data, [9])
    if not rows:
        assert behind == 0
        return
    assert behind == len(data)
    (response,) = FrameDecoder().feed(data)
    assert isinstance(response, Response)
    assert response.opaque == rows[0][0]
    assert receipt(response) == sent().stored(rows[0], QUEUE)


def test_ordinary_answers_are_all_taken() -> None:
    data = b"".join(stored(number, MSG_REGION="R", TRACE_ON="true", transactionId="T") for number in (5, 6, 7))
    rows, behind = read(data, [5, 6, 7])
    assert ([(number, "0A", 3, 7, "T", "R", True) for number in (5, 6, 7)], len(data)) == (rows, behind)


def test_a_member_that_stands_twice_is_left_to_python() -> None:
    for name, value in (("code", "0"), ("opaque", "9"), ("flag", "1"), ("extFields", "{}")):
        data = stored(9).replace(b'{"code"', b'{"%b":%b,"code"' % (name.encode(), value.encode()))
        grown = len(data) - len(stored(9))
        size = int.from_bytes(stored(9)[:4], "big") + grown
        data = size.to_bytes(4, "big") + (size - 4).to_bytes(4, "big") + data[8:]
        assert ([], 0) == read(data, [9])


def test_only_calls_that_send_are_taken() -> None:
    """An answer of this form to another call keeps all its fields."""
    data = stored(5)
    assert ([], 0) == read(data, [4, 6])
    assert ([], 0) == native.read_sent(data, FRAME_BYTES_MAX, {5: object()}, SendCaller)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 255))
def test_nothing_is_read_beyond_what_has_arrived(cut: int, place: int, value: int) -> None:
    """B1: at any cut and any changed byte, what is read is what Python reads."""
    whole = stored(5) + stored(6)
    cut_data = whole[:cut]
    rows, behind = read(cut_data, [5, 6])
    assert behind == (0, len(stored(5)), len(whole))[len(rows)] <= len(cut_data)
    changed = bytearray(whole)
    changed[place % len(changed)] = value
    rows, behind = read(bytes(changed), [5, 6])
    try:
        responses = [one for one in FrameDecoder().feed(bytes(changed)) if isinstance(one, Response)]
    except RemoteProtocolError:
        # What stands before the damage may be read; the connection ends nevertheless.
        responses = [one for one in FrameDecoder().feed(bytes(changed[:behind])) if isinstance(one, Response)]
    for row, response in zip(rows, responses, strict=False):
        assert row[0] == response.opaque
        assert receipt(response) == sent().stored(row, QUEUE)


def test_a_frame_beyond_the_limit_is_left_to_python() -> None:
    data = stored(5)
    assert 1 == len(read(data, [5], len(data))[0])
    assert ([], 0) == read(data, [5], len(data) - 1)
