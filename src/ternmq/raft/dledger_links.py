"""Connections with members of a group that are RocketMQ brokers (P3; decisions/0033).

::

    our member                                         other member
      | ── METADATA ─────────────────────────────────────▶ |   who are you?
      | ◀── a TernMQ member says so ─────────────────────── |   then it is greeted as one, by ``raft.links``
      | ◀── a RocketMQ broker does not ──────────────────── |
      | ── VOTE, HEART_BEAT, PUSH, LEADERSHIP_TRANSFER ───▶ |   our calls, over this connection
      | ◀── the same over a connection of its own ───────── |   its calls, which ``raft.links`` has accepted

A member may become the other kind at any time: when its connection is lost, it is asked again.

``DLedgerCalls`` and ``DLedgerAnswers`` translate; here are sockets and time. Bounds are those of ``raft.links``: what
waits for a member that does not read is dropped beyond 16 MiB, and nothing is read while the node does not keep up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, cast

from ternmq.errors import LocalProtocolError, RemoteProtocolError, TernError
from ternmq.net.endpoint import dial
from ternmq.net.tls import TlsConfig
from ternmq.raft.config import Member
from ternmq.raft.dledger_answers import DLedgerAnswers
from ternmq.raft.dledger_calls import DLedgerCalls
from ternmq.raft.dledger_view import Todo, View
from ternmq.raft.greeting import VERSION
from ternmq.raft.messages import AppendReply, NodeId, RaftMessage, VoteReply
from ternmq.raft.wire import EntriesGone
from ternmq.rare_log import RareLog
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.dledger import (
    ENTRY_BYTES_MAX,
    Base,
    Code,
    DLedgerCode,
    LeaderTransfer,
    Metadata,
    Push,
    PushAnswer,
    VoteAnswer,
    VoteCall,
)
from ternmq.wire.frame import FrameDecoder, encode_reply, encode_request
from ternmq.wire.header import Reply, Request, Response

log = logging.getLogger(__name__)

#: Bytes that may wait for a member that does not read.
_OUT_BYTES_MAX: Final = 16 << 20
_DIAL_MS: Final = 2_000
#: How long a member may take to say who it is.
_ASK_S: Final = 3.0
_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
#: How long a member may be away before it is worth a warning.
_ANXIOUS_S: Final = 5.0
#: A frame from another member: its largest entry as JSON, and more. A connection that has not said whose it is may keep
#: as much in memory, so there are few of them.
_FRAME_BYTES_MAX: Final = 2 * ENTRY_BYTES_MAX
_UNNAMED_MAX: Final = 8
#: Characters of an id in a call: many of those may wait for an answer.
_ID_LENGTH_MAX: Final = 127
#: How often a member that is TernMQ, and has no link, is asked again.
_ASK_AGAIN_S: Final = 2.0

_REQUESTS: Final[dict[int, type[Base]]] = {
    DLedgerCode.METADATA: Metadata,
    DLedgerCode.VOTE: VoteCall,
    DLedgerCode.HEART_BEAT: Base,
    DLedgerCode.PUSH: Push,
    DLedgerCode.LEADERSHIP_TRANSFER: LeaderTransfer,
}
_RESPONSES: Final[dict[DLedgerCode, type[Base]]] = {
    DLedgerCode.METADATA: Metadata,
    DLedgerCode.VOTE: VoteAnswer,
    DLedgerCode.HEART_BEAT: Base,
    DLedgerCode.PUSH: PushAnswer,
    DLedgerCode.LEADERSHIP_TRANSFER: Base,
}


class MemberConnection(Protocol):
    """A connection that another member has made (``raft.links``)."""

    def write(self, data: bytes) -> None: ...


class Ours(Protocol):
    """What this needs of ``raft.links``."""

    def is_ours(self, member: NodeId) -> bool:
        """Whether TernMQ's messages flow to a member."""

    def named(self, connection: MemberConnection, sender: NodeId) -> bool:
        """A connection says whose it is; False if it may not be, and was refused."""

    def refuse(self, connection: MemberConnection, reason: str) -> None:
        """Close a connection."""


