"""Options of the source, parsed from Spark's map of texts (U1).

Spark passes each option as text and ignores the case of its name. Options are checked once, on the driver, before
anything is read: an unknown option, an invalid value, or two options that contradict each other raise ``ConfigError``
with a sentence. ``OptionTexts`` is the generic parser, also for other formats of this package.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ternmq.client.config import ClientConfig
from ternmq.client.connect.namespace import unwrap, wrap
from ternmq.errors import ConfigError, InvalidName
from ternmq.filter.sql import check as check_sql
from ternmq.filter.tags import TagFilter
from ternmq.message import MessageQueue
from ternmq.names import check_group, check_topic
from ternmq.net.tls import TlsConfig

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: In offsets per queue: the first and the last, as in Spark's Kafka source.
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

#: Queue offsets by topic, broker and queue id, as they are stored in checkpoints; names in JSON are texts.
OffsetsByTopic: TypeAlias = dict[str, dict[str, dict[str, int]]]
#: In a checkpoint, beside the topics: since when messages of later queues are read. No topic has an @.
SINCE: Final = "@since"

ChoiceT = TypeVar("ChoiceT", bound=enum.StrEnum)


class BadMessages(enum.StrEnum):
    """How to treat a message whose body is damaged, cannot be decompressed, or exceeds the limit.

    FAIL ends the read. SKIP omits the message and counts it in the log. NULL returns a row without a body, and a
    column with the reason.
    """

    FAIL = "fail"
    SKIP = "skip"
    NULL = "null"


@dataclass(slots=True, frozen=True)
class Position:
    """A position in all queues: ``earliest``, ``latest``, a time, or for each queue an offset or a time."""

    where: str = ""
    time_ms: int | None = None
    offsets: Mapping[MessageQueue, int] | None = None
    times_ms: Mapping[MessageQueue, int] | None = None


#: Options of Spark's Kafka source and sink, in lower case, and their counterparts here.
_KAFKA_OPTIONS: Final = {
    "kafka.bootstrap.servers": ("nameServers",),
    "subscribe": ("topic", "topics"),
    "subscribepattern": ("topicPattern",),
    "assign": ("topic", "startingOffsets"),
    "maxoffsetspertrigger": ("maxMessagesPerTrigger",),
    "minoffsetspertrigger": ("minMessagesPerTrigger",),
    "maxtriggerdelay": ("maxTriggerDelayMs",),
    "maxrecordsperpartition": ("sliceMessages",),
    "kafka.group.id": ("group",),
    "groupidprefix": ("group",),
    "fetchoffset.numretries": ("retryTimeoutMs",),
    "fetchoffset.retryintervalms": ("retryTimeoutMs",),
    "kafkaconsumer.polltimeoutms": ("retryTimeoutMs",),
}
_KAFKA_HEADERS: Final = "includeheaders"


class OptionTexts:
    """The options of one format, by name; options that the format does not have are refused."""

    def __init__(self, options: Mapping[str, str], *, known: Collection[str], name: str = "ternmq") -> None:
        self._texts = {name.lower(): text for name, text in options.items()}
        self._known = {name.lower(): name for name in known}
        for given in options:
            if given.lower() not in self._known:
                raise ConfigError(f"the format {name} has no option {given!r}; {self._hint(given.lower())}")

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
            raise ConfigError(f"invalid option {name}={text!r}: expected a whole number above 0")
        return int(text)

    def number(self, name: str, default: int) -> int:
        """A whole number, also 0."""
        text = self.text(name)
        if text and not text.isdecimal():
            raise ConfigError(f"invalid option {name}={text!r}: expected a whole number")
        return int(text) if text else default

    def choice(self, name: str, choices: type[ChoiceT], default: ChoiceT) -> ChoiceT:
        text = self.text(name).lower()
        try:
            return choices(text) if text else default
        except ValueError:
            raise ConfigError(f"invalid option {name}={text!r}: expected one of {', '.join(choices)}") from None

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"invalid option {name}={text!r}: expected true or false")
        return text == "true" if text else default

    def one_of(self, *names: str) -> str | None:
        """Which one of some mutually exclusive options is given."""
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise ConfigError(f"the options {' and '.join(given)} contradict each other; give one of them")
        return given[0] if given else None

    def _hint(self, given: str) -> str:
        """What to use instead of an option, in lower case, that the format does not have."""
        ours = [name for name in _KAFKA_OPTIONS.get(given, ()) if name.lower() in self._known]
        if ours:
            return f"that is an option of Spark's Kafka format; use {' or '.join(ours)}"
        if given == _KAFKA_HEADERS:
            return "that is an option of Spark's Kafka format; the column properties is always there"
        if given.startswith("kafka."):
            return "settings of Kafka clients are not supported; remove it"
        near = [name for name in self._known if name.startswith(given)]
        near = near or difflib.get_close_matches(given, self._known, n=1, cutoff=0.6)
        if near:
            return f"did you mean {self._known[near[0]]!r}?"
        return f"the options are {', '.join(sorted(self._known.values()))}"


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """What to read, and how. Field names are those of the options, in snake_case."""

    #: Name servers and credentials.
    client: ClientConfig
    #: Topics and group have it as a prefix here, as on the wire.
    namespace: str
    #: By name, or else by pattern, which applies to names without the namespace.
    topics: tuple[str, ...]
    topic_pattern: str
    start: Position | None
    end: Position | None
    #: The filter of the brokers: an expression of tags, or of SQL92.
    tags: str
    sql: str
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int | None
    #: A stream waits for this many messages before it begins a batch, or for this long after the last one.
    min_messages_per_trigger: int | None
    max_trigger_delay_ms: int
    slice_messages: int
    min_partitions: int | None
    fail_on_data_loss: bool
    #: Progress is reported under this name; empty: it is not reported.
    group: str
    #: Narrow a batch read by the query's filters; the guide explains why that is not the default.
    push_down_filters: bool
    bad_messages: BadMessages
    #: A body that is larger than this after decompression is a bad message.
    max_body_bytes: int
    #: How long to retry if a broker or name server does not answer; 0: without limit.
    retry_timeout_ms: int
    #: How often a stream searches for new topics, brokers and queues.
    discover_interval_ms: int

    @property
    def name_servers(self) -> str:
        """For texts; clients are made with ``client``."""
        return ";".join(self.client.addresses)

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
        start_name = texts.one_of("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        end_name = texts.one_of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        least, most = texts.count("minMessagesPerTrigger"), texts.count("maxMessagesPerTrigger")
        if least is not None and most is not None and least > most:
            raise ConfigError(f"the option minMessagesPerTrigger={least} is above maxMessagesPerTrigger={most}")
        return cls(
            client=client_of(texts),
            namespace=namespace,
            topics=topics,
            topic_pattern=topic_pattern(texts.text("topicPattern")) if chosen == "topicPattern" else "",
            start=_position(start_name, texts.text(start_name), topics, namespace) if start_name else None,
            end=_position(end_name, texts.text(end_name), topics, namespace) if end_name else None,
            tags=TagFilter.parse(texts.text("tags")).expression,
            sql=_sql(texts.text("sql")),
            max_messages_per_trigger=most,
            max_bytes_per_trigger=texts.count("maxBytesPerTrigger"),
            min_messages_per_trigger=least,
            max_trigger_delay_ms=texts.count("maxTriggerDelayMs") or TRIGGER_DELAY_MS,
            slice_messages=texts.count("sliceMessages") or SLICE_MESSAGES,
            min_partitions=texts.count("minPartitions"),
            fail_on_data_loss=texts.flag("failOnDataLoss", default=True),
            group=_group(texts.text("group"), namespace),
            push_down_filters=texts.flag("pushDownFilters", default=False),
            bad_messages=texts.choice("badMessages", BadMessages, BadMessages.FAIL),
            max_body_bytes=texts.count("maxBodyBytes") or MAX_BODY_BYTES,
            retry_timeout_ms=texts.number("retryTimeoutMs", RETRY_TIMEOUT_MS),
            discover_interval_ms=texts.count("discoverIntervalMs") or DISCOVER_INTERVAL_MS,
        )

    def check_for_batch(self) -> None:
        """Raise for options that only streams support."""
        for name, value in (("startingOffsets", self.start), ("endingOffsets", self.end)):
            wrong = LATEST if name == "startingOffsets" else EARLIEST
            if value is not None and value.where == wrong:
                raise ConfigError(f"a batch read with {name}={wrong!r} would be empty; remove the option")

    def check_for_stream(self) -> None:
        """Raise for options that only batch reads support."""
        if self.end is not None:
            raise ConfigError(
                "a stream has no end; remove the options that begin with ending, or use spark.read; to read the "
                "present messages and stop, use trigger(availableNow=True)"
            )

    def selects(self, topic: str) -> bool:
        """Whether a topic is selected."""
        if self.topics:
            return topic in self.topics
        name = unwrap(self.namespace, topic)
        return topic == wrap(self.namespace, name) and re.fullmatch(self.topic_pattern, name) is not None


SLICE_MESSAGES: Final = 200_000
RETRY_TIMEOUT_MS: Final = 60_000
DISCOVER_INTERVAL_MS: Final = 10_000
#: Of one decompressed body. Producers usually send up to 4 MiB, and a task holds a batch of them.
MAX_BODY_BYTES: Final = 64 << 20
#: The same as that of Spark's Kafka source.
TRIGGER_DELAY_MS: Final = 15 * 60_000

SOURCE_OPTIONS: Final = (
    "nameServers",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "namespace",
    "topic",
    "topics",
    "topicPattern",
    "path",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "tags",
    "sql",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelayMs",
    "sliceMessages",
    "minPartitions",
    "failOnDataLoss",
    "group",
    "pushDownFilters",
    "badMessages",
    "maxBodyBytes",
    "retryTimeoutMs",
    "discoverIntervalMs",
)


def client_of(texts: OptionTexts) -> ClientConfig:
    """The options of the connection; without them, what the environment says on the driver."""
    try:
        return ClientConfig(
            texts.text("nameServers"),
            access_key=texts.text("accessKey"),
            secret_key=texts.text("secretKey"),
            security_token=texts.text("securityToken"),
            tls=_tls(texts),
        )
    except ConfigError as error:
        if texts.has("nameServers") or "name server" not in str(error):
            raise
        raise ConfigError("no name server is configured; set the option nameServers ('host:9876')") from None


def _tls(texts: OptionTexts) -> TlsConfig | bool | None:
    """Files are read where connections are made: on the driver and on executors."""
    if not texts.has("tls"):
        return None
    if not texts.flag("tls", default=False):
        return False
    return TlsConfig(
        ca_file=texts.text("tlsCaFile"), cert_file=texts.text("tlsCertFile"), key_file=texts.text("tlsKeyFile")
    )


def name_servers(texts: OptionTexts) -> str:
    """The option ``nameServers`` in one form."""
    return ";".join(client_of(texts).addresses)


def offset_table(offsets: Mapping[MessageQueue, int]) -> OffsetsByTopic:
    """Queue offsets in the form of a checkpoint."""
    table: OffsetsByTopic = {}
    for queue, offset in sorted(offsets.items()):
        table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return table


def offsets_of(table: object, *, source: str) -> dict[MessageQueue, int]:
    """Queue offsets from the form of a checkpoint; ``source`` is its name in errors."""
    form = "offset}}}, with -2 for the earliest and -1 for the latest"
    given = _by_queue(table, source=source, form=form)
    for value in given.values():
        if type(value) is not int or value < EARLIEST_OFFSET:
            raise _no_table(source, form)
    return {queue: value for queue, value in given.items() if isinstance(value, int)}


def checkpoint_table(offsets: Mapping[MessageQueue, int], since_ms: int) -> dict[str, object]:
    """The state of a stream for Spark: its offsets, and since when messages of later queues are read."""
    return {SINCE: since_ms, **offset_table(offsets)}


def checkpoint_of(table: object) -> tuple[dict[MessageQueue, int], int | None]:
    """Both parts of a stream's state; states of earlier versions have no time. Raises ``ConfigError``."""
    source = "the checkpoint"
    if not isinstance(table, dict) or SINCE not in table:
        return offsets_of(table, source=source), None
    rest = {name: value for name, value in table.items() if name != SINCE}
    return offsets_of(rest, source=source), int(table[SINCE])


