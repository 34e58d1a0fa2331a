"""A message made ready for the wire, and the broker's answer made a receipt (E1, E6, C10).

``Outgoing`` is made once per send: the id is given, properties are one text, the body is compressed. All attempts of
the send carry the same one, so a retried message keeps its id and consumers can tell a copy. What changes between
attempts, the queue and the time, goes into the header.

Features whose messages carry properties of the system (send-back of consumers, requests and replies, later
transactions) make their ``Outgoing`` by ``prepare(…, system=…)``; applications cannot set those names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, repeat
from typing import Final

import msgspec
from msgspec.structs import astuple

from ternmq.client.connect.namespace import wrap
from ternmq.client.send.validate import (
    BODY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    check_batch,
    check_batch_bytes,
    check_properties_text,
    check_sendable,
    duration_ms,
    time_ms,
)
from ternmq.env import Clock
from ternmq.errors import refused
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import (
    RESERVED_PROPERTIES,
    Message,
    MessageQueue,
    Property,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)
from ternmq.names import RETRY_PREFIX
from ternmq.net.callers import SentAnswer
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import BINARY, FLAG_ONEWAY, JSON, RequestCode, ResponseCode
from ternmq.wire.compress import compress
from ternmq.wire.frame import frame
from ternmq.wire.header import Response, encode_binary, encode_json
from ternmq.wire.ids import UniqueIds, unique_ids
from ternmq.wire.properties import join
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import SendMessageV2, SendReply
from ternmq.wire.template import HeadTemplate

_OK: Final = SendStatus.OK
#: Response codes that mean "stored".
_STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}

#: The fields of ``SendMessageV2`` that differ from message to message, as ``wire.template`` fills them in.
_HOLES: Final = {
    SendMessageV2.__struct_encode_fields__[SendMessageV2.__struct_fields__.index(name)]: hole
    for name, hole in (
        ("queue_id", "%d"),
        ("sysflag", "%d"),
        ("born_time_ms", "%d"),
        ("flag", "%d"),
        ("properties", "%b"),
        ("reconsume_times", "%d"),
    )
}
#: Topics that a sender keeps headers of; beyond, all are made anew.
_TEMPLATES_MAX: Final = 1_000

_encoder: Final = msgspec.json.Encoder()


class Outgoing(msgspec.Struct, gc=False):
    """What every attempt of one send has in common."""

    #: As the application gave them; more than one only in a batch.
    messages: Sequence[Message]
    #: With its namespace.
    topic: str
    #: The unique id; those of a batch are joined by commas.
    message_id: str
    body: Buffer
    properties: str
    flag: int = 0
    sysflag: int = 0
    is_batch: bool = False
    #: The answer to a request (E7): its broker pushes it to the requester.
    is_reply: bool = False
    #: Only for messages to a retry topic (H1).
    reconsume_times: int | None = None
    max_reconsume_times: int | None = None

    @property
    def code(self) -> int:
        if self.is_reply:
            return RequestCode.SEND_REPLY_MESSAGE_V2
        return RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2

    def header(
        self, *, group: str, queue_id: int, born_time_ms: int, default_topic_queue_nums: int, unit_mode: bool
    ) -> SendMessageV2:
        """The header of one attempt."""
        return SendMessageV2(
            producer_group=group,
            topic=self.topic,
            default_topic_queue_nums=default_topic_queue_nums,
            queue_id=queue_id,
            sysflag=self.sysflag,
            born_time_ms=born_time_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times or 0,
            unit_mode=unit_mode,
            batch=self.is_batch,
            max_reconsume_times=self.max_reconsume_times,
        )

    def receipt(self, response: Response, queue: MessageQueue) -> SendReceipt:
        """The receipt in the answer of a queue's broker; raises the ``BrokerRefused`` of any code that does not mean
        "stored"."""
        status = _STATUSES.get(response.code)
        if status is None:
            raise refused(
                response.code,
                f"{queue.broker_name} refused the message to {self.topic!r}: {response.remark}",
                broker=queue.broker_name,
            )
        reply = response.read(SendReply)
        return SendReceipt(
            status,
            self.message_id,
            reply.message_id,
            self._stored_in(queue, reply.queue_id),
            reply.queue_offset,
            reply.transaction_id or "",
            reply.region or "DefaultRegion",
            reply.recall_handle or "",
            reply.trace_on is not False,
        )

    def stored(self, sent: SentAnswer, queue: MessageQueue) -> SendReceipt:
        """The same of an answer that a kernel has read."""
        _, offset_id, queue_id, queue_offset, transaction_id, region, trace_on = sent
        return SendReceipt(
            _OK,
            self.message_id,
            offset_id,
            self._stored_in(queue, queue_id),
            queue_offset,
            transaction_id,
            region,
            "",
            trace_on,
        )

    def _stored_in(self, queue: MessageQueue, queue_id: int) -> MessageQueue:
        """The queue that a message was stored in, of the topic as the application knows it."""
        topic = self.messages[0].topic
        return (
            queue if queue == (topic, queue.broker_name, queue_id) else MessageQueue(topic, queue.broker_name, queue_id)
        )


class SendHeads:
    """Makes the headers of one sender's requests. What does not differ from message to message is encoded once."""

    def __init__(
        self,
        group: str,
        *,
        clock: Clock,
        form: int,
        default_topic_queue_nums: int,
        unit_mode: bool,
        credentials: Credentials | None = None,
    ) -> None:
        self.form = form
        self._group = group
        self._clock = clock
        self._default_topic_queue_nums = default_topic_queue_nums
        self._unit_mode = unit_mode
        self._credentials = credentials
        #: By topic, and by what decides on the code and the flag: a batch, a reply, one-way.
        self._templates: dict[tuple[str, bool, bool, bool], HeadTemplate] = {}
        #: The same for kernels.
        self._heads: dict[tuple[str, bool, bool, bool], native.SendHead] = {}

    def request(
        self, outgoing: Outgoing, queue_id: int, opaque: int, oneway: bool, frame_bytes_max: int
    ) -> list[Buffer]:
        """The buffers of one attempt, to be written one after the other. Raises ``LocalProtocolError`` if the frame has
        more than ``frame_bytes_max`` bytes."""
        body = outgoing.body
        if HAS_NATIVE:
            head = self._heads.get((outgoing.topic, outgoing.is_batch, outgoing.is_reply, oneway))
            if head is not None and outgoing.max_reconsume_times is None:
                start = head.start(
                    queue_id,
                    outgoing.sysflag,
                    self._clock.now_ms(),
                    outgoing.flag,
                    outgoing.properties,
                    outgoing.reconsume_times or 0,
                    opaque,
                    len(body),
                    frame_bytes_max,
                )
                if start is not None:
                    return [start, body]
        return frame(self.encode(outgoing, queue_id, opaque=opaque, oneway=oneway), self.form, body, frame_bytes_max)

    def encode(self, outgoing: Outgoing, queue_id: int, *, opaque: int, oneway: bool = False) -> bytes:
        """The header of one attempt."""
        if self.form != JSON or outgoing.max_reconsume_times is not None or self._credentials is not None:
            encode = encode_binary if self.form == BINARY else encode_json
            fields = self._header(outgoing, queue_id).to_fields()
            if self._credentials is not None:
                self._credentials.sign(fields, outgoing.body)
            return encode(outgoing.code, fields, opaque=opaque, flag=FLAG_ONEWAY if oneway else 0)
        template = self._templates.get((outgoing.topic, outgoing.is_batch, outgoing.is_reply, oneway))
        if template is None:
            template = self._template(outgoing, oneway=oneway)
        return template.head(
            (
                queue_id,
                outgoing.sysflag,
                self._clock.now_ms(),
                outgoing.flag,
                # Without its quotes.
                _encoder.encode(outgoing.properties)[1:-1],
                outgoing.reconsume_times or 0,
                opaque,
            )
        )

    def _header(self, outgoing: Outgoing, queue_id: int) -> SendMessageV2:
        return outgoing.header(
            group=self._group,
            queue_id=queue_id,
            born_time_ms=self._clock.now_ms(),
            default_topic_queue_nums=self._default_topic_queue_nums,
            unit_mode=self._unit_mode,
        )

    def _template(self, outgoing: Outgoing, *, oneway: bool) -> HeadTemplate:
        fields = self._header(outgoing, 0).to_fields()
        constant = {name: value for name, value in fields.items() if name not in _HOLES}
        template = HeadTemplate(outgoing.code, constant, _HOLES, flag=FLAG_ONEWAY if oneway else 0)
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
            self._heads.clear()
        key = outgoing.topic, outgoing.is_batch, outgoing.is_reply, oneway
        self._templates[key] = template
        if HAS_NATIVE:
            self._heads[key] = native.SendHead(template.parts())
        return template


