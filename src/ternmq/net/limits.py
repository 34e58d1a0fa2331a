"""Limits of connections: settings, and the current usage (B5, M1).

A client that does not read, or sends half of an announced frame, must not affect others. So everything that a
connection makes a server keep is counted in bytes, over all connections together:

    connections         refused above the limits, in total and per address
    incomplete frames   count with the bytes that have arrived; above the limit the connection with the oldest frame is
                        closed, and so is one whose frame takes too long: frames of healthy clients take milliseconds
    waiting replies     count while the other side does not read; above the limit of a connection a reply with a body
                        becomes SYSTEM_BUSY; above the limit of all connections the one that has not read for longest is
                        closed, and so is one that reads nothing for too long
    queued requests     count in their lane (``net.lanes``); those that wait for the disk or another client count
                        together; above the limit they are refused with SYSTEM_BUSY
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from ternmq.errors import ConfigError
from ternmq.net.places import place_of
from ternmq.rare_log import RareLog
from ternmq.wire.frame import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX

log = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
#: Requests that wait for the disk or another client, each with a task; a lane's usual length.
_PENDING_MAX: Final = 10_000


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """Bounds of the connections of one server, and settings of brokers and name servers. Times are in ms.

    Raises ``ConfigError`` that names the setting and the allowed values.
    """

    #: Bytes of the largest frame, length field included (RocketMQ's ``com.rocketmq.remoting.frameMaxLength``). Java
    #: clients need the same value. A broker's limit grows with ``maxMessageSize``.
    frame_max_length: int = FRAME_BYTES_MAX
    #: Open at the same time; fewer if the limit of open files is lower, because the store needs some of them.
    max_connections: int = 20_000
    #: Connections from one address: all clients of a host, or behind one NAT or proxy. With IPv6: from one network of
    #: 64 bits (``net.places``).
    max_connections_per_address: int = 2_000
    #: Bytes of all frames that have not arrived completely.
    max_incomplete_frame_bytes: int = 256 * _MIB
    #: How long the rest of a frame may take. 16 MiB in 60 s is 2.2 Mbit/s.
    incomplete_frame_timeout: int = 60_000
    #: Bytes that wait for one peer to read them, and for all slow peers together. A pull returns 256 KiB.
    max_waiting_reply_bytes: int = 64 * _MIB
    max_waiting_reply_bytes_total: int = 512 * _MIB
    #: How long a peer may read nothing while bytes wait for it.
    write_timeout: int = 30_000
    #: Bytes of the requests that wait on one lane; of all requests that wait for the disk or for other clients; and, in
    #: a broker, of those that wait for messages: pulls, pops and notifications, each kind separately.
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


#: For outgoing connections. The server decides how large its frames are; the waiting bytes are calls of our own
#: program, mostly sends, which have their own limit (``async_bytes_max``).
OUTGOING: Final = Limits(frame_max_length=FRAME_BYTES_LIMIT, max_waiting_reply_bytes=256 * _MIB)


class CountedConnection(Protocol):
    """The part of a ``Peer`` that ``Usage`` needs."""

    address: str

    @property
    def remote_ip(self) -> str: ...

    def left_bytes(self) -> int:
        """How many bytes have been sent since the start: grows while the other side reads."""
        ...

    def recount(self) -> None:
        """Update ``Usage.waiting_bytes``."""
        ...

    def abort(self) -> None: ...


class Usage:
    """The current usage of a server's limits. All methods belong to the loop's thread."""

    def __init__(self, limits: Limits) -> None:
        self.apply(limits)
        #: Bytes of frames that have not arrived completely.
        self.incomplete_bytes = 0
        #: Bytes that wait for peers that do not read them.
        self.waiting_bytes = 0
        #: Bytes and number of requests whose handlers wait for something.
        self.pending_bytes = 0
        self._pending_count = 0
        self.logs = RareLog(log, asyncio.get_running_loop().time)
        self._loop = asyncio.get_running_loop()
        self._connections = 0
        self._places: Counter[str] = Counter()
        #: Bytes of the frame and when it began, the oldest frame first.
        self._incomplete: dict[CountedConnection, tuple[int, float]] = {}
        #: For peers that do not read: how many bytes had been sent, and when that number last grew; the one that has
        #: not read for longest is first.
        self._unread: dict[CountedConnection, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, limits: Limits) -> None:
        """Set new limits. Connections that are open stay, and keep their largest frame."""
        self.limits = limits
        self._connections_max = min(limits.max_connections, _open_files_max() * 3 // 4)
        self._look_s = min(limits.incomplete_frame_timeout, limits.write_timeout) / 4000

    # --- Connections ------------------------------------------------------------------------------------------------

    def opened(self, peer: CountedConnection) -> bool:
        """Count a connection; returns False, without counting it, if there are too many."""
        limits, place = self.limits, place_of(peer.remote_ip)
        if self._connections >= self._connections_max:
            reason = (
                f"{self._connections_max} connections are open already; if all are needed, raise maxConnections "
                "and the limit of open files (ulimit -n, LimitNOFILE)"
            )
        elif self._places[place] >= limits.max_connections_per_address:
            reason = (
                f"{limits.max_connections_per_address} connections from {place} are open already; if many clients "
                "share this address, raise maxConnectionsPerAddress"
            )
        else:
            self._connections += 1
            self._places[place] += 1
            return True
        self.logs.warning("refused", f"refusing a connection from {peer.address}: {reason}")
        return False

    def closed(self, peer: CountedConnection) -> None:
        """A counted connection has ended."""
        self._connections -= 1
        place = place_of(peer.remote_ip)
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]

    # --- Incoming ---------------------------------------------------------------------------------------------------

    def keeps(self, peer: CountedConnection, kept_bytes: int, *, is_new: bool) -> None:
        """A peer has sent this much of a frame, or all of it (0). ``is_new``: not the frame of the last call."""
        before, since = self._incomplete.get(peer, (0, 0.0))
        self.incomplete_bytes += kept_bytes - before
        if is_new or not before:
            # Moved to the end: the table is ordered by age.
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

    def paused(self, peer: CountedConnection) -> None:
        """Reading from a peer is paused: the peer is not responsible for its incomplete frame."""
        if peer in self._incomplete:
            self._incomplete[peer] = self._incomplete[peer][0], math.inf

    def resumed(self, peer: CountedConnection) -> None:
        """Reading continues: the time limit of its frame starts again."""
        if peer in self._incomplete:
            kept_bytes, _ = self._incomplete.pop(peer)
            self._incomplete[peer] = kept_bytes, self._loop.time()

    # --- Outgoing ---------------------------------------------------------------------------------------------------

    def unread(self, peer: CountedConnection) -> None:
        """A peer does not read what was written to it, until ``read_again``."""
        self._unread[peer] = peer.left_bytes(), self._loop.time()
        self._watch()
        while len(self._unread) > 1 and self.waiting_bytes > self.limits.max_waiting_reply_bytes_total:
            reason = (
                f"{self.waiting_bytes} bytes of replies are not read by clients, more than "
                f"maxWaitingReplyBytesTotal ({self.limits.max_waiting_reply_bytes_total}) allows, and this "
                "client has not read for the longest time; raise the limit if clients are only slow"
            )
            self._abort("waiting", next(iter(self._unread)), reason)

    def read_again(self, peer: CountedConnection) -> None:
        self._unread.pop(peer, None)

    # --- Requests in progress ---------------------------------------------------------------------------------------

    def begins(self, request_bytes: int) -> bool:
        """Count a request whose handler waits, until ``ends``; returns False, without counting, if too many wait."""
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

    def forget(self, peer: CountedConnection) -> None:
        """Remove a peer from all tables."""
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

    def _abort(self, kind: str, peer: CountedConnection, reason: str) -> None:
        self.logs.warning(kind, f"closing the connection to {peer.address}: {reason}")
        peer.abort()


def _open_files_max() -> int:
    """How many files and sockets this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize

    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files_max if files_max != resource.RLIM_INFINITY else sys.maxsize