def _by_queue(table: object, *, source: str, form: str) -> dict[MessageQueue, object]:
    try:
        return {
            MessageQueue(topic, broker, int(queue_id)): value
            for topic, brokers in _items(table)
            for broker, queues in _items(brokers)
            for queue_id, value in _items(queues)
        }
    except (TypeError, ValueError):
        raise _no_table(source, form) from None


def _no_table(source: str, form: str) -> ConfigError:
    return ConfigError(f'{source} is not of the form {{"topic": {{"broker": {{"queue id": {form}')


def _items(table: object) -> list[tuple[str, object]]:
    if not isinstance(table, dict):
        raise TypeError
    return list(table.items())


def local_path(text: str, *, cure: str) -> Path:
    """A path of this machine, also in the form of Hadoop and Spark (``file:/dir``, ``file:///dir``); raises
    ``ConfigError``, with the cure, for other addresses."""
    plain = re.sub(r"\Afile:(///|/(?!/))", "/", text)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/|file:", plain):
        raise ConfigError(f"{text} is not a path of a file system; {cure}")
    return Path(plain)


def topic_names(text: str) -> tuple[str, ...]:
    """Topics separated by commas; raises ``ConfigError``."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ConfigError(f"{text!r} contains no topic; give one topic, or several separated by commas")
    try:
        return tuple(map(check_topic, topics))
    except InvalidName as error:
        raise ConfigError(str(error)) from None


def topic_pattern(text: str) -> str:
    """A valid regular expression; raises ``ConfigError``."""
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"invalid option topicPattern={text!r}: not a regular expression: {error}") from None
    return text


def namespace_of(texts: OptionTexts) -> str:
    """The option ``namespace``; empty: none."""
    text = texts.text("namespace")
    try:
        return check_topic(text) if text else ""
    except InvalidName as error:
        raise ConfigError(f"invalid option namespace: {error}") from None


def _group(text: str, namespace: str) -> str:
    try:
        return wrap(namespace, check_group(text)) if text else ""
    except InvalidName as error:
        raise ConfigError(str(error)) from None


def _sql(text: str) -> str:
    if text:
        check_sql(text)
    return text


def _position(name: str, text: str, topics: tuple[str, ...], namespace: str) -> Position:
    if name in ("startingTimestamp", "endingTimestamp"):
        return Position(time_ms=time_ms(name, text))
    if text.lower() in (EARLIEST, LATEST) and not name.endswith("ByTimestamp"):
        return Position(where=text.lower())
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if name.endswith("ByTimestamp"):
        source, form = f"the option {name}={text!r}", "time}}}, with ms since 1970 or ISO 8601"
        times = _by_queue(table, source=source, form=form)
        return Position(
            times_ms=_read_queues(
                name, {queue: time_ms(name, str(time)) for queue, time in times.items()}, topics, namespace
            )
        )
    offsets = offsets_of(table, source=f"the option {name}={text!r} is neither earliest nor latest, and")
    return Position(offsets=_read_queues(name, offsets, topics, namespace))


def _read_queues(
    name: str, given: Mapping[MessageQueue, int], topics: tuple[str, ...], namespace: str
) -> dict[MessageQueue, int]:
    """The user's values for queues, by their names on the wire; raises ``ConfigError`` for a topic that is not read."""
    wrapped = {queue._replace(topic=wrap(namespace, queue.topic)): value for queue, value in given.items()}
    for topic in dict.fromkeys(queue.topic for queue in wrapped):
        if topics and topic not in topics:
            raise ConfigError(f"the option {name} has offsets of topic {topic!r}, which is not read")
    return wrapped


def time_ms(name: str, text: str) -> int:
    """The time of an option, in ms since 1970; raises ``ConfigError``."""
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"invalid option {name}={text!r}: expected ms since 1970, or ISO 8601 such as 2026-11-16T08:30:00Z"
        ) from None
    # Planner and executors may be in different time zones: a time without a zone is UTC.
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
