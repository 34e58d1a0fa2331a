"""Options of the source, from Spark's map of texts to typed values (U1).

Spark hands over every option as text and does not care about the case of its name; here it is checked once, on the
driver, before anything is read: an unknown option, a value that cannot be, or two options that contradict each other
raise ``ConfigError`` with a sentence. ``OptionTexts`` is the reading part, for other formats of this package too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from ternmq.client.config import ClientConfig
from ternmq.client.namespace import unwrap, wrap
from ternmq.errors import ConfigError, InvalidName
from ternmq.filter.sql import parse as parse_sql
from ternmq.filter.tags import TagFilter
from ternmq.message import MessageQueue
from ternmq.names import check_group, check_topic

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: In offsets given per queue: the first and the last, as Spark's Kafka source has them.
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

#: Queue offsets by topic, broker and queue id, as they stand in checkpoints; JSON knows only texts as names.
OffsetTable: TypeAlias = dict[str, dict[str, dict[str, int]]]


@dataclass(slots=True, frozen=True)
class Position:
    """A place in all queues: ``earliest``, ``latest``, a time, or an offset for each (``offsets``)."""

    where: str = ""
    time_ms: int | None = None
    offsets: Mapping[MessageQueue, int] | None = None


class OptionTexts:
    """The options of one format. Take each by its name; ``done`` refuses what nobody has taken."""

    def __init__(self, options: Mapping[str, str], *, known: Collection[str], name: str = "ternmq") -> None:
        self._texts = {name.lower(): text for name, text in options.items()}
        self._known = {name.lower(): name for name in known}
        for given in options:
            if given.lower() not in self._known:
                near = difflib.get_close_matches(given.lower(), self._known, n=1, cutoff=0.6)
                hint = f"did you mean {self._known[near[0]]!r}?" if near else f"there are {', '.join(sorted(known))}"
                raise ConfigError(f"the format {name} has no option {given!r}; {hint}")

    def text(self, name: str, default: str = "") -> str:
        return self._texts.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return bool(self.text(name))

    def count(self, name: str, default: int | None = None) -> int | None:
        """A whole number above 0."""
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or int(text) == 0:
            raise ConfigError(f"the option {name}={text!r} is no whole number above 0")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"the option {name}={text!r} is neither true nor false")
        return text == "true" if text else default

    def one_of(self, *names: str) -> str | None:
        """Which one of some options that exclude each other is given."""
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise ConfigError(f"the options {' and '.join(given)} contradict each other; give one of them")
        return given[0] if given else None


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """What to read, and how. Field names are those of the options, in Python's spelling."""

    name_servers: str
    #: Topics and group have it before their names here, as on the wire.
    namespace: str
    #: By name, or else by pattern, which is for names without the namespace.
    topics: tuple[str, ...]
    topic_pattern: str
    start: Position | None
    end: Position | None
    #: What brokers are to choose by: an expression of tags, or of SQL92.
    tags: str
    sql: str
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int | None
    slice_messages: int
    min_partitions: int | None
    fail_on_data_loss: bool
    #: Progress is reported under this name; empty: not at all.
    group: str
    #: Narrow a batch read by the query's filters; the guide tells why that is not the default.
    push_down_filters: bool
    #: How long a broker or name server that does not answer is tried again.
    retry_timeout_ms: int
    #: How often a stream looks for new topics, brokers and queues.
    discover_interval_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of ``spark.read`` or ``spark.readStream``; raises ``ConfigError``."""
        texts = OptionTexts(options, known=SOURCE_OPTIONS)
        chosen = texts.one_of("topic", "topics", "topicPattern", "path")
        if chosen is None:
            raise ConfigError("no topic is given; set the option topic, topics ('a,b') or topicPattern")
        namespace = namespace_of(texts)
        names = () if chosen == "topicPattern" else topic_names(texts.text(chosen))
        topics = tuple(wrap(namespace, name) for name in names)
        texts.one_of("tags", "sql")
        start_name = texts.one_of("startingOffsets", "startingTimestamp")
        end_name = texts.one_of("endingOffsets", "endingTimestamp")
        return cls(
            name_servers=name_servers(texts),
            namespace=namespace,
            topics=topics,
            topic_pattern=topic_pattern(texts.text("topicPattern")) if chosen == "topicPattern" else "",
            start=_position(start_name, texts.text(start_name), topics, namespace) if start_name else None,
            end=_position(end_name, texts.text(end_name), topics, namespace) if end_name else None,
            tags=TagFilter.parse(texts.text("tags")).expression,
            sql=_sql(texts.text("sql")),
            max_messages_per_trigger=texts.count("maxMessagesPerTrigger"),
            max_bytes_per_trigger=texts.count("maxBytesPerTrigger"),
            slice_messages=texts.count("sliceMessages") or SLICE_MESSAGES,
            min_partitions=texts.count("minPartitions"),
            fail_on_data_loss=texts.flag("failOnDataLoss", default=True),
            group=_group(texts.text("group"), namespace),
            push_down_filters=texts.flag("pushDownFilters", default=False),
            retry_timeout_ms=texts.count("retryTimeoutMs") or RETRY_TIMEOUT_MS,
            discover_interval_ms=texts.count("discoverIntervalMs") or DISCOVER_INTERVAL_MS,
        )

    def check_for_batch(self) -> None:
        """Raise for what only a stream can do."""
        for name, value in (("startingOffsets", self.start), ("endingOffsets", self.end)):
            wrong = LATEST if name == "startingOffsets" else EARLIEST
            if value is not None and value.where == wrong:
                raise ConfigError(f"a batch read with {name}={wrong!r} would be empty; leave it out")

    def check_for_stream(self) -> None:
        """Raise for what only a batch read can do."""
        if self.end is not None:
            raise ConfigError(
                "a stream has no end; leave out endingOffsets and endingTimestamp, or use spark.read; "
                "to read what is there now and stop, use trigger(availableNow=True)"
            )

    def selects(self, topic: str) -> bool:
        """Whether a topic is one of those chosen."""
        if self.topics:
            return topic in self.topics
        name = unwrap(self.namespace, topic)
        return topic == wrap(self.namespace, name) and re.fullmatch(self.topic_pattern, name) is not None


SLICE_MESSAGES: Final = 200_000
RETRY_TIMEOUT_MS: Final = 60_000
DISCOVER_INTERVAL_MS: Final = 10_000

SOURCE_OPTIONS: Final = (
    "nameServers",
    "namespace",
    "topic",
    "topics",
    "topicPattern",
    "path",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "tags",
    "sql",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "sliceMessages",
    "minPartitions",
    "failOnDataLoss",
    "group",
    "pushDownFilters",
    "retryTimeoutMs",
    "discoverIntervalMs",
)


def name_servers(texts: OptionTexts) -> str:
    """The option ``nameServers`` in one form; without it, what the variable NAMESRV_ADDR says on the driver."""
    try:
        return ";".join(ClientConfig(texts.text("nameServers")).addresses)
    except ConfigError:
        if texts.has("nameServers"):
            raise
        raise ConfigError("no name server is known; set the option nameServers ('host:9876')") from None


def offset_table(offsets: Mapping[MessageQueue, int]) -> OffsetTable:
    """Queue offsets as they stand in a checkpoint."""
    table: OffsetTable = {}
    for queue, offset in sorted(offsets.items()):
        table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return table


def offsets_of(table: object, *, source: str) -> dict[MessageQueue, int]:
    """Queue offsets from their form in a checkpoint; ``source`` names it in the error."""
    offsets: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in _items(table):
            for broker, queues in _items(brokers):
                for queue_id, offset in _items(queues):
                    if type(offset) is not int or offset < EARLIEST_OFFSET:
                        raise TypeError
                    offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    except (TypeError, ValueError):
        raise ConfigError(
            f"{source} is not of the form "
            '{"topic": {"broker": {"queue id": offset}}}, with -2 for the earliest and -1 for the latest'
        ) from None
    return offsets


def _items(table: object) -> list[tuple[str, object]]:
    if not isinstance(table, dict):
        raise TypeError
    return list(table.items())


def topic_names(text: str) -> tuple[str, ...]:
    """Topics with commas between; raises ``ConfigError``."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ConfigError(f"{text!r} names no topic; give one, or several with commas between")
    try:
        return tuple(map(check_topic, topics))
    except InvalidName as error:
        raise ConfigError(str(error)) from None


