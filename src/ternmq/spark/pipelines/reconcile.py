"""Reconciliation: compares sent, stored and consumed messages (U4).

Each of the three is a *side*, a table of ``id`` and ``time`` (``reconcile_sides`` builds them): the messages that an
application has sent, those in the topic, and those that were consumed. They are counted for each id,
and each side is compared with the one before it:

- *missing* in the topic: sent more often than stored; for the consumer: stored more often than consumed;
- *double*: stored more often than sent, consumed more often than stored. Without a side of what was sent, an id is
  expected once;
- *late*: more than ``late_ms`` from the first of one side to the first of the next, if both have a time;
- *unexpected*: stored, but not sent according to the side of sent messages;
- *waiting* instead of missing: younger than ``late_ms``, so it may still arrive;
- *gone* instead of missing: consumed, so it was stored once, and has expired.

Only ids with a time between begin and end are judged; the sides are read a bit further, because a message that was sent
before the end may be stored after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ternmq.env import SystemClock
from ternmq.errors import ConfigError
from ternmq.spark.runtime.jobs import Watch

LATE_MS: Final = 60_000
#: How many messages of each problem a report shows.
SAMPLES: Final = 20
FORMATS: Final = ("parquet", "json", "csv")

MISSING: Final = "missing"
DOUBLE: Final = "double"
LATE: Final = "late"
UNEXPECTED: Final = "unexpected"
WAITING: Final = "waiting"
GONE: Final = "gone"

#: The side of a problem.
STORED: Final = "stored"
CONSUMED: Final = "consumed"

#: All kinds, in the order of a report's columns.
KINDS: Final = (
    *((MISSING, STORED), (DOUBLE, STORED), (LATE, STORED), (UNEXPECTED, STORED), (WAITING, STORED), (GONE, STORED)),
    *((MISSING, CONSUMED), (DOUBLE, CONSUMED), (LATE, CONSUMED), (WAITING, CONSUMED)),
)


@dataclass(slots=True, frozen=True)
class Hour:
    """The counts of an hour, by the first known time of an id; None: without a time."""

    hour_ms: int | None
    sent: int
    stored: int
    consumed: int
    #: Messages by ``problem`` and side, such as ``missing stored``; without those that are 0.
    problems: dict[str, int]


@dataclass(slots=True, frozen=True)
class Discrepancy:
    """A message with a problem. ``count``: how many of its id are missing, too many, …"""

    problem: str
    #: Its side.
    side: str
    id: str
    count: int
    sent: int
    stored: int
    consumed: int
    sent_ms: int | None
    stored_ms: int | None
    consumed_ms: int | None
    #: Where its first record is, as ``broker:queue id:queue offset``.
    place: str | None


@dataclass(slots=True, frozen=True)
class Reconciled:
    """The result of a comparison."""

    topic: str
    late_ms: int
    sent: int
    stored: int
    consumed: int
    #: Messages of the topic without an id, which cannot be compared.
    nameless: int
    problems: dict[str, int]
    hours: tuple[Hour, ...]
    #: The first few of each problem.
    differences: tuple[Discrepancy, ...]

    @property
    def missing(self) -> int:
        """Messages that are missing in the topic or at the consumer."""
        return sum(count for name, count in self.problems.items() if name.startswith(MISSING))


def reconcile(
    spark: SparkSession,
    topic: str,
    stored: DataFrame,
    *,
    sent: DataFrame | None = None,
    consumed: DataFrame | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    late_ms: int = LATE_MS,
    now_ms: int | None = None,
    out: str = "",
    out_format: str = "parquet",
    watch: Watch | None = None,
) -> Reconciled:
    """Compare the sides; ``sent`` or ``consumed`` must be given.

    ``out``: all messages with a problem are written to this directory, which must not exist. Raises ``ConfigError``.
    """
    if sent is None and consumed is None:
        raise ConfigError("nothing to compare with; give sent, consumed or both")
    if late_ms < 0:
        raise ConfigError(f"invalid late_ms {late_ms}: expected 0 or more")
    if out_format not in FORMATS:
        raise ConfigError(f"unknown format {out_format!r}: expected one of {', '.join(FORMATS)}")
    judged_until_ms = (SystemClock().now_ms() if now_ms is None else now_ms) - late_ms

    def work() -> Reconciled:
        messages = compare(stored, sent=sent, consumed=consumed)
        messages = judge(
            _between(messages, begin_ms, end_ms),
            has_sent=sent is not None,
            has_consumed=consumed is not None,
            late_ms=late_ms,
            judged_until_ms=judged_until_ms,
        ).persist()
        try:
            if out:
                differences(messages).write.format(out_format).mode("errorifexists").save(out)
            nameless = _between(stored.where("id IS NULL").withColumn("first_time", F.col("time")), begin_ms, end_ms)
            return _report(messages, topic=topic, late_ms=late_ms, nameless=nameless.count())
        finally:
            messages.unpersist()

    return (watch or Watch()).run("reconcile", spark, work)


def compare(stored: DataFrame, *, sent: DataFrame | None, consumed: DataFrame | None) -> DataFrame:
    """One row for each id that was sent or stored: how often on each side, and its first times."""
    place = F.concat_ws(":", "broker", "queue_id", "queue_offset")
    both = _counted(stored, "stored", F.min_by(place, F.struct("time", "queue_offset")).alias("place"))
    for name, side in (("sent", sent), ("consumed", consumed)):
        if side is None:
            both = both.withColumns({name: F.lit(0).cast("bigint"), f"{name}_time": F.lit(None).cast("timestamp")})
        else:
            both = both.join(_counted(side, name), "id", "full_outer")
    return (
        both.fillna(0, ["sent", "stored", "consumed"])
        .where("sent > 0 OR stored > 0")
        .withColumn("first_time", F.coalesce("sent_time", "stored_time"))
    )


def _counted(side: DataFrame, name: str, *more: Column) -> DataFrame:
    counts = F.count(F.lit(1)).alias(name), F.min("time").alias(f"{name}_time")
    return side.where("id IS NOT NULL").groupBy("id").agg(*counts, *more)


def _between(messages: DataFrame, begin_ms: int | None, end_ms: int | None) -> DataFrame:
    """Messages whose first time is in the range; those without a time are included."""
    time = F.col("first_time")
    if begin_ms is not None:
        messages = messages.where(time.isNull() | (time >= F.timestamp_millis(F.lit(begin_ms))))
    if end_ms is not None:
        messages = messages.where(time.isNull() | (time < F.timestamp_millis(F.lit(end_ms))))
    return messages


def judge(messages: DataFrame, *, has_sent: bool, has_consumed: bool, late_ms: int, judged_until_ms: int) -> DataFrame:
    """The same with ``found``: a list of problem, side, and number."""
    sent, stored, consumed = map(F.col, ("sent", "stored", "consumed"))
    is_gone = (stored == 0) & (consumed > 0)

    def absent(count: Column, time: str, side: str) -> Column:
        """Missing, or too young to be missing."""
        is_young = F.coalesce(F.col(time) > F.timestamp_millis(F.lit(judged_until_ms)), F.lit(False))
        return F.when(count > 0, _found(F.when(is_young, WAITING).otherwise(MISSING), side, count))

    def late(first: str, then: str, side: str) -> Column:
        passed = F.unix_millis(then) - F.unix_millis(first)
        return F.when(passed > late_ms, _found(F.lit(LATE), side, F.lit(1)))

    found: list[Column] = []
    if has_sent:
        found += [
            F.when(is_gone, _found(F.lit(GONE), STORED, sent)).otherwise(absent(sent - stored, "sent_time", STORED)),
            F.when((sent > 0) & (stored > sent), _found(F.lit(DOUBLE), STORED, stored - sent)),
            F.when(sent == 0, _found(F.lit(UNEXPECTED), STORED, stored)),
            late("sent_time", "stored_time", STORED),
        ]
    else:
        found.append(F.when(stored > 1, _found(F.lit(DOUBLE), STORED, stored - 1)))
    if has_consumed:
        once = F.greatest(stored, F.when(is_gone, sent).otherwise(stored))
        found += [
            absent(stored - consumed, "stored_time", CONSUMED),
            F.when(consumed > once, _found(F.lit(DOUBLE), CONSUMED, consumed - once)),
            late("stored_time", "consumed_time", CONSUMED),
        ]
    return messages.withColumn("found", F.array_compact(F.array(*found)))


def _found(problem: Column, side: str, count: Column) -> Column:
    return F.struct(problem.alias("problem"), F.lit(side).alias("side"), count.cast("bigint").alias("count"))


def differences(messages: DataFrame) -> DataFrame:
    """Messages with a problem, one row each: the table of ``out``."""
    return messages.select(F.explode("found").alias("one"), "*").select(
        "one.*",
        "id",
        *("sent", "stored", "consumed"),
        *("sent_time", "stored_time", "consumed_time"),
        "place",
        F.date_trunc("hour", "first_time").alias("hour"),
    )


def _report(messages: DataFrame, *, topic: str, late_ms: int, nameless: int) -> Reconciled:
    hour = F.unix_millis(F.date_trunc("hour", "first_time")).alias("hour_ms")
    sums = messages.groupBy(hour).agg(*(F.sum(name).alias(name) for name in ("sent", "stored", "consumed"))).collect()
    listed = differences(messages)
    kinds: dict[int | None, dict[str, int]] = {}
    for row in (
        listed.groupBy(F.unix_millis("hour").alias("hour_ms"), "problem", "side")
        .agg(F.sum("count").alias("count"))
        .collect()
    ):
        kinds.setdefault(row["hour_ms"], {})[f"{row['problem']} {row['side']}"] = row["count"]
    names = [f"{problem} {side}" for problem, side in KINDS]
    hours = tuple(
        Hour(
            row["hour_ms"],
            row["sent"],
            row["stored"],
            row["consumed"],
            {name: found[name] for name in names if name in found},
        )
        for row in sorted(sums, key=lambda row: (row["hour_ms"] is not None, row["hour_ms"] or 0))
        for found in (kinds.get(row["hour_ms"], {}),)
    )
    totals = {name: sum(hour.problems.get(name, 0) for hour in hours) for name in names}
    return Reconciled(
        topic=topic,
        late_ms=late_ms,
        sent=sum(hour.sent for hour in hours),
        stored=sum(hour.stored for hour in hours),
        consumed=sum(hour.consumed for hour in hours),
        nameless=nameless,
        problems={name: count for name, count in totals.items() if count},
        hours=hours,
        differences=_samples(listed),
    )


def _samples(listed: DataFrame) -> tuple[Discrepancy, ...]:
    first = "coalesce(sent_time, stored_time)"
    rows = (
        listed.withColumn("number", F.expr(f"row_number() OVER (PARTITION BY problem, side ORDER BY {first}, id)"))
        .where(F.col("number") <= SAMPLES)
        .withColumns({f"{name}_ms": F.unix_millis(f"{name}_time") for name in ("sent", "stored", "consumed")})
        .select("number", *Discrepancy.__dataclass_fields__)
        .collect()
    )
    rows.sort(key=lambda row: (KINDS.index((row["problem"], row["side"])), row["number"]))
    names = Discrepancy.__dataclass_fields__
    return tuple(Discrepancy(**{name: row[name] for name in names}) for row in rows)
