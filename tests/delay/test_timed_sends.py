"""The kernel of sends with a delivery time stores what the long way stores, or leaves a send to it (I2, E1, C1, C4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.delay import timer as timer_module
from ternmq.delay.runs import TimedRuns
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import Timer
from ternmq.errors import StoreError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import TIMER_PROPERTIES
from ternmq.names import WHEEL_TOPIC
from ternmq.store.derived.key_hash import MADE_ENTRY, KeyHashes
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.wire.frame import FrameDecoder, request_in
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.properties import closed, find
from ternmq.wire.recall import parse_handle
from ternmq.wire.record import Sysflag, pack_record, record_bytes, unpack_record
from ternmq.wire.requests import SendReply
from ternmq.wire.tags import tags_code
from ternmq.wire.template import ReplyTemplate
from tests.manual_clock import ManualClock
from tests.store.small import BORN, HOST, draft, small_config
from tests.test_send_kernel import HOLES, MASK, framed, header_text

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

MORE: Final = "CLUSTER\x01c\x02"
MARK: Final = "TRAN_MSG\x01"
REPLY: Final = ReplyTemplate({"MSG_REGION": '100 %d "quoted"'}, {**HOLES, "recallHandle": "%b"})
LOG_OFFSET, QUEUE_OFFSET = 1_000_000, 77
MAX_DELAY_SEC: Final = 100_000
NOW_MS: Final = ManualClock().now_ms()
TOPIC_FIELD: Final = bytes((len(WHEEL_TOPIC),)) + WHEEL_TOPIC.encode()
FORM: Any = native.ReplyForm(REPLY.parts()) if HAS_NATIVE else None
KEY: Final = "UNIQ_KEY\x01A1\x02"


def timer() -> Timer:
    return Timer(
        clock=ManualClock(),
        broker_name="broker-é",
        is_enabled=True,
        max_delay_sec=MAX_DELAY_SEC,
        announce=lambda *_: None,
    )


def terms(**changes: Any) -> Any:
    given: dict[str, Any] = {"body_bytes_max": 1 << 20, "record_bytes_max": 1 << 20} | changes
    marks = [MARK.encode(), b"DELAY\x01"]
    return native.SendTerms(store_host=HOST, more_properties=MORE.encode(), marks=marks, sysflag_mask=MASK, **given)


def stored(sends: Any, page: bytearray, first: int = 0, **changes: Any) -> Any:
    """What the kernel makes of a run, if all its queues are plain."""
    given: dict[str, Any] = {
        "terms": terms(),
        "form": FORM,
        "at": 0,
        "end": len(page),
        "log_offset": LOG_OFFSET,
        "store_time_ms": NOW_MS,
        "max_delay_ms": MAX_DELAY_SEC * 1000,
        "born_host": BORN,
        "broker_name": "broker-é",
        "may_wait": [True for _ in sends.places],
        "queue_offset": QUEUE_OFFSET,
        "topic_field": TOPIC_FIELD,
    } | changes
    of_run, form = given.pop("terms"), given.pop("form")
    at, end = given.pop("at"), given.pop("end")
    return native.store_timed_sends(sends, of_run, form, first, page, at, end, **given)


def check(data: bytes) -> bool:
    """If the kernel takes the first frame, it makes of it what the long way makes; whether it does."""
    sends = native.parse_sends(data, 0, 1 << 24)
    if sends is None:
        return False
    page = bytearray(1 << 17)
    made = stored(sends, page)
    if made is None:
        assert not any(page)
        return False
    number, end_offset, last_offset, (entries, log_end, body_bytes, tags), sent, keys, replies = made
    request: Any = request_in(sends, 0)
    header = request.header
    text = closed(header.properties)
    message = Draft(header.topic, header.queue_id, request.body, text + MORE, header.born_time_ms, BORN)
    waits = timer()
    with mock.patch.object(timer_module, "HAS_NATIVE", False):
        waits.redirect(message)
    assert WHEEL_TOPIC == message.topic
    assert MARK not in text
    size = record_bytes(
        body=len(request.body),
        topic=len(WHEEL_TOPIC),
        properties=len(message.properties.encode()),
        born_host=len(BORN),
        store_host=len(HOST),
    )
    expected = bytearray(size)
    pack_record(
        expected,
        0,
        size=size,
        queue_id=0,
        flag=header.flag,
        queue_offset=QUEUE_OFFSET,
        log_offset=LOG_OFFSET,
        sysflag=header.sysflag & ~(Sysflag.TRANSACTION_MASK | Sysflag.BORN_V6 | Sysflag.STORE_V6),
        born_time_ms=header.born_time_ms,
        born_host=BORN,
        store_time_ms=NOW_MS,
        store_host=HOST,
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=request.body,
        topic=WHEEL_TOPIC.encode(),
        properties=message.properties.encode(),
    )
    assert expected == page[:size]
    assert (LOG_OFFSET, size, tags_code(message.properties)) == ENTRY.unpack_from(entries)
    keyed = [(WHEEL_TOPIC, message.properties, LOG_OFFSET, NOW_MS)]
    count = len(KeyHashes().entries(keyed))
    assert KeyHashes().entries(keyed) == [*MADE_ENTRY.iter_unpack(keys)][:count]
    unique_key = find(text, "UNIQ_KEY")
    assert unique_key
    handle = waits.handle(message, LOG_OFFSET, unique_key)
    assert handle is not None
    assert LOG_OFFSET == parse_handle(handle).log_offset
    values = (LOG_OFFSET, header.queue_id, QUEUE_OFFSET, unique_key.encode(), handle.encode(), request.opaque)
    assert request.oneway or replies.startswith(REPLY.fill(values))
    if sends.count == 1:
        assert (1, LOG_OFFSET + size, LOG_OFFSET) == (number, end_offset, last_offset)
        assert (log_end, body_bytes) == (end_offset, len(request.body))
        assert [(tags_code(text), QUEUE_OFFSET + 1)] == tags
        assert [(0, 1, len(request.body))] == sent
        assert replies == (b"" if request.oneway else REPLY.fill(values))
        assert not any(page[size:])
    return True


def timed(number: int, *, topic: str = "orders", properties: str = "TIMER_DELAY_SEC\x0190\x02") -> bytes:
    return framed(header_text(b=topic, e=str(number % 4), i=KEY + properties).encode(), b"body %d" % number)


def test_each_way_to_ask_for_a_time_is_taken() -> None:
    """I2: relative and absolute; other properties around it, and topics and keys of any length."""
    for name, value in zip(TIMER_PROPERTIES, ("90", "90000", str(NOW_MS + 90_000), str(NOW_MS + 1)), strict=True):
        assert check(timed(0, properties=f"{name}\x01{value}\x02"))
        assert check(timed(0, properties=f"TAGS\x01é\x02{name}\x01{value}\x02KEYS\x01a b"))
    for length in range(1, 128):
        assert check(timed(0, topic="t" * length))
    # Not escaped in the JSON.
    text = header_text(b="TOPIC", i=f"{KEY}TIMER_DELAY_SEC\x0190\x02")
    assert check(framed(text.replace("TOPIC", "é-𝄞").encode()))
    assert check(framed(text.replace('"flag":0', '"flag":2').encode()))


def test_the_limit_is_hit_exactly() -> None:
    """I2: just now is past, and the longest delay is one."""
    for value, is_taken in ((0, False), (1, True), (MAX_DELAY_SEC * 1000, True), (MAX_DELAY_SEC * 1000 + 1, False)):
        assert is_taken is check(timed(0, properties=f"TIMER_DELAY_MS\x01{value}\x02"))
        assert is_taken is check(timed(0, properties=f"TIMER_DELIVER_MS\x01{NOW_MS + value}\x02"))


wishes = st.lists(
    st.tuples(
        st.sampled_from((*TIMER_PROPERTIES, "DELAY", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_ROLL_TIMES"))
        | st.sampled_from(("TIMER_DEL_UNIQKEY", "UNIQ_KEY", "TAGS", "KEYS", "XTIMER_OUT_MS", "TRAN_MSG", "T", "")),
        st.sampled_from(("", "0", "5", "0005", "90000", "-1", "x", "٣", "9" * 18, "9" * 19, "a\x01b", "é", '"', "\0"))
        | st.just(str(NOW_MS + 100_000)),
    ),
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(wishes, st.booleans(), st.sampled_from(("orders", "é", "t" * 127)), st.sampled_from(("-1", "0", "3", "01")))
def test_any_properties_are_stored_as_on_the_long_way_or_left(
    pairs: list[tuple[str, str]], ends: bool, topic: str, number: str
) -> None:
    """I2, C1, C4: what the long way refuses, or does not let wait, is never taken."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in [("UNIQ_KEY", "A1"), *pairs])[: None if ends else -1]
    data = framed(header_text(b=topic, i=text, e=number, f=number, g=number, h=number, j=number).encode())
    check(data)


