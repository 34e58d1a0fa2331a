"""Messages between members as bytes (P3): read back as they were, however they come; nonsense is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.raft.messages import Append, AppendReply, RaftMessage, TransferNow, VoteReply, VoteRequest
from ternmq.raft.wire import (
    EntriesGone,
    LinkDecoder,
    check_entries,
    pack_frame,
    pack_gone,
    pack_message,
    unpack_message,
)
from ternmq.wire.layouts.raft_entry import pack_entry_header

BYTES_MAX = 1 << 16
BOTH: Any = {"sender": "n1", "receiver": "n0"}


def entries(first: int, terms: list[int], position: int = 1 << 20) -> bytes:
    data = b""
    for number, term in enumerate(terms):
        record = b"record %d" % number
        data += pack_entry_header(first + number, term, position + len(data), record) + record
    return data


def append(first: int, terms: list[int], *, term: int = 9, heir: str | None = None) -> Append:
    runs: list[tuple[int, int]] = []
    for number, each in enumerate(terms):
        if not runs or runs[-1][1] != each:
            runs.append((first + number, each))
    return Append(
        **BOTH,
        term=term,
        prev_index=first - 1,
        prev_term=terms[0] if terms and first else -1,
        last_index=first - 1 + len(terms),
        runs=tuple(runs),
        commit=first - 1,
        sent_ms=123,
        heir=heir,
        data=entries(first, terms),
    )


MESSAGES: list[RaftMessage] = [
    VoteRequest(**BOTH, term=3, last_index=-1, last_term=-1, is_pre=True),
    VoteRequest(**BOTH, term=1 << 60, last_index=1 << 50, last_term=7),
    VoteReply(**BOTH, term=3, is_granted=True),
    VoteReply(**BOTH, term=0, is_granted=False, is_pre=True),
    append(0, []),
    append(7, [2, 2, 5], heir="n2"),
    append(0, [1]),
    AppendReply(**BOTH, term=4, is_accepted=True, index=5, stored=3, sent_ms=-5),
    AppendReply(**BOTH, term=4, is_accepted=False, index=5, stored=-1, hint_index=2, hint_term=1, sent_ms=1),
    TransferNow(**BOTH, term=12),
]


def packed(message: RaftMessage) -> bytes:
    data = [message.data] if isinstance(message, Append) else []
    return b"".join(map(bytes, pack_message(message, data)))


def unpacked(decoder: LinkDecoder, data: bytes) -> list[RaftMessage | EntriesGone]:
    return [unpack_message(kind, body, **BOTH) for kind, body in decoder.feed(data)]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_read_whole_byte_by_byte_and_with_more_behind_it(message: RaftMessage) -> None:
    data = packed(message)

    assert [message] == unpacked(LinkDecoder(BYTES_MAX), data)
    assert [message, message] == unpacked(LinkDecoder(BYTES_MAX), data + data + data[:-1])
    decoder = LinkDecoder(BYTES_MAX)
    results = [unpacked(decoder, data[i : i + 1]) for i in range(len(data))]
    assert [[]] * (len(data) - 1) + [[message]] == results
    assert 0 == decoder.kept_bytes


def test_a_frame_that_is_too_large_is_refused_before_it_is_kept() -> None:
    decoder = LinkDecoder(100)

    with pytest.raises(RemoteProtocolError, match="a Raft message has 101 bytes; expected 1 to 100"):
        decoder.feed((101).to_bytes(4, "big") + b"\x01")
    with pytest.raises(RemoteProtocolError, match="0 bytes"):
        LinkDecoder(100).feed(bytes(5))


@given(kind=st.integers(0, 255), body=st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(kind: int, body: bytes) -> None:
    try:
        message = unpack_message(kind, body, **BOTH)
    except RemoteProtocolError:
        return
    if isinstance(message, Append):
        try:
            check_entries(message)
        except RemoteProtocolError:
            return


def test_flipped_bytes_of_messages_are_refused_or_read() -> None:
    chance = random.Random(3)
    for _ in range(3_000):
        data = bytearray(packed(chance.choice(MESSAGES)))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        try:
            for message in unpacked(LinkDecoder(BYTES_MAX), bytes(data)):
                if isinstance(message, Append):
                    check_entries(message)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("message", MESSAGES)
def test_a_body_of_another_length_is_refused(message: RaftMessage) -> None:
    [(kind, body)] = LinkDecoder(BYTES_MAX).feed(packed(message))

    for other in (body[:-1], body + b"\0"):
        with pytest.raises(RemoteProtocolError):
            found = unpack_message(kind, other, **BOTH)
            assert isinstance(found, Append)
            check_entries(found)


def test_a_word_of_deleted_entries_is_read() -> None:
    data = b"".join(map(bytes, pack_gone(EntriesGone(3, 17))))

    assert [EntriesGone(3, 17)] == unpacked(LinkDecoder(BYTES_MAX), data)
    [(kind, body)] = LinkDecoder(BYTES_MAX).feed(data)
    with pytest.raises(RemoteProtocolError):
        unpack_message(kind, body[:-1], **BOTH)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="kind 77 is not known"):
        unpack_message(77, b"", **BOTH)


@pytest.mark.parametrize(
    "runs",
    [(), ((8, 2),), ((7, 2), (7, 3)), ((7, 3), (8, 2)), ((7, 2), (99, 3)), ((7, 10),), ((7, 1),)],
    ids=str,
)
def test_runs_that_contradict_the_indexes_are_refused(runs: tuple[tuple[int, int], ...]) -> None:
    message = append(7, [2, 2, 5])
    wrong = Append(**{name: getattr(message, name) for name in Append.__slots__} | {"runs": runs})
    [(kind, body)] = LinkDecoder(BYTES_MAX).feed(packed(wrong))

    with pytest.raises(RemoteProtocolError, match="contradict"):
        unpack_message(kind, body, **BOTH)


def test_entries_are_found_by_their_index() -> None:
    message = append(7, [2, 2, 5])

    assert 0 == check_entries(message)
    assert len(entries(7, [2, 2])) == check_entries(message, 9)


@pytest.mark.parametrize("data", [b"", entries(7, [2, 2]), entries(8, [2, 2, 5]), entries(7, [2, 5, 5]), bytes(200)])
def test_other_entries_than_announced_are_refused(data: bytes) -> None:
    message = append(7, [2, 2, 5])
    wrong = Append(**{name: getattr(message, name) for name in Append.__slots__} | {"data": data})

    with pytest.raises(RemoteProtocolError):
        check_entries(wrong)


def test_a_frame_of_any_kind_keeps_its_data() -> None:
    frame = pack_frame(3, b"ab", [b"cd", memoryview(b"ef")], 4)

    assert [(3, b"abcdef")] == LinkDecoder(BYTES_MAX).feed(b"".join(map(bytes, frame)))


def test_terms_of_entries_that_are_not_there_are_refused() -> None:
    """P3: before they are unpacked, which takes ten times their bytes."""
    message = append(0, list(range(1, 5)), term=9)
    [(kind, body)] = LinkDecoder(BYTES_MAX).feed(b"".join(map(bytes, pack_message(message, [message.data]))))
    assert message.runs == unpack_message(kind, body, **BOTH).runs  # type: ignore[union-attr]
    cut = body[: -len(message.data)] + b"one byte of data"
    with pytest.raises(RemoteProtocolError, match="contradict"):
        unpack_message(kind, cut, **BOTH)
