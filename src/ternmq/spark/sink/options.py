"""Options of the sink, parsed from Spark's map of texts (U2).

They are checked once, on the driver, before a row is read, as those of the source (``source.options``). Spark also
passes some options of its own; they are accepted here and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ternmq.client.config import ClientConfig
from ternmq.errors import ConfigError, InvalidName
from ternmq.names import check_topic, is_derived_topic, is_system_topic, may_send
from ternmq.spark.source.options import RETRY_TIMEOUT_MS, OptionTexts, client_of, namespace_of

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
REFUSE: Final = "refuse"
DROP: Final = "drop"
ACCEPT: Final = "accept"
SAME: Final = "same"
ANY: Final = "any"

CHUNK_BYTES: Final = 1 << 20
#: Brokers accept 4 MiB, of which a record needs some for itself.
CHUNK_BYTES_MAX: Final = 3 << 20
IN_FLIGHT_BYTES: Final = 16 << 20

#: Delta's limit: a Java long.
VERSION_MAX: Final = 2**63 - 1

SINK_OPTIONS: Final = (
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
    "path",
    "delivery",
    "writeId",
    "txnAppId",
    "txnVersion",
    "replayedRows",
    "checkpointMovedFrom",
    "retiredBrokers",
    "unsafeWrites",
    "reservedProperties",
    "chunkBytes",
    "inFlightBytes",
    "retryTimeoutMs",
    # Spark's own options, which it passes with the others.
    "checkpointLocation",
    "queryName",
)

_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """Where to write, and how. Field names are those of the options, in snake_case."""

    #: Name servers and credentials.
    client: ClientConfig
    #: A prefix of topics on the wire, not here.
    namespace: str
    #: For all rows; empty: each row has its own.
    topic: str
    is_exactly_once: bool
    #: Identifies a batch write, so that a second run of it is recognized; empty: it is unique.
    write_id: str
    #: A batch write of an application that numbers its writes (as with Delta); for a stream, the id alone distinguishes
    #: it from others with the same checkpoint. Empty and None: not given.
    txn_app_id: str
    txn_version: int | None
    #: A repeated batch may have other rows; those of its first run are used.
    any_rows: bool
    #: The location of the checkpoint, and its former location if it was moved; empty: unknown.
    checkpoint: str
    checkpoint_moved_from: str
    #: Brokers that never return.
    retired_brokers: tuple[str, ...]
    #: Rows that a broker has stored, but cannot confirm as safe, count as written.
    accepts_unsafe: bool
    #: Drop reserved properties instead of refusing the row.
    drops_reserved: bool
    #: Size of one batch send.
    chunk_bytes: int
    #: Bytes in progress at once, per task or commit.
    in_flight_bytes: int
    #: How long to retry if a broker does not answer, or is busy.
    retry_timeout_ms: int

    @property
    def name_servers(self) -> str:
        """For texts; clients are made with ``client``."""
        return ";".join(self.client.addresses)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of ``df.write`` or ``df.writeStream``; raises ``ConfigError``."""
        texts = OptionTexts(options, known=SINK_OPTIONS)
        chosen = texts.one_of("topic", "path")
        chunk_bytes = texts.count("chunkBytes") or CHUNK_BYTES
        if chunk_bytes > CHUNK_BYTES_MAX:
            raise ConfigError(
                f"invalid option chunkBytes={chunk_bytes}: expected at most {CHUNK_BYTES_MAX}, the limit of brokers"
            )
        return cls(
            client=client_of(texts),
            namespace=namespace_of(texts),
            topic=checked_topic(texts.text(chosen)) if chosen else "",
            is_exactly_once=_choice(texts, "delivery", EXACTLY_ONCE, AT_LEAST_ONCE) == EXACTLY_ONCE,
            write_id=_id("writeId", texts.text("writeId")),
            txn_app_id=_id("txnAppId", texts.text("txnAppId")),
            txn_version=_version(texts.text("txnVersion")),
            any_rows=_choice(texts, "replayedRows", SAME, ANY) == ANY,
            checkpoint=texts.text("checkpointLocation"),
            checkpoint_moved_from=texts.text("checkpointMovedFrom"),
            retired_brokers=tuple(name.strip() for name in texts.text("retiredBrokers").split(",") if name.strip()),
            accepts_unsafe=_choice(texts, "unsafeWrites", REFUSE, ACCEPT) == ACCEPT,
            drops_reserved=_choice(texts, "reservedProperties", REFUSE, DROP) == DROP,
            chunk_bytes=chunk_bytes,
            in_flight_bytes=texts.count("inFlightBytes") or IN_FLIGHT_BYTES,
            retry_timeout_ms=texts.count("retryTimeoutMs") or RETRY_TIMEOUT_MS,
        )

    def check_for_batch(self, *, overwrite: bool) -> None:
        """Raise for options that only streams support, and for writes that no topic supports."""
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only appended to; use mode("append")')
        if bool(self.txn_app_id) != (self.txn_version is not None):
            raise ConfigError("the options txnAppId and txnVersion must be used together; give both")
        if self.write_id and self.txn_app_id:
            raise ConfigError("the options writeId and txnAppId exclude each other; give one of them")
        if (self.write_id or self.txn_app_id) and not self.is_exactly_once:
            name = "writeId" if self.write_id else "txnAppId"
            raise ConfigError(
                f"the option {name} cannot be combined with delivery={AT_LEAST_ONCE!r}, which allows duplicates; "
                "remove one of them"
            )

    def check_for_stream(self, *, overwrite: bool) -> None:
        """Raise for options that only batch writes support, and for writes that no topic supports."""
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only appended to; use outputMode("append") or "update"')
        if self.write_id:
            raise ConfigError("the option writeId is only for df.write; a stream is identified by its checkpoint")
        if self.txn_version is not None:
            raise ConfigError(
                "the option txnVersion is only for df.write; the batches of a stream have their own numbers"
            )


def checked_topic(topic: str) -> str:
    """The topic, if rows may be written to it; raises ``ConfigError``."""
    try:
        check_topic(topic)
    except InvalidName as error:
        raise ConfigError(str(error)) from None
    if not may_send(topic) or is_system_topic(topic) or is_derived_topic(topic):
        raise ConfigError(f"{topic!r} is a system topic; write to another topic")
    return topic


def _choice(texts: OptionTexts, name: str, default: str, other: str) -> str:
    text = texts.text(name).lower() or default
    if text not in (default, other):
        raise ConfigError(f"invalid option {name}={text!r}: expected {default} or {other}")
    return text


def _id(name: str, text: str) -> str:
    if text and not _ID.match(text):
        raise ConfigError(
            f"invalid option {name}={text!r}: expected 1 to 100 letters, digits and the characters _ . : -"
        )
    return text


def _version(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= VERSION_MAX):
        raise ConfigError(f"invalid option txnVersion={text!r}: expected a whole number from 0 to {VERSION_MAX}")
    return int(text)
