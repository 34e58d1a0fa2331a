"""Sends: 10, 310 and 320, and messages sent back, 36 (E1, E6, H1).

``send`` is the hottest function of a broker: everything between a decoded request and its reply, as plain calls. A
message that needs nothing special (the topic exists and may be written, the queue is named, the properties have a
unique key and none of the few names that the broker must look at) takes the short way, one long condition; for all
others the methods below find out what is to be done.

What the broker does to a message before it is stored, as RocketMQ 5 does:

- a topic that does not exist is made (D1), a queue id below 0 is chosen;
- the properties lose POP_CK and all ``__RMQ.TRANSIENT.`` ones, get a UNIQ_KEY if they have none, and CLUSTER (replies
  need it), MSG_REGION and TRACE_ON;
- a message to a retry topic that was tried too often goes to the dead letters.

Clients send to no topic that only the broker writes (``names.may_send``).

The properties stay one text: what is added goes behind it, nothing is taken apart. In a batch each message is a record
of its own with its own unique key.

A message with a delay level is redirected by the intake (I1). Delivery at any time (TIMER_DELIVER_MS and the like) and
transactions are not built yet: such messages are refused, as to deliver them at once would be wrong. Not so on their
way to a retry topic: a message that was stored once, by an older version or by RocketMQ, has had its time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ternmq import names
from ternmq.broker.config import WRITE, BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.retry import NO_DELAY, Retries
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter, MessageIllegal, NoPermission, RemoteProtocolError
from ternmq.message import TIMER_DONE, TIMER_PROPERTIES, Property
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.derived.dispatch import delay_level
from ternmq.store.log.draft import Draft
from ternmq.wire import properties as props
from ternmq.wire.batch import unpack_messages
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.codes import FLAG_ONEWAY, JSON, RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import SendBack, SendFields, SendReply
from ternmq.wire.template import ReplyTemplate

# Texts that betray a property without taking the text apart. A user's name or value may hold them, too: where one is
# found, ``wire.properties`` looks closer, and decides.
_UNIQUE_KEY: Final = f"{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_DATA: Final = _UNIQUE_KEY.encode()
_KEY_AT: Final = len(_UNIQUE_KEY)
_TRANSACTION: Final = f"{Property.TRANSACTION}\x01"
_POP_CHECKPOINT: Final = f"{Property.POP_CHECKPOINT}\x01"
_CLUSTER: Final = f"{Property.CLUSTER}\x01"
_NO_WAIT: Final = f"{Property.WAIT}\x01false"
#: Properties for the way to the broker only (RocketMQ 5).
_TRANSIENT: Final = "__RMQ.TRANSIENT."
#: In all of ``TIMER_PROPERTIES``, and in little else.
_TIMER: Final = "TIMER_"
_START_TIME: Final = "__STARTDELIVERTIME"
#: Anywhere in a batch, these make the broker look at the properties of each message.
_NOT_PLAIN: Final = tuple(
    text.encode()
    for text in (
        _CLUSTER,
        _TRANSACTION,
        _POP_CHECKPOINT,
        _TRANSIENT,
        _TIMER,
        _START_TIME,
        f"{_UNIQUE_KEY}\x02",
    )
)
_SINGLE_TAG: Final = "SINGLE_TAG"


class SendHandlers:
    """All methods belong to the broker's loop. Call ``topic_changed`` with each change of a topic."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        intake: Intake,
        topics: Topics,
        retries: Retries,
        stats: Stats,
        store_host: bytes,
        new_unique_key: Callable[[], str],
        choice: random.Random,
    ) -> None:
        self._writable = bool(config.broker_permission & WRITE)
        self._region = config.region_id
        self._trace_on = config.trace_on
        self._trace_topic = config.msg_trace_topic_name if config.trace_topic_enable else ""
        trace_on = "true" if config.trace_on else "false"
        self._own_properties = props.join(
            {
                Property.CLUSTER: config.broker_cluster_name,
                Property.REGION: config.region_id,
                Property.TRACE_ON: trace_on,
            }
        )
        self._own_properties_data = self._own_properties.encode()
        self._id_prefix = store_host.hex().upper()
        self._fill = ReplyTemplate(
            {"MSG_REGION": config.region_id, "TRACE_ON": trace_on},
            {"msgId": f"{self._id_prefix}%016X", "queueId": "%d", "queueOffset": "%d", "transactionId": "%b"},
        ).fill
        self._intake = intake
        self._store = intake.store
        self._safety = intake.safety
        self._topics = topics
        self._retries = retries
        self._count = stats.put
        self._new_unique_key = new_unique_key
        self._random = choice
        # Queues of the topics to which a message can go without further questions.
        self._plain_queues: dict[str, int] = {}

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.SEND_MESSAGE: Route(self.send, SEND, Rule(Action.PUB, topic="topic")),
            RequestCode.SEND_MESSAGE_V2: Route(self.send, SEND, Rule(Action.PUB, topic="b")),
            RequestCode.SEND_BATCH_MESSAGE: Route(self.send, SEND, Rule(Action.PUB, topic="b")),
            RequestCode.CONSUMER_SEND_MSG_BACK: Route(self.send_back, SEND, Rule(Action.SUB, group="group")),
        }

    def topic_changed(self, _config: TopicConfig | None) -> None:
        """Ask again what may go where."""
        self._plain_queues.clear()

    def send(self, peer: Peer, request: Request[Any]) -> Reply | bytes | None:
        """Store one message, or a batch. None: the reply follows when the disk has it."""
        header: SendFields = request.header  # type: ignore[assignment]  # typed, or the request would not be here
        topic = header.topic
        queue_id = header.queue_id
        properties = header.properties
        sysflag = header.sysflag
        if (
            0 <= queue_id < self._plain_queues.get(topic, 0)
            and properties
            and not header.batch
            and (at := properties.rfind(_UNIQUE_KEY)) >= 0
            and (at == 0 or properties[at - 1] == "\x02")
            and _CLUSTER not in properties
            and _TRANSACTION not in properties
            and _POP_CHECKPOINT not in properties
            and _TRANSIENT not in properties
            and _TIMER not in properties
            and _START_TIME not in properties
        ):
            if properties[-1] != "\x02":
                properties += "\x02"
            unique_key = properties[at + _KEY_AT : properties.index("\x02", at)]
            if not unique_key:
                properties, unique_key = self._prepare(topic, properties)
        else:
            config = self._topic_for(header, peer)
            queue_id = self._choose_queue(header, config, peer)
            if header.batch:
                return self._send_batch(peer, request, header, queue_id)
            properties, unique_key = self._prepare(topic, properties or "")
            topic, queue_id, sysflag, properties = self._place(request, header, config, queue_id, properties)
        body = request.body
        log_offset, end_offset, queue_offset, _ = self._store(
            Draft(
                topic,
                queue_id,
                body,
                properties + self._own_properties,
                header.born_time_ms,
                peer.host,
                header.flag,
                sysflag,
                header.reconsume_times or 0,
            )
        )
        self._count(topic, 1, len(body))
        if request.flag & FLAG_ONEWAY:
            return None
        # A key of letters and digits needs no escaping in JSON.
        if request.serial == JSON and unique_key.isalnum():
            reply: Reply | bytes = self._fill((log_offset, queue_id, queue_offset, unique_key.encode(), request.opaque))
        else:
            reply = Reply(header=self._reply_header(self._message_id(log_offset), queue_id, queue_offset, unique_key))
        if self._safety.is_awaited and not (
            _NO_WAIT in properties and props.find(properties, Property.WAIT) == "false"
        ):
            late = self._reply_header(self._message_id(log_offset), queue_id, queue_offset, unique_key)
            self._reply_when_safe(peer, request, end_offset, reply, late)
            return None
        return reply

    def send_back(self, _peer: Peer, request: Request[SendBack]) -> Reply | Awaitable[Reply]:
        """Store a copy of a record for a later attempt (H1), now or when the disk has brought it."""
        if not self._writable:
            raise NoPermission("this broker is read-only; set brokerPermission to 6")
        later = self._retries.send_back(request.fields, version=request.version)
        return Reply() if later is None else _when_stored(later)

    # --- For replies of request–reply (E7) ----------------------------------------------------------------------

    def queue_for(self, header: SendFields, peer: Peer) -> int:
        """The queue that a message would go to; raises what speaks against storing it."""
        queue_id = self._choose_queue(header, self._topic_for(header, peer), peer)
        self._prepare(header.topic, header.properties or "")
        return queue_id

    def store(self, peer: Peer, header: SendFields, queue_id: int, body: bytes) -> SendReply:
        """Store a message in a queue that ``queue_for`` chose, without waiting for the disk."""
        properties, unique_key = self._prepare(header.topic, header.properties or "")
        placed = self._store(
            Draft(
                header.topic,
                queue_id,
                body,
                properties + self._own_properties,
                header.born_time_ms,
                peer.host,
                header.flag,
                header.sysflag,
                header.reconsume_times or 0,
            )
        )
        self._count(header.topic, 1, len(body))
        return self._reply_header(self._message_id(placed.log_offset), queue_id, placed.queue_offset, unique_key)

    # --- Replies ------------------------------------------------------------------------------------------------

    def _message_id(self, log_offset: int) -> str:
        return f"{self._id_prefix}{log_offset:016X}"

    def _reply_header(self, message_id: str, queue_id: int, queue_offset: int, transaction_id: str | None) -> SendReply:
        return SendReply(
            message_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=transaction_id,
            region=self._region,
            trace_on=self._trace_on,
        )

    def _reply_when_safe(
        self, peer: Peer, request: Request[Any], end_offset: int, reply: Reply | bytes, late: SendReply
    ) -> None:
        """Answer ``reply`` when the disk has the record; ``late`` with another code if that takes too long."""
        # The log has the message now. Thousands may wait here, with bodies of megabytes.
        request.release()

        def answer(code: int) -> None:
            peer.reply(request, reply if code == ResponseCode.SUCCESS else Reply(code, header=late))

        self._intake.when_safe(end_offset, answer)

    # --- What is not plain --------------------------------------------------------------------------------------

    def _topic_for(self, header: SendFields, peer: Peer) -> TopicConfig:
        """The topic of a message, created now if it may be; raises if clients may not send to it."""
        topic = header.topic
        # Before it is looked up: a send must not create a topic of the system either.
        if not names.may_send(topic, header.producer_group) and topic != self._trace_topic:
            raise NoPermission(
                f"Sending message to topic[{topic}] is forbidden; it is a system topic, send to another topic"
            )
        return self._topics.for_send(
            header.topic,
            default_topic=header.default_topic,
            default_queue_nums=header.default_topic_queue_nums,
            from_address=peer.address,
        )

    def _choose_queue(self, header: SendFields, config: TopicConfig, peer: Peer) -> int:
        """The queue for a message; raises what speaks against storing it."""
        topic = config.topic_name
        if not self._writable and config.order:
            # Others may still come until their senders have learned the new permission from their route (30 s); the
            # queues of an ordered topic must not move so slowly.
            raise NoPermission(f"the broker sending message is forbidden; it is read-only, and {topic} is ordered")
        if not config.perm & WRITE:
            raise NoPermission(f"the topic[{topic}] sending message is forbidden; give it write permission (perm 6)")
        # As RocketMQ: queues that may only be read, while a topic shrinks, still take what was on its way.
        queues = max(config.write_queue_nums, config.read_queue_nums)
        if header.queue_id >= queues:
            raise InvalidParameter(
                f"request queueId[{header.queue_id}] is illegal, {topic} has {queues} queues; Producer: {peer.address}"
            )
        return header.queue_id if header.queue_id >= 0 else self._random.randrange(max(config.write_queue_nums, 1))

    def _prepare(self, topic: str, properties: str) -> tuple[str, str]:
        """The properties to store, their last pair ended, and the unique key in them; raises what is not built yet."""
        properties = props.closed(properties)
        if _CLUSTER in properties or _POP_CHECKPOINT in properties:
            # Of another broker, or another delivery: a message that is sent on brings along what it had.
            properties = props.remove(
                properties, Property.CLUSTER, Property.REGION, Property.TRACE_ON, Property.POP_CHECKPOINT
            )
        if _TRANSIENT in properties:
            pairs = properties.split(props.PAIR_END)
            properties = props.PAIR_END.join([pair for pair in pairs if not pair.startswith(_TRANSIENT)])
        if _TRANSACTION in properties and props.find(properties, Property.TRANSACTION) == "true":
            raise NoPermission(
                "this broker does not support transactions yet; commit your local work first, then send the "
                "message without a transaction"
            )
        if _TIMER in properties or _START_TIME in properties:
            properties = _without_timer(topic, properties)
        unique_key = props.find(properties, Property.UNIQUE_KEY)
        if unique_key is None:
            unique_key = self._new_unique_key()
            properties = f"{properties}{_UNIQUE_KEY}{unique_key}\x02"
        return properties, unique_key

    def _place(
        self, request: Request[Any], header: SendFields, config: TopicConfig, queue_id: int, properties: str
    ) -> tuple[str, int, int, str]:
        """Topic, queue id, sysflag and properties of the record."""
        topic, sysflag = header.topic, header.sysflag
        if topic.startswith(names.RETRY_PREFIX):
            dead_letter = self._retries.target(header, version=request.version)
            if dead_letter is not None:
                return *dead_letter, sysflag, props.with_(properties, Property.DELAY, NO_DELAY)
        elif config.topic_filter_type != _SINGLE_TAG:
            sysflag |= Sysflag.MULTI_TAGS
        elif self._writable and not topic.startswith(names.SPARK_PREFIX):
            self._plain_queues[topic] = config.write_queue_nums
        return topic, queue_id, sysflag, properties

    # --- Batches ----------------------------------------------------------------------------------------------------

    def _send_batch(self, peer: Peer, request: Request[Any], header: SendFields, queue_id: int) -> Reply | None:
        topic = header.topic
        if topic.startswith(names.RETRY_PREFIX):
            raise MessageIllegal(f"batch request does not support retry group {topic}; send its messages one by one")
        data = bytes(request.body)
        try:
            parcels = unpack_messages(data)
        except RemoteProtocolError as error:
            raise MessageIllegal(str(error)) from None
        if not parcels:
            raise MessageIllegal("the batch is empty; send at least one message")
        # One look at the whole batch instead of five at each message; a body with such a text costs only time.
        is_plain = not any(text in data for text in _NOT_PLAIN)
        for number, (flag, body, properties) in enumerate(parcels):
            at = properties.find(_UNIQUE_KEY_DATA) if is_plain else -1
            # The short way: a unique key, and the last pair ended.
            if at < 0 or (at and properties[at - 1] != 2) or properties[-1] != 2:
                text, _ = self._prepare(topic, properties.decode(errors="replace"))
                parcels[number] = flag, body, text.encode()
        placed = self._intake.store_batch(
            topic,
            queue_id,
            parcels,
            born_time_ms=header.born_time_ms,
            born_host=peer.host,
            sysflag=header.sysflag,
            more_properties=self._own_properties_data,
        )
        self._count(topic, len(parcels), len(data))
        prefix = self._id_prefix
        ids = ",".join([f"{prefix}{log_offset:016X}" for log_offset in placed.log_offsets])
        batch_properties = header.properties or ""
        unique_key = props.find(batch_properties, Property.UNIQUE_KEY)
        reply = self._reply_header(ids, queue_id, placed.queue_offset, unique_key)
        if self._safety.is_awaited and props.find(batch_properties, Property.WAIT) != "false":
            self._reply_when_safe(peer, request, placed.end_offset, Reply(header=reply), reply)
            return None
        return Reply(header=reply)


async def _when_stored(later: Awaitable[None]) -> Reply:
    await later
    return Reply()


def _without_timer(topic: str, properties: str) -> str:
    """The properties of a message that may ask for its own time of delivery; raises ``MessageIllegal`` if it does.

    Where it has a delay level as well, that counts and the other goes, as in RocketMQ.
    """
    asked = [name for name in TIMER_PROPERTIES if props.find(properties, name) is not None]
    if not asked or topic.startswith(names.RETRY_PREFIX) or props.find(properties, TIMER_DONE) is not None:
        return properties
    if delay_level(properties, 1):
        return props.remove(properties, *asked)
    raise MessageIllegal(
        f"the message to {topic} has the property {asked[0]}, but this broker does not support delivery at any "
        "time yet; use one of the delay levels instead (delay_level, in Java setDelayTimeLevel)"
    )
