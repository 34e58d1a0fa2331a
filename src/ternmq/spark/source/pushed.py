"""What the filters of a query say about the location of its rows; a core (U1).

Spark passes the parts of a ``WHERE`` that are joined by AND, and checks every row again afterwards. So only filters
that safely narrow a read are used: topics, brokers, queues and offsets by equality, ``IN`` or comparison, store times
by comparison, tags by equality or ``IN``. Others are ignored.

Store times grow along a queue unless the broker's clock goes back; a time is searched in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ternmq.filter.sql import DEFAULT_LIMITS
from ternmq.filter.tags import ALL, SEPARATOR
from ternmq.message import MessageQueue


class Pushed:
    """What is known so far; each ``take`` may narrow it."""

    def __init__(self) -> None:
        #: By column: the values that a row may have. Other columns may have any value.
        self._values: dict[str, frozenset[object]] = {}
        self.from_offset = 0
        self.until_offset: int | None = None
        #: Stored at this time or later, and before that one; ms since 1970.
        self.from_ms: int | None = None
        self.until_ms: int | None = None

    def take(self, one: Filter) -> None:
        """Apply one filter; all of them hold together."""
        match one:
            case EqualTo(attribute=(column,), value=value):
                self._equal(column, (value,))
            case In(attribute=(column,), value=values):
                self._equal(column, values)
            case GreaterThanOrEqual(attribute=(column,), value=value):
                self._at_least(column, value)
            case GreaterThan(attribute=(column,), value=value):
                self._at_least(column, value + 1 if isinstance(value, int) else value)
            case LessThan(attribute=(column,), value=value):
                self._below(column, value)
            case LessThanOrEqual(attribute=(column,), value=value):
                self._below(column, value + 1 if isinstance(value, int) else value)

    def selects(self, queue: MessageQueue) -> bool:
        """Whether rows of this queue may pass."""
        places = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        return all(place in self._values.get(column, (place,)) for column, place in places.items())

    @property
    def tags(self) -> list[str]:
        """The tags that a row may have, if they are known and brokers accept them."""
        values = self._values.get("tags", frozenset())
        texts = sorted(value for value in values if isinstance(value, str))
        fits = all(text == text.strip() != ALL and text and SEPARATOR not in text for text in texts)
        # Brokers refuse a very long expression; Spark filters by itself anyway.
        fits = fits and len(_expression(texts)) <= DEFAULT_LIMITS.length
        return texts if fits and len(texts) == len(values) else []

    def tags_expression(self) -> str:
        return _expression(self.tags)

    def _equal(self, column: str, values: Iterable[object]) -> None:
        allowed = frozenset(values)
        self._values[column] = self._values.get(column, allowed) & allowed
        if column in ("queue_offset", "store_time") and allowed and None not in allowed:
            self._at_least(column, min(allowed))  # type: ignore[type-var]  # values of one column compare
            last = max(allowed)  # type: ignore[type-var]
            self._below(column, last + 1 if isinstance(last, int) else last)

    def _at_least(self, column: str, value: object) -> None:
        if column == "queue_offset" and isinstance(value, int):
            self.from_offset = max(self.from_offset, value)
        elif column == "store_time" and isinstance(value, datetime):
            self.from_ms = max(self.from_ms or 0, _ms(value))

    def _below(self, column: str, value: object) -> None:
        """Rows have less than an offset; for times, less or equal, because rows of one ms must stay together."""
        if column == "queue_offset" and isinstance(value, int):
            self.until_offset = min(value, self.until_offset if self.until_offset is not None else value)
        elif column == "store_time" and isinstance(value, datetime):
            until_ms = _ms(value) + 1
            self.until_ms = min(until_ms, self.until_ms if self.until_ms is not None else until_ms)


def _expression(tags: list[str]) -> str:
    return f" {SEPARATOR} ".join(tags)


def _ms(time: datetime) -> int:
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
