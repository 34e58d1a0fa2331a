"""A validator behind the ACL: notes what got so far, and lets nothing be carried out."""

from __future__ import annotations

from typing import Any, Final

from ternmq.errors import NoPermission
from ternmq.net.gate import CallingPeer, Rule
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Fields, Request

ADMITTED: Final = "admitted by the ACL"


class Last:
    def __init__(self) -> None:
        self.rules: dict[RequestCode, Rule] = {}
        #: Of the last request.
        self.fields: Fields = {}
        self.body = b""

    def __call__(self, _caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule) -> None:
        self.rules[RequestCode(request.code)] = rule
        self.fields, self.body = dict(fields), bytes(request.body)
        raise NoPermission(ADMITTED)


LAST: Final = Last()


def make() -> Last:
    """The factory, for ``authValidators``."""
    return LAST
