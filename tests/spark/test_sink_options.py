"""Options of the sink: what is refused, and with which sentence (U2)."""

from __future__ import annotations

import pytest

from ternmq.errors import ConfigError
from ternmq.spark.sink_options import SinkOptions

GIVEN = {"nameServers": "127.0.0.1:9876"}


def test_defaults_are_exactly_once_and_a_topic_for_each_row() -> None:
    options = SinkOptions.parse(GIVEN)
    assert ("", True, "", False) == (
        options.topic,
        options.is_exactly_once,
        options.write_id,
        options.drops_reserved,
    )


def test_names_do_not_care_about_case_and_sparks_own_are_passed_over() -> None:
    options = SinkOptions.parse(
        {
            "nameservers": "a:1,b:2",
            "PATH": "orders",
            "Delivery": "At-Least-Once",
            "chunkbytes": "1000",
            "inflightbytes": "5000",
            "retrytimeoutms": "7",
            "reservedproperties": "drop",
            "checkpointlocation": "/x",
            "queryname": "q",
            "namespace": "shop",
        }
    )
    expected = SinkOptions("a:1;b:2", "shop", "orders", False, "", True, 1_000, 5_000, 7)
    assert expected == options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tpic": "x"}, "no option 'tpic'; did you mean 'topic'"),
        ({"startingOffsets": "latest"}, "no option 'startingOffsets'"),
        ({"topic": "a", "path": "b"}, "topic and path contradict each other"),
        ({"topic": "no blanks"}, "characters that are not allowed"),
        ({"topic": "%RETRY%g"}, "belongs to the system"),
        ({"topic": "TERNMQ_SPARK_STAGE"}, "belongs to the system"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the system"),
        ({"delivery": "twice"}, "delivery='twice' is neither exactly-once nor at-least-once"),
        ({"reservedProperties": "keep"}, "neither refuse nor drop"),
        ({"chunkBytes": "5000000"}, "more than brokers take; use at most 3145728"),
        ({"inFlightBytes": "0"}, "no whole number above 0"),
        ({"writeId": "two words"}, "use 1 to 100 letters"),
    ],
)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SinkOptions.parse(GIVEN | given)


def test_what_a_batch_or_a_stream_cannot_do_is_refused() -> None:
    plain, named = SinkOptions.parse(GIVEN), SinkOptions.parse(GIVEN | {"writeId": "w"})
    plain.check_for_batch(overwrite=False)
    plain.check_for_stream(overwrite=False)
    named.check_for_batch(overwrite=False)
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        plain.check_for_batch(overwrite=True)
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        plain.check_for_stream(overwrite=True)
    with pytest.raises(ConfigError, match="a stream is known by its checkpoint"):
        named.check_for_stream(overwrite=False)
    with pytest.raises(ConfigError, match="second run harmless"):
        SinkOptions.parse(GIVEN | {"writeId": "w", "delivery": "at-least-once"}).check_for_batch(overwrite=False)
