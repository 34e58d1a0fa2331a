"""What a script of the pipeline *sql* says, before Spark sees it (U4)."""

from __future__ import annotations

import pytest

from ternmq.errors import ConfigError
from ternmq.spark.pipelines.sql_script import ScriptError, ScriptQuery, SparkStatement, Target, TopicView, statements_of


def test_a_view_of_a_topic_says_columns_watermark_and_options() -> None:
    """U4."""
    script = """
        CREATE OR REPLACE TEMPORARY VIEW orders (id STRING NOT NULL, price DECIMAL(10, 2), tags ARRAY<STRING>)
        from topic `orders-eu`, 'orders-us'
        WATERMARK at DELAY OF INTERVAL 10 SECONDS
        OPTIONS (tags 'paid', maxMessagesPerTrigger = 5)
    """
    columns = "id STRING NOT NULL, price DECIMAL(10, 2), tags ARRAY<STRING>"
    options = {"tags": "paid", "maxMessagesPerTrigger": "5"}
    expected = TopicView(
        "orders", ("orders-eu", "orders-us"), columns, False, "at", "at", "10 seconds", options, line=2
    )
    assert [expected] == statements_of(script)


def test_a_watermark_may_be_computed_and_a_body_a_text() -> None:
    """U4."""
    computed, text = statements_of(
        "CREATE VIEW a (ms BIGINT) FROM TOPIC a WATERMARK timestamp_millis(ms) AS at DELAY '1 minute';"
        "CREATE VIEW b FROM TOPIC %RETRY%b FORMAT TEXT WATERMARK _store_time DELAY 1 HOUR"
    )
    assert TopicView("a", ("a",), "ms BIGINT", False, "timestamp_millis(ms)", "at", "1 minute", {}, 1) == computed
    assert TopicView("b", ("%RETRY%b",), "", True, "_store_time", "_store_time", "1 hour", {}, 1) == text


def test_queries_go_to_a_topic_a_table_or_the_console() -> None:
    """U4."""
    targets = [
        statement.target
        for statement in statements_of("""
            INSERT INTO TOPIC alerts SELECT 1;
            INSERT INTO TABLE '/lake/a;b' PARTITIONED BY (day, `hour of day`) WITH x AS (SELECT 1) SELECT * FROM x;
            insert into "lake" (SELECT 1);
            SELECT ';' -- not the end; nor this
            ;
            /* nothing; here */ ;
            FROM orders |> WHERE a = `;`
        """)
        if isinstance(statement, ScriptQuery)
    ]
    assert targets == [
        Target("topic", "alerts"),
        Target("table", "/lake/a;b", ("day", "hour of day")),
        Target("table", "lake"),
        Target("console"),
        Target("console"),
    ]


def test_what_spark_gets_stands_at_its_place_in_the_script() -> None:
    """U4: a position that Spark names is one of the user's file."""
    script = "SET a.b = 1;\n  INSERT INTO TOPIC alerts\n    SELECT x FROM y; CREATE TEMP VIEW z AS SELECT 1"
    settings, query, view = statements_of(script)
    assert isinstance(settings, SparkStatement)
    assert isinstance(query, ScriptQuery)
    assert isinstance(view, SparkStatement)
    assert "SET a.b = 1" == settings.sql
    assert query.sql.index("SELECT x FROM y") == script.index("SELECT x FROM y")
    assert "SELECT x FROM y" == query.sql.strip()
    assert [(1, 2, 3), 2] == [(settings.line, query.line, view.line), query.sql.count("\n")]
    assert "CREATE TEMP VIEW z AS SELECT 1" == view.sql.strip()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("SELECT 1;\nINSERT INTO alerts SELECT 1", "line 2: write INSERT INTO TOPIC name, or INSERT INTO TABLE 'dir"),
        ("INSERT INTO TOPIC alerts DELETE", "line 1: expected a query after INSERT INTO TOPIC ALERTS"),
        ("INSERT INTO TOPIC", "line 1: expected the name of a topic (at the end)"),
        ("INSERT OVERWRITE x", "line 1: expected INTO (at 'OVERWRITE')"),
        ("CREATE VIEW a FROM TOPIC b\nWITH c", "line 2: expected FORMAT TEXT"),
        ("CREATE VIEW a (b INT FROM TOPIC b", "line 1: a parenthesis is not closed"),
        ("CREATE VIEW a FROM TOPIC b WATERMARK at", "line 1: expected DELAY after WATERMARK column"),
        (
            "CREATE VIEW a FROM TOPIC b WATERMARK f(at) DELAY 1 DAY",
            "line 1: the WATERMARK of an expression needs a name",
        ),
        ("CREATE VIEW a (x INT) FROM TOPIC b FORMAT TEXT", "line 1: with FORMAT TEXT the only column is body"),
        ("SELECT 'abc", "line 1: the quote ' is not closed"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(script: str, sentence: str) -> None:
    """U4."""
    with pytest.raises(ScriptError) as caught:
        statements_of(script)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("script", ["", "  \n;;", "-- nothing"])
def test_an_empty_script_is_refused(script: str) -> None:
    """U4."""
    with pytest.raises(ConfigError, match="the script is empty"):
        statements_of(script)
