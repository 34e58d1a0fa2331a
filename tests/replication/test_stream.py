"""The bytes between master and slave, both ways (O1)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.replication.stream import (
    BODY_BYTES_MAX,
    FILE,
    PROBE,
    TEXT_BYTES_MAX,
    FilePart,
    Probe,
    Report,
    ReportDecoder,
    Text,
    Transfer,
    TransferDecoder,
    pack_header,
    pack_report,
    pack_text,
)

#: How bytes may arrive.
WAYS: dict[str, Callable[[bytes], Iterable[bytes]]] = {
    "whole": lambda data: [data],
    "byte by byte": lambda data: (data[at : at + 1] for at in range(len(data))),
    "in sevens": lambda data: (data[at : at + 7] for at in range(0, len(data), 7)),
}


def joined(events: Iterable[Text | Transfer]) -> list[tuple[object, ...]]:
    """Transfers that follow each other as one, keep-alives apart."""
    found: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Text):
            found.append(("text", event.data))
            continue
        at, data = event.log_offset, bytes(event.data)
        match found[-1:]:
            case [("log", int(begin), bytes(before))] if data and begin + len(before) == at:
                found[-1] = ("log", begin, before + data)
            case _:
                found.append(("log", at, data) if data else ("alive", at))
    return found


def received(data: bytes, way: str) -> tuple[list[tuple[object, ...]], int]:
    decoder = TransferDecoder()
    events: list[Text | Transfer] = []
    for piece in WAYS[way](data):
        # A view of bytes that may change afterwards.
        events += [
            Transfer(event.log_offset, memoryview(bytes(event.data))) if isinstance(event, Transfer) else event
            for event in decoder.feed(bytearray(piece))
            if not isinstance(event, FilePart)
        ]
    return joined(events), decoder.kept_bytes


@pytest.mark.parametrize("way", WAYS)
def test_a_slave_reads_transfers_however_they_are_cut(way: str) -> None:
    """O1: headers, bodies and keep-alives; what is not complete waits."""
    data = (
        pack_text(b"hello")
        + pack_header(100, 3)
        + b"abc"
        + pack_header(103, 0)
        + pack_header(103, 2)
        + b"de"
        + pack_header(105, 4)[:11]
    )
    expected = [("text", b"hello"), ("log", 100, b"abc"), ("alive", 103), ("log", 103, b"de")]
    assert (expected, 11) == received(data, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_slave_takes_a_body_as_far_as_it_has_come(way: str) -> None:
    """O1: nothing of the log is kept in between."""
    assert ([("log", 7, b"abc")], 0) == received(pack_header(7, 1000) + b"abc", way)


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), max_size=20))
def test_any_cut_gives_the_same_log(bodies: list[bytes], cuts: list[int]) -> None:
    """O1: what comes out is what went in."""
    data, at = b"", 5000
    for body in bodies:
        data += pack_header(at, len(body)) + body
        at += len(body)
    decoder, events = TransferDecoder(), []
    for cut in [*cuts, len(data)]:
        events += decoder.feed(data[:cut])
        data = data[cut:]
    assert b"".join(bodies) == b"".join(bytes(event.data) for event in events if isinstance(event, Transfer))
    assert not decoder.kept_bytes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "header",
    [
        pack_header(0, -1),
        pack_header(0, BODY_BYTES_MAX + 1),
        pack_header(0, 2**31 - 1),
        pack_header(-2, 0),
        pack_header(2**63 - 1, 1),
        pack_header(PROBE, 0),
        pack_header(PROBE, -5),
        pack_header(PROBE, TEXT_BYTES_MAX + 1),
        b"HTTP/1.1 400 Bad Request",
    ],
)
def test_a_slave_refuses_headers_that_no_master_sends(way: str, header: bytes) -> None:
    """O1: lengths and offsets from outside are checked before anything is kept for them."""
    with pytest.raises(RemoteProtocolError):
        received(header, way)


def test_the_layout_is_that_of_rocketmq() -> None:
    """O1: big endian, 8 and 12 bytes."""
    assert bytes.fromhex("00000000400000ff") == pack_report(0x400000FF)
    assert bytes.fromhex("0000000040000000 00008000") == pack_header(1 << 30, 32768)


# --- What a master reads ---------------------------------------------------------------------------------------------


def heard(data: bytes, way: str) -> tuple[list[Probe | Text | Report], int]:
    decoder = ReportDecoder()
    events = [event for piece in WAYS[way](data) for event in decoder.feed(piece)]
    return events, decoder.kept_bytes


def test_a_master_uses_the_last_report_of_many() -> None:
    """O1: as RocketMQ does; half a report waits."""
    data = b"".join(map(pack_report, (0, 5, 9))) + b"\0\0\0"
    assert ([Report(9)], 3) == heard(data, "whole")
    assert ([Report(0), Report(5), Report(9)], 3) == heard(data, "byte by byte")


@pytest.mark.parametrize("way", WAYS)
def test_a_master_reads_the_handshake_however_it_is_cut(way: str) -> None:
    """O1: a probe, texts, then reports."""
    data = pack_report(PROBE) + pack_text(b"proof") + pack_text(b"who I am") + pack_report(77)
    assert ([Probe(), Text(b"proof"), Text(b"who I am"), Report(77)], 0) == heard(data, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "data",
    [
        pack_report(-2),
        pack_report(4) + pack_report(-1),
        pack_report(PROBE) + pack_header(17, 3),
        pack_report(PROBE) + pack_report(3) + pack_report(3),
        pack_report(PROBE) + pack_header(PROBE, 0),
        pack_report(PROBE) + pack_header(PROBE, TEXT_BYTES_MAX + 1),
        pack_report(PROBE) + pack_text(b"x") + pack_report(1) + pack_report(-1),
    ],
)
def test_a_master_refuses_what_no_slave_sends(way: str, data: bytes) -> None:
    """O1: a client that is no slave is found out by its first bytes."""
    with pytest.raises(RemoteProtocolError):
        heard(data, way)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_bytes_break_a_decoder(pieces: list[bytes]) -> None:
    """O1: they are understood or refused, and little is kept."""
    for decoder in (ReportDecoder(), TransferDecoder()):
        try:
            for piece in pieces:
                decoder.feed(piece)
        except RemoteProtocolError:
            pass
        assert decoder.kept_bytes <= TEXT_BYTES_MAX + struct.calcsize(">qi")


@pytest.mark.parametrize("way", WAYS)
def test_a_slave_reads_bytes_of_files_between_transfers(way: str) -> None:
    """O4: the files of derived parts, behind headers with the log offset -2."""
    decoder = TransferDecoder()
    data = pack_header(0, 3) + b"log" + pack_header(FILE, 8) + b"the file" + pack_header(3, 0)
    events = [(type(event), bytes(event.data)) for piece in WAYS[way](data) for event in decoder.feed(piece)]
    assert b"the file" == b"".join(data for kind, data in events if kind is FilePart)
    assert b"log" == b"".join(data for kind, data in events if kind is Transfer)
    assert (Transfer, b"") == events[-1]
