"""The text form of trace records (U4, Q2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.wire.trace import AFTER, BAD, BEFORE, END_TRANSACTION, PUB, RECALL, TraceRecord, parse

#: As Java's clients wrote them: a batch of two, a call of a listener that failed, and one more with a success.
PUB_TEXT = (
    b"Pub\x011794799196493\x01DefaultRegion\x01shop\x01orders\x01FD0006,FD0007\x01null\x01null\x01127.0.0.1:33693\x01206"
    b"\x012\x010\x017F0303,7F03F4\x01true\x02"
)
CALL_TEXT = (
    b"SubBefore\x011794799263474\x01DefaultRegion\x01billing\x01FD0001\x01FD0006\x010\x01k-1\x02"
    b"SubAfter\x01FD0001\x01FD0006\x011\x01false\x01k-1\x014\x011794799263475\x01billing\x02"
)


def kinds(body: bytes) -> list[str]:
    return [record.kind for record in parse(body)]


def test_records_of_java_are_read() -> None:
    """U4: several in one body, and a batch is as many records as messages."""
    sent = {
        "time_ms": 1794799196493,
        "group": "shop",
        "topic": "orders",
        "broker": "127.0.0.1:33693",
        "body_bytes": 206,
        "cost_ms": 2,
        "message_type": 0,
        "success": True,
        "region": "DefaultRegion",
    }
    assert [
        TraceRecord(PUB, message_id="FD0006", offset_id="7F0303", **sent),  # type: ignore[arg-type]
        TraceRecord(PUB, message_id="FD0007", offset_id="7F03F4", **sent),  # type: ignore[arg-type]
        TraceRecord(
            BEFORE, 1794799263474, "billing", None, "FD0006", "FD0001", keys="k-1", retries=0, region="DefaultRegion"
        ),
        TraceRecord(
            AFTER, 1794799263475, "billing", None, "FD0006", "FD0001", keys="k-1", cost_ms=1, success=False, code=4
        ),
    ] == list(parse(PUB_TEXT + CALL_TEXT))


def test_forms_of_other_clients_are_read() -> None:
    """U4: with and without an offset id, with the client's address, without time and group; other kinds."""
    before_ids = b"Pub\x011\x01r\x01g\x01t\x01A\x01null\x01null\x01b\x015\x012\x010\x01true\x02"
    with_host = b"Pub\x011\x01r\x01g\x01t\x01A\x01null\x01null\x01b\x015\x012\x010\x01F0\x01false\x01host\x02"
    assert [(None, True), ("F0", False)] == [
        (record.offset_id, record.success) for record in parse(before_ids + with_host)
    ]
    cloud = b"SubAfter\x01R\x01A\x011\x01true\x01null\x010\x02"
    assert [(None, None, True)] == [(record.time_ms, record.group, record.success) for record in parse(cloud)]
    end = b"EndTransaction\x011\x01r\x01g\x01t\x01A\x01null\x01k\x01b\x012\x01tx\x01COMMIT_MESSAGE\x01false\x02"
    recall = b"Recall\x011\x01r\x01g\x01t\x01A\x01true\x02"
    go = b"SubBefore\x011\x01r\x01g\x01R\x01A\x010\x01null\x01host\x02"
    assert [END_TRANSACTION, RECALL, BEFORE] == kinds(end + recall + go)


def test_a_record_that_cannot_be_read_is_counted_and_the_others_are_read() -> None:
    """U4."""
    torn = PUB_TEXT[:40] + b"\x02"
    wrong_number = CALL_TEXT.replace(b"1794799263474", b"yesterday")
    huge = CALL_TEXT.replace(b"1794799263474", b"9" * 18)
    assert [BAD, PUB, PUB, BAD, AFTER, BAD, AFTER, BAD] == kinds(
        torn + PUB_TEXT + wrong_number + huge + b"Perhaps\x01\x02"
    )
    assert ["Perhaps\x01"] == [record.text for record in parse(b"Perhaps\x01\x02\x02")]


FIELDS = st.one_of(
    st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "null", "", "true", "1", "-3", "a,b"]),
    st.text(max_size=5),
)


@given(st.lists(st.lists(FIELDS, max_size=16), max_size=4))
def test_any_text_is_read_or_counted(records: list[list[str]]) -> None:
    """U4: no message in the trace topic ends a job."""
    body = "".join("\x01".join(fields) + "\x02" for fields in records).encode("utf-8", "replace")
    for record in parse(body):
        assert (record.text is None) == (record.kind != BAD)
        assert record.kind == BAD or record.message_id


@given(st.binary(max_size=60), st.integers(0, len(PUB_TEXT + CALL_TEXT)))
def test_bytes_in_the_middle_spoil_only_their_own_record(noise: bytes, at: int) -> None:
    """U4: what stands before and after it is read as ever."""
    body = PUB_TEXT + CALL_TEXT
    spoiled = list(parse(body[:at] + noise + body[at:]))
    before = list(parse(body[: body.rfind(b"\x02", 0, at) + 1]))
    end = body.find(b"\x02", at)
    after = list(parse(body[end + 1 :])) if end >= 0 else []
    assert before == spoiled[: len(before)]
    assert after == spoiled[len(spoiled) - len(after) :]
