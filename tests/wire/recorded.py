"""Recorded frames, taken apart by code that has nothing to do with ours."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import struct
from dataclasses import dataclass
from typing import Any

from tests.recordings import DATA, VERSIONS

JSON, BINARY = 0, 1


@dataclass(slots=True, frozen=True)
class Recorded:
    """One frame as it was on the wire. ``asked`` is the code of the request that a response answers, -1 if unknown."""

    version: str
    connection: int
    to: str
    data: bytes
    form: int
    head: bytes
    body: bytes
    code: int
    flag: int
    language: str
    number: int
    opaque: int
    remark: str | None
    fields: dict[str, str]
    asked: int

    @property
    def is_response(self) -> bool:
        return bool(self.flag & 1)


@functools.cache
def frames() -> tuple[Recorded, ...]:
    """Every recorded frame of both versions, in order of arrival."""
    return tuple(frame for version in VERSIONS for frame in _read(version))


def requests() -> list[Recorded]:
    return [frame for frame in frames() if not frame.is_response]


def responses() -> list[Recorded]:
    return [frame for frame in frames() if frame.is_response]


def _read(version: str) -> list[Recorded]:
    found: list[Recorded] = []
    asked: dict[tuple[int, str, int], int] = {}
    with gzip.open(DATA / "frames" / f"rocketmq-{version}.jsonl.gz") as lines:
        for line in map(json.loads, lines):
            data = base64.b64decode(line["frame"])
            head_bytes = int.from_bytes(data[5:8], "big")
            head, body = data[8 : 8 + head_bytes], data[8 + head_bytes :]
            header = _json_header(head) if data[4] == JSON else _binary_header(head)
            where, opaque = line["conn"], header["opaque"]
            if header["flag"] & 1:
                # A response goes the other way than its request.
                answers = asked.get((where, "server" if line["to"] == "client" else "client", opaque), -1)
            else:
                asked[where, line["to"], opaque] = header["code"]
                answers = -1
            found.append(Recorded(version, where, line["to"], data, data[4], head, body, asked=answers, **header))
    return found


def _json_header(head: bytes) -> dict[str, Any]:
    header = json.loads(head)
    return {
        "code": header["code"],
        "flag": header["flag"],
        "language": header["language"],
        "number": header["version"],
        "opaque": header["opaque"],
        "remark": header.get("remark"),
        "fields": header.get("extFields", {}),
    }


def _binary_header(head: bytes) -> dict[str, Any]:
    code, language, number, opaque, flag, remark_bytes = struct.unpack_from(">hbhiii", head)
    at = 17 + remark_bytes
    remark = head[17:at].decode() or None
    fields: dict[str, str] = {}
    end = at + 4 + int.from_bytes(head[at : at + 4], "big")
    at += 4
    while at < end:
        key_end = at + 2 + int.from_bytes(head[at : at + 2], "big")
        value_end = key_end + 4 + int.from_bytes(head[key_end : key_end + 4], "big")
        fields[head[at + 2 : key_end].decode()] = head[key_end + 4 : value_end].decode()
        at = value_end
    assert language == 0
    return {
        "code": code,
        "flag": flag,
        "language": "JAVA",
        "number": number,
        "opaque": opaque,
        "remark": remark,
        "fields": fields,
    }
