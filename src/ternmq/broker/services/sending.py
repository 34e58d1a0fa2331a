"""Sending: what a send means (E1, E6, H1).

``Sending.send`` is the hottest function of a broker: everything between a decoded request and the log, as plain calls.
A message that needs nothing special (the topic exists and may be written, the queue is named, the properties have a
unique key and none of the few names that the broker must look at) takes the short way, one long condition; for all
others the methods below decide what has to be done.

What the broker does to a message before it is stored, as RocketMQ 5 does:

- a topic that does not exist is made (D1), a queue id below 0 is chosen;
- the properties lose POP_CK and all ``__RMQ.TRANSIENT.`` ones, get a UNIQ_KEY if they have none, and CLUSTER (replies
  need it), MSG_REGION and TRACE_ON;
- a message to a retry topic that was tried too often goes to the dead letters.

Clients cannot send to topics that only the broker writes (``names.may_send``).

The properties stay one text: what is added goes behind it, nothing is taken apart. In a batch each message is a record
of its own with its own unique key.

A message with a delay level or a delivery time is redirected by the intake (I1, I2), and so is the half of a
transaction (J1). A message with a delivery time gets a recall handle.

A broker that is not the master refuses all sends (``NotMaster``). The short way needs no test for that: it is open only
to topics that are remembered as plain, and these are forgotten when the term ends.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from ternmq import names
from ternmq.broker.config import WRITE, BrokerConfig
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.retry import NO_DELAY, Retries
from ternmq.broker.services.transactions import TransactionService
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.delay.timer import MARKS as TIMER_MARKS
from ternmq.delay.timer import Timer, check_no_time
from ternmq.errors import InvalidParameter, MessageIllegal, NoPermission, NotMaster, RemoteProtocolError, TernError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property
from ternmq.store.derived.dispatch import delay_level
from ternmq.store.durable.safety import Answer, WaitingRun
from ternmq.store.log.batch import BatchPart, PlacedBatch
from ternmq.store.log.draft import Draft
from ternmq.transaction.half import COPY_MARKS, OWN_MARKS, is_asked_for
from ternmq.transaction.half import MARK as TRANSACTION_MARK
from ternmq.transaction.runs import TransactionForms, TransactionTerms
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.batch import unpack_messages
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import SendBack, SendFields

if TYPE_CHECKING:
    from ternmq._native import ReplyForm, Sends

# Texts that betray a property without taking the text apart. A user's name or value may hold them, too: where one is
# found, ``wire.properties`` looks closer, and decides.
_UNIQUE_KEY: Final = f"{Property.UNIQUE_KEY}\x01"
_UNIQUE_KEY_DATA: Final = _UNIQUE_KEY.encode()
_KEY_AT: Final = len(_UNIQUE_KEY)
_POP_CHECKPOINT: Final = f"{Property.POP_CHECKPOINT}\x01"
_CLUSTER: Final = f"{Property.CLUSTER}\x01"
_NO_WAIT: Final = f"{Property.WAIT}\x01false"
#: Properties for the way to the broker only (RocketMQ 5).
_TRANSIENT: Final = "__RMQ.TRANSIENT."
#: Anywhere in a batch, these make the broker look at the properties of each message.
_NOT_PLAIN: Final = tuple(
    text.encode()
    for text in (
        _CLUSTER,
        TRANSACTION_MARK,
        _POP_CHECKPOINT,
        _TRANSIENT,
        *TIMER_MARKS,
        f"{_UNIQUE_KEY}\x02",
    )
)
#: A sender's own bits of a transaction do not count: a message with them would be stored, and in no queue.
_PLAIN: Final = ~Sysflag.TRANSACTION_MASK
_SINGLE_TAG: Final = "SINGLE_TAG"

#: Log offset, end offset, queue id, queue offset, unique key, whether the sender must wait for ``when_safe``, and the
#: recall handle of a message with a delivery time. A plain tuple: one is made for each message.
Sent: TypeAlias = tuple[int, int, int, int, str, bool, str | None]


#: Keeps the replies of a run, and the log offsets behind its records (``PlacedRun.ends``), until they are safe.
HoldReplies: TypeAlias = Callable[[bytes, bytes], WaitingRun]


class RunForms(NamedTuple):
    """What the replies to the sends of a run are made of."""

    plain: ReplyForm
    #: With a recall handle.
    timed: ReplyForm
    transactional: TransactionForms


class Origin(Protocol):
    """Where a message comes from. A connection (``net.peer.Peer``) is one."""

    @property
    def host(self) -> bytes:
        """The address as it stands in records (born host)."""
        ...

    @property
    def address(self) -> str: ...


class Sending:
    """All methods belong to the broker's loop. Call ``topic_changed`` with each change of a topic.

    Opened and shut by the term: give ``open`` and ``shut`` to ``roles.Switch``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        intake: Intake,
        topics: Topics,
        retries: Retries,
        transactions: TransactionService,
        stats: Stats,
        quotas: Quotas,
        timer: Timer,
        new_unique_key: Callable[[], str],
        choice: random.Random,
    ) -> None:
        self._intake = intake
        self._store = intake.store
        self._safety = intake.safety
        self._topics = topics
        self._retries = retries
        self._transactions = transactions
        self._count = stats.put
        self._quotas = quotas
        self._handle = timer.handle
        self._timed_runs = timer.runs(intake.store_packed)
        self._new_unique_key = new_unique_key
        self._random = choice
        #: Queues of the topics to which a message can go without further questions.
        self._plain_queues: dict[str, int] = {}
        self._refusal: TernError | None = NotMaster("this broker is not the master: send to the master")
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._writable = bool(config.broker_permission & WRITE)
        self._trace_topic = config.msg_trace_topic_name if config.trace_topic_enable else ""
        self._own_properties = props.join(
            {
                Property.CLUSTER: config.broker_cluster_name,
                Property.REGION: config.region_id,
                Property.TRACE_ON: "true" if config.trace_on else "false",
            }
        )
        self._own_properties_data = self._own_properties.encode()
        #: What runs share; None if sends are always handled one by one. The second is for the time in which senders
        #: wait, but not those that asked not to.
        marks = (_CLUSTER, _POP_CHECKPOINT, _TRANSIENT)
        self._run_terms = self._intake.run_terms(self._own_properties_data, marks)
        self._waiting_terms = self._intake.run_terms(self._own_properties_data, (*marks, _NO_WAIT))
        self._timed_terms = self._intake.run_terms(self._own_properties_data, marks, passing=TIMER_MARKS)
        self._transaction_terms = self._make_transaction_terms(marks)
        self._plain_queues.clear()

    def _make_transaction_terms(self, marks: Sequence[str]) -> TransactionTerms | None:
        passing = (TRANSACTION_MARK,)
        half = self._intake.run_terms(self._own_properties_data, (*marks, *OWN_MARKS), passing=passing)
        # What the broker has added to a half stays as it is.
        commit = self._intake.run_terms(b"", COPY_MARKS, passing=passing)
        return TransactionTerms(half, commit) if half is not None and commit is not None else None

    def topic_changed(self, _config: TopicConfig | None) -> None:
        """Ask again what may go where."""
        self._plain_queues.clear()

    def open(self) -> None:
        """A term begins: messages can be stored."""
        self._refusal = None

    def shut(self, reason: TernError) -> None:
        """The term is over: sends are refused, and those that wait for the disk are answered."""
        self._refusal = reason
        self._plain_queues.clear()
        self._safety.give_up()

    # --- Sends --------------------------------------------------------------------------------------------------

    def send(self, origin: Origin, command: SendFields, body: Buffer, version: int) -> Sent:
        """Store one message; ``version`` is that of the client. Not for a batch (``command.batch``).

        Raises ``TopicMissing``, ``NoPermission``, ``MessageIllegal``, ``InvalidParameter``, ``NotMaster``,
        ``ServiceNotAvailable`` and ``SystemBusy``; then nothing was stored.
        """
        topic = command.topic
        queue_id = command.queue_id
        properties = command.properties
        sysflag = command.sysflag & _PLAIN
        if (
            0 <= queue_id < self._plain_queues.get(topic, 0)
            and properties
            and (at := properties.rfind(_UNIQUE_KEY)) >= 0
            and (at == 0 or properties[at - 1] == "\x02")
            and _CLUSTER not in properties
            and _POP_CHECKPOINT not in properties
            and _TRANSIENT not in properties
        ):
            if properties[-1] != "\x02":
                properties += "\x02"
            unique_key = properties[at + _KEY_AT : properties.index("\x02", at)]
            if not unique_key:
                properties, unique_key = self._prepare(properties)
            if TRANSACTION_MARK in properties:
                properties, sysflag = self._half(command, properties, sysflag)
        else:
            config = self._topic_for(command, origin)
            queue_id = self._choose_queue(command, config, origin)
            properties, unique_key = self._prepare(properties or "")
            topic, queue_id, sysflag, properties = self._place(command, config, queue_id, properties, version)
            if self._quotas.topics:
                self._quotas.sent(command.topic, 1, len(body))
            if TRANSACTION_MARK in properties:
                properties, sysflag = self._half(command, properties, sysflag)
        draft = Draft(
            topic,
            queue_id,
            body,
            properties + self._own_properties,
            command.born_time_ms,
            origin.host,
            command.flag,
            sysflag,
            command.reconsume_times or 0,
        )
        log_offset, end_offset, queue_offset, _ = self._store(draft)
        handle = None
        if draft.topic is not topic and (draft.topic != names.HALF_TOPIC or delay_level(properties, 1)):
            # It waits for its time, at once or from its commit on, and counts under its own topic when it is delivered.
            topic = draft.topic
            if topic == names.WHEEL_TOPIC:
                handle = self._handle(draft, log_offset, unique_key)
        self._count(topic, 1, len(body))
        waits = self._safety.is_awaited and (
            self._safety.is_required
            or not (_NO_WAIT in properties and props.find(properties, Property.WAIT) == "false")
        )
        return log_offset, end_offset, queue_id, queue_offset, unique_key, waits, handle

    def takes_runs(self) -> bool:
        """Whether ``send_run`` can be of use now."""
        return self._run_terms is not None and bool(self._plain_queues)

    def send_run(
        self, origin: Origin, sends: Sends, first: int, forms: RunForms, held: HoldReplies
    ) -> tuple[int, bytes, int]:
        """Store sends of one read from number ``first`` on, as far as they take the short way of ``send`` and are of
        one kind: plain ones, those with a delivery time that is plain, too, or halves of transactions. Commits among
        these are carried out.

        The number of the first that is not stored, the replies to all others, made by ``forms``, and how many of them
        are ends of transactions. Where senders wait, replies go to ``held`` instead, and to the senders later. What
        raises in ``send`` is never stored here.
        """
        if sends.is_transactional(first):
            return self._store_transactional(origin, sends, first, forms.transactional)
        placed = self._store_plain(origin, sends, first, forms.plain, held)
        if placed[0] > first:
            return placed
        return self._store_timed(origin, sends, first, forms.timed)

    def _is_plain(self, topic: str, queue_id: int) -> bool:
        return 0 <= queue_id < self._plain_queues.get(topic, 0)

    def _store_plain(
        self, origin: Origin, sends: Sends, first: int, form: ReplyForm, held: HoldReplies
    ) -> tuple[int, bytes, int]:
        """``send_run`` for those without a delivery time that come first."""
        safety = self._safety
        terms = self._waiting_terms if safety.is_awaited and not safety.is_required else self._run_terms
        room = self._intake.run_room()
        if terms is None or not room:
            return first, b"", 0
        placed = self._intake.store_run(
            sends, first, self._plain_queues, count_max=room, terms=terms, form=form, born_host=origin.host
        )
        if placed is None:
            return first, b"", 0
        for queue, count, body_bytes in placed.counts:
            self._count(queue.topic, count, body_bytes, calls=count)
        if placed.ends and safety.is_awaited:
            self._intake.when_all_safe(held(placed.replies, placed.ends))
            return placed.next, b"", 0
        return placed.next, placed.replies, 0

    def _store_timed(self, origin: Origin, sends: Sends, first: int, form: ReplyForm) -> tuple[int, bytes, int]:
        """``send_run`` for those with a delivery time that come first."""
        terms, runs, safety = self._timed_terms, self._timed_runs, self._safety
        if terms is None or runs is None or safety.is_guarded or safety.is_awaited:
            return first, b"", 0
        placed = runs.store(sends, first, self._is_plain, terms=terms, form=form, born_host=origin.host)
        if placed is None:
            return first, b"", 0
        for _, count, body_bytes in placed.sent:
            self._count(names.WHEEL_TOPIC, count, body_bytes, calls=count)
        return placed.next, placed.replies, 0

    def _store_transactional(
        self, origin: Origin, sends: Sends, first: int, forms: TransactionForms
    ) -> tuple[int, bytes, int]:
        """``send_run`` for halves and commits that come first."""
        terms, safety = self._transaction_terms, self._safety
        if terms is None or safety.is_guarded or safety.is_awaited:
            return first, b"", 0
        placed = self._transactions.store_run(
            sends, first, self._is_plain, terms=terms, forms=forms, born_host=origin.host
        )
        if placed is None:
            return first, b"", 0
        halves = 0
        for topic, count, body_bytes in placed.sent:
            self._count(topic, count, body_bytes, calls=count)
            halves += count
        return placed.next, placed.replies, placed.next - first - halves

    def send_batch(
        self, origin: Origin, command: SendFields, body: Buffer, *, count_max: int
    ) -> tuple[PlacedBatch, int, bool]:
        """Store the messages of a batch: all, or none. Where they lie, their queue, and whether to wait for
        ``when_safe``. Raises as ``send``, also for more messages than ``count_max``."""
        topic = command.topic
        queue_id = self._choose_queue(command, self._topic_for(command, origin), origin)
        if topic.startswith(names.RETRY_PREFIX):
            raise MessageIllegal(f"batch request does not support retry group {topic}; send its messages one by one")
        data = bytes(body)
        # One look at the whole batch instead of five at each message; a body with such a text costs only time.
        is_plain = not (
            native.contains_any(data, _NOT_PLAIN) if HAS_NATIVE else any(text in data for text in _NOT_PLAIN)
        )
        placed = self._intake.store_batch(
            topic,
            queue_id,
            lambda: self._parcels(data, is_plain=is_plain, count_max=count_max),
            sent=data if is_plain else None,
            count_max=count_max,
            born_time_ms=command.born_time_ms,
            born_host=origin.host,
            sysflag=command.sysflag & _PLAIN,
            more_properties=self._own_properties_data,
        )
        self._count(topic, len(placed.log_offsets), len(data))
        self._quotas.sent(topic, len(placed.log_offsets), len(data))
        waits = self._safety.is_awaited and (
            self._safety.is_required or props.find(command.properties or "", Property.WAIT) != "false"
        )
        return placed, queue_id, waits

    def _parcels(self, data: bytes, *, is_plain: bool, count_max: int) -> list[BatchPart]:
        """The messages of a batch, with the properties to store."""
        try:
            parcels = unpack_messages(data)
        except RemoteProtocolError as error:
            raise MessageIllegal(str(error)) from None
        if not parcels:
            raise MessageIllegal("the batch is empty; send at least one message")
        if len(parcels) > count_max:
            raise MessageIllegal(
                f"the batch has {len(parcels)} messages, at most {count_max} can be answered together; send fewer at "
                "once"
            )
        for number, (flag, content, properties) in enumerate(parcels):
            at = properties.find(_UNIQUE_KEY_DATA) if is_plain else -1
            # The short way: a unique key with a value. Clients before 5.2 leave the last pair open. On the long way,
            # bytes that are no text are replaced.
            if at >= 0 and (not at or properties[at - 1] == 2):
                if properties[-1] == 2:
                    continue
                if at + _KEY_AT < len(properties) and properties.isascii():
                    parcels[number] = flag, content, properties + b"\x02"
                    continue
            text, _ = self._prepare(properties.decode(errors="replace"))
            check_no_time(text, "a message of a batch")
            _refuse_transaction(text, "a batch")
            parcels[number] = flag, content, text.encode()
        return parcels

    def send_back(
        self, command: SendBack, *, version: int, check_topic: Callable[[str, str], None] | None = None
    ) -> Awaitable[None] | None:
        """Store a copy of a record for a later attempt (H1): now (None), or when the disk has brought it.

        ``check_topic``: as for ``Retries.send_back``.
        Raises as ``Retries.send_back``, and ``NotMaster``.
        """
        self._check_master()
        if not self._writable:
            raise NoPermission("this broker is read-only; set brokerPermission to 6")
        return self._retries.send_back(command, version=version, check_topic=check_topic)

    def when_safe(self, end_offset: int, answer: Answer) -> None:
        """Call ``answer`` when the log is safe up to ``end_offset``, or when that takes too long."""
        self._intake.when_safe(end_offset, answer)

    # --- Replies of request-reply (E7) --------------------------------------------------------------------------

    def choose_queue(self, origin: Origin, command: SendFields) -> int:
        """The queue that a message would go to; raises what ``send`` would raise."""
        queue_id = self._choose_queue(command, self._topic_for(command, origin), origin)
        properties, _ = self._prepare(command.properties or "")
        check_no_time(properties, "a reply")
        _refuse_transaction(properties, "a reply")
        return queue_id

    def store_in(self, queue_id: int, origin: Origin, command: SendFields, body: Buffer) -> Sent:
        """Store a message in a queue that ``choose_queue`` chose; its sender does not wait for the disk."""
        self._check_master()
        properties, unique_key = self._prepare(command.properties or "")
        placed = self._store(
            Draft(
                command.topic,
                queue_id,
                body,
                properties + self._own_properties,
                command.born_time_ms,
                origin.host,
                command.flag,
                command.sysflag & _PLAIN,
                command.reconsume_times or 0,
            )
        )
        self._count(command.topic, 1, len(body))
        self._quotas.sent(command.topic, 1, len(body))
        return placed.log_offset, placed.end_offset, queue_id, placed.queue_offset, unique_key, False, None

    # --- What is not plain --------------------------------------------------------------------------------------

    def _check_master(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def _topic_for(self, command: SendFields, origin: Origin) -> TopicConfig:
        """The topic of a message, created now if it may be; raises if clients may not send to it."""
        self._check_master()
        topic = command.topic
        # Before it is looked up: a send must not create a topic of the system either.
        if not names.may_send(topic, command.producer_group) and topic != self._trace_topic:
            raise NoPermission(
                f"Sending message to topic[{topic}] is forbidden; it is a system topic, send to another topic"
            )
        if self._quotas.topics:
            self._quotas.check_send(topic)
        return self._topics.for_send(
            topic,
            default_topic=command.default_topic,
            default_queue_nums=command.default_topic_queue_nums,
            from_address=origin.address,
        )

    def _choose_queue(self, command: SendFields, config: TopicConfig, origin: Origin) -> int:
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
        if command.queue_id >= queues:
            raise InvalidParameter(
                f"request queueId[{command.queue_id}] is illegal, {topic} has {queues} queues; Producer: "
                f"{origin.address}"
            )
        return command.queue_id if command.queue_id >= 0 else self._random.randrange(max(config.write_queue_nums, 1))

    def _prepare(self, properties: str) -> tuple[str, str]:
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
        unique_key = props.find(properties, Property.UNIQUE_KEY)
        if unique_key is None:
            unique_key = self._new_unique_key()
            properties = f"{properties}{_UNIQUE_KEY}{unique_key}\x02"
        return properties, unique_key

    def _half(self, command: SendFields, properties: str, sysflag: int) -> tuple[str, int]:
        return self._transactions.prepare(
            properties, sysflag, group=command.producer_group, reconsume_times=command.reconsume_times or 0
        )

    def _place(
        self, command: SendFields, config: TopicConfig, queue_id: int, properties: str, version: int
    ) -> tuple[str, int, int, str]:
        """Topic, queue id, sysflag and properties of the record."""
        topic, sysflag = command.topic, command.sysflag & _PLAIN
        if topic.startswith(names.RETRY_PREFIX):
            dead_letter = self._retries.target(command, version=version)
            if dead_letter is not None:
                return *dead_letter, sysflag, props.with_(properties, Property.DELAY, NO_DELAY)
        elif config.topic_filter_type != _SINGLE_TAG:
            sysflag |= Sysflag.MULTI_TAGS
        elif self._writable and not topic.startswith(names.SPARK_PREFIX) and topic not in self._quotas.topics:
            self._plain_queues[topic] = config.write_queue_nums
        return topic, queue_id, sysflag, properties


def _refuse_transaction(properties: str, what: str) -> None:
    """Raise ``MessageIllegal`` for a message that cannot be part of a transaction."""
    if is_asked_for(properties):
        raise MessageIllegal(f"{what} cannot be part of a transaction; send the message alone")
