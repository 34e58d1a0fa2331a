"""What leads from this member to one other, over the connections that this member makes (P3).

A message for a member that is not connected, or that has not read the last ``OUT_BYTES_MAX`` bytes, is dropped: Raft's
core sends it again. All that is sent in one turn of the loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, cast

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.net import proof
from ternmq.raft.config import Member
from ternmq.raft.greeting import Hello, LinkProof, TextReader, Welcome, pack, statement
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials

#: Bytes that may wait for a member that does not read; the window of appends is 4 MiB (``raftWindowBytes``).
OUT_BYTES_MAX: Final = 16 << 20


class LinkOwner(Protocol):
    """Who this member is (``raft.links.Links``)."""

    @property
    def hello(self) -> Hello: ...

    @property
    def credentials(self) -> Credentials | None: ...


class LinkOut:
    """What leads to one other member; over the time, by several connections."""

    def __init__(self, links: LinkOwner, member: Member) -> None:
        self.links = links
        self.member = member
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.is_ready = False
        self.refused = ""
        self.trouble = ""
        #: The greeting is over; the connection is; the other member has connected to us.
        self.greeted = asyncio.Event()
        self.lost = asyncio.Event()
        self.called = asyncio.Event()
        #: When the first message was sent since something was heard from it.
        self.unanswered_since: float | None = None
        self._frames: list[Buffer] = []
        self._waiting_bytes = 0
        #: The addresses of its machine, where callers are checked.
        self.ips: frozenset[str] = frozenset()
        #: It is no member any more, and is told so.
        self.is_leaving = False
        self.task: asyncio.Task[None] | None = None

    def send(self, frame: Sequence[Buffer]) -> bool:
        transport = self.transport
        if not self.is_ready or transport is None:
            return False
        if transport.get_write_buffer_size() + self._waiting_bytes > OUT_BYTES_MAX:
            return False
        if not self._frames:
            # One write for all that is sent in this turn.
            self._loop.call_soon(self._flush)
        self._frames += frame
        self._waiting_bytes += sum(map(len, frame))
        if self.unanswered_since is None:
            self.unanswered_since = self._loop.time()
        return True

    def _flush(self) -> None:
        frames, self._frames, self._waiting_bytes = self._frames, [], 0
        if self.transport is not None and self.is_ready and frames:
            self.transport.writelines(frames)

    def close(self) -> None:
        """Let what was sent leave."""
        self._flush()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        self.is_ready = False
        self._frames.clear()
        self._waiting_bytes = 0
        if self.transport is not None:
            self.transport.abort()
            self.transport = None


class OutgoingProtocol(asyncio.Protocol):
    """A connection that this member has made."""

    def __init__(self, out: LinkOut) -> None:
        self._out = out
        self._reader = TextReader(Welcome)
        self._has_proved = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        out = self._out
        # Not checked: uvloop's transports are no subclass of asyncio's.
        out.transport = self._transport = cast("asyncio.Transport", transport)
        out.refused = out.trouble = ""
        out.greeted.clear()
        out.lost.clear()
        out.unanswered_since = None
        self._transport.write(pack(self._hello()))

    def _hello(self) -> Hello:
        return msgspec.structs.replace(self._out.links.hello, receiver=self._out.member.id)

    def data_received(self, data: bytes) -> None:
        out = self._out
        if out.is_ready:
            # Nothing follows a welcome.
            self._transport.abort()
            return
        try:
            found = self._reader.feed(data)
            while found is not None and (nonce := cast("Welcome", found[0]).nonce):
                self._prove(nonce)
                found = self._reader.feed(found[1])
        except RemoteProtocolError as error:
            out.refused = str(error)
            self._transport.abort()
        else:
            if found is None:
                return
            out.refused = cast("Welcome", found[0]).reason
            out.is_ready = not out.refused
        out.greeted.set()

    def _prove(self, nonce: str) -> None:
        """Sign what the other member wants signed, once. Raises ``RemoteProtocolError``."""
        credentials = self._out.links.credentials
        if credentials is None:
            raise RemoteProtocolError(
                "it takes messages of members with an account only; give this broker the keys of an admin "
                "(TERNMQ_ACCESS_KEY and TERNMQ_SECRET_KEY, or tools.yml)"
            )
        if self._has_proved:
            raise RemoteProtocolError("it asks for a second proof")
        self._has_proved = True
        self._reader = TextReader(Welcome)
        self._transport.write(pack(LinkProof(proof.prove(nonce, credentials, statement(self._hello())))))

    def connection_lost(self, error: Exception | None) -> None:
        out = self._out
        if out.transport is self._transport:
            out.is_ready = False
            out.transport = None
            if error is not None:
                out.trouble = f"the connection was lost: {error}"
            if not out.greeted.is_set():
                out.refused = (
                    "it closed the connection without an answer; check that the port is right, and whether it needs TLS"
                )
                out.greeted.set()
        out.lost.set()
