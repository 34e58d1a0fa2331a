"""Replies prepared in advance are those that the general way makes (B1)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.wire.frame import FrameDecoder, encode_reply
from ternmq.wire.handles import OffsetInfos
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PopReply, PullReply, SendReply
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


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5), body=st.binary(max_size=9))
def test_a_reply_with_a_prepared_header_has_the_bytes_of_the_usual_one(numbers: list[int], body: bytes) -> None:
    """B1, D4: with a remark and a body; without constant fields, the order is the same, too."""
    broker_id, next_offset, min_offset, max_offset, opaque = numbers
    names = {"suggestWhichBrokerId": "%d", "nextBeginOffset": "%d", "minOffset": "%d", "maxOffset": "%d"}
    template = ReplyTemplate({}, names, remark="FOUND")
    header = PullReply(
        suggested_broker_id=broker_id, next_offset=next_offset, min_offset=min_offset, max_offset=max_offset
    )
    request: Request[Any] = Request(code=11, opaque=opaque)

    prepared = encode_reply(request, Reply(head=template.head(tuple(numbers)), body=body))

    assert encode_reply(request, Reply(header=header, remark="FOUND", body=body)) == prepared


@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5),
    places=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 2**63 - 1)), min_size=1, max_size=9
    ),
)
def test_a_reply_to_a_pop_with_a_prepared_header_has_the_bytes_of_the_usual_one(
    numbers: list[int], places: list[tuple[int, int, int]]
) -> None:
    """B1, F8: the texts need no escaping."""
    infos = OffsetInfos()
    for retry, queue_id, start in places:
        infos.add(retry, queue_id, start, range(start, start + 3))
    pop_time_ms, invisible_ms, revive_queue_id, rest_count, opaque = numbers
    header = PopReply(
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        revive_queue_id=revive_queue_id,
        rest_count=rest_count,
        start_offset_info=infos.starts,
        msg_offset_info=infos.messages,
    )
    names = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "%d")
    template = ReplyTemplate({}, names | {"startOffsetInfo": "%b", "msgOffsetInfo": "%b"}, remark="FOUND")
    request: Request[Any] = Request(code=200050, opaque=opaque)

    prepared = template.head((*numbers[:4], infos.starts.encode(), infos.messages.encode(), opaque))

    usual = encode_reply(request, Reply(header=header, remark="FOUND", body=b"body"))
    assert usual == encode_reply(request, Reply(head=prepared, body=b"body"))


def test_a_template_needs_no_constant_fields() -> None:
    """B1"""
    filled = ReplyTemplate({}, {"offset": "%d"}).fill((7, 1))

    assert json.loads(filled[8:])["extFields"] == {"offset": "7"}
