"""Frames that real RocketMQ programs exchanged (tests/data/README.md)."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Request

VERSIONS: Final = ("4.9.4", "5.2.0")
DATA: Final = Path(__file__).parent / "data"


def requests(version: str, code: int, *, to: str = "server") -> Iterator[Request[Any]]:
    """All recorded requests of one code, decoded, in order of arrival."""
    with gzip.open(DATA / "frames" / f"rocketmq-{version}.jsonl.gz") as lines:
        for line in map(json.loads, lines):
            if line["code"] == code and line["to"] == to and not line["flag"] & 1:
                (request,) = FrameDecoder().feed(base64.b64decode(line["frame"]))
                assert isinstance(request, Request)
                yield request
