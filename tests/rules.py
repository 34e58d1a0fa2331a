"""What the rules of a server are, as its callers find out: each code is asked for at a gate that notes and refuses."""

from __future__ import annotations

from typing import Any

from ternmq.errors import NoPermission
from ternmq.net.gate import CallingPeer, Rule
from ternmq.net.peer import Peer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Fields, Request, header_type


class Noting:
    """Refuses every request, and keeps its rule."""

    def __init__(self) -> None:
        self.rules: dict[RequestCode, Rule] = {}

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule) -> None:
        self.rules[RequestCode(request.code)] = rule
        raise NoPermission("nothing is allowed here")


async def rules_by_code(peer: Peer, noting: Noting) -> dict[RequestCode, Rule]:
    """The rule of each code that the server at the other end of ``peer`` serves; all others it does not know."""
    for code in RequestCode:
        answer = await peer.call(code, timeout_ms=60_000)
        served = code in noting.rules
        expected = ResponseCode.NO_PERMISSION if served else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert expected == answer.code, f"{code.name}: {answer.remark}"
    return noting.rules


def unknown_fields(rules: dict[RequestCode, Rule]) -> list[str]:
    """Fields that a rule names and the header of its code does not have: nothing would ever be checked."""
    unknown = []
    for code, rule in rules.items():
        kind = header_type(code)
        known = kind.__struct_encode_fields__ if kind is not None else ()
        named = filter(None, (rule.topic, rule.group, rule.cluster))
        unknown += [f"{code.name} has no ext field {name!r}" for name in named if name not in known]
    return unknown
