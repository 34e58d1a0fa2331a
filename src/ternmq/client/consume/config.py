"""Settings of consumers, with RocketMQ's defaults where nothing else is said (F1, F2, F4–F6, F9, G2, M2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ternmq.allocation import Allocation, Averagely
from ternmq.client.consume.offsets import LOCAL_DIRECTORY, StartPosition
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.errors import ConfigError
from ternmq.wire.bodies.clients import ConsumeFromWhere, MessageModel
from ternmq.wire.handles import COUNT_MAX as POP_COUNT_MAX
from ternmq.wire.requests_share import COUNT_MAX as SHARE_COUNT_MAX
from ternmq.wire.requests_share import is_consumer

_MIB: Final = 1024 * 1024
#: RocketMQ's ``MIN_AUTOCOMMIT_INTERVAL_MILLIS``.
AUTO_COMMIT_LEAST_MS: Final = 1_000
#: Ten years.
_NEVER_MS: Final = 10 * 365 * 24 * 3_600_000
#: RocketMQ's clients take 60 s for anything outside.
POP_INVISIBLE_LEAST_MS: Final = 5_000
POP_INVISIBLE_MOST_MS: Final = 300_000
#: A consumer must not look as if it had stopped for good.
OUTAGE_RETRY_MOST_MS: Final = 3_600_000


@dataclass(slots=True, frozen=True)
class FlowLimits:
    """How much a consumer may hold that is fetched and not done. At a limit, it fetches no more of the queue until
    messages are done; the others stay on the brokers.

    Args:
        count: Messages per queue. A pull may bring up to ``pull_count_max`` more, but not more than ``count``.
        body_bytes: Bytes of bodies per queue, decompressed. A single message may exceed it.
        span: Distance from the first message of a queue that is not done to the last one fetched. It limits how many
            messages are delivered again after a crash if one of them hangs.
        topic_count: Messages of all queues of a topic together, divided equally between the queues. 0: no limit.
        topic_body_bytes: Bytes of bodies of all queues of a topic together, divided equally. 0: no limit.
        total_count: Messages of all queues of all topics together, divided equally. 0: no limit.
    """

    #: M2.
    count: int = 1_000
    body_bytes: int = 100 * _MIB
    span: int = 2_000
    topic_count: int = 0
    topic_body_bytes: int = 0
    total_count: int = 0

    def __post_init__(self) -> None:
        for name in ("count", "body_bytes", "span"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 1 or more")

    def reached(
        self, held: ProcessQueue[Any], *, topic_queues: int, all_queues: int = 1, orderly: bool = False
    ) -> str | None:
        """The name of the limit at which the queue ``held`` must not fetch more; None if there is none.

        ``topic_queues`` is how many queues of its topic are read here, ``all_queues`` how many of all topics. An
        ``orderly`` consumer has no limit of the span.
        """
        if len(held) >= self.queue_count(topic_queues=topic_queues, all_queues=all_queues):
            return "count"
        if self.room_bytes(held, topic_queues=topic_queues) <= 0:
            return "body_bytes"
        # In order, nothing is done behind an undone message.
        return "span" if held.span > self.span and not orderly else None

    def queue_count(self, *, topic_queues: int, all_queues: int) -> int:
        """How many messages of a queue may be held; ``topic_queues`` and ``all_queues`` as in ``reached``."""
        count = self.count
        if self.topic_count:
            count = min(count, max(1, self.topic_count // max(1, topic_queues)))
        if self.total_count:
            count = min(count, max(1, self.total_count // max(1, all_queues)))
        return count

    def room_bytes(self, held: ProcessQueue[Any], *, topic_queues: int) -> int:
        """How many bytes of bodies ``held`` may take before it fetches no more; ``topic_queues`` as in ``reached``."""
        body_bytes = self.body_bytes
        if self.topic_body_bytes:
            body_bytes = min(body_bytes, max(1, self.topic_body_bytes // max(1, topic_queues)))
        return body_bytes - held.body_bytes


@dataclass(slots=True, frozen=True)
class PushConfig:
    """Settings of a ``PushConsumer``.

    >>> PushConfig(batch_max=32).threads
    20

    Args:
        model: Whether the members share the messages of a topic (``CLUSTERING``) or each gets all of them
            (``BROADCASTING``).
        start: Where to begin in a queue for which the group has no stored offset.
        allocation: How the members divide the queues; it must be the same for all members of the group.
        batch_max: How many messages one call of the listener gets at most. Above 1, the listener takes lists.
        threads: Calls of the listener at the same time: threads for a plain function, tasks for an ``async`` one.
        orderly: Whether the messages of a queue are consumed one after the other, in their order. Several queues are
            consumed at the same time, up to ``threads``.
        orderly_retry_ms: How long an orderly consumer waits before it tries failed messages again, in ms.
            ``ConsumeContext.retry_ms`` changes it for one call.
        pull_count_max: Messages requested by one pull. Brokers of RocketMQ return at most 32, unless they are
            configured otherwise.
        pull_bytes_max: Largest response to a pull; only brokers of RocketMQ 5 and TernMQ observe it.
        suspend_ms: How long a broker holds a pull that finds no message, in ms.
        pull_interval_ms: How long to wait between two pulls of a queue that found messages, in ms, to limit the rate.
        limits: How many messages may be fetched and not done.
        max_reconsume_times: How often a message is delivered again before it becomes a dead letter. None: as the group
            is configured on the broker (16); without limit in an orderly consumer.
        outage_retry_ms: How long the consumer pauses when its listener raises ``Outage``, in ms. The pause doubles with
            each further attempt that ends with an ``Outage``.
        outage_retry_max_ms: The longest such pause, in ms.
        consume_timeout_ms: Messages of a listener that takes longer are sent back to the broker, in ms, so that they do
            not block the stored offset of the queue.
        stop_timeout_ms: How long running listeners may take to finish when the consumer stops, in ms.
        offsets_directory: Where a broadcasting consumer stores its offsets.
    """

    #: F5.
    model: MessageModel = MessageModel.CLUSTERING
    #: F6.
    start: StartPosition = StartPosition.LAST
    #: G2.
    allocation: Allocation = field(default_factory=Averagely)
    #: F1.
    batch_max: int = 1
    threads: int = 20
    #: F2.
    orderly: bool = False
    orderly_retry_ms: int = 1_000
    #: F1. RocketMQ's is 32, and its brokers give no more. A pull costs client and broker as much as a dozen messages.
    pull_count_max: int = 256
    pull_bytes_max: int = 256 * 1024
    #: F8.
    suspend_ms: int = 15_000
    #: M2: RocketMQ's ``pullInterval``.
    pull_interval_ms: int = 0
    limits: FlowLimits = field(default_factory=FlowLimits)
    #: H1.
    max_reconsume_times: int | None = None
    #: S1.
    outage_retry_ms: int = 1_000
    outage_retry_max_ms: int = 60_000
    #: F1.
    consume_timeout_ms: int = 15 * 60_000
    stop_timeout_ms: int = 10_000
    #: F5.
    offsets_directory: Path = LOCAL_DIRECTORY

    def __post_init__(self) -> None:
        for name in (
            "batch_max",
            "threads",
            "pull_count_max",
            "pull_bytes_max",
            "consume_timeout_ms",
            "orderly_retry_ms",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 1 or more")
        for name in ("suspend_ms", "pull_interval_ms", "stop_timeout_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 0 (do not wait) or more")
        _check_outage(self.outage_retry_ms, self.outage_retry_max_ms)


@dataclass(slots=True, frozen=True)
class LitePullConfig:
    """Settings of a ``LitePullConsumer``.

    >>> LitePullConfig(auto_commit=False).poll_timeout_ms
    5000

    Args:
        start: Where to begin in a queue for which the group has no stored offset.
        allocation: How the members divide the queues, if they subscribe; it must be the same for all members of the
            group.
        batch_max: Messages that one poll returns at most.
        poll_timeout_ms: How long a poll waits for the first message if it is not told otherwise, in ms.
        auto_commit: Whether offsets are stored automatically: those of the messages before the last poll.
        auto_commit_interval_ms: How often offsets are stored automatically, in ms; at least 1,000.
        pull_count_max: Messages requested by one pull. Brokers of RocketMQ return at most 32, unless they are
            configured otherwise.
        pull_bytes_max: Largest response to a pull; only brokers of RocketMQ 5 and TernMQ observe it.
        suspend_ms: How long a broker holds a pull that finds no message, in ms.
        retries: Whether a consumer that subscribes also gets what members of its group have sent back.
        limits: How many messages may be fetched and not done. Default: 10,000 in total, besides those of
            ``FlowLimits()``.
    """

    #: F6.
    start: StartPosition = StartPosition.LAST
    #: G2.
    allocation: Allocation = field(default_factory=Averagely)
    batch_max: int = 32
    poll_timeout_ms: int = 5_000
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    #: RocketMQ's is 10, and its brokers give 32 at most.
    pull_count_max: int = 256
    pull_bytes_max: int = 256 * 1024
    #: F8.
    suspend_ms: int = 20_000
    #: H1.
    retries: bool = False
    #: M2.
    limits: FlowLimits = field(default_factory=lambda: FlowLimits(total_count=10_000))

    def __post_init__(self) -> None:
        for name in ("batch_max", "pull_count_max", "pull_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 1 or more")
        for name in ("poll_timeout_ms", "suspend_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 0 (do not wait) or more")
        if self.auto_commit_interval_ms < AUTO_COMMIT_LEAST_MS:
            raise ConfigError(
                f"invalid auto_commit_interval_ms {self.auto_commit_interval_ms}: expected "
                f"{AUTO_COMMIT_LEAST_MS} or more; to commit more often, call commit()"
            )

    def of_fetching(self) -> PushConfig:
        """The same as far as it concerns the pull loop, which both kinds of consumers share."""
        return PushConfig(
            start=self.start,
            allocation=self.allocation,
            pull_count_max=self.pull_count_max,
            pull_bytes_max=self.pull_bytes_max,
            suspend_ms=self.suspend_ms,
            limits=self.limits,
        )


@dataclass(slots=True, frozen=True)
class PopConfig:
    """Settings of a ``PopConsumer``.

    >>> PopConfig(invisible_ms=30_000).count_max
    32

    Args:
        start: Where to begin in a queue of which the group has popped nothing yet: ``FIRST`` or ``LAST``.
        batch_max: How many messages one call of the listener gets at most. Above 1, the listener takes lists.
        threads: Calls of the listener at the same time: threads for a plain function, tasks for an ``async`` one.
        count_max: Messages requested by one pop, 1 to 32.
        invisible_ms: How long a popped message is hidden from the other members, in ms. The listener must be done by
            then, or the message is delivered again.
        poll_ms: How long a broker holds a pop that finds no message, in ms.
        unsettled_max: A queue (or a broker) is not popped again while this many of its messages are not done.
        unsettled_bytes_max: The same for the bytes of their bodies, decompressed. A single message may exceed it.
        max_reconsume_times: How often a message is delivered again before it becomes a dead letter.
        outage_retry_ms: How long the consumer pauses when its listener raises ``Outage``, in ms. The pause doubles with
            each further attempt that ends with an ``Outage``.
        outage_retry_max_ms: The longest such pause, in ms.
        share_queues: How many queues of other members each member pops besides its own, when the group is switched to
            pop. 0: all members pop all queues.
        stop_timeout_ms: How long running listeners may take to finish when the consumer stops, in ms.
    """

    #: F6.
    start: StartPosition = StartPosition.LAST
    #: F1.
    batch_max: int = 1
    threads: int = 20
    #: F9.
    count_max: int = 32
    invisible_ms: int = 60_000
    #: F8.
    poll_ms: int = 15_000
    #: M2.
    unsettled_max: int = 96
    unsettled_bytes_max: int = 100 * _MIB
    #: H1.
    max_reconsume_times: int = 16
    #: S1.
    outage_retry_ms: int = 1_000
    outage_retry_max_ms: int = 60_000
    #: F9.
    share_queues: int = 0
    stop_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        for name in ("batch_max", "threads", "unsettled_max", "unsettled_bytes_max", "max_reconsume_times"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 1 or more")
        for name in ("poll_ms", "share_queues", "stop_timeout_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 0 or more")
        _check_outage(self.outage_retry_ms, self.outage_retry_max_ms)
        if not 1 <= self.count_max <= POP_COUNT_MAX:
            raise ConfigError(f"invalid count_max {self.count_max}: expected 1 to {POP_COUNT_MAX}")
        if not POP_INVISIBLE_LEAST_MS <= self.invisible_ms <= POP_INVISIBLE_MOST_MS:
            raise ConfigError(
                f"invalid invisible_ms {self.invisible_ms}: expected {POP_INVISIBLE_LEAST_MS} to "
                f"{POP_INVISIBLE_MOST_MS}"
            )
        if self.start.where is ConsumeFromWhere.TIMESTAMP:
            raise ConfigError(
                "a pop consumer can start only at the first message or at the end; to start at a time, reset the "
                "offsets of the group"
            )

    def of_listening(self) -> PushConfig:
        """The same as far as it concerns the calls of listeners, which both kinds of consumers share."""
        return PushConfig(
            start=self.start,
            batch_max=self.batch_max,
            threads=self.threads,
            suspend_ms=self.poll_ms,
            max_reconsume_times=self.max_reconsume_times,
            outage_retry_ms=self.outage_retry_ms,
            outage_retry_max_ms=self.outage_retry_max_ms,
            stop_timeout_ms=self.stop_timeout_ms,
        )


@dataclass(slots=True, frozen=True)
class ShareConfig:
    """Settings of a ``ShareConsumer``.

    >>> ShareConfig(hold_ms=60_000).count_max
    64

    Args:
        model: Whether the members share the messages of a topic (``CLUSTERING``) or each gets all of them
            (``BROADCASTING``).
        start: Where to begin in a queue of which the group has consumed nothing yet: ``FIRST`` or ``LAST``.
        consumer: The name of this consumer, unique in its group. One that is started again under the same name gets
            first what it did not confirm. Default: the client id, which is new with each start.
        batch_max: How many messages one call of the listener gets at most. Above 1, the listener takes lists.
        threads: Calls of the listener at the same time: threads for a plain function, tasks for an ``async`` one.
        ordered: Whether the messages of one key (sharding key, else the keys) are consumed one after the other, and by
            one consumer at a time.
        ordered_retry_ms: How long an ordered consumer waits before it tries failed messages again, in ms.
        count_max: Messages requested by one pull, 1 to 1,024.
        bytes_max: Bytes of messages requested by one pull; a single message may exceed it.
        hold_ms: How long the consumer may take for a message before it is given to another one, in ms; 0: as long as
            it lives. Ordered consumers have no such limit.
        poll_ms: How long a broker holds a pull that finds no message, in ms.
        unsettled_max: A broker is not asked for more while this many of its messages are not done.
        unsettled_bytes_max: The same for the bytes of their bodies, decompressed. A single message may exceed it.
        max_reconsume_times: How often a message is delivered again before it becomes a dead letter. None: as the group
            is configured on the broker (16); without limit in an ordered consumer.
        stop_timeout_ms: How long running listeners may take to finish when the consumer stops, in ms.
        offsets_directory: Where a broadcasting consumer stores its offsets.
    """

    #: F5.
    model: MessageModel = MessageModel.CLUSTERING
    #: F6.
    start: StartPosition = StartPosition.LAST
    #: R2.
    consumer: str = ""
    #: F1.
    batch_max: int = 1
    threads: int = 20
    #: R1.
    ordered: bool = False
    ordered_retry_ms: int = 1_000
    count_max: int = 64
    bytes_max: int = 256 * 1024
    #: R2.
    hold_ms: int = 15 * 60_000
    #: F8.
    poll_ms: int = 15_000
    #: M2.
    unsettled_max: int = 192
    unsettled_bytes_max: int = 100 * _MIB
    #: H1.
    max_reconsume_times: int | None = None
    stop_timeout_ms: int = 10_000
    #: F5.
    offsets_directory: Path = LOCAL_DIRECTORY

    def __post_init__(self) -> None:
        for name in ("batch_max", "threads", "bytes_max", "unsettled_max", "unsettled_bytes_max", "ordered_retry_ms"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 1 or more")
        for name in ("poll_ms", "hold_ms", "stop_timeout_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 0 or more")
        if not 1 <= self.count_max <= SHARE_COUNT_MAX:
            raise ConfigError(f"invalid count_max {self.count_max}: expected 1 to {SHARE_COUNT_MAX}")
        if self.consumer and not is_consumer(self.consumer):
            raise ConfigError(
                f"invalid consumer {self.consumer[:40]!r}: expected at most 255 bytes without slashes and blanks"
            )
        if self.start.where is ConsumeFromWhere.TIMESTAMP and self.model is MessageModel.CLUSTERING:
            raise ConfigError(
                "a share consumer can start only at the first message or at the end; to start at a time, reset the "
                "offsets of the group"
            )

    def of_listening(self) -> PushConfig:
        """The same as far as it concerns the calls of listeners, which all kinds of consumers share."""
        return PushConfig(
            model=self.model,
            start=self.start,
            batch_max=self.batch_max,
            threads=self.threads,
            orderly=self.ordered,
            orderly_retry_ms=self.ordered_retry_ms,
            suspend_ms=self.poll_ms,
            max_reconsume_times=self.max_reconsume_times,
            # The broker takes back what takes too long; this only has the calls of an ordered consumer reported.
            consume_timeout_ms=15 * 60_000 if self.ordered else _NEVER_MS,
            stop_timeout_ms=self.stop_timeout_ms,
            offsets_directory=self.offsets_directory,
        )

    def of_popping(self) -> PopConfig:
        """The same for brokers that share messages by pop only."""
        least, most = POP_INVISIBLE_LEAST_MS, POP_INVISIBLE_MOST_MS
        return PopConfig(
            start=self.start,
            batch_max=self.batch_max,
            threads=self.threads,
            count_max=min(self.count_max, POP_COUNT_MAX),
            invisible_ms=min(max(self.hold_ms or most, least), most),
            poll_ms=self.poll_ms,
            unsettled_max=self.unsettled_max,
            unsettled_bytes_max=self.unsettled_bytes_max,
            max_reconsume_times=16 if self.max_reconsume_times is None else max(self.max_reconsume_times, 1),
            stop_timeout_ms=self.stop_timeout_ms,
        )


def _check_outage(first_ms: int, max_ms: int) -> None:
    if not 1 <= first_ms <= max_ms <= OUTAGE_RETRY_MOST_MS:
        raise ConfigError(
            f"invalid outage_retry_ms {first_ms} and outage_retry_max_ms {max_ms}: expected 1 to "
            f"{OUTAGE_RETRY_MOST_MS}, and the first not above the second"
        )
