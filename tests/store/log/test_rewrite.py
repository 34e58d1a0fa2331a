"""A record under a new topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.store.log.draft import Draft
from ternmq.store.log.rewrite import rewrite
from ternmq.wire.properties import join, parse
from ternmq.wire.record import MAGIC_V1, Record, Sysflag, pack_host

NAMES = st.sampled_from(["A", "B", "AB", "KEYS", "TAGS"])
PAIRS = st.dictionaries(NAMES, st.sampled_from(["x", "y", "A"]))


def record(properties: str) -> Record:
    return Record(
        size=200,
        magic=MAGIC_V1,
        body_crc=0,
        queue_id=3,
        flag=7,
        queue_offset=11,
        log_offset=1000,
        sysflag=Sysflag.ZLIB | Sysflag.COMPRESSED,
        born_time_ms=1_700_000_000_000,
        born_host=pack_host("1.2.3.4", 5),
        store_time_ms=1_700_000_000_009,
        store_host=pack_host("5.6.7.8", 9),
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=memoryview(b"body"),
        topic="orders",
        properties=properties,
    )


def test_all_but_the_place_stays() -> None:
    """H1, I1"""
    draft = rewrite(record("A\x01x"), "%RETRY%g", 0, {})

    assert draft == Draft(
        topic="%RETRY%g",
        queue_id=0,
        body=memoryview(b"body"),
        properties="A\x01x",
        born_time_ms=1_700_000_000_000,
        born_host=pack_host("1.2.3.4", 5),
        flag=7,
        sysflag=Sysflag.ZLIB | Sysflag.COMPRESSED,
        reconsume_times=2,
    )


def test_how_often_it_was_consumed_may_be_said() -> None:
    """H1"""
    assert [2, 0, 3] == [
        rewrite(record(""), "t", 0, {}, reconsume_times=times).reconsume_times for times in (None, 0, 3)
    ]


@given(had=PAIRS, changes=st.dictionaries(NAMES, st.sampled_from(["", "z", "w"])), is_closed=st.booleans())
def test_properties_are_set_and_removed_and_all_others_stay(
    had: dict[str, str], changes: dict[str, str], is_closed: bool
) -> None:
    """H1, I1: whether the last pair is ended, as 5.2 does, or not."""
    text = join(had)
    draft = rewrite(record(text if is_closed else text.removesuffix("\x02")), "t", 0, changes)

    assert {name: value for name, value in {**had, **changes}.items() if value} == parse(draft.properties)
    assert [name for name in had if name not in changes] == [
        name for name in parse(draft.properties) if name not in changes
    ]