def prepare(
    message: Message,
    *,
    message_id: str,
    namespace: str = "",
    system: Mapping[str, str] | None = None,
    sysflag: int = 0,
    reconsume_times: int | None = None,
    max_reconsume_times: int | None = None,
) -> Outgoing:
    """Make a checked message ready. ``system`` are properties that only the system may set."""
    return Outgoing(
        (message,),
        wrap(namespace, message.topic) if namespace else message.topic,
        message_id,
        message.body,
        _properties(message, message_id, namespace, system),
        message.flag,
        sysflag,
        False,
        False,
        reconsume_times,
        max_reconsume_times,
    )


def prepare_plain(
    message: Message, ids: UniqueIds, *, namespace: str = "", body_bytes_max: int = BODY_BYTES_MAX
) -> Outgoing | None:
    """Check an ordinary message, give it an id and make it ready, in one step; None if ``check_message`` and
    ``prepare`` must look at it. Raises as ``check_sendable``."""
    if not HAS_NATIVE:
        return None
    topic = message.topic
    check_sendable(topic)
    prefix, number = ids.take(1)
    packed = native.pack_properties(
        message,
        prefix,
        number,
        namespace=namespace,
        body_bytes_max=body_bytes_max,
        reserved=RESERVED_PROPERTIES,
        astuple=astuple,
    )
    if packed is None:
        return None
    message_id, properties = packed
    topic = wrap(namespace, topic) if namespace else topic
    return Outgoing((message,), topic, message_id, message.body, properties, message.flag)


