"""The connections of one member to the others of its group (P3).

Each member dials each other one and sends over that connection; what it hears comes over connections that the others
have dialled. So a link that is broken in one direction only is just that, and no message waits for another's answer.

Raft allows messages to be lost, and that is how everything here is bounded. A message for a member that does not read
is dropped (``raft.outgoing``); the core sends it again. Connections of others (``raft.arriving``) are read only while
the node keeps up (``hold`` and ``go_on``). Of those that have not said who they are, one is closed when there are more
than ``NEW_MAX`` (``net.newcomers``).

A connection over which this member has been sending for ``SILENCE_S`` without hearing from the other one is made anew:
a machine that came back under the same address does not know the old connection, and the kernel may take minutes to
find out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from ternmq.errors import ConfigError, RemoteProtocolError, TernError
from ternmq.net import proof
from ternmq.net.endpoint import Acceptor, Bound, dial, listen, split_address
from ternmq.net.gate import Gate
from ternmq.net.newcomers import Newcomers
from ternmq.net.tls import LiveTls, TlsConfig
from ternmq.raft.arriving import GREETING_S, Arriving
from ternmq.raft.config import MEMBER_ID, MEMBERS_MAX, Member
from ternmq.raft.dledger_links import DledgerLinks, MemberConnection
from ternmq.raft.greeting import Hello, LinkProof, Welcome, pack, refusal, statement
from ternmq.raft.outgoing import LinkOut, OutgoingProtocol
from ternmq.raft.wire import LinkDecoder
from ternmq.rare_log import RareLog, one_line
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials

log = logging.getLogger(__name__)

#: Connections that have not said who they are.
NEW_MAX: Final = 64
SILENCE_S: Final = 3.0
#: Between two attempts to connect, doubled with each that fails; a refusal counts as many.
_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_REFUSED_S: Final = 5.0
_DIAL_MS: Final = 2_000
#: How often the address of a member is looked for that is not linked.
_LOOK_UP_S: Final = 5.0
#: How long a member that was removed stays connected, so that it hears of it.
LEAVING_S: Final = 10.0
#: How long a member may be away before it is worth a warning: members start and restart one after the other.
_ANXIOUS_S: Final = 5.0

#: Gets the member that sent it, the kind of a frame and its body.
OnFrame = Callable[[str, int, bytes], None]


class Links:
    """``async with Links(…) as links: await links.serve(bound)``. Belongs to the loop."""

    def __init__(
        self,
        hello: Hello,
        others: Sequence[Member],
        deliver: OnFrame,
        *,
        frame_bytes_max: int,
        on_link: Callable[[str], None] | None = None,
        server_tls: LiveTls | None = None,
        client_tls: TlsConfig | None = None,
        is_guarded: bool = False,
        gate: Gate | None = None,
        credentials: Credentials | None = None,
        theirs: DledgerLinks | None = None,
    ) -> None:
        """``hello`` is what this member says of itself; its ``receiver`` is filled in for each other member.

        ``deliver`` gets all frames, and raises ``RemoteProtocolError`` for one that it cannot read. ``on_link`` is told
        the id of a member to which messages flow again. ``is_guarded``: the broker checks who calls it, so only
        machines that are named in ``dLegerPeers`` may connect; with a ``gate``, only those that prove to be an admin.
        This member proves it with ``credentials``. ``theirs``: RocketMQ brokers may be members, too; they cannot prove
        anything, and are known by their addresses.
        """
        self.hello = hello
        self._deliver = deliver
        self._on_link = on_link
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._is_guarded = is_guarded
        self._gate = gate
        self.credentials = credentials
        self.theirs = theirs
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self.logs = RareLog(log, self._loop.time, lines_max=10)
        self._tasks = Tasks()
        #: In which tasks are started, also when a socket of another owner calls.
        self._context = copy_context()
        self._acceptor: Acceptor | None = None
        self._out = {member.id: LinkOut(self, member) for member in others}
        #: Connections that have not said who they are; the one that each member has made.
        self._new = Newcomers[Arriving](NEW_MAX)
        self._in: dict[str, Arriving] = {}
        #: What the other members have said of themselves.
        self.known: dict[str, Hello] = {}
        self._is_held = False

    async def __aenter__(self) -> Self:
        for out in self._out.values():
            self._start(out)
        if self.theirs is not None:
            self.theirs.start(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in (*self._new, *self._in.values()):
            connection.end()
        for out in self._out.values():
            out.close()
        if self.theirs is not None:
            await self.theirs.close()
        await self._tasks.close()

    async def serve(self, bound: Bound) -> None:
        """Accept the other members on a port of ``net.endpoint.bind``, which is ours from now on."""
        self._acceptor = await listen(bound, lambda: Arriving(self), self._server_tls, tasks=self._tasks)

    def send(self, to: str, frame: Sequence[Buffer]) -> bool:
        """Send a frame (``raft.wire``); False if it is dropped."""
        out = self._out.get(to)
        return out is not None and out.send(frame)

    def is_linked(self, to: str) -> bool:
        """Whether messages to a member flow."""
        return self.is_ours(to) or (self.theirs is not None and self.theirs.is_linked(to))

    def is_ours(self, member: str) -> bool:
        """Whether they flow as TernMQ's messages."""
        out = self._out.get(member)
        return out is not None and out.is_ready

    def follow(self, others: Sequence[Member], members_index: int) -> None:
        """From now on these are the other members. Those that are none any more are told so first."""
        self.hello = msgspec.structs.replace(
            self.hello, members=(self.hello.sender, *(each.id for each in others)), members_index=members_index
        )
        for member in others:
            out = self._out.get(member.id)
            if out is not None and out.member == member:
                out.is_leaving = False
            else:
                if out is not None:
                    self._forget(out)
                self._add(member)
        wanted = {member.id for member in others}
        for out in self._out.values():
            if out.member.id not in wanted and not out.is_leaving:
                self._leave(out)

    def _add(self, member: Member) -> LinkOut:
        out = self._out[member.id] = LinkOut(self, member)
        self._start(out)
        return out

    def _start(self, out: LinkOut) -> None:
        name = f"raft: link to {out.member.id}"
        out.task = self._context.copy().run(self._tasks.create_task, self._keep(out), name=name)

    def _leave(self, out: LinkOut) -> None:
        out.is_leaving = True
        self._loop.call_later(LEAVING_S, self._let_go, out)

    def _let_go(self, out: LinkOut) -> None:
        if out.is_leaving and self._out.get(out.member.id) is out:
            log.info("%s is no member any more: its connections are closed", out.member.id)
            self._forget(out)

    def _forget(self, out: LinkOut) -> None:
        del self._out[out.member.id]
        self.known.pop(out.member.id, None)
        if out.task is not None:
            out.task.cancel()
        out.abort()
        connection = self._in.pop(out.member.id, None)
        if connection is not None:
            connection.end()

    def hold(self) -> None:
        """Read nothing more until ``go_on``."""
        self._is_held = True
        for connection in self._in.values():
            connection.pause()

    def go_on(self) -> None:
        self._is_held = False
        for connection in self._in.values():
            connection.resume()

    def cut(self) -> None:
        """Close all connections; they are made again."""
        for connection in (*self._new, *self._in.values()):
            connection.end()
        for out in self._out.values():
            out.abort()
        if self.theirs is not None:
            self.theirs.cut()

    # --- Connections to others --------------------------------------------------------------------------------------

    async def _keep(self, out: LinkOut) -> None:
        pause_s, trouble, since = _RETRY_MIN_S, "", self._loop.time()
        while True:
            if self._is_guarded:
                # Each time: a name may not be known yet when this member starts, or its machine have moved.
                out.ips = await asyncio.to_thread(_ips_of, out.member.address) or out.ips
            if self.theirs is not None and not await self._is_tern(self.theirs, out.member.id):
                continue
            try:
                tls = self._client_tls.context() if self._client_tls is not None else None
                await dial(out.member.address, partial(OutgoingProtocol, out), tls, timeout_ms=_DIAL_MS)
                async with asyncio.timeout(GREETING_S):
                    await out.greeted.wait()
                if out.refused:
                    raise _Refused(out.refused)
                log.info("messages to %s at %s flow", out.member.id, out.member.address)
                if self._on_link is not None:
                    self._on_link(out.member.id)
                await self._watch(out)
                reason = out.trouble or "the connection was lost"
                pause_s, trouble, since = _RETRY_MIN_S, "", self._loop.time()
                log.info("no messages to %s at %s: %s; retrying", out.member.id, out.member.address, reason)
            except TimeoutError:
                reason = f"it did not answer within {GREETING_S:g} s"
            except _Refused as error:
                reason, pause_s = f"it refuses this member: {error}", _REFUSED_S
            except (TernError, OSError) as error:
                reason = str(error)
            finally:
                out.abort()
            reason = one_line(reason)
            if reason != trouble and (out.refused or self._loop.time() - since > _ANXIOUS_S):
                log.warning("no messages to %s at %s: %s; retrying", out.member.id, out.member.address, reason)
                trouble = reason
            await self._pause(out, pause_s)
            pause_s = min(pause_s * 2, max(_RETRY_MAX_S, pause_s))

    async def _is_tern(self, theirs: DledgerLinks, member: str) -> bool:
        """Wait until a member has said that it is TernMQ, but not for ever: its address is looked for again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_UP_S):
                await theirs.is_tern(member)
                return True
        return False

    async def _watch(self, out: LinkOut) -> None:
        """Return when the connection is over, or seems to lead nowhere."""
        while out.is_ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_S / 2):
                    await out.lost.wait()
            since = out.unanswered_since
            if out.is_ready and since is not None and self._loop.time() - since > SILENCE_S:
                out.trouble = f"nothing was heard from it for {SILENCE_S:g} s"
                return

    async def _pause(self, out: LinkOut, pause_s: float) -> None:
        """Wait, but not longer than until the other member calls."""
        out.called.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await out.called.wait()
                # It may be starting, and listen in a moment.
                await asyncio.sleep(_RETRY_MIN_S)

    # --- For connections of others ----------------------------------------------------------------------------------

    def opened(self, connection: Arriving) -> None:
        loser = self._new.add(connection, connection.remote_ip)
        if loser is not None:
            self._refuse(loser, f"{NEW_MAX} other connections have not said who they are either")

    def late(self, connection: Arriving) -> None:
        """A connection has had its time to say who it is, or to take the refusal."""
        if connection in self._new:
            self._refuse(connection, f"it has not said who it is within {GREETING_S:g} s")
        connection.end()

    def challenge(self, connection: Arriving, hello: Hello) -> str | None:
        """What a connection that has said who it is must sign; empty if nothing, None if it is refused."""
        # Where callers are checked, a stranger learns nothing of this group.
        reason = self._address_refusal(connection, hello.sender)
        # By a change that is not known here yet, also a machine that this member does not know may be that of a member,
        # and even lead: it has to sign like all others.
        may_have_joined = self._gate is not None and hello.sender not in self._out and hello.members_index >= 0
        if reason and not may_have_joined:
            self._turn_away(connection, reason)
            return None
        return proof.new_nonce() if self._gate is not None else ""

    def is_proved(self, connection: Arriving, hello: Hello, nonce: str, given: LinkProof) -> bool:
        """Whether a connection has signed what it was asked to; if not, it is refused."""
        assert self._gate is not None, "a proof was asked for"
        try:
            proof.check(self._gate, connection, nonce, given.fields, statement(hello))
        except TernError as error:
            self._turn_away(connection, str(error), is_noted=True)
            return False
        return True

    def greeted(self, connection: Arriving, hello: Hello) -> bool:
        """Whether a connection of which this member knows who it is may send messages."""
        reason = refusal(hello, self.hello) or self._stranger_refusal(hello)
        if reason:
            self._turn_away(connection, reason)
            return False
        self._new.discard(connection)
        if hello.sender not in self._out:
            # By a change of members that is not known here yet.
            self._add(Member(hello.sender, hello.raft_address))
        self._replace(hello.sender, connection)
        self.known[hello.sender] = hello
        connection.write(pack(Welcome()))
        self._out[hello.sender].called.set()
        if self._is_held:
            connection.pause()
        return True

    def named(self, connection: MemberConnection, sender: str) -> bool:
        """A connection over which calls of DLedger come says whose they are."""
        assert isinstance(connection, Arriving), "connections are ours"
        if self._in.get(sender) is connection:
            return True
        if reason := self._address_refusal(connection, sender):
            self.refuse(connection, reason)
            return False
        self._new.discard(connection)
        connection.known()
        self._replace(sender, connection)
        # What it said of itself as a TernMQ broker does not hold any more.
        self.known.pop(sender, None)
        if self._is_held:
            connection.pause()
        return True

    def is_stranger(self, connection: Arriving) -> bool:
        """Whether callers are checked, and a connection comes from the machine of no member; then it is refused."""
        if not self._is_guarded or any(connection.remote_ip in out.ips for out in self._out.values()):
            return False
        self._refuse(connection, "its address is not in dLegerPeers; with access control only members may connect")
        return True

    def refuse(self, connection: MemberConnection, reason: str) -> None:
        assert isinstance(connection, Arriving), "connections are ours"
        self._refuse(connection, reason)

    def _replace(self, sender: str, connection: Arriving) -> None:
        older = self._in.get(sender)
        if older is not None:
            older.end()
        self._in[sender] = connection

    def heard(self, connection: Arriving, sender: str, decoder: LinkDecoder, data: bytes) -> None:
        """Bytes of a member."""
        out = self._out.get(sender)
        if out is None:
            self._refuse(connection, f"{sender} is no member any more")
            return
        out.unanswered_since = None
        try:
            for kind, body in decoder.feed(data):
                self._deliver(sender, kind, body)
        except RemoteProtocolError as error:
            self._refuse(connection, str(error))

    def closed(self, connection: Arriving) -> None:
        self._new.discard(connection)
        if self.theirs is not None:
            self.theirs.closed(connection)
        for sender in [sender for sender, each in self._in.items() if each is connection]:
            del self._in[sender]
            out = self._out.get(sender)
            if out is not None and sender not in self.hello.members and not out.is_leaving:
                # It only said that it was a member. If that is so, it comes back.
                self._leave(out)

    def decoder(self) -> LinkDecoder:
        return LinkDecoder(self._frame_bytes_max)

    def _refuse(self, connection: Arriving, reason: str, *, is_noted: bool = False) -> None:
        """``is_noted``: the audit log has it."""
        if not connection.is_known and not is_noted:
            proof.note_refusal(self._gate, connection, reason)
        self.logs.warning("refused", f"closing a Raft connection from {connection.address}: {reason}")
        connection.close()

    def _stranger_refusal(self, hello: Hello) -> str:
        """A member by a change that is not known here yet; there are few of those."""
        if hello.sender in self._out:
            return ""
        if MEMBER_ID.match(hello.sender) and len(self._out) < 2 * MEMBERS_MAX:
            try:
                split_address(hello.raft_address)
            except ConfigError as error:
                return f"{hello.sender} does not say where other members reach it: {str(error)[:200]}"
            return ""
        return f"{hello.sender[:20]!r} is not a member of the group ({', '.join(self.hello.members)})"

    def _turn_away(self, connection: Arriving, reason: str, *, is_noted: bool = False) -> None:
        self._new.discard(connection)
        connection.write(pack(Welcome(reason=reason)))
        self._refuse(connection, reason, is_noted=is_noted)

    def _address_refusal(self, connection: Arriving, sender: str) -> str:
        out = self._out.get(sender)
        if not self._is_guarded or (out is not None and connection.remote_ip in out.ips):
            return ""
        return (
            f"its address is not that of {sender[:20]!r} in dLegerPeers; with access control only the machines "
            "that are named there may connect"
        )


class _Refused(TernError):
    """The other member does not take our messages."""


def _ips_of(address: str) -> frozenset[str]:
    """The addresses of a machine; none if its name cannot be resolved, which dialling it will tell. Blocks."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(str(each[4][0]) for each in found)
