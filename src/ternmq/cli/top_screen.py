"""The screen of ``tern top``: plain values in, lines out. It knows neither terminal nor cluster."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from ternmq.admin.loads import BrokerLoad, GroupLoad, TopicLoad

#: Lines of brokers at most: the rest of the screen belongs to topics and groups.
BROKER_LINES: Final = 8
_BOLD: Final = "\x1b[1m"
_REVERSE: Final = "\x1b[7m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"

TopRow = dict[str, object]

BROKER_COLUMNS: Final = ("broker", "id", "in_s", "out_s", "memory", "disk", "connections", "state")
TOPIC_COLUMNS: Final = ("topic", "brokers", "in_s", "messages")
GROUP_COLUMNS: Final = ("group", "members", "out_s", "lag")
ALL_COLUMNS: Final = (
    *("kind", "name", "id", "brokers", "members", "in_s", "out_s", "messages", "lag"),
    *("memory_bytes", "disk_ratio", "connections", "state"),
)


class SortOrder(enum.StrEnum):
    """What topics and groups are sorted by; ``s`` takes the next one."""

    RATE = "rate"
    SIZE = "size"
    NAME = "name"

    def next(self) -> SortOrder:
        orders = list(SortOrder)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The cluster at one moment."""

    time: str
    brokers: Sequence[BrokerLoad]
    topics: Sequence[TopicLoad]
    groups: Sequence[GroupLoad]
    #: How many there are; more than those above until all were asked for.
    topic_count: int = 0
    group_count: int = 0


def broker_rows(snapshot: Snapshot) -> list[TopRow]:
    return [
        {
            "broker": one.broker,
            "id": one.broker_id,
            "in_s": _rate(one.in_s),
            "out_s": _rate(one.out_s),
            "memory": _size(one.memory_bytes),
            "disk": None if one.disk_ratio is None else f"{one.disk_ratio:.0%}",
            "connections": one.connections,
            "state": "no answer" if one.trouble else "up",
        }
        for one in snapshot.brokers
    ]


def topic_rows(snapshot: Snapshot, order: SortOrder) -> list[TopRow]:
    keys = {SortOrder.RATE: lambda one: (-one.in_s, one.topic), SortOrder.SIZE: lambda one: (-one.messages, one.topic)}
    found = sorted(snapshot.topics, key=keys.get(order, lambda one: one.topic))
    return [
        {"topic": one.topic, "brokers": len(one.brokers), "in_s": _rate(one.in_s), "messages": one.messages}
        for one in found
    ]


def group_rows(snapshot: Snapshot, order: SortOrder) -> list[TopRow]:
    keys = {SortOrder.RATE: lambda one: (-one.out_s, one.group), SortOrder.SIZE: lambda one: (-one.lag, one.group)}
    found = sorted(snapshot.groups, key=keys.get(order, lambda one: one.group))
    return [{"group": one.group, "members": one.members, "out_s": _rate(one.out_s), "lag": one.lag} for one in found]


def all_rows(snapshot: Snapshot) -> list[TopRow]:
    """Brokers, topics and groups as rows of one table, with plain numbers; what a kind does not have is None."""
    rows: list[TopRow] = [
        {
            "kind": "broker",
            "name": one.broker,
            "id": one.broker_id,
            "in_s": one.in_s,
            "out_s": one.out_s,
            "memory_bytes": one.memory_bytes,
            "disk_ratio": one.disk_ratio,
            "connections": one.connections,
            "state": "no answer" if one.trouble else "up",
        }
        for one in snapshot.brokers
    ]
    rows += [
        {"kind": "topic", "name": one.topic, "brokers": len(one.brokers), "in_s": one.in_s, "messages": one.messages}
        for one in sorted(snapshot.topics, key=lambda one: (-one.in_s, one.topic))
    ]
    rows += [
        {"kind": "group", "name": one.group, "members": one.members, "out_s": one.out_s, "lag": one.lag}
        for one in sorted(snapshot.groups, key=lambda one: (-one.out_s, one.group))
    ]
    return rows


def draw(
    snapshot: Snapshot, *, order: SortOrder, width: int, height: int, paused: bool = False, trouble: str = ""
) -> list[str]:
    """The lines of a screen, at most ``height``, each at most ``width`` characters wide."""
    total_in = sum(one.in_s or 0.0 for one in snapshot.brokers if one.broker_id == 0)
    total_out = sum(one.out_s or 0.0 for one in snapshot.brokers)
    lag = sum(one.lag for one in snapshot.groups)
    head = (
        f"tern top  {snapshot.time}  {_of(snapshot.brokers, 0, 'broker')}, "
        f"{_of(snapshot.topics, snapshot.topic_count, 'topic')}, "
        f"{_of(snapshot.groups, snapshot.group_count, 'group')}  "
        f"in {total_in:,.1f}/s  out {total_out:,.1f}/s  lag {lag:,}"
    )
    state = f"{'PAUSED  ' if paused else ''}sorted by {order}   q quit  s sort  p pause"
    lines = [f"{_BOLD}{_cut(head, width)}{_PLAIN}", _cut(state, width)]
    if trouble:
        lines.append(f"{_RED}{_cut(trouble, width)}{_PLAIN}")
    brokers = broker_rows(snapshot)
    lines += ["", *table(brokers[:BROKER_LINES], BROKER_COLUMNS, width=width)]
    if len(brokers) > BROKER_LINES:
        lines.append(f"… {len(brokers) - BROKER_LINES} more brokers")
    # Topics and groups share what is left: a blank line and a heading each.
    room = max(height - len(lines) - 4, 2)
    topics, groups = topic_rows(snapshot, order), group_rows(snapshot, order)
    for_topics = min(len(topics), max(room // 2, room - len(groups)))
    lines += ["", *table(topics[:for_topics], TOPIC_COLUMNS, width=width)]
    lines += ["", *table(groups[: max(room - for_topics, 0)], GROUP_COLUMNS, width=width)]
    return lines[:height]


def table(rows: Sequence[TopRow], columns: Sequence[str], *, width: int) -> list[str]:
    """A heading and a line per row; the first column is to the left, numbers are to the right."""
    cells = [[_text(row[column]) for column in columns] for row in rows]
    headings = [column.replace("_s", "/s") for column in columns]
    widths = [max(map(len, map(itemgetter(place), [headings, *cells]))) for place in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        first, *others = (
            value.ljust(size) if place == 0 else value.rjust(size)
            for place, (value, size) in enumerate(zip(values, widths, strict=True))
        )
        return _cut("  ".join([first, *others]), width)

    return [f"{_REVERSE}{line(headings).ljust(width)}{_PLAIN}", *map(line, cells)]


def _of(seen: Sequence[object], count: int, noun: str) -> str:
    """So many, of so many that there are, if not all were asked for yet."""
    if count > len(seen):
        return f"{len(seen):,} of {count:,} {noun}s"
    return f"{len(seen):,} {noun}{'' if len(seen) == 1 else 's'}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _text(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}"


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes / (1 << 20):,.0f} MiB"
