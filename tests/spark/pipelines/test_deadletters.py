"""The pipeline *deadletters*: why, where, since when; and those chosen sent again, none twice (U4, H2)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ternmq import Message, SyncAdmin
from ternmq.errors import ConfigError
from ternmq.spark.pipelines.deadletters import LetterReport, examine, letters, redrive, where
from ternmq.spark.runtime.jobs import JobStopped, Watch
from tests.spark.givingup import give_up
from tests.spark.topics import Topics


def orders(topic: str, count: int, *, tags: str = "", why: str = "", first: int = 0) -> list[Message]:
    """Messages whose reason, if any, has a number in it that differs."""
    return [
        Message(
            topic,
            b"order %d" % number,
            tags=tags,
            keys=f"order-{number}",
            properties={"x-exception-message": why.format(number)} if why else {},
        )
        for number in range(first, first + count)
    ]


def counts(report: LetterReport) -> list[tuple[str, str | None, str | None, str | None, int]]:
    return [(one.group, one.origin_topic, one.tags, one.why, one.count) for one in report.groups]


def test_dead_letters_are_counted_by_what_they_have_in_common(topics: Topics, spark: SparkSession) -> None:
    """U4: by group, topic, tag and reason, with a sample; numbers in a reason make no new one."""
    names = topics.name_servers
    late = orders("dead-orders", 5, tags="paid", why="Timeout after {} ms")
    give_up(names, "dead-billing", "dead-orders", late + orders("dead-orders", 2, tags="new", first=5))
    give_up(names, "dead-mail", "dead-mails", orders("dead-mails", 3, why="no such user"))

    report = examine(spark, letters(spark, pattern="dead-.*", name_servers=names))

    assert [
        ("dead-billing", "dead-orders", "paid", "Timeout after # ms", 5),
        ("dead-mail", "dead-mails", None, "no such user", 3),
        ("dead-billing", "dead-orders", "new", None, 2),
    ] == counts(report)
    assert 10 == report.total == sum(hour.count for hour in report.hours)
    paid = report.groups[0]
    assert (1, 1) == (paid.attempts_min, paid.attempts_max)
    number = (paid.sample_keys or "").removeprefix("order-")
    assert f"order {number}" == paid.sample_body
    with SyncAdmin(names) as admin:
        times = [letter.message.store_time_ms for letter in admin.dead_letters.all("dead-billing")]
    assert (min(times), max(times)) == (
        min(one.first_ms for one in report.groups if one.group == "dead-billing"),
        max(one.last_ms for one in report.groups if one.group == "dead-billing"),
    )
    # Chosen by a condition, by time, by group.
    found = letters(spark, ["dead-billing"], name_servers=names)
    assert 1 == where(found, "group LIKE 'dead%' AND tags = 'paid' AND why LIKE '%after 3%'").count()
    assert 0 == letters(spark, ["dead-billing"], name_servers=names, begin_ms=max(times) + 1).count()
    assert 7 == letters(spark, ["dead-billing"], name_servers=names, end_ms=max(times) + 1).count()
    assert 0 == letters(spark, ["dead-nobody"], name_servers=names).count()


def test_the_chosen_are_sent_again_and_none_twice(topics: Topics, spark: SparkSession) -> None:
    """U4, H2: a dry run sends nothing; the second run finds what the first has sent; a stopped one goes on."""
    names = topics.name_servers
    # A queue on each broker: letters are sent again queue by queue.
    topics.create("redrive-orders", queues=1)
    messages = orders("redrive-orders", 6, tags="good") + orders("redrive-orders", 4, tags="bad", first=6)
    give_up(names, "redrive-billing", "redrive-orders", messages)

    def run(*, dry_run: bool) -> tuple[int, int]:
        """How many were sent, or would be, and how many had been before."""
        chosen = where(letters(spark, ["redrive-billing"], name_servers=names), "tags = 'good'")
        done = redrive(spark, chosen, name_servers=names, dry_run=dry_run)
        return sum(one.earlier is None for one in done), sum(one.earlier is not None for one in done)

    def copies() -> list[str]:
        rows = topics.read("%RETRY%redrive-billing").collect()
        return sorted(str(row["keys"]) for row in rows if "TERN_RESENT_FROM" in row["properties"])

    assert (6, 0) == run(dry_run=True)
    assert [] == copies()
    assert (6, 0) == run(dry_run=False)
    assert [f"order-{number}" for number in range(6)] == copies()
    sent, before = run(dry_run=False)
    # Those before the first bad one are marked as dealt with, and not even read.
    assert (0, True) == (sent, before <= 6)
    assert 6 == len(copies())
    left = examine(spark, letters(spark, ["redrive-billing"], name_servers=names))
    assert ("redrive-billing", "redrive-orders", "bad", None, 4) in counts(left)
    assert 10 == letters(spark, ["redrive-billing"], name_servers=names, handled=True).count()

    # Stopped after the first page, the next run sends the rest.
    watch = Watch()
    rest = letters(spark, ["redrive-billing"], name_servers=names)
    with pytest.raises(JobStopped, match="run it again to continue"):
        redrive(spark, rest, name_servers=names, dry_run=False, on_resent=lambda _: watch.stop(), watch=watch)
    assert 6 < len(copies()) < 10
    redrive(spark, letters(spark, ["redrive-billing"], name_servers=names), name_servers=names, dry_run=False)
    assert sorted(f"order-{number}" for number in range(10)) == copies()
    assert 0 == letters(spark, ["redrive-billing"], name_servers=names).count()


def test_bad_input_is_one_clear_sentence(topics: Topics, spark: SparkSession) -> None:
    """U4."""
    names = topics.name_servers
    nobody = letters(spark, ["nobody"], name_servers=names)
    with pytest.raises(ConfigError, match=r"invalid condition 'colour = 1': .*; the columns are group, "):
        where(nobody, "colour = 1")
    with pytest.raises(ConfigError, match=r"invalid condition 'tags =': "):
        where(nobody, "tags =")
    with pytest.raises(ConfigError, match=r"invalid regular expression '\*'"):
        letters(spark, pattern="*", name_servers=names)
    with pytest.raises(ConfigError, match="give either groups or a pattern, not both"):
        letters(spark, ["a"], pattern="b", name_servers=names)
    assert LetterReport(0, (), ()) == examine(spark, nobody)
    assert [] == redrive(spark, nobody, name_servers=names, dry_run=False)
