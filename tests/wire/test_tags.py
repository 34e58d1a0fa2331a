"""The tags of a property text (C2): one rule for fresh messages, for recovery and for tools."""

from __future__ import annotations

import pytest

from ternmq.wire.ids import java_hash
from ternmq.wire.tags import TAGS_MAX, TagsCodes, tags_code

TEXTS = {
    "": "",
    "TAGS\x01red\x02": "red",
    "TAGS\x01red": "red",
    "A\x011\x02TAGS\x01red\x02B\x012\x02": "red",
    "MYTAGS\x01red\x02": "",
    "TAGS\x01red\x02TAGS\x01blue\x02": "blue",
    "TAGS\x01red\x02TAGS\x01\x02": "red",
    "TAGS\x01\x02": "",
    "A\x01TAGS\x02": "",
    "TAGS\x01größe\x02": "größe",
}


@pytest.mark.parametrize("text", TEXTS)
def test_all_ways_to_a_tags_code_agree(text: str) -> None:
    """C2: a fold of the log equals what was there when the message was fresh."""
    expected, codes, data = java_hash(TEXTS[text]), TagsCodes(), b"\x02TAGS\x01before\x02" + text.encode() + b"behind"
    begin, end = len(b"\x02TAGS\x01before\x02"), len(data) - len(b"behind")

    assert expected == tags_code(text)
    for _ in range(2):  # the second time it is known
        assert expected == codes.of_text(text)
        assert expected == codes.of_bytes(data, begin, end)


def test_the_table_of_tags_is_bounded() -> None:
    """C2: a sender that makes up a tag for each message fills no memory."""
    codes = TagsCodes()
    for number in range(TAGS_MAX + 10):
        text = f"TAGS\x01{number}\x02"
        codes.of_text(text)
        codes.of_bytes(text.encode(), 0, len(text))
    assert 10 == len(codes._of_text) == len(codes._of_bytes)
