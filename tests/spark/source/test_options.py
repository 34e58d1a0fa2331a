"""Options of the source: one clear sentence for what cannot be (U1)."""

from __future__ import annotations

import pickle

import pytest

from ternmq.errors import ConfigError, TernError
from ternmq.message import MessageQueue
from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.source.options import SourceOptions, checkpoint_of, checkpoint_table, offset_table, offsets_of

GIVEN = {"nameServers": "127.0.0.1:9876", "topic": "orders"}
A0, B3 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 3)


def test_names_do_not_care_about_case() -> None:
    """U1: Spark's options never do."""
    options = SourceOptions.parse({"NAMESERVERS": "a:1,b:2", "Topics": "orders, bills", "failondataloss": "FALSE"})

    assert ("a:1;b:2", ("orders", "bills"), False) == (
        options.name_servers,
        options.topics,
        options.fail_on_data_loss,
    )


def test_offsets_go_into_a_checkpoint_and_back() -> None:
    """U1"""
    offsets = {A0: 5, B3: 7}

    assert {"orders": {"broker-a": {"0": 5}, "broker-b": {"3": 7}}} == offset_table(offsets)
    assert offsets == offsets_of(offset_table(offsets), source="the checkpoint")
    assert (offsets, 7) == checkpoint_of(checkpoint_table(offsets, 7))
    assert (offsets, None) == checkpoint_of(offset_table(offsets))


def test_times_are_ms_or_iso_and_utc_where_no_zone_is_named() -> None:
    """U1"""
    times = ("1763280000000", "2025-11-16T08:00:00Z", "2025-11-16T08:00:00", "2025-11-16T09:00:00+01:00")
    parsed = [SourceOptions.parse({**GIVEN, "startingTimestamp": time}).start for time in times]

    assert [1_763_280_000_000] * 4 == [position.time_ms for position in parsed if position is not None]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topik": "x"}, "no option 'topik'; did you mean 'topic'?"),
        ({"shuffle": "x"}, "no option 'shuffle'; the options are accessKey, badMessages, discoverIntervalMs"),
        ({"topic": ""}, "no topic is given; set the option topic, topics ('a,b') or topicPattern"),
        ({"topics": "a,b"}, "the options topic and topics contradict each other; give one of them"),
        ({"topic": "a b"}, "'a b' has characters"),
        ({"topic": "", "topicPattern": "("}, "topicPattern='(': not a regular expression"),
        ({"nameServers": ""}, "no name server is configured; set the option nameServers ('host:9876')"),
        ({"nameServers": "here"}, "'here'"),
        ({"tags": "A", "sql": "a = 1"}, "the options tags and sql contradict each other"),
        ({"sql": "a = "}, "invalid SQL filter 'a =' at character"),
        ({"startingOffsets": "first"}, "startingOffsets='first' is neither earliest nor latest, and"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": "x"}}}'}, 'of the form {"topic": {"broker":'),
        ({"startingOffsets": '{"bills": {"broker-a": {"0": 1}}}'}, "has offsets of topic 'bills', which is not"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "startingOffsets and startingTimestamp contradict"),
        ({"endingTimestamp": "tomorrow"}, "endingTimestamp='tomorrow': expected ms since 1970, or ISO 8601"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger='0': expected a whole number above 0"),
        ({"sliceMessages": "1e6"}, "sliceMessages='1e6': expected a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss='maybe': expected true or false"),
        ({"group": "my group"}, "'my group' has characters"),
        ({"retryTimeoutMs": "-1"}, "retryTimeoutMs='-1': expected a whole number"),
        ({"badMessages": "ignore"}, "badMessages='ignore': expected one of fail, skip, null"),
        (
            {"startingOffsetsByTimestamp": "earliest"},
            'ByTimestamp=\'earliest\' is not of the form {"topic": {"broker":',
        ),
        ({"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": "soon"}}}'}, "='soon': expected ms"),
        (
            {"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"},
            "minMessagesPerTrigger=9 is above maxMessagesPerTrigger=8",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(
    options: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1: bad input."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    with pytest.raises(TernError) as caught:
        SourceOptions.parse({**GIVEN, **options})

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("subscribe", "that is an option of Spark's Kafka format; use topic or topics"),
        ("subscribePattern", "that is an option of Spark's Kafka format; use topicPattern"),
        ("assign", "that is an option of Spark's Kafka format; use topic or startingOffsets"),
        ("kafka.bootstrap.servers", "that is an option of Spark's Kafka format; use nameServers"),
        ("maxOffsetsPerTrigger", "that is an option of Spark's Kafka format; use maxMessagesPerTrigger"),
        ("minOffsetsPerTrigger", "that is an option of Spark's Kafka format; use minMessagesPerTrigger"),
        ("maxTriggerDelay", "that is an option of Spark's Kafka format; use maxTriggerDelayMs"),
        ("includeHeaders", "the column properties is always there"),
        ("kafka.security.protocol", "settings of Kafka clients are not supported; remove it"),
    ],
)
def test_an_option_of_kafkas_source_is_answered_with_ours(option: str, sentence: str) -> None:
    """Issue 13, 12: not with a list of all options."""
    with pytest.raises(TernError) as caught:
        SourceOptions.parse({**GIVEN, option: "x"})

    assert f"the format ternmq has no option {option!r}; " in str(caught.value)
    assert str(caught.value).endswith(sentence)


def test_the_sink_answers_an_option_of_kafkas_sink_with_its_own() -> None:
    """Issue 13, 12"""
    with pytest.raises(TernError, match=r"Kafka format; use nameServers$"):
        SinkOptions.parse({"topic": "orders", "kafka.bootstrap.servers": "a:1"})


def test_what_only_the_other_kind_of_read_can_do_is_refused() -> None:
    """U1"""
    with pytest.raises(TernError, match=r"a stream has no end; remove the options that begin with ending"):
        SourceOptions.parse({**GIVEN, "endingOffsets": "latest"}).check_for_stream()
    with pytest.raises(TernError, match=r"startingOffsets='latest' would be empty; remove the option"):
        SourceOptions.parse({**GIVEN, "startingOffsets": "latest"}).check_for_batch()


def test_credentials_are_options_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: they travel to executors with the options, and are shown nowhere."""
    given = {"nameServers": "a:1", "topic": "orders"}
    monkeypatch.setenv("TERNMQ_ACCESS_KEY", "env-key")
    monkeypatch.setenv("TERNMQ_SECRET_KEY", "hidden-1")

    by_environment = SourceOptions.parse(given)
    by_option = SourceOptions.parse(given | {"accessKey": "key", "secretKey": "hidden-2", "securityToken": "hidden-3"})
    monkeypatch.delenv("TERNMQ_ACCESS_KEY")
    monkeypatch.delenv("TERNMQ_SECRET_KEY")
    arrived = [pickle.loads(pickle.dumps(options)) for options in (by_environment, by_option)]

    assert [("env-key", "hidden-1"), ("key", "hidden-2")] == [
        (options.client.access_key, options.client.secret_key) for options in arrived
    ]
    assert "hidden" not in repr(arrived)
    with pytest.raises(ConfigError, match="secret_key is missing"):
        SourceOptions.parse(given | {"accessKey": "key"})
