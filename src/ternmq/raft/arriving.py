"""A connection that was made to this member, by another one or by any program that found the port (P3).

It has to say who it is within ``GREETING_S``, and to prove it where callers are checked. Then its frames, or the calls
of a RocketMQ broker, are passed on. What it may do is decided by its ``Host`` (``raft.links.Links``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol, cast

from ternmq.errors import RemoteProtocolError
from ternmq.net.gate import Rights
from ternmq.net.stream import format_address, host_and_port
from ternmq.raft.dledger_links import DledgerLinks, Incoming, MemberConnection
from ternmq.raft.greeting import MAGIC, Hello, LinkProof, TextReader, Welcome, pack
from ternmq.raft.outgoing import OUT_BYTES_MAX
from ternmq.raft.wire import LinkDecoder

#: How long a connection has to say who it is.
GREETING_S: Final = 10.0


class Host(Protocol):
    """What a connection asks of the member that it was made to."""

    @property
    def theirs(self) -> DledgerLinks | None: ...

    def decoder(self) -> LinkDecoder: ...

    def opened(self, connection: Arriving, /) -> None: ...

    def closed(self, connection: Arriving, /) -> None: ...

    def late(self, connection: Arriving, /) -> None: ...

    def challenge(self, connection: Arriving, hello: Hello, /) -> str | None: ...

    def is_proved(self, connection: Arriving, hello: Hello, nonce: str, given: LinkProof, /) -> bool: ...

    def greeted(self, connection: Arriving, hello: Hello, /) -> bool: ...

    def is_stranger(self, connection: Arriving, /) -> bool: ...

    def refuse(self, connection: MemberConnection, reason: str, /) -> None: ...

    def heard(self, connection: Arriving, sender: str, decoder: LinkDecoder, data: bytes, /) -> None: ...


class Arriving(asyncio.Protocol):
    """A connection that was made to this member, by another one or by any program that found the port."""

    def __init__(self, links: Host) -> None:
        self._links = links
        self._reader: TextReader | None = TextReader(Hello)
        self._decoder = links.decoder()
        #: Calls of a RocketMQ broker.
        self._calls: Incoming | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: What it has said of itself, and what it was asked to sign.
        self._hello: Hello | None = None
        self._nonce = ""
        #: For validators (``net.gate.CallingPeer``).
        self.access: Rights | None = None
        self.proved = ""
        self.certificate: Mapping[str, object] = {}
        self.remote_ip = ""
        self._is_new = True
        #: It has said who it is, and proved it where it had to.
        self.is_known = False
        self.address = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if peer := transport.get_extra_info("peername"):
            self.remote_ip, port = host_and_port(peer)
            self.address = format_address(self.remote_ip, port)
        self.certificate = transport.get_extra_info("peercert") or {}
        self._timer = asyncio.get_running_loop().call_later(GREETING_S, self._links.late, self)
        self._links.opened(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._stop_timer()
        self._links.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._calls is None and self._links.theirs is not None and self._is_new and data[:1] != MAGIC[:1]:
            if self._links.is_stranger(self):
                return
            self._calls = self._links.theirs.incoming(self)
        self._is_new = False
        if self._calls is not None:
            self._calls.feed(data)
            return
        while self._reader is not None:
            try:
                found = self._reader.feed(data)
            except RemoteProtocolError as error:
                self._links.refuse(self, str(error))
                return
            if found is None:
                return
            text, data = found
            if not self._is_admitted(cast("Hello | LinkProof", text)):
                return
        if data and self._hello is not None:
            self._links.heard(self, self._hello.sender, self._decoder, data)

    def _is_admitted(self, text: Hello | LinkProof) -> bool:
        """Whether what this connection says lets it go on; ``_reader`` is what it has to say next, None if nothing."""
        links = self._links
        if isinstance(text, Hello):
            nonce = links.challenge(self, text)
            if nonce is None:
                return False
            self._hello, self._nonce = text, nonce
            if nonce:
                self._reader = TextReader(LinkProof)
                self.write(pack(Welcome(nonce=nonce)))
                return True
        elif self._hello is None or not links.is_proved(self, self._hello, self._nonce, text):
            return False
        self.known()
        self._reader = None
        return links.greeted(self, self._hello)

    def known(self) -> None:
        """It has said who it is."""
        self.is_known = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > OUT_BYTES_MAX:
            self._links.refuse(self, "it does not read its answers")
            self.end()
            return
        self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Let what was written leave; the timer ends a connection that does not read it."""
        if self._transport is not None:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(GREETING_S, self.end)
            self._transport.close()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
