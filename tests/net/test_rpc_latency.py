"""How long requests take, by request and response code (D5, T4)."""

from __future__ import annotations

import pytest

from ternmq.net import rpc_latency
from ternmq.net.rpc_latency import RpcEnd, RpcLatencies
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import decode_json


async def test_requests_that_came_together_count_with_one_call() -> None:
    """D5: a run of sends, say."""
    latencies = RpcLatencies()
    arrived = latencies.time() - 0.02
    latencies.note(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, RpcEnd.ANSWERED, arrived, 64)
    latencies.note(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY, RpcEnd.ANSWERED, arrived)
    latencies.note(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS, RpcEnd.HELD, arrived)

    rows = [(row.request, row.response, row.end, row.latency.up_to()[-1][1]) for row in latencies.rows()]
    assert [
        ("pull_message", "success", RpcEnd.HELD, 1),
        ("send_message_v2", "success", RpcEnd.ANSWERED, 64),
        ("send_message_v2", "system_busy", RpcEnd.ANSWERED, 1),
    ] == rows
    sends = next(row.latency for row in latencies.rows() if row.response == "success" and row.end is RpcEnd.ANSWERED)
    assert sends.sum_s >= 64 * 0.02
    assert 0 == dict(sends.up_to())["10"]


def test_a_header_cannot_say_when_it_arrived() -> None:
    """D5, B5: whatever names its members have; what the reader notes is beside what is decoded."""
    request = decode_json(b'{"code":11,"opaque":1,"arrived":-1e300,"is_held":true," arrived":-1e300," is held":true}')
    assert not hasattr(request, "arrived")
    assert not hasattr(request, "is_held")
    assert {"arrived", "is_held"}.isdisjoint(request.__struct_fields__)


async def test_codes_without_a_name_share_a_row() -> None:
    """T4: a client can send any code; it makes no series."""
    latencies = RpcLatencies()
    for code in range(70_000, 75_000):
        latencies.note(code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, RpcEnd.ANSWERED, latencies.time())
        latencies.note(RequestCode.PULL_MESSAGE, code, RpcEnd.ANSWERED, latencies.time())

    assert [("other", "request_code_not_supported", 5_000), ("pull_message", "other", 5_000)] == [
        (row.request, row.response, row.latency.up_to()[-1][1]) for row in latencies.rows()
    ]


async def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: what has no room is counted together, and the rows that exist go on."""
    monkeypatch.setattr(rpc_latency, "ROWS_MAX", 2)
    latencies = RpcLatencies()
    for _ in range(2):
        for answer in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY):
            latencies.note(RequestCode.PULL_MESSAGE, answer, RpcEnd.ANSWERED, latencies.time())

    assert [("other", "other", 4), ("pull_message", "success", 2), ("pull_message", "system_error", 2)] == [
        (row.request, row.response, row.latency.up_to()[-1][1]) for row in latencies.rows()
    ]