def test_a_run_ends_before_what_has_no_time_or_no_room() -> None:
    """I2, E1: what was before it is stored; queues that may not be written to take none."""
    plain = framed(header_text(i=KEY).encode())
    data = timed(0) + timed(1, topic="bills") + timed(2) + plain + timed(4)
    sends: Any = native.parse_sends(data, 0, 1 << 24)
    page = bytearray(1 << 16)
    made = stored(sends, page)
    assert 3 == made[0]
    assert [("orders", 2), ("bills", 1)] == [
        (topic, sum(count for place, count, _ in made[4] if sends.places[place][0] == topic))
        for topic in ("orders", "bills")
    ]
    responses: list[Any] = [*FrameDecoder().feed(made[6])]
    replies = [response.read(SendReply) for response in responses]
    assert [(QUEUE_OFFSET + number, number) for number in range(3)] == [
        (reply.queue_offset, reply.queue_id) for reply in replies
    ]
    assert ["orders", "bills", "orders"] == [parse_handle(reply.recall_handle or "").topic for reply in replies]
    assert stored(sends, page, 3) is None
    assert 5 == stored(sends, page, 4)[0]
    assert 1 == stored(sends, page, may_wait=[place[0] == "orders" for place in sends.places])[0]
    size = ENTRY.unpack_from(made[3][0])[1]
    for room_bytes, changes in (
        (size - 1, {}),
        (size, {"terms": terms(record_bytes_max=size - 1)}),
        (size, {"terms": terms(body_bytes_max=5)}),
        (size, {"may_wait": []}),
        (size, {"born_host": bytes(20)}),
        (size, {"topic_field": b""}),
        (size, {"at": 10, "end": 5}),
        (size, {"end": size + 1}),
        (size, {"form": native.ReplyForm(REPLY.parts()[1:])}),
    ):
        room = bytearray(room_bytes)
        assert stored(sends, room, **changes) is None
        assert not any(room)
    assert 1 == stored(sends, bytearray(size))[0]
    assert stored(sends, page, 9) is None


