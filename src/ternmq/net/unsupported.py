"""Requests of RocketMQ's tools that are not offered: each is refused with the reason and the cure (D6).

The tools take the address of a controller from the operator, who may name a broker or, as RocketMQ's name servers can
contain a controller, a name server: both have these routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ternmq.errors import RequestNotSupported
from ternmq.net.gate import ANY_CALLER
from ternmq.net.peer import Peer, Route
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request

_CONTROLLER: Final = "there are no controllers, as the brokers of a Raft group elect their master themselves; "

#: By code, why it is not supported, and what to do instead.
CONTROLLER: Final = {
    RequestCode.CONTROLLER_ELECT_MASTER: _CONTROLLER
    + "use `tern broker transfer` in a Raft group, and `tern broker promote` for a slave",
    RequestCode.CONTROLLER_GET_METADATA_INFO: _CONTROLLER + "`tern raft status` shows the leader and its term",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _CONTROLLER
    + "`tern raft status` shows the members of a group, and `tern broker status` the slaves of a master",
    RequestCode.UPDATE_CONTROLLER_CONFIG: _CONTROLLER
    + "settings of a Raft group are those of its brokers: `mqadmin updateBrokerConfig`",
    RequestCode.GET_CONTROLLER_CONFIG: _CONTROLLER
    + "settings of a Raft group are those of its brokers: `mqadmin getBrokerConfig`",
    RequestCode.CLEAN_BROKER_DATA: _CONTROLLER + "to take a broker out of a Raft group, use `tern raft remove`",
}


def refusing(reasons: Mapping[RequestCode, str], lane: str) -> dict[int, Route]:
    """Routes that refuse. Callers are admitted first: a server tells nothing to strangers."""

    def refuse(_peer: Peer, request: Request[object]) -> Reply:
        code = RequestCode(request.code)
        raise RequestNotSupported(f"request {code} ({code.name}) is not supported: {reasons[code]}")

    return {code: Route(refuse, lane, ANY_CALLER, takes_body=False) for code in reasons}
