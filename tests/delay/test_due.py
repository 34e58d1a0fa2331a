"""When a message is due (I2, I3): arithmetic on property texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.delay.due import SLOT_MS, TIME_MAX_MS, asked_time, own_queue, slot_of, stored_place, stored_waiting
from ternmq.errors import InvalidHandle, MessageIllegal
from ternmq.wire.properties import find, join
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

    def stored_due(wish: dict[str, str], slot_ms: int, store_time_ms: int) -> int:
        waiting = stored_waiting(join(wish | {"TIMER_OUT_MS": str(slot_ms), "REAL_TOPIC": "t", "REAL_QID": "0"}))
        assert waiting is not None
        return waiting.due_ms(store_time_ms)

    moment, delay = {"TIMER_DELIVER_MS": str(due_ms)}, {"TIMER_DELAY_MS": str(delay_ms)}
    if slot_of(due_ms):
        assert due_ms == stored_due(moment, slot_of(due_ms), store_ms)
    assert store_ms + delay_ms == stored_due(delay, slot_of(store_ms + delay_ms), store_ms)
    # RocketMQ has written the record again, an hour later.
    rolled = stored_due(delay, slot_of(store_ms + delay_ms), store_ms + 3_600_000)
    assert store_ms + delay_ms <= rolled <= store_ms + delay_ms + SLOT_MS
    # What is not a time is left to the slot.
    assert slot_of(due_ms) + SLOT_MS == stored_due({"TIMER_DELAY_MS": "-5"}, slot_of(due_ms), store_ms)


@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from(("TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "A")),
            st.sampled_from(("", "7", "77", "t", "x\x01y", "253402300800000", "12345678901234")),
        ),
        max_size=8,
    ),
    is_ended=st.booleans(),
)
def test_the_quick_way_to_slot_and_topic_finds_what_the_slow_one_does(
    pairs: list[tuple[str, str]], is_ended: bool
) -> None:
    """I2: whatever else stands in the text; of two pairs with one name the last counts."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    text = text if is_ended else text[:-1]
    out, topic = find(text, "TIMER_OUT_MS"), find(text, "REAL_TOPIC")
    is_valid = out is not None and out.isdigit() and int(out) < TIME_MAX_MS and topic is not None
    assert ((int(out or 0), topic) if is_valid else None) == stored_place(text)
    own = own_queue(text)
    if own is not None:
        queue_id = find(text, "REAL_QID") or ""
        assert (int(out or "-1"), topic, int(queue_id)) == own


def test_the_queue_of_a_waiting_record_is_found() -> None:
    """I2: as the intake writes it; anything else takes the long way."""
    place = "TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
    assert (5000, "orders", 3) == own_queue(f"A\x01b\x02{place}")
    for text in (
        "",
        "A\x01b\x02",
        place[:-1],
        f"{place}A\x01b\x02",
        place.replace("5000", "x"),
        place.replace("3", ""),
    ):
        assert own_queue(f"A\x01b\x02{text}") is None


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
        wish = asked_time(join(pairs))
        assert wish is not None
        found.append((wish.name, wish.due_ms(1000)))
        pairs.popitem()
    assert [
        ("TIMER_DELAY_SEC", 2000),
        ("TIMER_DELAY_MS", 1002),
        ("TIMER_DELIVER_MS", 3),
        ("__STARTDELIVERTIME", 4),
    ] == found
    assert asked_time("TAGS\x01A\x02") is None


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٣", " 1", "1e3"])
def test_a_value_that_is_no_time_is_refused(text: str) -> None:
    """I2"""
    with pytest.raises(MessageIllegal, match="invalid TIMER_DELAY_MS"):
        asked_time(join({"TIMER_DELAY_MS": text}))


def test_a_value_beyond_all_times_is_refused_and_zeros_in_front_do_not_count() -> None:
    """I2: a sender that means "never" is told that there is a limit."""
    for text in ("1" * 19, "9" * 9_000):
        with pytest.raises(MessageIllegal, match=r"TIMER_DELAY_MS .* lies beyond any limit: see timerMaxDelaySec"):
            asked_time(join({"TIMER_DELAY_MS": text}))
    for text in ("0" * 30, "0" * 9_000 + "7"):
        wish = asked_time(join({"TIMER_DELAY_MS": text}))
        assert wish is not None
        assert int(text[-1]) == wish.ms


@pytest.mark.parametrize("text", ["", "x", "-5", "9" * 16, "253402300800000"])
def test_a_slot_that_is_no_time_is_none(text: str) -> None:
    """I2: a log of another origin may hold anything."""
    assert stored_place(f"A\x01b\x02TIMER_OUT_MS\x01{text}\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02") is None


@given(
    topic=st.from_regex(r"[a-zA-Z0-9_%-]{1,20}", fullmatch=True),
    slot_ms=st.integers(0, 10**13),
    log_offset=st.none() | st.integers(0, 2**60),
)
def test_a_recall_handle_is_read_back(topic: str, slot_ms: int, log_offset: int | None) -> None:
    """I2: also without the padding, which Java may leave out."""
    handle = RecallHandle(topic, "broker-a", slot_ms, "C0A8", log_offset)
    assert handle == parse_handle(handle.text()) == parse_handle(handle.text().rstrip("="))


def test_a_key_may_have_blanks() -> None:
    """I2: it is the sender's own."""
    handle = RecallHandle("orders", "broker-a", 1_000, "my own key 7", 700)
    assert handle == parse_handle(handle.text())


def test_rocketmqs_handle_is_read() -> None:
    """I2: the words are those of RocketMQ 5.3."""
    assert "djEgdG9waWMgYnJva2VyLTAgMTcwMSBJRA==" == RecallHandle("topic", "broker-0", 1700, "ID").text()


@given(text=st.text(max_size=200).filter(lambda text: not text.startswith("djEg")))
def test_any_other_text_is_refused(text: str) -> None:
    """I2"""
    with pytest.raises(InvalidHandle, match="expected the recall_handle"):
        parse_handle(text)
