"""Options of the source: one clear sentence for what cannot be (U1)."""

from __future__ import annotations

import pytest

from ternmq.errors import TernError
from ternmq.message import MessageQueue
from ternmq.spark.options import SourceOptions, offset_table, offsets_of

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


def test_times_are_ms_or_iso_and_utc_where_no_zone_is_named() -> None:
    """U1"""
    times = ("1763280000000", "2025-11-16T08:00:00Z", "2025-11-16T08:00:00", "2025-11-16T09:00:00+01:00")
    parsed = [SourceOptions.parse({**GIVEN, "startingTimestamp": time}).start for time in times]

    assert [1_763_280_000_000] * 4 == [position.time_ms for position in parsed if position is not None]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topik": "x"}, "no option 'topik'; did you mean 'topic'?"),
        ({"shuffle": "x"}, "no option 'shuffle'; there are discoverIntervalMs, endingOffsets"),
        ({"topic": ""}, "no topic is given; set the option topic, topics ('a,b') or topicPattern"),
        ({"topics": "a,b"}, "the options topic and topics contradict each other; give one of them"),
        ({"topic": "a b"}, "'a b' has characters"),
        ({"topic": "", "topicPattern": "("}, "topicPattern='(' is no regular expression"),
        ({"nameServers": ""}, "no name server is known; set the option nameServers ('host:9876')"),
        ({"nameServers": "here"}, "'here'"),
        ({"tags": "A", "sql": "a = 1"}, "the options tags and sql contradict each other"),
        ({"sql": "a = "}, "the SQL filter 'a =' is wrong at character"),
        ({"startingOffsets": "first"}, "startingOffsets='first' is neither earliest nor latest, and"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": "x"}}}'}, 'of the form {"topic": {"broker":'),
        ({"startingOffsets": '{"bills": {"broker-a": {"0": 1}}}'}, "has offsets of the topic 'bills', which is not"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "startingOffsets and startingTimestamp contradict"),
        ({"endingTimestamp": "tomorrow"}, "endingTimestamp='tomorrow' is no time; give ms since 1970, or ISO 8601"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger='0' is no whole number above 0"),
        ({"sliceMessages": "1e6"}, "sliceMessages='1e6' is no whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss='maybe' is neither true nor false"),
        ({"group": "my group"}, "'my group' has characters"),
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


def test_what_only_the_other_kind_of_read_can_do_is_refused() -> None:
    """U1"""
    with pytest.raises(TernError, match=r"a stream has no end; leave out endingOffsets"):
        SourceOptions.parse({**GIVEN, "endingOffsets": "latest"}).check_for_stream()
    with pytest.raises(TernError, match=r"startingOffsets='latest' would be empty; leave it out"):
        SourceOptions.parse({**GIVEN, "startingOffsets": "latest"}).check_for_batch()
