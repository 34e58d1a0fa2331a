"""Options of the sink, from Spark's map of texts to typed values (U2).

As those of the source (``options``): checked once, on the driver, before a row is read. Spark hands over some options
of its own too; they are known here and mean nothing to the sink.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ternmq.errors import ConfigError, InvalidName
from ternmq.names import SPARK_PREFIX, UNSENDABLE_TOPICS, check_topic, is_derived_topic, is_system_topic
from ternmq.spark.options import RETRY_TIMEOUT_MS, OptionTexts, name_servers, namespace_of

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
REFUSE: Final = "refuse"
DROP: Final = "drop"

CHUNK_BYTES: Final = 1 << 20
#: Brokers take 4 MiB, of which a record needs some for itself.
CHUNK_BYTES_MAX: Final = 3 << 20
IN_FLIGHT_BYTES: Final = 16 << 20

SINK_OPTIONS: Final = (
    "nameServers",
    "namespace",
    "topic",
    "path",
    "delivery",
    "writeId",
    "reservedProperties",
    "chunkBytes",
    "inFlightBytes",
    "retryTimeoutMs",
    # Spark's own, which it hands over with the others.
    "checkpointLocation",
    "queryName",
)

_WRITE_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """Where to write, and how. Field names are those of the options, in Python's spelling."""

    name_servers: str
    #: Topics have it before their names on the wire, not here.
    namespace: str
    #: For all rows; empty: each row names its own.
    topic: str
    is_exactly_once: bool
    #: Names a batch write, so that a second run of it is known; empty: it is one of a kind.
    write_id: str
    #: Leave out properties that belong to the system, instead of refusing the row.
    drops_reserved: bool
    #: How much travels as one batch.
    chunk_bytes: int
    #: How much of a task, or of a commit, is on its way at once.
    in_flight_bytes: int
    #: How long a broker that does not answer, or is busy, is tried again.
    retry_timeout_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of ``df.write`` or ``df.writeStream``; raises ``ConfigError``."""
        texts = OptionTexts(options, known=SINK_OPTIONS)
        chosen = texts.one_of("topic", "path")
        chunk_bytes = texts.count("chunkBytes") or CHUNK_BYTES
        if chunk_bytes > CHUNK_BYTES_MAX:
            raise ConfigError(
                f"the option chunkBytes={chunk_bytes} is more than brokers take; use at most {CHUNK_BYTES_MAX}"
            )
        return cls(
            name_servers=name_servers(texts),
            namespace=namespace_of(texts),
            topic=checked_topic(texts.text(chosen)) if chosen else "",
            is_exactly_once=_choice(texts, "delivery", EXACTLY_ONCE, AT_LEAST_ONCE) == EXACTLY_ONCE,
            write_id=_write_id(texts.text("writeId")),
            drops_reserved=_choice(texts, "reservedProperties", REFUSE, DROP) == DROP,
            chunk_bytes=chunk_bytes,
            in_flight_bytes=texts.count("inFlightBytes") or IN_FLIGHT_BYTES,
            retry_timeout_ms=texts.count("retryTimeoutMs") or RETRY_TIMEOUT_MS,
        )

    def check_for_batch(self, *, overwrite: bool) -> None:
        """Raise for what only a stream can do, or no sink of topics at all."""
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only appended to; use mode("append")')
        if self.write_id and not self.is_exactly_once:
            raise ConfigError(
                f"the option writeId makes a second run harmless, which delivery={AT_LEAST_ONCE!r} is not"
            )

    def check_for_stream(self, *, overwrite: bool) -> None:
        """Raise for what only a batch write can do, or no sink of topics at all."""
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only appended to; use outputMode("append") or "update"')
        if self.write_id:
            raise ConfigError("the option writeId is for df.write; a stream is known by its checkpoint")


def checked_topic(topic: str) -> str:
    """The topic, if rows may be written to it; raises ``ConfigError``."""
    try:
        check_topic(topic)
    except InvalidName as error:
        raise ConfigError(str(error)) from None
    if (
        topic in UNSENDABLE_TOPICS
        or is_system_topic(topic)
        or is_derived_topic(topic)
        or topic.startswith(SPARK_PREFIX)
    ):
        raise ConfigError(f"the topic {topic!r} belongs to the system; write to a topic of your own")
    return topic


def _choice(texts: OptionTexts, name: str, default: str, other: str) -> str:
    text = texts.text(name).lower() or default
    if text not in (default, other):
        raise ConfigError(f"the option {name}={text!r} is neither {default} nor {other}")
    return text


def _write_id(text: str) -> str:
    if text and not _WRITE_ID.match(text):
        raise ConfigError(
            f"the option writeId={text!r} cannot be; use 1 to 100 letters, digits and the characters _ . : -"
        )
    return text
