"""Sends: 10, 310 and 320, and messages sent back, 36 (E1, E6, H1). What they mean is in ``services.sending``.

``send`` is hot. A plain reply is a prepared frame (``wire.template``) into which its numbers are filled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.broker.handlers.transaction import ENDED
from ternmq.broker.services.sending import RunForms, Sending, Sent
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property
from ternmq.net.gate import Action, Rule, check_record
from ternmq.net.peer import Peer, Route
from ternmq.net.rpc_latency import RpcEnd
from ternmq.net.runs import code_of
from ternmq.transaction.runs import TransactionForms
from ternmq.wire import properties as props
from ternmq.wire.codes import FLAG_ONEWAY, JSON, RequestCode, ResponseCode
from ternmq.wire.frame import HEADER_BYTES_MAX, FrameDecoder
from ternmq.wire.header import Reply, Request, Response
from ternmq.wire.requests import SendBack, SendFields, SendReply
from ternmq.wire.template import ReplyTemplate

if TYPE_CHECKING:
    from ternmq._native import Sends

#: What a reply to a batch has beside the ids of its messages.
_BESIDE_IDS_BYTES: Final = 64 * 1024
#: What is told to the sender of a message whose fate is open, beside the codes that say it by themselves.
_UNSURE: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_ERROR: "no majority of the Raft group has the message yet; it may still be stored. Send again",
    ResponseCode.SERVICE_NOT_AVAILABLE: "another broker has become the master; send again",
}


class SendReplies:
    """What a send is answered with; request-reply answers the same."""

    def __init__(self, config: BrokerConfig, *, store_host: bytes) -> None:
        self._id_prefix = store_host.hex().upper()
        #: So many messages a batch can have: their ids stand in the header of the reply, joined by commas.
        self.ids_max: Final = (HEADER_BYTES_MAX - _BESIDE_IDS_BYTES) // len(f"{self.message_id(0)},")
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._region = config.region_id
        self._trace_on = config.trace_on
        constant = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        holes = {"msgId": f"{self._id_prefix}%016X", "queueId": "%d", "queueOffset": "%d", "transactionId": "%b"}
        plain = ReplyTemplate(constant, holes)
        #: A whole frame, from log offset, queue id, queue offset, unique key and opaque.
        self.fill = plain.fill
        delayed = ReplyTemplate(constant, {**holes, "recallHandle": "%b"})
        #: The same with a recall handle in front of the opaque.
        self.fill_delayed = delayed.fill
        #: All for kernels.
        self.forms = _run_forms(plain, delayed) if HAS_NATIVE else None

    def message_id(self, log_offset: int) -> str:
        return f"{self._id_prefix}{log_offset:016X}"

    def message_ids(self, log_offsets: list[int]) -> str:
        """The ids of a batch, joined by commas."""
        if HAS_NATIVE:
            return native.offset_ids(self._id_prefix, log_offsets)
        return ",".join([self.message_id(log_offset) for log_offset in log_offsets])

    def header(
        self,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        recall_handle: str | None = None,
    ) -> SendReply:
        return SendReply(
            message_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=transaction_id,
            recall_handle=recall_handle,
            region=self._region,
            trace_on=self._trace_on,
        )

    def of(self, sent: Sent) -> SendReply:
        """The header for one message."""
        log_offset, _, queue_id, queue_offset, unique_key, _, handle = sent
        return self.header(self.message_id(log_offset), queue_id, queue_offset, unique_key, handle)


class SendHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, sending: Sending, replies: SendReplies) -> None:
        self._sending = sending
        self._send = sending.send
        self._replies = replies

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.SEND_MESSAGE: Route(self.send, SEND, Rule(Action.PUB, topic="topic"), runs=self),
            RequestCode.SEND_MESSAGE_V2: Route(self.send, SEND, Rule(Action.PUB, topic="b"), runs=self),
            RequestCode.SEND_BATCH_MESSAGE: Route(self.send, SEND, Rule(Action.PUB, topic="b")),
            RequestCode.CONSUMER_SEND_MSG_BACK: Route(
                self.send_back, SEND, Rule(Action.SUB, group="group"), key="group"
            ),
        }

    def send(self, peer: Peer, request: Request[Any]) -> Reply | bytes | None:
        """Store one message, or a batch. None: the reply follows when the disk has it."""
        header: SendFields = request.header  # type: ignore[assignment]  # typed, or the request would not be here
        if header.batch:
            return self._send_batch(peer, request, header)
        sent = self._send(peer, header, request.body, request.version)
        if request.flag & FLAG_ONEWAY:
            return None
        log_offset, end_offset, queue_id, queue_offset, unique_key, waits, handle = sent
        # A key of letters and digits needs no escaping in JSON.
        if request.serial == JSON and unique_key.isalnum():
            values = (log_offset, queue_id, queue_offset, unique_key.encode())
            reply: Reply | bytes = (
                self._replies.fill((*values, request.opaque))
                if handle is None
                else self._replies.fill_delayed((*values, handle.encode(), request.opaque))
            )
        else:
            reply = Reply(header=self._replies.of(sent))
        if waits:
            self._reply_when_safe(peer, request, end_offset, reply, self._replies.of(sent))
            return None
        return reply

    def takes_runs(self) -> bool:
        """Whether runs of sends can be taken now (``runs.RunHandler``)."""
        return self._replies.forms is not None and self._sending.takes_runs()

    def run(self, peer: Peer, sends: Sends, first: int, *, arrived: float) -> tuple[int, bytes, int]:
        """Store sends of one read, as far as they are plain (``runs.RunHandler``)."""
        forms = self._replies.forms
        if forms is None:
            return first, b"", 0

        def held(replies: bytes, ends: bytes) -> _HeldReplies:
            return _HeldReplies(peer, replies, ends, code=code_of(sends, first), arrived=arrived)

        return self._sending.send_run(peer, sends, first, forms, held)

    def send_back(self, peer: Peer, request: Request[SendBack]) -> Reply | Awaitable[Reply]:
        """Store a copy of a record for a later attempt (H1), now or when the disk has brought it."""
        access, header = peer.access, request.fields
        check_topic = partial(check_record, access) if access is not None else None
        later = self._sending.send_back(header, version=request.version, check_topic=check_topic)
        return Reply() if later is None else _when_stored(later)

    def _send_batch(self, peer: Peer, request: Request[Any], header: SendFields) -> Reply | None:
        placed, queue_id, waits = self._sending.send_batch(peer, header, request.body, count_max=self._replies.ids_max)
        ids = self._replies.message_ids(placed.log_offsets)
        unique_key = props.find(header.properties or "", Property.UNIQUE_KEY)
        reply = self._replies.header(ids, queue_id, placed.queue_offset, unique_key)
        if waits:
            self._reply_when_safe(peer, request, placed.end_offset, Reply(header=reply), reply)
            return None
        return Reply(header=reply)

    def _reply_when_safe(
        self, peer: Peer, request: Request[Any], end_offset: int, reply: Reply | bytes, late: SendReply
    ) -> None:
        """Answer ``reply`` when the disk has the record; ``late`` with another code if that takes too long."""
        # The log has the message now. Thousands may wait here, with bodies of megabytes.
        request.release()

        def answer(code: int) -> None:
            peer.reply(
                request, reply if code == ResponseCode.SUCCESS else Reply(code, header=late, remark=_UNSURE.get(code))
            )

        self._sending.when_safe(end_offset, answer)


class _HeldReplies:
    """Replies to the sends of a run that wait until their records are safe (``safety.WaitingRun``).

    They are prepared for that, and hold all that another answer needs: nothing else is kept of the requests.
    """

    __slots__ = ("_arrived", "_code", "_frames", "_peer", "_replies", "ends")

    def __init__(self, peer: Peer, replies: bytes, ends: bytes, *, code: int, arrived: float) -> None:
        self._peer = peer
        self._code = code
        self._arrived = arrived
        self._replies = replies
        #: The reply to each, once they are needed one by one.
        self._frames: list[bytes] = []
        self.ends: Sequence[int] = memoryview(ends).cast("q")

    def all_safe(self) -> None:
        if not self._peer.is_full:
            self._peer.reply_all(self._replies)
            if self._peer.latencies is not None:
                count = len(self.ends)
                self._peer.latencies.note(self._code, ResponseCode.SUCCESS, RpcEnd.ANSWERED, self._arrived, count)
            return
        # What is added to replies that are not read is counted one by one.
        for number in range(len(self.ends)):
            self.answer(number, ResponseCode.SUCCESS)

    def answer(self, number: int, code: int) -> None:
        if not self._frames:
            self._frames = [*_frames_in(self._replies)]
        [response] = FrameDecoder().feed(self._frames[number])
        assert isinstance(response, Response), "it is a reply"
        request = Request[Any](self._code, response.opaque)
        request.arrived, request.is_held = self._arrived, False
        if code == ResponseCode.SUCCESS:
            self._peer.reply(request, self._frames[number])
        else:
            self._peer.reply(request, Reply(code, header=response.read(SendReply), remark=_UNSURE.get(code)))


def _run_forms(plain: ReplyTemplate, delayed: ReplyTemplate) -> RunForms:
    form = native.ReplyForm(plain.parts())
    before, behind = ENDED.parts()
    return RunForms(form, native.ReplyForm(delayed.parts()), TransactionForms(form, (before, behind)))


def _frames_in(data: bytes) -> Iterator[bytes]:
    """Each of the frames that follow each other."""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at:end]
        at = end


async def _when_stored(later: Awaitable[None]) -> Reply:
    await later
    return Reply()
