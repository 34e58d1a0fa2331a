"""Settings of an outbox and its relay (J3)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from ternmq.errors import ConfigError

#: Their ids are in the text of one statement.
_ROWS_MAX: Final = 10_000
#: As ms, a hundred years: databases cannot add more to their time.
_MOST: Final = 100 * 365 * 24 * 3_600_000


@dataclass(slots=True, frozen=True)
class OutboxConfig:
    """Settings of an outbox and its relay.

    >>> OutboxConfig(refusals_max=3).backoff_max_ms
    60000

    Args:
        sweep_interval_ms: How often a relay looks for messages that no one sends, in ms. Commits of this process, and
            notifications of PostgreSQL, wake it up at once.
        lease_ms: How long a message belongs to the relay or application that took it, in ms. When that process dies,
            another one sends the message after this time. Must be longer than sends take.
        backoff_ms: How long a message waits after its first failed attempt, in ms. The time doubles with each attempt.
        backoff_max_ms: The longest wait between two attempts, in ms.
        refusals_max: How often brokers may refuse a message before it is dead. Brokers that cannot be reached do not
            count: then the message waits.
        gather_ms: While commits of this process follow each other, their messages are sent at most this often, in ms:
            what gathers meanwhile shares the work in the database. From 500 messages a second on, they gather for five
            times as long. A message that comes alone is sent at once. 0: never wait.
        rows_max: How many messages are taken at once, up to 10,000.
        bytes_max: How many bytes of bodies are taken at once; a single message may be larger.
        batch_bytes: Messages of one topic are sent in batches of up to this size. 0: each message alone.
        direct_bytes_max: How many bytes of committed messages this process keeps in memory to send them without reading
            them back. Messages beyond that are read from the table.
        close_timeout_ms: How long the end of the outbox waits for messages that are being sent, in ms. What is left
            stays in the table.
    """

    sweep_interval_ms: int = 1_000
    lease_ms: int = 60_000
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    refusals_max: int = 16
    gather_ms: int = 10
    rows_max: int = 500
    bytes_max: int = 8 * 1024 * 1024
    batch_bytes: int = 256 * 1024
    direct_bytes_max: int = 16 * 1024 * 1024
    close_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            least = 0 if name in ("gather_ms", "batch_bytes", "direct_bytes_max") else 1
            most = _ROWS_MAX if name == "rows_max" else _MOST
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ConfigError(f"invalid {name} {value!r}: expected a whole number from {least} to {most}")
        if self.gather_ms > self.lease_ms // 4:
            raise ConfigError(
                f"invalid gather_ms {self.gather_ms}: expected at most a quarter of lease_ms ({self.lease_ms}), so "
                "that there is time left to send"
            )
