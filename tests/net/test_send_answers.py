"""Answers to sends, read by a kernel and by Python: each caller hears the same, in the same order (B1, B2, E1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.client.send.outgoing import prepare
from ternmq.errors import NetworkError, TernError
from ternmq.kernels import HAS_NATIVE
from ternmq.message import Message, MessageQueue, SendReceipt
from ternmq.net import peer as peer_module
from ternmq.net.callers import SendCaller, SentAnswer
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.wire.codes import FLAG_RESPONSE, JSON
from ternmq.wire.frame import frame
from ternmq.wire.header import Response, encode_json

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

QUEUE = MessageQueue("orders", "broker-a", 3)
CALLS = 6
#: This one gives up the next when it has its answer, as hooks and callbacks of applications can.
CANCELS = 2


class Wire:
    """A transport that keeps nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, _: str) -> Any:
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0


class Waiting(SendCaller):
    """A send; notes what it hears."""

    def __init__(self, peer: Peer, number: int, heard: list[tuple[int, object]]) -> None:
        self.outgoing = prepare(Message("orders", b"x"), message_id=f"ID{number}")
        self.opaque = peer.next_opaque()
        self._peer = peer
        self._heard = heard
        peer.begin_call(self.opaque, [b"request"], self)

    def stored(self, sent: SentAnswer) -> None:
        self._hear(self.outgoing.stored(sent, QUEUE))

    def answered(self, response: Response) -> None:
        try:
            self._hear(self.outgoing.receipt(response, QUEUE))
        except TernError as error:
            self._hear(str(error))

    def failed(self, error: NetworkError) -> None:
        self._hear(type(error))

    def _hear(self, what: SendReceipt | str | type) -> None:
        self._heard.append((self.opaque, what))
        if self.opaque == CANCELS:
            self._peer.forget_call(self.opaque + 1)


async def hear(reads: Sequence[bytes]) -> list[tuple[int, object]]:
    heard: list[tuple[int, object]] = []
    async with Tasks() as tasks:
        peer, wire = Peer({}, Lanes([]), tasks), Wire()
        peer.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is used
        for number in range(1, CALLS + 1):
            assert number == Waiting(peer, number, heard).opaque
        for data in reads:
            if not wire.is_aborted:
                peer.data_received(data)
        peer.connection_lost(None)
    return heard


def stored(opaque: int, **fields: str) -> bytes:
    fields = {"msgId": "0A", "queueId": "3", "queueOffset": f"{opaque}", "transactionId": "T"} | fields
    return b"".join(frame(encode_json(0, fields, opaque=opaque, flag=FLAG_RESPONSE), JSON, b""))


def refused(opaque: int, code: int) -> bytes:
    header = encode_json(code, None, opaque=opaque, flag=FLAG_RESPONSE, remark="because")
    return b"".join(frame(header, JSON, b""))


opaques = st.integers(0, CALLS + 1)
frames = st.one_of(
    st.builds(stored, opaques),
    st.builds(
        stored, opaques, MSG_REGION=st.sampled_from(["", "R", "é"]), TRACE_ON=st.sampled_from(["true", "false", "1"])
    ),
    st.builds(stored, opaques, recallHandle=st.just("h"), queueId=st.sampled_from(["4", "0"])),
    st.builds(refused, opaques, st.sampled_from([2, 10, 14, 16])),
    st.sampled_from([b"\xff" * 8, b"\0\0\0\x05\0\0\0\x01{"]),
)


@given(st.lists(frames, max_size=10), st.lists(st.integers(1, 400), max_size=8))
@example([stored(number) for number in (1, 2, 3, 3, 4)], [])
@example([stored(1), stored(2), b"\xff" * 8], [])
@example([stored(1), refused(2, 2), stored(3)], [100, 250])
def test_every_caller_hears_what_the_python_version_tells_it(sent: list[bytes], cuts: list[int]) -> None:
    """Also of answers that come twice, to calls that were given up, in pieces, and in a read that ends in damage."""
    data, reads = b"".join(sent), []
    for size in cuts:
        reads.append(data[:size])
        data = data[size:]
    reads = [read for read in (*reads, data) if read]
    by_kernel = asyncio.run(hear(reads))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(peer_module, "HAS_NATIVE", False)
        by_python = asyncio.run(hear(reads))
    assert by_python == by_kernel
    assert len(by_kernel) == len({opaque for opaque, _ in by_kernel})


async def test_an_answer_that_comes_in_many_pieces_is_kept_once() -> None:
    """B1: beside sends that wait, as on a connection that is shared with a consumer."""
    heard: list[tuple[int, object]] = []
    async with Tasks() as tasks:
        peer = Peer({}, Lanes([]), tasks)
        peer.connection_made(Wire())  # type: ignore[arg-type]  # what of a transport is used
        for number in range(1, CALLS + 1):
            assert number == Waiting(peer, number, heard).opaque
        large = b"".join(frame(encode_json(0, {}, opaque=99, flag=FLAG_RESPONSE), JSON, bytes(500_000)))
        for at in range(0, len(large), 5_000):
            peer.data_received(large[at : at + 5_000])
            pieces = peer._decoder._kept
            assert not any(len(piece) == 0 for piece in pieces)
        peer.data_received(stored(1))
        assert [1] == [opaque for opaque, _ in heard]
        peer.connection_lost(None)