def prepare_batch(
    messages: Sequence[Message],
    *,
    message_ids: Sequence[str],
    namespace: str = "",
    more: Sequence[Mapping[str, str]] | None = None,
) -> Outgoing:
    """Make checked messages one batch (E6). Each keeps its own id, flag and properties; nothing is compressed.

    ``more``: properties that each of them gets.
    """
    first = messages[0]
    body = pack_messages(
        (message.flag, message.body, _properties(message, message_id, namespace, its))
        for message, message_id, its in zip(messages, message_ids, more or ({},) * len(messages), strict=True)
    )
    # Only what holds for the batch as a whole.
    properties = "" if first.wait_store_ok else join({Property.WAIT: "false"})
    return Outgoing(
        messages,
        wrap(namespace, first.topic),
        ",".join(message_ids),
        body,
        properties,
        is_batch=True,
    )


def pack_batch(
    messages: Sequence[Message],
    ids: UniqueIds,
    *,
    namespace: str = "",
    body_bytes_max: int = BODY_BYTES_MAX,
    more: Sequence[Mapping[str, str]] | None = None,
) -> Outgoing:
    """Check messages and make them one batch (E6), each with a new id. Raises as ``check_batch`` and
    ``check_batch_bytes``.

    ``more``: properties that each of them gets.
    """
    if HAS_NATIVE and more is None and messages and not messages[0].topic.startswith(RETRY_PREFIX):
        topic = messages[0].topic
        check_sendable(topic)
        prefix, number = ids.take(len(messages))
        packed = native.pack_batch(
            messages if type(messages) is list else list(messages),
            prefix,
            number,
            namespace=namespace,
            body_bytes_max=body_bytes_max,
            reserved=RESERVED_PROPERTIES,
            astuple=astuple,
        )
        if packed is not None:
            body, message_ids = packed
            return Outgoing(messages, wrap(namespace, topic), message_ids, body, "", is_batch=True)
    check_batch(messages, body_bytes_max=body_bytes_max)
    outgoing = prepare_batch(
        messages, message_ids=unique_ids(*ids.take(len(messages)), len(messages)), namespace=namespace, more=more
    )
    check_batch_bytes(len(outgoing.body), body_bytes_max=body_bytes_max)
    return outgoing


