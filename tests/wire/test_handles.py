"""The texts of pop on the wire (F9)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.wire.handles import (
    RETRY_V1,
    RETRY_V2,
    Handle,
    OffsetInfos,
    parse_counts,
    parse_messages,
    parse_starts,
    real_topic,
)

#: As Java's client makes it (``ExtraInfoUtil.buildExtraInfo``).
JAVA = "5 1794788104004 60000 7 0 broker-a 0 6"


def test_a_handle_of_javas_is_read_and_written_again() -> None:
    """F9"""
    handle = Handle.parse(JAVA)

    assert Handle(5, 1794788104004, 60000, 7, 0, "broker-a", 0, 6) == handle
    assert JAVA == handle.text
    assert (5, 1794788104004, 7) == Handle.check_point(JAVA)
    assert not handle.is_ordered
    assert handle._replace(revive_queue_id=999).is_ordered


def test_what_the_proxy_appends_is_left_aside() -> None:
    """F9, issue 13.15: the log offset, as a ninth field."""
    assert Handle.parse(JAVA) == Handle.parse(JAVA + " 4096")
    assert Handle.check_point(JAVA) == Handle.check_point(JAVA + " 4096")


@pytest.mark.parametrize("text", ["", "5", JAVA.replace("60000", "x"), JAVA[:-2]])
def test_what_is_no_handle_is_refused_with_what_one_is(text: str) -> None:
    """F9: seven fields, as clients before 5.0 had, are none either."""
    with pytest.raises(RemoteProtocolError, match="send its property POP_CK"):
        Handle.parse(text)
    if text.count(" ") < 4:
        with pytest.raises(RemoteProtocolError):
            Handle.check_point(text)


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    """F9"""
    with contextlib.suppress(RemoteProtocolError):
        Handle.parse(text)


def test_a_flag_tells_the_topic_that_a_message_was_popped_from() -> None:
    """F9: both forms of retry topics."""
    assert "orders" == real_topic("g", "orders", 0)
    assert "%RETRY%g_orders" == Handle.parse(JAVA)._replace(retry=RETRY_V1).real_topic("g", "orders")
    assert "%RETRY%g+orders" == Handle.parse(JAVA)._replace(retry=RETRY_V2).real_topic("g", "orders")


def test_what_a_reply_says_of_its_messages_is_read_again() -> None:
    """F9: one entry for each queue."""
    infos = OffsetInfos()
    infos.add(0, 3, 10, range(10, 13))
    infos.add(RETRY_V1, 0, 7, [7, 9])
    infos.add_counts(3, {11: 2}, least=0)

    assert "0 3 10;1 0 7" == infos.starts
    assert "0 3 10,11,12;1 0 7,9" == infos.messages
    assert "0 qo3%11 2;0 3 0" == infos.counts
    assert {(0, 3): 10, (1, 0): 7} == parse_starts(infos.starts)
    assert {(0, 3): [10, 11, 12], (1, 0): [7, 9]} == parse_messages(infos.messages)
    assert ({3: 0}, {(3, 11): 2}) == parse_counts(infos.counts)
    assert ({}, {}) == (parse_starts(None), parse_messages(""))


@given(st.text())
def test_any_text_in_a_reply_is_read_or_refused(text: str) -> None:
    """F9"""
    for parse in (parse_starts, parse_messages, parse_counts):
        with contextlib.suppress(RemoteProtocolError):
            parse(text)