class DledgerLinks:
    """Belongs to the loop. ``raft.links.Links`` owns it, and enters and leaves it."""

    def __init__(
        self,
        group: str,
        own_id: NodeId,
        members: Sequence[Member],
        view: View,
        deliver: Callable[[RaftMessage | EntriesGone, NodeId, int], None],
        *,
        now_ms: Callable[[], int],
        client_tls: TlsConfig | None = None,
    ) -> None:
        """``members``: as in the settings. ``deliver`` gets messages for the core, who they are of, and their size."""
        self.group = group
        self.own_id = own_id
        self.members = members
        self.view = view
        self.deliver = deliver
        self.now_ms = now_ms
        self.client_tls = client_tls
        self.loop = asyncio.get_running_loop()
        self.logs = RareLog(log, self.loop.time, lines_max=10)
        self._tasks = Tasks()
        self._others = {member.id: _Other(self, member) for member in members if member.id != own_id}
        self._ours: Ours | None = None
        #: Connections that have not said whose they are, the oldest first.
        self._unnamed: dict[MemberConnection, None] = {}

    @property
    def ours(self) -> Ours:
        assert self._ours is not None, "the links are running"
        return self._ours

    def start(self, ours: Ours) -> None:
        self._ours = ours
        for other in self._others.values():
            self._tasks.create_task(other.keep(), name=f"raft: calls of {other.member.id}")

    async def close(self) -> None:
        for other in self._others.values():
            other.end()
        await self._tasks.close()

    def cut(self) -> None:
        for other in self._others.values():
            other.end()

    def is_linked(self, to: NodeId) -> bool:
        other = self._others.get(to)
        return other is not None and other.is_ready

    async def is_tern(self, member: NodeId) -> None:
        """Wait until a member has said that it is TernMQ. One that the settings do not name can only be that: it joined
        by a change of members."""
        other = self._others.get(member)
        if other is not None:
            await other.is_tern.wait()

    def send(self, message: RaftMessage) -> bool:
        """Send a message of our core; False if it is not for a RocketMQ broker."""
        other = self._others.get(message.receiver)
        return other is not None and other.send(message)

    def incoming(self, connection: MemberConnection) -> Incoming:
        """Another member has made a connection, and speaks DLedger's protocol, as it seems."""
        self._unnamed[connection] = None
        if len(self._unnamed) > _UNNAMED_MAX:
            oldest = next(iter(self._unnamed))
            del self._unnamed[oldest]
            self.ours.refuse(oldest, f"{_UNNAMED_MAX} newer connections have not said whose they are either")
        return Incoming(self, connection)

    def closed(self, connection: MemberConnection) -> None:
        self._unnamed.pop(connection, None)

    def called(self, connection: MemberConnection, request: Request[object]) -> None:
        """Raises ``RemoteProtocolError``."""
        kind = _REQUESTS.get(request.code)
        if kind is None:
            answer = Base(code=Code.UNSUPPORTED, leader_id=self.view.leader)
            connection.write(_reply(request, answer))
            return
        call = decode(request.body, kind)
        if len(call.local_id or "") > _ID_LENGTH_MAX:
            raise RemoteProtocolError(f"a call names its sender with {len(call.local_id or '')} characters")
        code = self._misdirected(call)
        if code is not None:
            connection.write(_reply(request, Base(group=self.group, code=code, leader_id=self.view.leader)))
            return
        if isinstance(call, Metadata):
            peers = {member.id: member.address for member in self.members}
            answer = Metadata(group=self.group, leader_id=self.view.leader, peers=peers, ternmq=VERSION)
            connection.write(_reply(request, answer))
            return
        sender = call.transfer_id if isinstance(call, LeaderTransfer) else call.leader_id
        other = self._others.get(sender or "")
        if other is None:
            connection.write(_reply(request, Base(group=self.group, code=Code.UNKNOWN_MEMBER, term=self.view.term)))
        elif self.ours.named(connection, other.member.id):
            self._unnamed.pop(connection, None)
            other.called(_Told(connection, request), call)

    def _misdirected(self, call: Base) -> Code | None:
        if call.remote_id != self.own_id:
            return Code.UNKNOWN_MEMBER
        return Code.UNKNOWN_GROUP if call.group != self.group else None


