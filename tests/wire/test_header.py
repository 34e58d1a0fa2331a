"""Headers in both forms, recorded and made up."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import LocalProtocolError, RemoteProtocolError
from ternmq.wire.codes import LANGUAGES
from ternmq.wire.header import (
    Request,
    decode_binary,
    decode_json,
    decode_untyped,
    encode_binary,
    encode_json,
    typed,
)
from ternmq.wire.requests import PullMessage, QueryOffset, SendMessageV2
from tests.wire.recorded import BINARY, JSON, frames
from tests.wire.values import texts

RECORDED_JSON = [frame for frame in frames() if frame.form == JSON]
RECORDED_BINARY = [frame for frame in frames() if frame.form == BINARY]


def test_recorded_json_headers_encode_to_the_same_value() -> None:
    """B1, issue 13 point 15: with every member that Java writes, in its order; an empty map is written, too."""
    for frame in RECORDED_JSON:
        encoded = json.loads(
            encode_json(
                frame.code,
                frame.fields,
                opaque=frame.opaque,
                flag=frame.flag,
                remark=frame.remark,
                language=frame.language,
                version=frame.number,
            )
        )
        recorded = json.loads(frame.head)
        assert {"extFields": {}, **recorded} == encoded
        assert list(recorded) == [member for member in encoded if member in recorded]


def test_recorded_binary_headers_encode_to_the_same_bytes() -> None:
    """B1"""
    assert len(RECORDED_BINARY) > 100
    for frame in RECORDED_BINARY:
        encoded = encode_binary(
            frame.code,
            frame.fields,
            opaque=frame.opaque,
            flag=frame.flag,
            remark=frame.remark,
            language=frame.language,
            version=frame.number,
        )
        assert frame.head == encoded


def test_recorded_headers_decode() -> None:
    """B1"""
    for frame in frames():
        request = decode_json(frame.head) if frame.form == JSON else decode_binary(frame.head)
        assert (frame.code, frame.flag, frame.opaque, frame.number, frame.remark, frame.language) == (
            request.code,
            request.flag,
            request.opaque,
            request.version,
            request.remark,
            request.language_name,
        )
        assert request.fault is None


def test_all_ext_fields_can_be_had_instead_of_the_typed_header() -> None:
    """N1: a signature covers fields that no typed header has."""
    for frame in RECORDED_JSON + RECORDED_BINARY:
        assert frame.fields == (decode_untyped(frame.head, frame.form).header or {})


maps = st.dictionaries(texts, texts, max_size=5)
envelopes = st.fixed_dictionaries(
    {
        "opaque": st.integers(-(2**31), 2**31 - 1),
        "flag": st.integers(0, 3),
        "remark": st.none() | texts,
        "language": st.sampled_from(LANGUAGES),
        "version": st.integers(0, 32767),
    }
)


@given(st.integers(0, 300_000), maps, envelopes)
def test_json_headers_round_trip(code: int, fields: dict[str, str], envelope: dict[str, Any]) -> None:
    """B1"""
    head = encode_json(code, fields, **envelope)
    assert fields == decode_untyped(head, JSON).header
    request = decode_json(head)
    assert code == request.code
    assert envelope == {name: getattr(request, name) for name in envelope}


@given(st.integers(-(2**15), -1), maps, envelopes)
def test_binary_headers_round_trip_without_empty_values(
    code: int, fields: dict[str, str], envelope: dict[str, Any]
) -> None:
    """B1: empty texts mean null in this form, as in RocketMQ."""
    request = decode_binary(encode_binary(code, fields, **envelope))
    assert {name: value for name, value in fields.items() if value} == request.header
    assert (code, envelope["opaque"], envelope["flag"], envelope["remark"] or None, envelope["language"]) == (
        request.code,
        request.opaque,
        request.flag,
        request.remark,
        request.language_name,
    )


@given(maps, envelopes, st.data())
def test_a_cut_or_changed_binary_header_is_read_or_refused(
    fields: dict[str, str], envelope: dict[str, Any], data: st.DataObject
) -> None:
    """B5"""
    head = bytearray(encode_binary(14, fields, **envelope))
    cut = data.draw(st.integers(0, len(head)))
    at, mask = data.draw(st.integers(0, len(head) - 1)), data.draw(st.integers(0, 255))
    head[at] ^= mask
    for damaged in (bytes(head), bytes(head[:cut])):
        with suppress(RemoteProtocolError):
            decode_binary(damaged)


@given(st.sampled_from(RECORDED_JSON), st.data())
def test_a_cut_or_changed_json_header_is_read_or_refused(frame: Any, data: st.DataObject) -> None:
    """B5"""
    head = bytearray(frame.head)
    cut = data.draw(st.integers(0, len(head) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_json(bytes(head[:cut]))
    head[data.draw(st.integers(0, len(head) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RemoteProtocolError):
        decode_json(bytes(head))


def test_bytes_after_a_header_are_refused_in_json_and_ignored_in_binary() -> None:
    """B5: the frame says where its header ends; what JSON has behind it cannot be meant."""
    with pytest.raises(RemoteProtocolError):
        decode_json(encode_json(14, {}, opaque=1, flag=0) + b"x")
    assert 1 == decode_binary(encode_binary(105, {"topic": "t"}, opaque=1, flag=0) + b"x").opaque


def test_a_binary_field_that_runs_over_the_end_of_its_map_is_refused() -> None:
    """B5"""
    head = encode_binary(14, {"topic": "tt"}, opaque=1, flag=0)
    at = struct.calcsize(">hBhiiI")
    shorter = head[:at] + (int.from_bytes(head[at : at + 4], "big") - 1).to_bytes(4, "big") + head[at + 4 :]
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_binary(shorter)


def test_a_binary_header_may_end_before_its_map() -> None:
    """B1: lenient; no recorded frame does."""
    head = encode_binary(1, None, opaque=5, flag=1)[:-4]
    assert (5, {}) == (decode_binary(head).opaque, decode_binary(head).header)


# --- Lenient in -----------------------------------------------------------------------------------------------


def test_numbers_and_booleans_are_taken_as_ext_values() -> None:
    """V1: the Node client sends them so."""
    head = b"""{"code":310,"version":121,"opaque":3,"flag":0,"language":"JAVA","extFields":{"a":"p","b":"t",
        "c":"TBW102","d":4,"e":-1,"f":0,"g":1700000000000,"h":0,"i":"","j":0,"k":false,"l":null}}"""
    header = decode_json(head).header
    assert isinstance(header, SendMessageV2)
    assert ("p", "t", -1, 1700000000000, False, None) == (
        header.producer_group,
        header.topic,
        header.queue_id,
        header.born_time_ms,
        header.unit_mode,
        header.max_reconsume_times,
    )


def test_numbers_and_booleans_become_text_where_text_is_wanted() -> None:
    """V1"""
    head = b'{"code":14,"extFields":{"consumerGroup":7,"topic":true,"queueId":"3","x":1.5}}'
    assert QueryOffset(consumer_group="7", topic="true", queue_id=3) == decode_json(head).header
    assert {"consumerGroup": "7", "topic": "true", "queueId": "3", "x": "1.5"} == decode_untyped(head, JSON).header


def test_ext_values_that_are_null_are_not_there() -> None:
    """B1"""
    head = b'{"code":14,"extFields":{"consumerGroup":"g","topic":"t","queueId":3,"setZeroIfNotFound":null,"y":null}}'
    assert QueryOffset(consumer_group="g", topic="t", queue_id=3) == decode_json(head).header
    assert {"consumerGroup": "g", "topic": "t", "queueId": "3"} == decode_untyped(head, JSON).header


@pytest.mark.parametrize(
    ("language", "name"),
    [("9", "GO"), ('"GO"', "GO"), ("99", "OTHER"), ("-1", "OTHER"), ("null", "OTHER"), ('"ZIG"', "ZIG")],
)
def test_the_language_may_be_a_name_or_a_number(language: str, name: str) -> None:
    """B1"""
    request = decode_json(f'{{"code":34,"language":{language}}}'.encode())
    assert name == request.language_name


def test_a_header_of_go_is_read() -> None:
    """V1: an empty remark, an empty map, no serializeTypeCurrentRPC."""
    request = decode_json(b'{"code":34,"language":"GO","version":317,"opaque":1,"flag":0,"remark":"","extFields":{}}')
    assert ("", {}, "GO") == (request.remark, request.header, request.language_name)


def test_the_code_need_not_stand_first() -> None:
    """B1"""
    head = b'{"extFields":{"consumerGroup":"g","topic":"t","queueId":"1"},"flag":0,"code":14}'
    assert QueryOffset(consumer_group="g", topic="t", queue_id=1) == decode_json(head).header
    assert QueryOffset(consumer_group="g", topic="t", queue_id=1) == decode_json(head.replace(b":14", b" : 14")).header


def test_the_last_of_two_codes_decides_the_type() -> None:
    """B5: a handler never gets the header of another code."""
    head = b'{"code":11,"extFields":{"consumerGroup":"g","topic":"t","queueId":"1"},"code":14}'
    assert (14, QueryOffset(consumer_group="g", topic="t", queue_id=1)) == (
        decode_json(head).code,
        decode_json(head).header,
    )


def test_unknown_members_and_fields_are_ignored() -> None:
    """B1"""
    head = b'{"code":14,"new":{"x":[1]},"extFields":{"consumerGroup":"g","topic":"t","queueId":"1","bname":"b"}}'
    assert QueryOffset(consumer_group="g", topic="t", queue_id=1) == decode_json(head).header


def test_a_response_whose_number_is_a_request_code_is_a_response() -> None:
    """B2: FLUSH_DISK_TIMEOUT is 10, as SEND_MESSAGE is."""
    request = decode_json(b'{"code":10,"flag":1,"extFields":{"msgId":"A"}}')
    assert (10, {"msgId": "A"}, None) == (request.code, request.header, request.fault)


@pytest.mark.parametrize("code", range(200050, 200057))
def test_pop_codes_are_found_again_in_sixteen_bits(code: int) -> None:
    """F9"""
    cut = int.from_bytes((code & 0xFFFF).to_bytes(2, "big"), "big", signed=True)
    assert code == decode_binary(encode_binary(cut, {"topic": "t"}, opaque=1, flag=0)).code


# --- Faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"topic": "t", "queueId": "1"}, "missing required field `consumerGroup`"),
        ({"consumerGroup": "g", "topic": "t", "queueId": "one"}, "Expected `int`, got `str` - at `$.queueId`"),
        ({"consumerGroup": "g", "topic": "t", "queueId": "2147483648"}, "Expected `int` <= 2147483647"),
        ({}, "missing required field"),
    ],
)
def test_fields_that_do_not_fit_are_a_fault_of_that_request_alone(fields: dict[str, str], fault: str) -> None:
    """B5: the connection lives on, the request is refused with the reason."""
    for request in (
        decode_json(encode_json(14, fields, opaque=1, flag=0)),
        decode_binary(encode_binary(14, fields, opaque=1, flag=0)),
    ):
        assert request.fault is not None
        assert fault in request.fault


def test_a_request_without_ext_fields_is_a_fault_where_some_are_needed() -> None:
    """B5"""
    assert "missing required field" in (decode_json(b'{"code":14}').fault or "")
    assert decode_json(b'{"code":34}').fault is None


def test_a_typed_header_is_read_from_a_map() -> None:
    """B1"""
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "1", "queueOffset": "5", "maxMsgNums": "32"}
    assert 32 == typed(fields, PullMessage).count_max
    with pytest.raises(RemoteProtocolError, match=r"ext fields of PullMessage cannot be read: .*queueOffset"):
        typed({**fields, "queueOffset": ""}, PullMessage)


# --- Strict out -----------------------------------------------------------------------------------------------


def test_a_wide_code_cannot_go_out_in_binary() -> None:
    """B1"""
    with pytest.raises(LocalProtocolError, match="code 200050 does not fit the binary header; use the JSON form"):
        encode_binary(200050, {}, opaque=1, flag=0)


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    """B5: names of files can have them; an answer that tells of one must still go out."""
    head = encode_json(1, {"path": "a\udcff"}, opaque=1, flag=1, remark="no \udcff")
    assert ("no ?", {"path": "a?"}) == (decode_json(head).remark, decode_json(head).header)
    head = encode_binary(1, {"path": "a\udcff"}, opaque=1, flag=1, remark="no \udcff")
    assert ("no ?", {"path": "a?"}) == (decode_binary(head).remark, decode_binary(head).header)


def test_ext_values_are_escaped() -> None:
    """B1"""
    fields = {"i": 'KEYS\x01a"b\\\x02', "name": "杭州 \U0001f600"}
    assert fields == json.loads(encode_json(10, fields, opaque=1, flag=0))["extFields"]


def test_a_request_made_by_hand_has_a_language() -> None:
    """B1"""
    request: Request[Any] = Request(code=1, language=13)
    assert "NODE_JS" == request.language_name


def test_a_request_that_only_waits_to_be_answered_keeps_nothing_long() -> None:
    """Issue 13, 6: sends that wait for the disk are bounded by number."""
    text = b'{"code":11,"opaque":7,"language":"l","remark":"r","extFields":{"f":"v"}}'
    request = decode_json(text)

    request.release()

    assert (None, None, None, b"") == (request.header, request.remark, request.language, bytes(request.body))
    assert 7 == request.opaque