def split_receipt(receipt: SendReceipt) -> list[SendReceipt]:
    """The receipt of each message of a batch: its own id, and the queue offset of its own record."""
    message_ids = receipt.message_id.split(",")
    offset_ids = receipt.offset_id.split(",")
    if len(offset_ids) != len(message_ids):
        # A topic of RocketMQ's batch queues keeps the batch as one record.
        offset_ids = [receipt.offset_id] * len(message_ids)
    # Without a step of Python for each: half the time of a comprehension.
    return list(
        map(
            SendReceipt,
            repeat(receipt.status),
            message_ids,
            offset_ids,
            repeat(receipt.queue),
            count(receipt.queue_offset),
            repeat(receipt.transaction_id),
            repeat(receipt.region),
        )
    )


def shrink(outgoing: Outgoing, *, kind: int, level: int) -> None:
    """Compress the body, if that makes it smaller.

    RocketMQ sends what comes out in any case. But a body of just the size allowed that does not compress would then be
    too large for the broker, and consumers would inflate it for nothing.
    """
    body, bits = compress(outgoing.body, kind, level=level)
    if len(body) < len(outgoing.body):
        outgoing.body = body
        outgoing.sysflag |= bits


def compression_of(message: ReceivedMessage) -> int:
    """The bits of the sysflag that a copy of a message must have: how its body is compressed, if it still is."""
    return message.sysflag & (Sysflag.COMPRESSED | Sysflag.COMPRESSION_MASK) if message.body_error else 0


def _properties(message: Message, message_id: str, namespace: str, system: Mapping[str, str] | None = None) -> str:
    if not (message.properties or namespace or system or message.is_delayed or message.sharding_key):
        text = _few_properties(message, message_id)
        if text is not None:
            return text
    # WAIT is written only where it says something: readers take its absence for true.
    pairs = {Property.UNIQUE_KEY: message_id, **message.properties}
    if message.tags:
        pairs[Property.TAGS] = message.tags
    if message.keys:
        pairs[Property.KEYS] = message.keys_text
    if message.sharding_key:
        pairs[Property.SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        pairs[Property.DELAY] = str(message.delay_level)
    if message.deliver_at is not None:
        pairs[Property.TIMER_DELIVER_MS] = str(time_ms(message.deliver_at))
    elif message.delay is not None:
        pairs[Property.TIMER_DELAY_MS] = str(duration_ms(message.delay))
    if not message.wait_store_ok:
        pairs[Property.WAIT] = "false"
    if namespace:
        pairs[Property.INSTANCE_ID] = namespace
    if system:
        pairs.update(system)
    text = join(pairs)
    check_properties_text(text)
    return text


def _few_properties(message: Message, message_id: str) -> str | None:
    """The text of a message that has at most a tag and keys, as most have; None if more must be looked at."""
    tags, keys = message.tags, message.keys
    if type(keys) is not str or not message.wait_store_ok:
        return None
    text, pairs = f"UNIQ_KEY\x01{message_id}\x02", 1
    if tags:
        text, pairs = f"{text}TAGS\x01{tags}\x02", 2
    if keys:
        text, pairs = f"{text}KEYS\x01{keys}\x02", pairs + 1
    is_plain = text.isascii() and len(text) <= PROPERTIES_BYTES_MAX
    return text if is_plain and text.count("\x01") == pairs and text.count("\x02") == pairs else None