def topic_pattern(text: str) -> str:
    """A regular expression that can be one; raises ``ConfigError``."""
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"the option topicPattern={text!r} is no regular expression: {error}") from None
    return text


def namespace_of(texts: OptionTexts) -> str:
    """The option ``namespace``; empty: none."""
    text = texts.text("namespace")
    try:
        return check_topic(text) if text else ""
    except InvalidName as error:
        raise ConfigError(f"the option namespace cannot be: {error}") from None


def _group(text: str, namespace: str) -> str:
    try:
        return wrap(namespace, check_group(text)) if text else ""
    except InvalidName as error:
        raise ConfigError(str(error)) from None


def _sql(text: str) -> str:
    if text:
        parse_sql(text)
    return text


def _position(name: str, text: str, topics: tuple[str, ...], namespace: str) -> Position:
    if name.endswith("Timestamp"):
        return Position(time_ms=time_ms(name, text))
    if text.lower() in (EARLIEST, LATEST):
        return Position(where=text.lower())
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    given = offsets_of(table, source=f"the option {name}={text!r} is neither earliest nor latest, and")
    offsets = {queue._replace(topic=wrap(namespace, queue.topic)): offset for queue, offset in given.items()}
    for topic in dict.fromkeys(queue.topic for queue in offsets):
        if topics and topic not in topics:
            raise ConfigError(f"the option {name} has offsets of the topic {topic!r}, which is not read")
    return Position(offsets=offsets)


def time_ms(name: str, text: str) -> int:
    """The time that an option gives, in ms since 1970; raises ``ConfigError``."""
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"the option {name}={text!r} is no time; give ms since 1970, or ISO 8601 such as 2026-11-16T08:30:00Z"
        ) from None
    # Planner and executors may live in different zones: what has none is UTC.
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
