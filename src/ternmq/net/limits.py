"""What connections may use: settings, and how much of it is in use (B5, M1).

A program that does not read, or sends half of what it announces, must cost others nothing. So everything that a
connection can make a server keep is counted in bytes, over all connections together:

    connections         refused at once beyond the limits, in all and for one address
    incomplete frames   count with what has arrived; beyond the limit the oldest one loses its connection, as does one
                        that takes too long: frames of programs that work are complete within milliseconds
    waiting replies     count while the other side does not read; beyond the limit of a connection a reply with a body
                        becomes SYSTEM_BUSY, beyond that of all the one that has not read for longest is closed, and
                        so is one that takes nothing at all for a while
    queued requests     count in their lane (``net.lanes``), and those that wait for the disk or another client
                        together; beyond the limit they are refused with SYSTEM_BUSY
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from ternmq.errors import ConfigError
from ternmq.wire.frame import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX

log = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
#: Of the same event, one line is logged in this time; the next one tells how many there were.
_LOG_PAUSE_S: Final = 10.0
#: Requests that wait for the disk or another client, each with a task; a lane's usual length.
_PENDING_MAX: Final = 10_000


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """Bounds of the connections of one server, and settings of brokers and name servers. Times are in ms.

    Raises ``ConfigError`` that names the setting and what it may be.
    """

    #: Bytes of the largest frame, length field included (RocketMQ's ``com.rocketmq.remoting.frameMaxLength``). Java
    #: clients must be given the same. A broker's grows by itself with ``maxMessageSize``.
    frame_max_length: int = FRAME_BYTES_MAX
    #: Open at once; fewer where the limit of open files is lower, as the store needs some of them.
    max_connections: int = 20_000
    #: Of these, from one address: all clients of a host, or behind one NAT or proxy.
    max_connections_per_address: int = 2_000
    #: Bytes of all frames that have not arrived completely.
    max_incomplete_frame_bytes: int = 256 * _MIB
    #: How long the rest of a frame may take. 16 MiB in 60 s are 2.2 Mbit/s.
    incomplete_frame_timeout: int = 60_000
    #: Bytes that wait for one peer to read them, and for all of those that do not keep up. A pull brings 256 KiB.
    max_waiting_reply_bytes: int = 64 * _MIB
    max_waiting_reply_bytes_total: int = 512 * _MIB
    #: How long a peer may read nothing at all while bytes wait for it.
    write_timeout: int = 30_000
    #: Bytes of the requests that wait on one lane, of all that wait for the disk or for other clients, and in a broker
    #: of those that wait for messages: pulls, pops and notifications, each kind for itself.
    max_queued_request_bytes: int = 128 * _MIB

    def __post_init__(self) -> None:
        for key, value, least, most in (
            ("frameMaxLength", self.frame_max_length, _MIB, FRAME_BYTES_LIMIT),
            ("maxConnections", self.max_connections, 1, 1_000_000),
            ("maxConnectionsPerAddress", self.max_connections_per_address, 1, 1_000_000),
            ("maxIncompleteFrameBytes", self.max_incomplete_frame_bytes, _MIB, 1 << 40),
            ("incompleteFrameTimeout", self.incomplete_frame_timeout, 100, 3_600_000),
            ("maxWaitingReplyBytes", self.max_waiting_reply_bytes, _MIB, 1 << 40),
            ("maxWaitingReplyBytesTotal", self.max_waiting_reply_bytes_total, _MIB, 1 << 40),
            ("writeTimeout", self.write_timeout, 100, 3_600_000),
            ("maxQueuedRequestBytes", self.max_queued_request_bytes, _MIB, 1 << 40),
        ):
            if not least <= value <= most:
                raise ConfigError(f"invalid {key} {value}: expected {least} to {most}")


#: For connections of ours to servers. The server decides how large its frames are; what waits here are calls of our own
#: program, mostly sends, which have a limit of their own (``async_bytes_max``).
OUTGOING: Final = Limits(frame_max_length=FRAME_BYTES_LIMIT, max_waiting_reply_bytes=256 * _MIB)


class Connection(Protocol):
    """What ``Usage`` needs of a ``Peer``."""

    address: str

    @property
    def remote_ip(self) -> str: ...

    def left_bytes(self) -> int:
        """How much of what was ever written has left: grows while the other side reads."""
        ...

    def recount(self) -> None:
        """Bring ``Usage.waiting_bytes`` up to date."""
        ...

    def abort(self) -> None: ...


class Usage:
    """How much of its limits a server uses. All methods belong to the loop's thread."""

    def __init__(self, limits: Limits) -> None:
        self.apply(limits)
        #: Bytes of frames that have not arrived completely.
        self.incomplete_bytes = 0
        #: Bytes that wait for peers that do not read them.
        self.waiting_bytes = 0
        #: Bytes of requests whose handlers wait for something, and how many they are.
        self.pending_bytes = 0
        self._pending_count = 0
        self.logs = RareLog()
        self._loop = asyncio.get_running_loop()
        self._connections = 0
        self._addresses: Counter[str] = Counter()
        #: Bytes of the frame and when it began, the oldest frame first.
        self._incomplete: dict[Connection, tuple[int, float]] = {}
        #: For those that do not read: how much had left when, the last time that it was more than before; the one that
        #: has not read for longest first.
        self._unread: dict[Connection, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, limits: Limits) -> None:
        """Set new limits. Connections that are open stay, and keep their largest frame."""
        self.limits = limits
        self._connections_max = min(limits.max_connections, _open_files_max() * 3 // 4)
        self._look_s = min(limits.incomplete_frame_timeout, limits.write_timeout) / 4000

    # --- Connections ------------------------------------------------------------------------------------------------

    def opened(self, peer: Connection) -> bool:
        """Count a connection; False, and nothing is counted, if there are too many."""
        limits, ip = self.limits, peer.remote_ip
        if self._connections >= self._connections_max:
            reason = (
                f"{self._connections_max} connections are open already; if all are needed, raise maxConnections "
                "and the limit of open files (ulimit -n, LimitNOFILE)"
            )
        elif self._addresses[ip] >= limits.max_connections_per_address:
            reason = (
                f"{limits.max_connections_per_address} connections from {ip} are open already; if many clients "
                "share this address, raise maxConnectionsPerAddress"
            )
        else:
            self._connections += 1
            self._addresses[ip] += 1
            return True
        self.logs.warning("refused", f"refusing a connection from {peer.address}: {reason}")
        return False

    def closed(self, peer: Connection) -> None:
        """A connection that was counted has ended."""
        self._connections -= 1
        self._addresses[peer.remote_ip] -= 1
        if not self._addresses[peer.remote_ip]:
            del self._addresses[peer.remote_ip]

    # --- What arrives -----------------------------------------------------------------------------------------------

    def keeps(self, peer: Connection, kept_bytes: int, *, is_new: bool) -> None:
        """A peer has sent so much of a frame, or all of it (0). ``is_new``: it is not the frame of the last call."""
        before, since = self._incomplete.get(peer, (0, 0.0))
        self.incomplete_bytes += kept_bytes - before
        if is_new or not before:
            # To the end: the table is in order of age.
            self._incomplete.pop(peer, None)
            since = self._loop.time()
        if not kept_bytes:
            return
        self._incomplete[peer] = kept_bytes, since
        self._watch()
        while self.incomplete_bytes > self.limits.max_incomplete_frame_bytes:
            reason = (
                f"incomplete frames have {self.incomplete_bytes} bytes in total, more than "
                f"maxIncompleteFrameBytes ({self.limits.max_incomplete_frame_bytes}) allows, and its frame is "
                "the oldest; raise the limit if clients are only slow"
            )
            self._abort("incomplete", next(iter(self._incomplete)), reason)

    def paused(self, peer: Connection) -> None:
        """We do not read from a peer for a while: that its frame is not complete is not its fault."""
        if peer in self._incomplete:
            self._incomplete[peer] = self._incomplete[peer][0], math.inf

    def resumed(self, peer: Connection) -> None:
        """We read from it again: the time for its frame begins anew."""
        if peer in self._incomplete:
            kept_bytes, _ = self._incomplete.pop(peer)
            self._incomplete[peer] = kept_bytes, self._loop.time()

    # --- What leaves ------------------------------------------------------------------------------------------------

    def unread(self, peer: Connection) -> None:
        """A peer does not take what was written to it; until ``read_again``."""
        self._unread[peer] = peer.left_bytes(), self._loop.time()
        self._watch()
        while len(self._unread) > 1 and self.waiting_bytes > self.limits.max_waiting_reply_bytes_total:
            reason = (
                f"{self.waiting_bytes} bytes of replies are not read by clients, more than "
                f"maxWaitingReplyBytesTotal ({self.limits.max_waiting_reply_bytes_total}) allows, and this "
                "client has not read for the longest time; raise the limit if clients are only slow"
            )
            self._abort("waiting", next(iter(self._unread)), reason)

    def read_again(self, peer: Connection) -> None:
        self._unread.pop(peer, None)

    # --- What is being worked on ------------------------------------------------------------------------------------

    def begins(self, request_bytes: int) -> bool:
        """Count a request whose handler waits for something, until ``ends``; False, and it is not, if too many do."""
        if self._pending_count and (
            self._pending_count >= _PENDING_MAX
            or self.pending_bytes + request_bytes > self.limits.max_queued_request_bytes
        ):
            return False
        self._pending_count += 1
        self.pending_bytes += request_bytes
        return True

    def ends(self, request_bytes: int) -> None:
        self._pending_count -= 1
        self.pending_bytes -= request_bytes

    # ----------------------------------------------------------------------------------------------------------------

    def forget(self, peer: Connection) -> None:
        """Nothing is kept for a peer any more."""
        kept_bytes, _ = self._incomplete.pop(peer, (0, 0.0))
        self.incomplete_bytes -= kept_bytes
        self._unread.pop(peer, None)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        limits, now = self.limits, self._loop.time()
        for peer, (_, since) in list(self._incomplete.items()):
            if now - since >= limits.incomplete_frame_timeout / 1000:
                reason = f"its frame was not complete after {limits.incomplete_frame_timeout} ms"
                self._abort("late", peer, reason)
        for peer, (left_bytes, since) in list(self._unread.items()):
            peer.recount()
            if peer.left_bytes() > left_bytes:
                del self._unread[peer]
                self._unread[peer] = peer.left_bytes(), now
            elif now - since >= limits.write_timeout / 1000:
                self._abort("unread", peer, f"it has not read its replies for {limits.write_timeout} ms")
        if self._incomplete or self._unread:
            self._watch()

    def _abort(self, kind: str, peer: Connection, reason: str) -> None:
        self.logs.warning(kind, f"closing the connection to {peer.address}: {reason}")
        peer.abort()


class RareLog:
    """Warnings that anybody can cause as often as he wants: one line of a kind in ten seconds, and how many more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Kind → when the next line may be logged, and how many were left out.
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, sentence: str) -> None:
        next_at, left_out = self._kinds.get(kind, (0.0, 0))
        now = self._loop.time()
        if now < next_at:
            self._kinds[kind] = next_at, left_out + 1
            return
        self._kinds[kind] = now + _LOG_PAUSE_S, 0
        log.warning("%s%s", sentence, f" ({left_out} similar messages were suppressed)" if left_out else "")


def _open_files_max() -> int:
    """How many files and sockets this process may have open."""
    if os.name != "posix":
        return sys.maxsize
    import resource

    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files_max if files_max != resource.RLIM_INFINITY else sys.maxsize
