"""Requests that a broker does not offer (D6)."""

from __future__ import annotations

import pytest

from ternmq.broker.handlers.not_offered import NOT_OFFERED
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_admin import ResetFlushOffset
from tests.broker.handlers.conftest import Client


@pytest.mark.parametrize("code", NOT_OFFERED, ids=lambda code: code.name)
async def test_what_is_not_offered_is_refused_with_the_reason(client: Client, code: RequestCode) -> None:
    header = ResetFlushOffset(master_flush_offset=7) if code is RequestCode.RESET_MASTER_FLUSH_OFFSET else None
    response = await client.call(code, header, b"{}")

    assert ResponseCode.REQUEST_CODE_NOT_SUPPORTED == response.code
    assert f"request {code:d} ({code.name}) is not supported: " in (response.remark or "")
