"""Options of the sink: what is refused, and with which sentence (U2)."""

from __future__ import annotations

import pytest

from ternmq.client.config import ClientConfig
from ternmq.errors import ConfigError
from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.sink.sink import checked_query, stream_work, write_work

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
            "txnappid": "app",
            "txnversion": "0",
            "replayedrows": "Any",
            "checkpointmovedfrom": "/y",
            "retiredbrokers": "broker-a, broker-b",
            "unsafewrites": "accept",
        }
    )
    expected = SinkOptions(
        client=ClientConfig("a:1;b:2"),
        namespace="shop",
        topic="orders",
        is_exactly_once=False,
        write_id="",
        txn_app_id="app",
        txn_version=0,
        any_rows=True,
        checkpoint="/x",
        checkpoint_moved_from="/y",
        retired_brokers=("broker-a", "broker-b"),
        accepts_unsafe=True,
        drops_reserved=True,
        chunk_bytes=1_000,
        in_flight_bytes=5_000,
        retry_timeout_ms=7,
    )
    assert expected == options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tpic": "x"}, "no option 'tpic'; did you mean 'topic'"),
        ({"startingOffsets": "latest"}, "no option 'startingOffsets'"),
        ({"topic": "a", "path": "b"}, "topic and path contradict each other"),
        ({"topic": "no blanks"}, "characters that are not allowed"),
        ({"topic": "%RETRY%g"}, "is a system topic"),
        ({"topic": "TERNMQ_SPARK_STAGE"}, "is a system topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "is a system topic"),
        ({"delivery": "twice"}, "delivery='twice': expected exactly-once or at-least-once"),
        ({"reservedProperties": "keep"}, "expected refuse or drop"),
        ({"chunkBytes": "5000000"}, "expected at most 3145728"),
        ({"inFlightBytes": "0"}, "expected a whole number above 0"),
        ({"writeId": "two words"}, "expected 1 to 100 letters"),
        ({"txnAppId": "a@b"}, "txnAppId='a@b': expected 1 to 100 letters"),
        ({"txnVersion": "-1"}, "txnVersion='-1': expected a whole number from 0"),
        ({"txnVersion": str(2**63)}, "expected a whole number from 0 to 9223372036854775807"),
        ({"txnVersion": "9" * 5_000}, "expected a whole number"),
        ({"replayedRows": "none"}, "replayedRows='none': expected same or any"),
        ({"unsafeWrites": "ok"}, "unsafeWrites='ok': expected refuse or accept"),
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
    with pytest.raises(ConfigError, match="a stream is identified by its checkpoint"):
        named.check_for_stream(overwrite=False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"writeId": "w", "delivery": "at-least-once"}, "writeId cannot be combined with delivery"),
        (
            {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
            "txnAppId cannot be combined with delivery",
        ),
        ({"txnAppId": "a"}, "txnAppId and txnVersion must be used together; give both"),
        ({"txnVersion": "0"}, "txnAppId and txnVersion must be used together; give both"),
        ({"txnAppId": "a", "txnVersion": "1", "writeId": "w"}, "exclude each other; give one of them"),
    ],
)
def test_a_batch_write_has_one_name(given: dict[str, str], sentence: str) -> None:
    """Issue 13, point 11."""
    with pytest.raises(ConfigError, match=sentence):
        SinkOptions.parse(GIVEN | given).check_for_batch(overwrite=False)


def test_a_stream_may_have_an_id_beside_its_checkpoint() -> None:
    """Issue 13, point 11: so that a copy of a checkpoint is another query."""
    SinkOptions.parse(GIVEN | {"txnAppId": "copy"}).check_for_stream(overwrite=False)
    with pytest.raises(ConfigError, match="the batches of a stream have their own numbers"):
        SinkOptions.parse(GIVEN | {"txnAppId": "copy", "txnVersion": "1"}).check_for_stream(overwrite=False)


def test_works_of_each_kind_have_keys_of_their_own() -> None:
    """Issue 13, point 11: streams, their copies, numbered and named writes share one ledger."""
    numbered = SinkOptions.parse(GIVEN | {"txnAppId": "x", "txnVersion": "0"})
    named = SinkOptions.parse(GIVEN | {"writeId": "x"})
    keys = [stream_work("q", "", 0).key, stream_work("q", "x", 0).key, stream_work("q", "y", 0).key]
    keys += [write_work(numbered, "new").key, write_work(named, "x").key]
    assert ["q/0", "q@x/0", "q@y/0", "txn@x/0", "x/0"] == keys


@pytest.mark.parametrize("missing", [None, ""])
def test_a_stream_without_an_id_is_refused(missing: str | None) -> None:
    """Issue 13, point 11: all such streams would have the same key."""
    assert "q" == checked_query("q")
    with pytest.raises(ConfigError, match="Spark did not pass the id of the query"):
        checked_query(missing)
