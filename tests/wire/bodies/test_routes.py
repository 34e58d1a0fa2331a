"""Routes and registrations."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import (
    BrokerData,
    RegistrationBody,
    TopicRouteBody,
    crc_of,
    decode_registration,
    encode_registration,
)
from ternmq.wire.bodies.topics import DataVersion, QueueMapping, TopicConfig, TopicTable
from tests.wire.recorded import requests

SAMPLE = RegistrationBody(
    topic_config_serialize_wrapper=TopicTable(
        data_version=DataVersion(counter=3, timestamp=5),
        topic_config_table={
            "plain": TopicConfig(topic_name="plain", read_queue_nums=4, write_queue_nums=8, perm=6),
            "fifo": TopicConfig(topic_name="fifo", attributes={"message.type": "FIFO", "a b": "c d"}),
        },
        topic_queue_mapping_info_map={
            "static": QueueMapping(topic="static", total_queues=2, bname="b", curr_id_map={0: 1})
        },
    ),
    filter_server_list=["10.0.0.1:1"],
)
COMPRESSED = encode_registration(SAMPLE, compressed=True, version=479)


def test_broker_ids_are_quoted_and_nothing_is_padded() -> None:
    """A4, V1: Go cuts the text of brokerAddrs by hand."""
    route = TopicRouteBody(broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "1:1", 1: "2:2"})])
    assert b'"brokerAddrs":{"0":"1:1","1":"2:2"}' in encode(route)
    assert route == decode(encode(route), TopicRouteBody)


def test_old_routes_have_bare_broker_ids() -> None:
    """V2"""
    data = b'{"brokerDatas":[{"brokerAddrs":{0:"1:1",2:"2:2"},"brokerName":"b","cluster":"c"}],"queueDatas":[]}'
    (broker,) = decode(data, TopicRouteBody).broker_datas
    assert {0: "1:1", 2: "2:2"} == broker.broker_addrs


def test_recorded_registrations_are_read_and_their_checksum_holds() -> None:
    """A2, V3"""
    for frame in requests():
        if frame.code == 103:
            assert int(frame.fields["bodyCrc32"]) == crc_of(frame.body)
            registration = decode_registration(frame.body, version=frame.number)
            assert registration.topic_config_serialize_wrapper.topic_config_table


def test_both_forms_of_a_registration_are_read() -> None:
    """A2"""
    assert SAMPLE == decode_registration(encode_registration(SAMPLE, version=479), version=479)
    assert SAMPLE == decode_registration(COMPRESSED, version=479)


def test_before_5_0_a_compressed_registration_has_no_mappings() -> None:
    """V3"""
    data = encode_registration(SAMPLE, compressed=True, version=401)
    table = decode_registration(data, version=401).topic_config_serialize_wrapper
    assert SAMPLE.topic_config_serialize_wrapper.topic_config_table == table.topic_config_table
    assert table.topic_queue_mapping_info_map is None


def test_the_compressed_form_is_rocketmqs() -> None:
    """V3: put together by hand, as its encoder does."""

    def item(text: str) -> bytes:
        return struct.pack(">i", len(text)) + text.encode()

    data = zlib.compress(
        item('{"counter":3,"stateVersion":1,"timestamp":5}')
        + struct.pack(">i", 2)
        + item("t 4 8 6 SINGLE_TAG ")
        + item('u 1 1 7 MULTI_TAG {"+message.type":"FIFO"}')
        + item("[]")
        + struct.pack(">i", 0)
    )
    expected = RegistrationBody(
        topic_config_serialize_wrapper=TopicTable(
            data_version=DataVersion(counter=3, state_version=1, timestamp=5),
            topic_config_table={
                "t": TopicConfig(topic_name="t", read_queue_nums=4, write_queue_nums=8, perm=6),
                "u": TopicConfig(
                    topic_name="u",
                    read_queue_nums=1,
                    write_queue_nums=1,
                    perm=7,
                    topic_filter_type="MULTI_TAG",
                    attributes={"+message.type": "FIFO"},
                ),
            },
            topic_queue_mapping_info_map={},
        )
    )
    assert expected == decode_registration(data, version=479)


def test_a_compressed_registration_cut_anywhere_is_refused() -> None:
    """B5"""
    for length in range(len(COMPRESSED)):
        with pytest.raises(RemoteProtocolError):
            decode_registration(COMPRESSED[:length], version=479)
    inner = zlib.decompress(COMPRESSED)
    for length in range(len(inner)):
        with pytest.raises(RemoteProtocolError):
            decode_registration(zlib.compress(inner[:length]), version=479)


@given(st.data())
def test_a_changed_registration_is_read_or_refused(data: st.DataObject) -> None:
    """B5"""
    for wrap, source in ((bytes, COMPRESSED), (zlib.compress, zlib.decompress(COMPRESSED))):
        changed = bytearray(source)
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        with suppress(RemoteProtocolError):
            decode_registration(wrap(changed), version=479)


def test_a_registration_may_not_grow_without_end() -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match="cut short or too large"):
        decode_registration(zlib.compress(bytes(65 * 1024 * 1024)), version=479)


def test_a_compressed_registration_has_so_many_topics_at_most() -> None:
    """B5: a million fit 3 MB, and would keep a name server for some seconds."""
    data = struct.pack(">i2si", 2, b"{}", 1_000_000) + struct.pack(">i18s", 18, b"t 1 1 6 SINGLE_TAG") * 300_000
    with pytest.raises(RemoteProtocolError, match="has 1000000 topics, more than the 250000"):
        decode_registration(zlib.compress(data), version=479)


def test_an_empty_registration_is_refused() -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError):
        decode_registration(b"", version=479)


def test_attributes_are_written_behind_the_topic() -> None:
    """V3"""
    text = zlib.decompress(COMPRESSED)
    line = b'fifo 16 16 6 SINGLE_TAG {"message.type":"FIFO","a b":"c d"}'
    assert struct.pack(">i", len(line)) + line in text
    assert ["10.0.0.1:1"] == json.loads(text[text.index(b"[") : text.index(b"]") + 1])
