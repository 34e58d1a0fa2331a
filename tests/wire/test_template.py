"""Replies prepared in advance are those that the general way makes (B1)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.wire.frame import FrameDecoder, encode_reply
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PullReply, SendReply
from ternmq.wire.template import ReplyTemplate


@given(
    region=st.text(min_size=1),
    log_offset=st.integers(0, 2**63 - 1),
    queue_id=st.integers(0, 2**31 - 1),
    key=st.text("0123456789ABCDEF", min_size=1),
    opaque=st.integers(-(2**31), 2**31 - 1),
)
@example(region="50% @msgId@ 2000000011 «r»", log_offset=1, queue_id=2, key="A", opaque=3)
def test_a_filled_template_is_the_reply(region: str, log_offset: int, queue_id: int, key: str, opaque: int) -> None:
    """B1: whatever the constant fields hold, percent signs and quotes included."""
    template = ReplyTemplate(
        {"MSG_REGION": region, "TRACE_ON": "true"},
        {"msgId": "7F000001%016X", "queueId": "%d", "queueOffset": "%d", "transactionId": "%b"},
    )
    header = SendReply(
        message_id=f"7F000001{log_offset:016X}", queue_id=queue_id, queue_offset=5, transaction_id=key, region=region
    )
    request: Request[Any] = Request(code=310, opaque=opaque)

    filled = template.fill((log_offset, queue_id, 5, key.encode(), opaque))

    general = b"".join(encode_reply(request, Reply(header=header)))
    assert json.loads(general[8:]) == json.loads(filled[8:])
    assert FrameDecoder().feed(general) == FrameDecoder().feed(filled)


@given(
    numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 4),
    opaque=st.integers(-(2**31), 2**31 - 1),
    body=st.lists(st.binary(max_size=100), max_size=3),
)
def test_a_template_with_a_remark_takes_a_body(
    numbers: tuple[int, int, int, int], opaque: int, body: list[bytes]
) -> None:
    """B1, F3: the answer to a pull that has waited."""
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    template = ReplyTemplate({}, dict.fromkeys(names, "%d"), remark="FOUND")
    broker_id, next_offset, low, high = numbers
    header = PullReply(suggested_broker_id=broker_id, next_offset=next_offset, min_offset=low, max_offset=high)
    request: Request[Any] = Request(code=11, opaque=opaque)
    reply = Reply(header=header, remark="FOUND", body=[memoryview(part) for part in body])

    filled = template.fill_with((*numbers, opaque), body)

    assert b"".join(encode_reply(request, reply)) == filled


def test_a_template_needs_no_constant_fields() -> None:
    """B1"""
    filled = ReplyTemplate({}, {"offset": "%d"}).fill((7, 1))

    assert json.loads(filled[8:])["extFields"] == {"offset": "7"}
