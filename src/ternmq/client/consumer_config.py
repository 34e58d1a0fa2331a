"""Settings of consumers, with RocketMQ's defaults where nothing else is said (F1, F2, F4–F6, F9, G2, M2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ternmq.allocation import Allocation, Averagely
from ternmq.client.offsets import LOCAL_DIRECTORY, StartPosition
from ternmq.client.process_queue import ProcessQueue
from ternmq.errors import ConfigError
from ternmq.wire.bodies.clients import ConsumeFromWhere, MessageModel
from ternmq.wire.handles import COUNT_MAX as POP_COUNT_MAX

_MIB: Final = 1024 * 1024
#: RocketMQ's ``MIN_AUTOCOMMIT_INTERVAL_MILLIS``.
AUTO_COMMIT_LEAST_MS: Final = 1_000
#: RocketMQ's clients take 60 s for anything outside.
POP_INVISIBLE_LEAST_MS: Final = 5_000
POP_INVISIBLE_MOST_MS: Final = 300_000


@dataclass(slots=True, frozen=True)
class FlowLimits:
    """How much a consumer holds that is fetched and not done (M2). At a limit it fetches no more of that queue until
    something is done; brokers keep the rest."""

    #: Per queue. A pull may bring up to ``pull_count_max`` more.
    count: int = 1_000
    body_bytes: int = 100 * _MIB
    #: From the smallest undone message to the last one fetched: one that hangs must not let everything behind it pile
    #: up to be delivered again after a crash.
    span: int = 2_000
    #: All queues of a topic that this consumer reads, together; each has its part of it. 0: no such limit.
    topic_count: int = 0
    topic_body_bytes: int = 0
    #: All queues of all topics that this consumer reads, together; each has its part of it. 0: no such limit.
    total_count: int = 0

    def __post_init__(self) -> None:
        for name in ("count", "body_bytes", "span"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} would stop all fetching; use 1 or more")

    def reached(
        self, held: ProcessQueue, *, topic_queues: int, all_queues: int = 1, orderly: bool = False
    ) -> str | None:
        """Which limit keeps ``held`` from fetching more.

        ``topic_queues`` is how many queues of its topic are read here, ``all_queues`` how many of all.
        """
        count, body_bytes = self.count, self.body_bytes
        if self.topic_count:
            count = min(count, max(1, self.topic_count // max(1, topic_queues)))
        if self.topic_body_bytes:
            body_bytes = min(body_bytes, max(1, self.topic_body_bytes // max(1, topic_queues)))
        if self.total_count:
            count = min(count, max(1, self.total_count // max(1, all_queues)))
        if len(held) >= count:
            return "count"
        if held.body_bytes >= body_bytes:
            return "body_bytes"
        # In order, nothing is done behind an undone message.
        return "span" if held.span > self.span and not orderly else None


@dataclass(slots=True, frozen=True)
class PushConfig:
    """Settings of a ``PushConsumer``.

    >>> PushConfig(batch_max=32).threads
    20
    """

    #: F5: members share the messages of a topic (CLUSTERING), or each gets all (BROADCASTING).
    model: MessageModel = MessageModel.CLUSTERING
    #: F6: where to read a queue from of which the group has no progress.
    start: StartPosition = StartPosition.LAST
    #: G2: how members divide queues; the same for all of a group.
    allocation: Allocation = field(default_factory=Averagely)
    #: F1: above 1, the listener takes lists of up to this many messages.
    batch_max: int = 1
    #: F1: calls of the listener at the same time: threads of a plain function, tasks of an ``async`` one.
    threads: int = 20
    #: F2: the messages of a queue one after the other, and all queues side by side, ``threads`` at a time.
    orderly: bool = False
    #: F2: when messages that failed are tried again in place; ``ConsumeContext.retry_ms`` says it for one call.
    orderly_retry_ms: int = 1_000
    #: F1: messages asked for with one pull; brokers give 32 at most unless told otherwise.
    pull_count_max: int = 32
    #: RocketMQ 5 ends a pull's answer at this size.
    pull_bytes_max: int = 256 * 1024
    #: F8: how long a broker holds a pull that finds nothing.
    suspend_ms: int = 15_000
    limits: FlowLimits = field(default_factory=FlowLimits)
    #: H1: how often a message comes again before it is a dead letter. None: as the broker's group says (16); in an
    #: orderly consumer for ever.
    max_reconsume_times: int | None = None
    #: F1: a listener that takes longer has its messages sent back, so that they do not hold up the queue's progress.
    consume_timeout_ms: int = 15 * 60_000
    #: What running listeners have, at the end of the block, to come to theirs.
    stop_timeout_ms: int = 10_000
    #: F5: where broadcasting keeps its progress.
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
                raise ConfigError(f"{name}={getattr(self, name)} makes no sense; use 1 or more")
        for name in ("suspend_ms", "stop_timeout_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is below 0; use 0 for no wait at all")


@dataclass(slots=True, frozen=True)
class LitePullConfig:
    """Settings of a ``LitePullConsumer``.

    >>> LitePullConfig(auto_commit=False).poll_timeout_ms
    5000
    """

    #: F6: where to read a queue from of which the group has no progress.
    start: StartPosition = StartPosition.LAST
    #: G2: how members divide queues, if they subscribe; the same for all of a group.
    allocation: Allocation = field(default_factory=Averagely)
    #: Messages that one poll gives at most.
    batch_max: int = 32
    poll_timeout_ms: int = 5_000
    #: Whether progress is stored by itself: what was polled before the last poll.
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    #: Messages asked for with one pull. RocketMQ's is 10; brokers give 32, and each question costs as much as ten.
    pull_count_max: int = 32
    #: RocketMQ 5 ends a pull's answer at this size.
    pull_bytes_max: int = 256 * 1024
    #: F8: how long a broker holds a pull that finds nothing.
    suspend_ms: int = 20_000
    limits: FlowLimits = field(default_factory=lambda: FlowLimits(total_count=10_000))

    def __post_init__(self) -> None:
        for name in ("batch_max", "pull_count_max", "pull_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} makes no sense; use 1 or more")
        for name in ("poll_timeout_ms", "suspend_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is below 0; use 0 for no wait at all")
        if self.auto_commit_interval_ms < AUTO_COMMIT_LEAST_MS:
            raise ConfigError(
                f"auto_commit_interval_ms={self.auto_commit_interval_ms} would keep brokers busy; use "
                f"{AUTO_COMMIT_LEAST_MS} or more, or commit() by hand"
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
    """

    #: F6: where a group begins that has popped nothing of a queue yet: the first message or the end.
    start: StartPosition = StartPosition.LAST
    #: F1: above 1, the listener takes lists of up to this many messages.
    batch_max: int = 1
    #: F1: calls of the listener at the same time: threads of a plain function, tasks of an ``async`` one.
    threads: int = 20
    #: Messages asked for with one pop; 32 at most.
    count_max: int = 32
    #: How long a popped message is hidden from the other members. A listener must be done by then.
    invisible_ms: int = 60_000
    #: F8: how long a broker holds a pop that finds nothing.
    poll_ms: int = 15_000
    #: M2: at this many messages that were popped and are not settled, a queue (or broker) is asked for no more.
    unsettled_max: int = 96
    #: H1: how often a message comes again before it is a dead letter.
    max_reconsume_times: int = 16
    #: When the group is switched to pop: how many members share a queue, beside its own. 0: all pop all.
    share_queues: int = 0
    #: What running listeners have, at the end of the block, to come to theirs.
    stop_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        for name in ("batch_max", "threads", "unsettled_max", "max_reconsume_times"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} makes no sense; use 1 or more")
        for name in ("poll_ms", "share_queues", "stop_timeout_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is below 0; use 0 or more")
        if not 1 <= self.count_max <= POP_COUNT_MAX:
            raise ConfigError(f"count_max={self.count_max}: one pop brings 1 to {POP_COUNT_MAX} messages")
        if not POP_INVISIBLE_LEAST_MS <= self.invisible_ms <= POP_INVISIBLE_MOST_MS:
            raise ConfigError(
                f"invisible_ms={self.invisible_ms}: hide messages for {POP_INVISIBLE_LEAST_MS} to "
                f"{POP_INVISIBLE_MOST_MS} ms"
            )
        if self.start.where is ConsumeFromWhere.TIMESTAMP:
            raise ConfigError("pop begins with the first message or at the end; for a time, reset the group's offsets")

    def of_listening(self) -> PushConfig:
        """The same as far as it concerns the calls of listeners, which both kinds of consumers share."""
        return PushConfig(
            start=self.start,
            batch_max=self.batch_max,
            threads=self.threads,
            suspend_ms=self.poll_ms,
            max_reconsume_times=self.max_reconsume_times,
            stop_timeout_ms=self.stop_timeout_ms,
        )
