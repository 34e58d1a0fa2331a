"""The pipeline *sql*: topics to topics, tables and the console (U4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ternmq.errors import ConfigError
from ternmq.spark.pipelines.sql import Shown, SqlResult, run_sql
from ternmq.spark.pipelines.sql_script import TopicView, statements_of
from ternmq.spark.pipelines.topic_views import BadRows
from ternmq.spark.runtime.jobs import JobFailed, JobProgress, Watch
from tests.spark.topics import Topics, bodies_of

#: What a test uses as its clock; minutes and seconds follow.
HOUR = "2026-11-16T08"


def order(number: int, *, customer: str = "ann", amount: float = 10, at: str = "00:00") -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount, "at": f"{HOUR}:{at}Z"}


def bodies(rows: Iterable[Mapping[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


class Run:
    """A run of a script, and what it showed and said."""

    def __init__(self, topics: Topics, script: str, **options: Any) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.done: list[SqlResult] = run_sql(
            topics.spark,
            script,
            name_servers=topics.name_servers,
            show=self._show,
            note=self.notes.append,
            **{"once": True, **options},
        )

    def _show(self, shown: Shown) -> None:
        self.rows += shown.rows


def test_columns_that_nobody_gave_are_found_in_messages(topics: Topics) -> None:
    """U4: and are said in a form that can be pasted back; an aggregate is shown as it changes."""
    topics.send("sql-found", bodies(order(n, customer="ab"[n % 2]) for n in range(10)), tags=["new", "paid"])
    found = Run(topics, "SELECT customer, count(*) AS n, max(_tags) AS tag FROM `sql-found` GROUP BY customer")
    assert [{"customer": "a", "n": 5, "tag": "new"}, {"customer": "b", "n": 5, "tag": "paid"}] == sorted(
        found.rows, key=itemgetter("customer")
    )
    assert [SqlResult("console", messages=10, left_out=0)] == found.done

    (note,) = found.notes
    said = note.removeprefix("found in the last messages: ")
    columns = "amount BIGINT, at TIMESTAMP, customer STRING, id BIGINT"
    assert [TopicView("sql-found", ("sql-found",), columns, line=1)] == statements_of(said)
    pasted = Run(topics, f"{said} OPTIONS (tags 'paid'); SELECT id FROM `sql-found` WHERE at < '{HOUR}:01:00Z'")
    assert [[1, 3, 5, 7, 9], []] == [sorted(row["id"] for row in pasted.rows), pasted.notes]


def test_windows_reach_a_table_when_their_watermark_has_passed(topics: Topics, tmp_path: Path) -> None:
    """U4: exactly once over restarts, by a checkpoint for each statement; what is late is left out."""
    script = f"""
        CREATE VIEW sales (customer STRING, amount DOUBLE, at TIMESTAMP) FROM TOPIC `sql-windows`
            WATERMARK at DELAY 10 SECONDS;
        CREATE OR REPLACE TEMPORARY VIEW large AS SELECT * FROM sales WHERE amount >= 10;
        INSERT INTO TABLE '{tmp_path}/sums' PARTITIONED BY (customer)
            SELECT customer, window.start, sum(amount) AS spent FROM large GROUP BY customer, window(at, '1 minute');
        INSERT INTO TABLE '{tmp_path}/all' SELECT *, _broker, _queue_offset FROM sales
    """

    def sums() -> list[tuple[str, int, float]]:
        table = topics.spark.read.schema("customer STRING, start TIMESTAMP, spent DOUBLE")
        rows = table.parquet(f"{tmp_path}/sums").collect()
        return sorted((row["customer"], row["start"].minute, row["spent"]) for row in rows)

    topics.create("sql-windows", queues=1)
    checkpoint = str(tmp_path / "checkpoint")
    topics.send("sql-windows", bodies([order(1, at="00:10"), order(2, at="00:50"), order(3, amount=1, at="00:51")]))
    topics.send("sql-windows", bodies([order(4, at="01:05"), order(5, customer="bob", at="01:09")]))
    assert 5 == Run(topics, script, checkpoint=checkpoint).done[0].messages
    assert [] == sums(), "01:09 less ten seconds is in the first window still"
    topics.send("sql-windows", bodies([order(6, at="01:30"), order(7, at="02:20")]))
    assert ["table-sums", "table-all"] == [one.statement for one in Run(topics, script, checkpoint=checkpoint).done]
    assert [("ann", 0, 20), ("ann", 1, 20), ("bob", 1, 10)] == sums()
    topics.send("sql-windows", bodies([order(8, at="00:30"), order(9, at="05:00")]))
    Run(topics, script, checkpoint=checkpoint)
    assert [("ann", 0, 20), ("ann", 1, 20), ("ann", 2, 10), ("bob", 1, 10)] == sums()
    everything = topics.spark.read.parquet(f"{tmp_path}/all").collect()
    assert [9, 9] == [len(everything), len({(row["_broker"], row["_queue_offset"]) for row in everything})]


def test_topics_are_joined_into_a_third_exactly_once_over_restarts(topics: Topics, tmp_path: Path) -> None:
    """U4: columns become the JSON body, those with an underscore belong to the message."""
    script = """
        CREATE VIEW orders (id INT, customer STRING, amount DOUBLE, at TIMESTAMP) FROM TOPIC `sql-orders`
            WATERMARK at DELAY 1 MINUTE;
        CREATE VIEW refunds (order_id INT, ms BIGINT) FROM TOPIC `sql-refunds`
            WATERMARK timestamp_millis(ms) AS at DELAY 1 MINUTE;
        INSERT INTO TOPIC `sql-alerts`
            SELECT o.customer AS _keys, 'refund' AS _tags, map('shop', 'eu') AS _properties, o.id, o.at, NULL AS note
            FROM orders o JOIN refunds r ON o.id = r.order_id AND r.at BETWEEN o.at AND o.at + INTERVAL 5 MINUTES
    """
    for topic in ("sql-orders", "sql-refunds", "sql-alerts"):
        topics.create(topic, queues=2)
    ms = 1794816060000  # 2026-11-16T08:01:00Z
    checkpoint = str(tmp_path)
    topics.send("sql-orders", bodies(order(number) for number in range(20)))
    topics.send("sql-refunds", bodies({"order_id": number, "ms": ms} for number in range(0, 20, 5)))
    Run(topics, script, checkpoint=checkpoint)
    topics.send("sql-refunds", bodies([{"order_id": 7, "ms": ms}, {"order_id": 8, "ms": ms + 3_600_000}]))
    Run(topics, script, checkpoint=checkpoint)
    Run(topics, script, checkpoint=checkpoint)

    sent = topics.read("sql-alerts").collect()
    expected = [{"id": number, "at": f"{HOUR}:00:00.000Z", "note": None} for number in (0, 5, 7, 10, 15)]
    assert expected == sorted(map(json.loads, bodies_of(sent)), key=itemgetter("id"))
    assert {("ann", "refund", "eu")} == {(row["keys"], row["tags"], row["properties"]["shop"]) for row in sent}


def test_bodies_that_do_not_fit_are_counted_and_have_a_view(topics: Topics, tmp_path: Path) -> None:
    """U4: never unexpected nulls."""
    fit = bodies([order(1), {"id": 2, "other": True}])
    bad = [b"no json", b'{"id": "x"}', b'{"customer": "no id"}', b"[1]", b'{"id": 3, "customer": "\xff"}', b"null"]
    topics.create("sql-bad", queues=1)
    topics.send("sql-bad", [*fit, *bad])
    view = "CREATE VIEW v (id INT NOT NULL, customer STRING) FROM TOPIC `sql-bad`"
    told: list[JobProgress] = []
    kept = Run(topics, f"{view}; SELECT * FROM v WHERE id IS NOT NULL", watch=Watch(told.append))
    assert [{"id": 1, "customer": "ann"}, {"id": 2, "customer": None}] == sorted(kept.rows, key=itemgetter("id"))
    assert [SqlResult("console", messages=8, left_out=6)] == kept.done
    assert 6 == told[-1].left_out

    topics.create("sql-dead", queues=1)
    Run(topics, f"{view}; INSERT INTO TOPIC `sql-dead` SELECT _body, _keys FROM v_bad", checkpoint=str(tmp_path))
    assert sorted(bad) == bodies_of(topics.read("sql-dead").collect())

    with pytest.raises(JobFailed, match=r"^the body at sql-bad@broker-.:0, queue offset \d does not match v: \S"):
        Run(topics, f"{view}; SELECT count(*) FROM v WHERE id > 0", bad_rows=BadRows.FAIL)


def test_texts_and_orders_are_shown_and_other_tables_are_at_hand(topics: Topics, spark: SparkSession) -> None:
    """U4: a text is one column; ORDER BY shows the whole result each time; tables of the session can be joined."""
    topics.send("sql-text", [b"ann 3", b"bob 4", b"ann 2", b"not \xff text"])
    spark.createDataFrame([("ann", "Ann A."), ("bob", "Bob B.")], "who STRING, name STRING").createOrReplaceTempView(
        "p"
    )
    script = """
        SELECT count(*) AS people FROM p;
        CREATE VIEW points FROM TOPIC `sql-text` FORMAT TEXT;
        SELECT name, sum(CAST(split(body, ' ')[1] AS INT)) AS n
        FROM points JOIN p ON split(body, ' ')[0] = who GROUP BY name ORDER BY n DESC
    """
    run = Run(topics, script)
    assert [{"people": 2}, {"name": "Ann A.", "n": 5}, {"name": "Bob B.", "n": 4}] == run.rows
    assert not spark.catalog.tableExists("points"), "views of topics do not outlive the run"


def test_a_mistake_is_one_sentence_at_its_line_and_nothing_is_written(topics: Topics, tmp_path: Path) -> None:
    """U4: all statements are planned before the first is started."""
    topics.send("sql-wrong", bodies([order(1)]))
    topics.send("sql-plain", [b"no json"])
    topics.create("sql-empty")
    view = "CREATE VIEW v (id INT, at TIMESTAMP) FROM TOPIC `sql-wrong`"
    write = f"INSERT INTO TABLE '{tmp_path}/out' SELECT * FROM v"
    late = f"{view};\n{write};\n"
    for script, sentence in {
        f"{late}SELECT\n idd FROM v": "line 4: A column, variable, or function parameter with name `idd` cannot",
        f"{late}SELECT id,, at FROM v": "line 3: Syntax error at or near ','",
        f"{late}SELECT * FROM nowhere": "line 3: there is no view and no topic 'nowhere' at ",
        f"{late}SELECT id FROM v ORDER BY id": "line 3: Sorting is not supported on streaming",
        f"{late}INSERT INTO TOPIC t SELECT id, count(*) FROM v GROUP BY id": "line 3: cannot write this aggregate",
        f"{late}INSERT INTO TOPIC t SELECT id, 'x' AS _body FROM v": "line 3: _body is the whole body and ",
        f"{late}INSERT INTO TOPIC t SELECT 'x' AS _keys FROM v": "line 3: there is no column for the body; ",
        f"{late}INSERT INTO TOPIC t SELECT id, id AS _properties FROM v": "line 3: the column properties is of type",
        f"{late}INSERT INTO TOPIC t SELECT id FROM v": "line 3: there is no topic 't' at ",
        f"{late}INSERT INTO TOPIC SCHEDULE_TOPIC_XXXX SELECT id FROM v": "line 3: 'SCHEDULE_TOPIC_XXXX' is a system",
        f"{late}SELECT a.id, b.id FROM v a JOIN v b ON a.id = b.id": "line 3: there are 2 columns 'id'; give",
        f"{late}INSERT INTO TABLE 'x' PARTITIONED BY (day) SELECT * FROM v": "line 3: PARTITIONED BY day: there is no",
        f"{late}INSERT INTO TOPIC t SELECT 1 AS x": "line 3: the query reads no topic",
        "\nCREATE VIEW v (id NUMBER) FROM TOPIC `sql-wrong`": "line 2: the columns of v: Unsupported data type",
        "CREATE VIEW v (_tags STRING) FROM TOPIC `sql-wrong`": "line 1: the column _tags is an attribute of",
        f"{view} WATERMARK id DELAY 1 DAY": "line 1: the watermark of v needs a timestamp, and id is of type int; ",
        f"{view} WATERMARK when DELAY 1 DAY": "line 1: the watermark of v: A column",
        f"{view} WATERMARK at DELAY 1 PARSEC": "line 1: the watermark of v: ",
        f"{view} OPTIONS (tagz 'a')": "the format ternmq has no option 'tagz'; did you mean 'tags'?",
        "CREATE VIEW v (id INT) FROM TOPIC nothing": "there is no topic 'nothing' at ",
        "SELECT * FROM `sql-plain`": "none of the last 1 messages of sql-plain has a JSON object as its body; ",
        "SELECT * FROM `sql-empty`": "cannot detect the columns of topic sql-empty: it has no messages; ",
    }.items():
        with pytest.raises(ConfigError) as caught:
            Run(topics, script, checkpoint=str(tmp_path / "checkpoint"))
        assert str(caught.value).startswith(sentence), (script, str(caught.value))
    with pytest.raises(ConfigError, match=r"^table .*out needs a checkpoint"):
        Run(topics, f"{view}; {write}")
    assert [] == list(tmp_path.iterdir())
