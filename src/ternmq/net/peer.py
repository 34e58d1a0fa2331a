"""A peer: one connection, on which both ends may call (B2, B5). Its bytes are in ``net.stream``, its own calls in
``net.calls``.

``data_received`` takes what the kernel had ready, decodes all frames in it, settles the responses and hands the
requests to the lanes; replies gather in ``_out`` and leave in one write per turn of the loop.

A handler is a plain function that returns a ``Reply``; one that must wait returns an awaitable, and only then a task is
made. It may also return None and call ``reply`` itself later (a held pull, a send that waits for the disk).

A handler can fail, and its reply can be too large for a frame: both become an error reply. ``reply`` never raises, as
it is called from timers and callbacks of others, too.

Backpressure: when the other side does not read our replies, we stop reading its requests, but not while a call of ours
waits for its answer. Otherwise two programs that both call would wait for each other: neither can write, as neither
reads. So of two ends that both stopped reading, neither waits for an answer, and what they could not write are answers
that came too late; ``net.limits`` ends such a connection, as any other whose peer takes nothing for a while. Only what
may wait for a connection is the end of that: small replies are added to it even then, and a program that goes on asking
instead of answering could make them gigabytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ternmq.errors import (
    BrokerRefused,
    LocalProtocolError,
    RemoteProtocolError,
    TernError,
)
from ternmq.kernels import HAS_NATIVE, native
from ternmq.net.callers import SendCaller, SentAnswer
from ternmq.net.calls import CALLS_MAX, CallingStream, code_name
from ternmq.net.endpoint import is_silence
from ternmq.net.gate import Gate, Rights, Rule
from ternmq.net.lanes import FULL, Lane, Lanes
from ternmq.net.latency import Latency
from ternmq.net.limits import OUTGOING, Usage
from ternmq.net.rpc_latency import RpcEnd, RpcLatencies, end_of
from ternmq.net.runs import ReadRuns, RunHandler, RunWorker
from ternmq.net.stream import IDLE_S, Stream
from ternmq.net.stream import format_address as format_address  # for all that name a peer
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from ternmq.wire.frame import RUN_CODES, FrameDecoder, encode_reply, request_in
from ternmq.wire.header import Reply, Request, Response
from ternmq.wire.refusal import SEND_BYTES_MIN, SendRefusal

if TYPE_CHECKING:
    from ternmq._native import Sends

log = logging.getLogger(__name__)

#: Replies of one turn that have more bytes than this are written before the turn ends.
FLUSH_BYTES: Final = 1024 * 1024
#: Replies up to this size are written whatever else waits: they are few bytes, and say what became of a request.
SMALL_REPLY_BYTES: Final = 4 * 1024
#: As many bytes as one read of uvloop has at most; those of asyncio are little larger.
FULL_READ_BYTES: Final = 256_000
#: An error that quotes what it was given may be as long as that.
REMARK_CHARS_MAX: Final = 4 * 1024
_REFUSAL: Final = SendRefusal(FULL)

Handler = Callable[["Peer", Request[Any]], "Reply | bytes | Awaitable[Reply | None] | None"]


@dataclass(slots=True, frozen=True)
class Route:
    """What handles a request code, on which lane, and what its callers need."""

    handler: Handler
    lane: str
    rule: Rule
    #: Whether requests of this code have a body; if not, one that comes along is dropped at once, so that a request
    #: that has to wait does not keep it.
    takes_body: bool = True
    #: Whether a request of this code is for nothing once its connection is closed, as a pull that waits or a heartbeat.
    #: One that is queued by then is not carried out: ``on_close`` has been called, and would not undo it.
    needs_connection: bool = False
    #: The field of the typed header that names the request's group. Requests of a lane are scheduled by group (R4);
    #: those without one are scheduled together.
    key: str | None = None
    #: The field of the typed header that names the topic: the topics of a group take turns.
    topic: str | None = None
    #: Finds group and topic in the body of a request that has them there. They are not checked yet, and come from
    #: outside.
    key_in_body: Callable[[memoryview], tuple[str | None, str | None]] | None = None
    #: What handles runs of such requests. All codes that runs are made of (``wire.frame``) have the same.
    runs: RunHandler | None = None


RouteTable = Mapping[int, Route]
#: Lane, group and topic.
_LanePlace: TypeAlias = tuple[Lane, str | None, str | None]


class TaskOwner(Protocol):
    """What starts tasks and ends them all when it ends; an ``asyncio.TaskGroup``."""

    def create_task(self, coro: Any, /) -> Any: ...


class Peer(CallingStream):
    """The connection to one other program. All methods belong to the loop's thread."""

    def __init__(
        self,
        routes: RouteTable,
        lanes: Lanes,
        tasks: TaskOwner,
        *,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
        gate: Gate | None = None,
        credentials: Credentials | None = None,
        usage: Usage | None = None,
        latencies: RpcLatencies | None = None,
        calls_max: int = CALLS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        """``usage`` is what the connections of one server share; a connection of ours has one of its own. So are
        ``latencies``, which a connection of ours does not count.

        Without a ``gate``, every request is admitted. Calls of ours are signed with ``credentials``.
        """
        super().__init__(
            usage if usage is not None else Usage(OUTGOING),
            lanes.time,
            credentials=credentials,
            calls_max=calls_max,
            idle_s=idle_s,
        )
        self._routes = routes
        self._lanes = lanes
        self._tasks = tasks
        self._on_open = on_open
        self._on_close = on_close
        self._gate = gate
        self.latencies = latencies
        #: Requests of one code that were answered in this turn, and are not noted yet.
        self._tallied = 0
        self._tallied_code = -1
        self._tallied_row = Latency()
        self._tallied_arrived = 0.0
        #: What the gate knows of the other side (``gate.CallingPeer``).
        self.access: Rights | None = None
        self.proved = ""
        self._decoder = FrameDecoder(bytes_max=self.frame_bytes_max, typed=gate is None)
        #: For runs of sends. A gate without a short way looks at each request alone.
        self._runs = self._run_worker(gate) if gate is None or gate.is_quick else None
        sends = routes.get(RequestCode.SEND_MESSAGE_V2)
        #: The lane of sends, if they are served here.
        self._sends = lanes[sends.lane] if sends is not None else None
        self._is_narrow = False
        #: The last read ended within a frame.
        self._is_cut = False

    def _run_worker(self, gate: Gate | None) -> RunWorker | None:
        first, *others = (self._routes.get(code) for code in RUN_CODES)
        if first is None or first.runs is None or any(one is None or one.runs is not first.runs for one in others):
            return None
        return RunWorker(self, first.runs, self._lanes, self._lanes[first.lane], gate)

    # --- Calls of theirs -------------------------------------------------------------------------------------

    def reply(self, request: Request[Any], reply: Reply | bytes) -> None:
        """Answer a request, now or later; nothing is sent for one-way requests or on a closed connection.

        Bytes are a whole frame, as ``wire.template`` prepares them for the hottest replies. Never raises: a reply that
        cannot be sent becomes one that says why.
        """
        if request.flag & FLAG_ONEWAY or self._transport is None:
            self._note(request, reply)
            return
        if self._is_full:
            self._reply_while_full(request, reply)
            return
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        if isinstance(reply, bytes):
            out.append(reply)
            if request.code == self._tallied_code:
                if not self._tallied:
                    self._tallied_arrived = request.arrived
                self._tallied += 1
            elif self.latencies is not None:
                self._tally(request, self.latencies)
            return
        self._note(request, reply)
        buffers = self._encoded(request, reply)
        out += buffers
        if len(buffers) > 1:
            self._out_bytes += sum(map(len, buffers))
            if self._out_bytes > FLUSH_BYTES:
                # Not at the end of the turn: whether the other side reads must be known before much more is gathered.
                self._flush()

    def _note(self, request: Request[Any], reply: Reply | bytes) -> None:
        if self.latencies is not None:
            answer = ResponseCode.SUCCESS if isinstance(reply, bytes) else reply.code
            self.latencies.note(request.code, answer, end_of(request), request.arrived)

    def _tally(self, request: Request[Any], latencies: RpcLatencies) -> None:
        """A request is answered with success, and others of its code will be: from now on, all of one turn are noted
        together, when their replies are written. They came with one read, as a rule; else the oldest counts for all."""
        if self._tallied:
            # They leave with the same write, or with a later one; this is when.
            self._active_at = self._time()
            self._note_tallied()
        self._tallied_code = request.code
        self._tallied_row = latencies.row(request.code, ResponseCode.SUCCESS, RpcEnd.ANSWERED)
        self._tallied_arrived = request.arrived
        self._tallied = 1

    def _note_tallied(self) -> None:
        count, self._tallied = self._tallied, 0
        # The time of the write that has their replies: another look at the clock would cost as much as all else.
        self._tallied_row.add(self._active_at - self._tallied_arrived, count)

    def _flush(self) -> None:
        Stream._flush(self)  # noqa: SLF001 - its own: ``super()`` would take 60 ns more of every write
        if self._tallied:
            self._note_tallied()

    def reply_all(self, replies: bytes) -> None:
        """Answer several requests, with whole frames, while the other side reads (``is_full``). The caller notes how
        long they took (``latencies``)."""
        if self._transport is not None:
            self._write([replies])

    def _encoded(self, request: Request[Any], reply: Reply) -> list[Buffer]:
        try:
            return encode_reply(request, reply, bytes_max=self.frame_bytes_max)
        except Exception as error:
            failure = self._failure(request, error)
        try:
            return encode_reply(request, failure)
        except Exception:
            # What is left of the request cannot be encoded, as an opaque of five thousand digits.
            log.exception("closing the connection to %s: cannot encode an error reply", self.address)
            self.abort()
            return []

    def _reply_while_full(self, request: Request[Any], reply: Reply | bytes) -> None:
        """Add a reply to others that the other side does not read, within the limits, and read no more requests."""
        self._note(request, reply)
        buffers: list[Buffer] = [reply] if isinstance(reply, bytes) else self._encoded(request, reply)
        size = sum(map(len, buffers))
        if size > SMALL_REPLY_BYTES and not self._has_room(size):
            usage = self._usage
            remark = (
                f"[OVERLOAD]system busy: {self._waiting_bytes} bytes of replies are not read by this client, and "
                f"{usage.waiting_bytes} by all such clients; read replies before you send more requests"
            )
            buffers = self._encoded(request, Reply(ResponseCode.SYSTEM_BUSY, remark=remark))
            size = sum(map(len, buffers))
        self._count_waiting(self._waiting_bytes + size)
        self._write(buffers)
        if self._is_paused or self._transport is None:
            return
        if not self._calls or not self._has_room(0):
            self._is_paused = True
            self._transport.pause_reading()
            self._usage.paused(self)

    def fail(self, request: Request[Any], error: Exception) -> None:
        """Answer a request with the error that ended it, as if its handler had raised it."""
        self.reply(request, self._failure(request, error))

    def run(self, request: Request[Any]) -> None:
        """Let the handler of its code answer a request (``lanes.Worker``)."""
        try:
            route = self._routes[request.code]
            if self._gate is not None:
                admitted = self._gate.admit(self, request, route.rule)
                if admitted is not None:
                    self._decoder.learn(request.code, admitted)
                if not route.takes_body:
                    request.drop_body()
            if request.fault is not None:
                raise RemoteProtocolError(request.fault)
            if self._transport is None and route.needs_connection:
                return
            result = route.handler(self, request)
            kind = type(result)
            if kind is bytes or kind is Reply:
                self.reply(request, result)  # type: ignore[arg-type]  # as just tested
            elif result is not None:
                self._start(request, result)  # type: ignore[arg-type]  # Reply was ruled out
            elif request.flag & FLAG_ONEWAY and self.latencies is not None:
                self.latencies.note(request.code, ResponseCode.SUCCESS, RpcEnd.ONEWAY, request.arrived)
        except Exception as error:
            self.fail(request, error)

    def _start(self, request: Request[Any], result: Awaitable[Reply | None]) -> None:
        """Answer a request when ``result`` is there, unless too many wait like this."""
        if not self._usage.begins(request.frame_bytes):
            if isinstance(result, Coroutine):
                result.close()
            self.refuse(
                request, "[OVERLOAD]system busy, too many requests are waiting for the disk or for other clients"
            )
            return
        request.own_body()
        self._tasks.create_task(self._finish(request, result))

    async def _finish(self, request: Request[Any], result: Awaitable[Reply | None]) -> None:
        try:
            reply = await result
        except Exception as error:
            reply = self._failure(request, error)
        finally:
            self._usage.ends(request.frame_bytes)
        if reply is not None:
            self.reply(request, reply)

    def _failure(self, request: Request[Any], error: Exception) -> Reply:
        remark = str(error)
        if len(remark) > REMARK_CHARS_MAX:
            remark = f"{remark[:REMARK_CHARS_MAX]}…"
        if isinstance(error, BrokerRefused):
            return Reply(error.code, remark=remark)
        if not isinstance(error, TernError):
            log.error("the handler of %s from %s failed", code_name(request.code), self.address, exc_info=error)
        elif isinstance(error, LocalProtocolError):
            log.warning("cannot answer %s of %s: %s", code_name(request.code), self.address, error)
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {remark}")

    def refuse(self, request: Request[Any], reason: str) -> None:
        """Answer that there is too much to do (``lanes.Worker``)."""
        self.reply(request, Reply(ResponseCode.SYSTEM_BUSY, remark=reason))

    # --- The transport's side --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_silent = self.is_silent or is_silence(exc)
        try:
            if self._on_close is not None:
                self._on_close(self)
        finally:
            self._fail_calls(exc)

    def data_received(self, data: bytes) -> None:
        now = self._active_at = self._time()
        if len(data) >= FULL_READ_BYTES and self.latencies is not None:
            self._rest()
        decoder, runs, sends = self._decoder, self._runs, self._sends
        refused = 0
        if sends is not None:
            room = sends.limit - len(sends.jobs) - sends.keyed - sends.in_runs
            if room * SEND_BYTES_MIN < len(data) and not self._is_full:
                data, refused = self._refuse_sends(decoder.whole(data), sends, sends.room(now))
        answers: list[SentAnswer] = []
        if HAS_NATIVE and sends is None and self._calls:
            data = decoder.whole(data)
            answers, behind = native.read_sent(data, self.frame_bytes_max, self._calls, SendCaller)
            if behind:
                data = data[behind:]
        try:
            commands = decoder.feed(data, runs.can_start if runs is not None else None) if data else []
        except RemoteProtocolError as error:
            self._usage.logs.warning("broken", f"closing the connection to {self.address}: {error}")
            self.abort()
            return
        if decoder.kept_bytes or self._is_cut:
            self._is_cut = decoder.kept_bytes > 0
            self._usage.keeps(self, decoder.kept_bytes, is_new=bool(commands or answers or refused))
            if self._is_held:
                self._usage.paused(self)
        for answer in answers:
            sender = self._calls.pop(answer[0], None)
            # One that was cancelled by the end of another is not there any more.
            if isinstance(sender, SendCaller):
                sender.stored(answer)
        if not commands:
            return
        lanes, routes = self._lanes, self._routes
        by_name = lanes.by_name
        measures = self.latencies is not None
        read: ReadRuns | None = None
        responses = 0
        #: Requests, as long as all are of one lane, group and topic.
        same: list[Request[Any]] = []
        place: _LanePlace | None = None
        is_same = True
        for command in commands:
            if isinstance(command, Response):
                responses += 1
                self._answered(command)
                continue
            if not isinstance(command, Request):
                assert runs is not None, "runs are only made where there is one to take them"
                if read is None:
                    read = ReadRuns(runs, now)
                is_same = False
                if place is not None:
                    self._queue(same, now, place)
                self._submit_run(read, command, now, is_alone=len(commands) == 1)
                continue
            if measures:
                command.arrived, command.is_held = now, False
            route = routes.get(command.code)
            if route is None:
                remark = f" request type {command.code} not supported"
                self.reply(command, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
                continue
            if not route.takes_body and self._gate is None:  # a signature covers it
                command.drop_body()
            key, topic = route.key, route.topic
            if key is not None:
                if self._gate is None:
                    header = command.header
                    key = getattr(header, key, None)
                    topic = getattr(header, topic, None) if topic is not None else None
                else:
                    # The header is not typed yet. The rule has group and topic under their names on the wire.
                    fields, rule = command.header or {}, route.rule
                    key = fields.get(rule.group)
                    topic = fields.get(rule.topic) if topic is not None else None
            elif route.key_in_body is not None:
                key, topic = route.key_in_body(command.body)
            lane = by_name[route.lane]
            if is_same:
                if place is None:
                    place = lane, key, topic
                if key == place[1] and topic == place[2] and lane is place[0]:
                    same.append(command)
                    continue
                is_same = False
                self._queue(same, now, place)
            lanes.submit(lane, self, command, now, command.frame_bytes, key, topic)
        if same and place is not None:
            lane, key, topic = place
            size = sum([each.frame_bytes for each in same]) if len(same) > 1 else 0
            if lanes.run_alone(lane, self, same, now, key, topic, size=size):
                return
            self._queue(same, now, place)
        if responses < len(commands):
            lanes.run()

    def _rest(self) -> None:
        """Read on in the next turn of the loop: there may be more than was read. uvloop goes on reading one connection
        for up to 32 such reads, and all others would wait for the hundred thousands of requests in them."""
        if self._transport is not None and not (self._is_paused or self._is_held):
            self._transport.pause_reading()
            self._loop.call_soon(self._rested)

    def _rested(self) -> None:
        if not (self._is_paused or self._is_held) and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _queue(self, requests: list[Request[Any]], now: float, place: _LanePlace) -> None:
        """Queue what has gathered for one place."""
        lane, key, topic = place
        for request in requests:
            self._lanes.submit(lane, self, request, now, request.frame_bytes, key, topic)
        requests.clear()

    def _refuse_sends(self, data: bytes, lane: Lane, room: int) -> tuple[bytes, int]:
        """Refuse sends of a read that find their lane full, before they are decoded: what is left of it, and how many
        were refused."""
        data, replies, count = _REFUSAL.split(data, room, self.frame_bytes_max)
        if count:
            lane.refused_full += count
            self.reply_all(replies)
            if not self._is_paused and not self._is_held and self._transport is not None:
                # A turn of the loop would read as much as the kernel has, megabytes.
                self._is_held = True
                if not self._is_narrow:
                    self._is_narrow = True
                    self._narrow()
                self._transport.pause_reading()
                self._lanes.read_later(self._read_on)
        return data, count

    def _submit_run(self, read: ReadRuns, sends: Sends, now: float, *, is_alone: bool) -> None:
        """Queue a run as one job if its lane has room for all its requests, else each of them."""
        lane, lanes, count, size = read.runs.lane, self._lanes, sends.count, sends.frame_bytes
        if lane.requests + count <= lane.limit and lane.queued_bytes + size <= lane.config.bytes_max:
            if is_alone and lanes.run_alone(lane, read, (sends,), now, run_count=count):
                return
            lane.in_runs += count - 1
            lanes.submit(lane, read, sends, now, size)
            return
        for number in range(count):
            request = request_in(sends, number)
            request.arrived, request.is_held = now, False
            lanes.submit(lane, self, request, now, request.frame_bytes)
