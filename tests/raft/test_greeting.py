"""The greeting of two members (P3): read however its bytes come, and refused with the cure if it is a stranger's."""

from __future__ import annotations

import random

import msgspec
import pytest

from ternmq.errors import RemoteProtocolError
from ternmq.raft.greeting import MAGIC, TEXT_BYTES_MAX, Hello, TextReader, Welcome, pack, refusal

OURS = Hello(1, "group", "cluster", "broker-a", "n0", "", ("n0", "n1", "n2"), 1 << 30, "10.0.0.1:10911")
THEIRS = Hello(1, "group", "cluster", "broker-a", "n1", "n0", ("n0", "n1", "n2"), 1 << 30, "10.0.0.2:10911")


@pytest.mark.parametrize("text", [THEIRS, Welcome(), Welcome(reason="no")])
def test_a_text_is_read_whole_byte_by_byte_and_with_more_behind_it(text: Hello | Welcome) -> None:
    data = pack(text)

    assert (text, b"") == TextReader(type(text)).feed(data)
    assert (text, b"more") == TextReader(type(text)).feed(data + b"more")
    reader = TextReader(type(text))
    results = [reader.feed(data[i : i + 1]) for i in range(len(data))]
    assert [None] * (len(data) - 1) + [(text, b"")] == results


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        MAGIC[:3] + b"x",
        MAGIC + (TEXT_BYTES_MAX + 1).to_bytes(4, "big"),
        MAGIC + bytes(4),
        MAGIC + (2).to_bytes(4, "big") + b"[]",
        MAGIC + (1).to_bytes(4, "big") + b"\xff",
        MAGIC + (16_005).to_bytes(4, "big") + b'{"x":' + b"[" * 16_000,
    ],
)
def test_garbage_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        TextReader(Hello).feed(data)


def test_a_rocketmq_broker_is_refused_with_the_cure() -> None:
    """P3: the first bytes of a call are the length of its frame."""
    with pytest.raises(RemoteProtocolError, match="set raftPeerProtocol=dledger on all TernMQ members"):
        TextReader(Hello).feed(bytes(2))


def test_no_bytes_crash_the_reader() -> None:
    chance = random.Random(1)
    good = pack(THEIRS)
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            TextReader(Hello).feed(bytes(data))
        except RemoteProtocolError:
            continue


def test_a_member_is_welcome() -> None:
    assert "" == refusal(THEIRS, OURS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "install the same version of TernMQ"),
        ({"group": "other"}, "all members of a group need the same dLegerGroup"),
        ({"cluster": "other"}, "brokerClusterName='other', and n0 has 'cluster'"),
        ({"broker": "broker-b"}, "brokerName='broker-b'"),
        ({"peer_protocol": "dledger"}, "it has raftPeerProtocol='dledger', and n0 has 'ternmq'"),
        ({"receiver": "n2"}, "it looks for 'n2', and this is n0"),
        ({"sender": "n0"}, "another broker with dLegerSelfId=n0"),
        ({"sender": "n7"}, "'n7' is not in dLegerPeers of n0 (n0, n1, n2)"),
        ({"members": ("n0", "n1")}, "its dLegerPeers has other members (n0, n1)"),
        ({"segment_bytes": 1}, "same mappedFileSizeCommitLog"),
    ],
)
def test_a_stranger_is_refused_with_the_cure(change: dict[str, object], sentence: str) -> None:
    assert sentence in refusal(msgspec.structs.replace(THEIRS, **change), OURS)
