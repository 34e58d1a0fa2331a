"""When a message is due (I2, I3): arithmetic on property texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.delay.due import SLOT_MS, asked_time, slot_of, stored_due, stored_slot
from ternmq.errors import InvalidHandle, MessageIllegal
from ternmq.wire.properties import join
from ternmq.wire.recall import RecallHandle, parse_handle

TIMES = st.integers(1, 10**13)


@given(due_ms=TIMES)
def test_the_slot_is_the_last_whole_second_before_a_time(due_ms: int) -> None:
    """I2: as RocketMQ 5.2.0 computes it."""
    slot_ms = slot_of(due_ms)
    assert slot_ms < due_ms <= slot_ms + SLOT_MS
    assert slot_ms == (due_ms - 1000 if due_ms % 1000 == 0 else due_ms // 1000 * 1000)


@given(due_ms=TIMES, store_ms=TIMES, delay_ms=st.integers(0, 10**9))
def test_a_stored_message_is_due_when_it_was_asked_for(due_ms: int, store_ms: int, delay_ms: int) -> None:
    """I3: to the ms, by a moment or by a delay; the end of the slot if the record says something else."""
    moment = join({"TIMER_DELIVER_MS": str(due_ms)})
    assert due_ms == stored_due(moment, slot_of(due_ms), store_ms)
    delay = join({"TIMER_DELAY_MS": str(delay_ms)})
    assert store_ms + delay_ms == stored_due(delay, slot_of(store_ms + delay_ms), store_ms)
    # RocketMQ has written the record again, an hour later.
    rolled = stored_due(delay, slot_of(store_ms + delay_ms), store_ms + 3_600_000)
    assert store_ms + delay_ms <= rolled <= store_ms + delay_ms + SLOT_MS


def test_the_properties_have_an_order() -> None:
    """I2: seconds before ms before a moment, as in RocketMQ; Aliyun's last."""
    pairs = {
        "__STARTDELIVERTIME": "4",
        "TIMER_DELIVER_MS": "3",
        "TIMER_DELAY_MS": "2",
        "TIMER_DELAY_SEC": "1",
    }
    found = []
    while pairs:
        found.append(asked_time(join(pairs), 1000))
        pairs.popitem()
    assert [
        ("TIMER_DELAY_SEC", 2000),
        ("TIMER_DELAY_MS", 1002),
        ("TIMER_DELIVER_MS", 3),
        ("__STARTDELIVERTIME", 4),
    ] == found
    assert asked_time("TAGS\x01A\x02", 0) is None


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٣", " 1", "1" * 19])
def test_a_value_that_is_no_time_is_refused(text: str) -> None:
    """I2"""
    with pytest.raises(MessageIllegal, match="invalid TIMER_DELAY_MS"):
        asked_time(join({"TIMER_DELAY_MS": text}), 0)


@pytest.mark.parametrize("text", ["", "x", "-5", "9" * 16, "253402300800000"])
def test_a_slot_that_is_no_time_is_none(text: str) -> None:
    """I2: a log of another origin may hold anything."""
    assert stored_slot(f"TIMER_OUT_MS\x01{text}\x02") is None


@given(
    topic=st.from_regex(r"[a-zA-Z0-9_%-]{1,20}", fullmatch=True),
    slot_ms=st.integers(0, 10**13),
    log_offset=st.none() | st.integers(0, 2**60),
)
def test_a_recall_handle_is_read_back(topic: str, slot_ms: int, log_offset: int | None) -> None:
    """I2: also without the padding, which Java may leave out."""
    handle = RecallHandle(topic, "broker-a", slot_ms, "C0A8", log_offset)
    assert handle == parse_handle(handle.text()) == parse_handle(handle.text().rstrip("="))


def test_rocketmqs_handle_is_read() -> None:
    """I2: the words are those of RocketMQ 5.3."""
    assert "djEgdG9waWMgYnJva2VyLTAgMTcwMSBJRA==" == RecallHandle("topic", "broker-0", 1700, "ID").text()


@given(text=st.text(max_size=200).filter(lambda text: not text.startswith("djEg")))
def test_any_other_text_is_refused(text: str) -> None:
    """I2"""
    with pytest.raises(InvalidHandle, match="expected the recall_handle"):
        parse_handle(text)