class Incoming:
    """Calls that come over one connection."""

    def __init__(self, links: DledgerLinks, connection: MemberConnection) -> None:
        self._links = links
        self._connection = connection
        self._decoder = FrameDecoder(bytes_max=_FRAME_BYTES_MAX, typed=False)

    def feed(self, data: bytes) -> None:
        try:
            for command in self._decoder.feed(data):
                if isinstance(command, Response):
                    raise RemoteProtocolError("it sent a response where calls are expected")
                self._links.called(self._connection, command)
        except RemoteProtocolError as error:
            self._links.ours.refuse(self._connection, str(error))


class _Told:
    """How a call is answered. The request is kept without its body: pushes are large."""

    __slots__ = ("_connection", "_request")

    def __init__(self, connection: MemberConnection, request: Request[object]) -> None:
        request.release()
        self._connection = connection
        self._request = request

    def answer(self, body: Base) -> None:
        self._connection.write(_reply(self._request, body))


class _Other:
    """One other member, whatever it is."""

    def __init__(self, links: DledgerLinks, member: Member) -> None:
        self._links = links
        self.member = member
        self._calls = DLedgerCalls(links.group, links.own_id, member.id, links.view)
        self._answers = DLedgerAnswers(links.own_id, member.id, links.view)
        #: It has said that it is TernMQ; messages for it are not ours to send.
        self.is_tern = asyncio.Event()
        #: It is a RocketMQ broker, or was when it was last asked.
        self._is_theirs = False
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._asked: asyncio.Future[Metadata] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        return self._is_theirs and self._transport is not None

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- Messages and calls

    def send(self, message: RaftMessage) -> bool:
        now_ms = self._links.now_ms()
        if isinstance(message, AppendReply | VoteReply):
            todo = self._answers.replied(message, now_ms)
            self._do(todo)
            return bool(todo.answers)
        if not self._is_theirs:
            return False
        if self.is_ready:
            self._do(self._calls.send(message, now_ms))
        return True

    def called(self, told: _Told, call: Base) -> None:
        now_ms = self._links.now_ms()
        match call:
            case VoteCall():
                todo = self._answers.voted(told, call, now_ms)
            case Push():
                todo = self._answers.pushed(told, call, now_ms)
            case LeaderTransfer():
                todo = self._answers.transferred(told, call, now_ms)
            case _:
                todo = self._answers.heart_beat(told, call, now_ms)
        self._do(todo)

    def _do(self, todo: Todo) -> None:
        links = self._links
        for told, answer in todo.answers:
            cast("_Told", told).answer(answer)
        for number, code, body in todo.calls:
            self._write(number, code, body)
        for message in todo.messages:
            links.deliver(message, self.member.id, len(getattr(message, "data", b"")))
        self._set_timer()

    def _write(self, number: int, code: DLedgerCode, body: Base) -> None:
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _OUT_BYTES_MAX:
            return
        try:
            transport.writelines(encode_request(code, body=encode(body), opaque=number))
        except LocalProtocolError as error:
            self._links.logs.error("large", f"entries cannot be sent to {self.member.id}: {error}")

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [at for at in (self._calls.deadline_ms, self._answers.deadline_ms) if at is not None]
        if times:
            delay_s = max(min(times) - self._links.now_ms(), 1) / 1000
            self._timer = self._links.loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        now_ms = self._links.now_ms()
        todo = self._calls.tick(now_ms) if self.is_ready else Todo()
        todo += self._answers.tick(now_ms)
        self._do(todo)

    # --- The connection to it

    async def keep(self) -> None:
        """Ask it what it is, again and again; while it is a RocketMQ broker, call it."""
        links, member = self._links, self.member
        pause_s, trouble, since = _RETRY_MIN_S, "", links.loop.time()
        try:
            while True:
                reason = ""
                if not links.ours.is_ours(member.id):
                    try:
                        reason = await self._serve()
                        if not reason:
                            pause_s, trouble, since = _RETRY_MIN_S, "", links.loop.time()
                    except TimeoutError:
                        reason = f"it did not answer within {_ASK_S:g} s"
                    except (TernError, OSError) as error:
                        reason = str(error)
                    finally:
                        self.end()
                if self.is_tern.is_set():
                    await asyncio.sleep(_ASK_AGAIN_S)
                    continue
                if reason and reason != trouble and links.loop.time() - since > _ANXIOUS_S:
                    log.warning("cannot call %s at %s: %s; retrying", member.id, member.address, reason)
                    trouble = reason
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_MAX_S)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _serve(self) -> str:
        """Until the connection is lost; why it is not used, if so."""
        links, member = self._links, self.member
        tls = links.client_tls.context() if links.client_tls is not None else None
        self._asked = links.loop.create_future()
        await dial(member.address, partial(_DLedgerOutProtocol, self), tls, timeout_ms=_DIAL_MS)
        call = Metadata(group=links.group, remote_id=member.id, local_id=links.own_id)
        self._write(0, DLedgerCode.METADATA, call)
        async with asyncio.timeout(_ASK_S):
            answer = await self._asked
        if reason := self._refusal(answer):
            return reason
        if answer.ternmq:
            self._is_theirs = False
            self.is_tern.set()
            return ""
        self.is_tern.clear()
        if not self._is_theirs:
            log.info("%s at %s is a RocketMQ broker: it is called as DLedger does", member.id, member.address)
        self._is_theirs = True
        await self._lost.wait()
        log.info("the connection to %s at %s was lost", member.id, member.address)
        return ""

    def _refusal(self, answer: Metadata) -> str:
        if answer.code == Code.UNKNOWN_GROUP:
            return f"it is not in the group {self._links.group!r}; use the same dLegerGroup on all members"
        if answer.code == Code.UNKNOWN_MEMBER:
            return f"it is not {self.member.id}; use the same dLegerPeers on all members, and check dLegerSelfId"
        if answer.code != Code.SUCCESS:
            return f"it answers with code {answer.code}"
        ids, theirs = {member.id for member in self._links.members}, set(answer.peers or ())
        if ids != theirs:
            return (
                f"its dLegerPeers has other members ({', '.join(sorted(theirs))[:200]}) than ours "
                f"({', '.join(sorted(ids))}); use the same dLegerPeers on all members"
            )
        return ""

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._lost.clear()

    def closed(self, error: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(
                RemoteProtocolError(
                    f"it closed the connection without an answer{f': {error}' if error else ''}; if it is TernMQ, set "
                    "raftPeerProtocol=dledger there, too"
                )
            )
        self._do(self._calls.lost(self._links.now_ms()))

    def answered(self, response: Response) -> None:
        """Raises ``RemoteProtocolError``."""
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(decode(response.body, Metadata))
            return
        code = self._calls.code_of(response.opaque)
        if code is not None:
            answer = decode(response.body, _RESPONSES[code])
            self._do(self._calls.answered(response.opaque, answer, self._links.now_ms()))


class _DLedgerOutProtocol(asyncio.Protocol):
    """A connection that this member has made."""

    def __init__(self, other: _Other) -> None:
        self._other = other
        self._decoder = FrameDecoder(typed=False)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._other.opened(self._transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for command in self._decoder.feed(data):
                if isinstance(command, Response):
                    self._other.answered(command)
        except RemoteProtocolError as error:
            self._other._links.logs.warning("answer", f"an answer cannot be read: {error}")  # noqa: SLF001 - one module
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._other.closed(error)


def _reply(request: Request[object], body: Base) -> bytes:
    # DLedger looks at the code in the body only; the one in the header says that the call arrived.
    buffers: list[Buffer] = encode_reply(request, Reply(Code.SUCCESS, body=encode(body)))
    return b"".join(buffers)