def opened(root: Path, rings: list[int] | None = None, **changes: Any) -> tuple[MessageStore, ScheduleLog]:
    config = small_config(root, mapped_file_size_commit_log=1 << 20, **changes)
    schedule = ScheduleLog(FileDisk(), root, ring=(rings if rings is not None else list[int]()).append)
    store = MessageStore.open(config, store_host=HOST, clock=ManualClock(), derived=(schedule,), threads=False)
    store.put(draft("orders", 0, b"first"))
    return store, schedule


def test_what_is_folded_stays_in_memory_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: runs are written out when there is too much; a disk that is full loses none of them."""
    limit_bytes = 20_000
    monkeypatch.setattr("ternmq.delay.schedule_log.BUFFER_BYTES", limit_bytes)
    store, schedule = opened(tmp_path)
    waits = Timer(
        clock=ManualClock(), broker_name="a", is_enabled=True, max_delay_sec=MAX_DELAY_SEC, announce=schedule.announce
    )
    message = draft("orders", 0, b"second", TIMER_DELAY_SEC="90", UNIQ_KEY="A0")
    waits.redirect(message)
    store.put(message)
    runs = waits.runs(store.put_packed)
    of_runs = store.run_terms(MORE.encode(), [MARK.encode()])
    assert runs is not None
    assert of_runs is not None
    data = b"".join(timed(number) for number in range(10))
    sends: Any = native.parse_sends(data, 0, 1 << 24)

    def send() -> None:
        run = runs.store(sends, 0, lambda *_: True, terms=of_runs, form=FORM, born_host=BORN)
        assert run is not None
        assert 10 == run.next

    for _ in range(20):
        send()
        assert schedule._buffered_bytes < limit_bytes + len(data) + 10 * 400
    failing = mock.patch.object(ScheduleLog, "_write_hours", side_effect=StoreError("the disk is full"))
    while schedule._buffered_bytes < limit_bytes:
        send()
    count = schedule.waiting
    with failing:
        send()
    assert count + 10 == schedule.waiting == schedule.topics_waiting["orders"]
    store.close()
    [files] = schedule.hours()
    assert count + 10 == files.entry_count
    offsets = []
    for entry in files.all_entries():
        assert entry is not None
        record = unpack_record(files.record(entry))
        assert record.log_offset == entry.log_offset
        offsets.append(record.queue_offset)
    assert [*range(count + 10)] == offsets
    schedule.close()


def test_the_runner_is_told_of_the_first_that_is_due_and_nothing_is_folded_twice(tmp_path: Path) -> None:
    """I3, C5: a part leaves what it has, also if the log is folded again."""
    rings: list[int] = []
    store, schedule = opened(tmp_path, rings)
    store.put(draft(WHEEL_TOPIC, 0, b""))
    runs = TimedRuns(store.put_packed, broker_name="a", max_delay_ms=MAX_DELAY_SEC * 1000)
    data = b"".join(
        timed(number, properties=f"TIMER_DELAY_SEC\x01{sec}\x02") for number, sec in enumerate((90, 30, 60))
    )
    sends: Any = native.parse_sends(data, 0, 1 << 24)
    begin = store.written
    run = runs.store(sends, 0, lambda *_: True, terms=terms(), form=FORM, born_host=BORN)
    assert run is not None
    assert [NOW_MS + 30_000] == rings
    entries = b"".join(ENTRY.pack(*entry) for entry in store.entries(WHEEL_TOPIC, 0, 1, 3))
    view = store._log.view(begin, store.written - begin)
    assert view is not None
    with view:
        assert 3 == schedule.fold_run(entries, view, begin)
        dispatcher = store._loaded.dispatcher
        with mock.patch.object(ScheduleLog, "fold_run") as again:
            dispatcher.fold_run(WHEEL_TOPIC, entries, view, begin)
        again.assert_not_called()
    assert 3 == schedule.waiting == schedule.topics_waiting["orders"]
    assert [NOW_MS + 30_000] == rings
    store.close()
    schedule.close()


def test_units_beside_entries_are_made_the_long_way(tmp_path: Path) -> None:
    """C3: of facts; and the queue of the timer topic is made by its first message."""
    for name, has_units in (("a", False), ("b", True)):
        store, schedule = opened(tmp_path / name, enable_consume_queue_ext=has_units)
        runs = TimedRuns(store.put_packed, broker_name="a", max_delay_ms=MAX_DELAY_SEC * 1000)
        sends: Any = native.parse_sends(timed(0), 0, 1 << 24)

        def send(runs: TimedRuns = runs, sends: Any = sends) -> Any:
            return runs.store(sends, 0, lambda *_: True, terms=terms(), form=FORM, born_host=BORN)

        assert send() is None
        store.put(draft(WHEEL_TOPIC, 0, b""))
        assert has_units is (send() is None)
        store.close()
        schedule.close()


@pytest.mark.parametrize("topic", ["%DLQ%g", "%RETRY%g", WHEEL_TOPIC, "SCHEDULE_TOPIC_XXXX"])
def test_topics_whose_messages_never_wait_are_left(topic: str, tmp_path: Path) -> None:
    """I2: retries, dead letters, and topics of the system."""
    store, schedule = opened(tmp_path)
    store.put(draft(WHEEL_TOPIC, 0, b""))
    runs = TimedRuns(store.put_packed, broker_name="a", max_delay_ms=MAX_DELAY_SEC * 1000)
    for name, is_taken in ((topic, False), ("orders", True)):
        sends: Any = native.parse_sends(timed(0, topic=name), 0, 1 << 24)
        run = runs.store(sends, 0, lambda *_: True, terms=terms(), form=FORM, born_host=BORN)
        assert is_taken is (run is not None)
    store.close()
    schedule.close()
