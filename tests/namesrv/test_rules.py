"""What each request to a name server needs (issue 14, N1)."""

from __future__ import annotations

from typing import Final

from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.dial import connect
from ternmq.net.gate import Action, Gate
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.unsupported import CONTROLLER
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode as Code
from tests.rules import Noting, rules_by_code, unknown_fields

#: By action, each code that a name server serves. A code that is not here fails the test: think of its rule first.
CODES: Final = {
    Action.ANY: {
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_KV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.GET_UNIT_TOPIC_LIST,
        # They only say why they are refused.
        *CONTROLLER,
    },
    Action.ADMIN: {
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.BROKER_HEARTBEAT,
        Code.DELETE_KV_CONFIG,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.PUT_KV_CONFIG,
        Code.QUERY_DATA_VERSION,
        Code.REGISTER_BROKER,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.UNREGISTER_BROKER,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.WIPE_WRITE_PERM_OF_BROKER,
    },
}


async def test_every_code_of_a_name_server_has_the_rule_of_the_table() -> None:
    noting = Noting()
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    lanes = Lanes([LaneConfig("work")])
    async with NameServer(config, gate=Gate([noting])) as server, Tasks() as tasks:
        peer = await connect(f"127.0.0.1:{server.port}", routes={}, lanes=lanes, tasks=tasks)
        rules = await rules_by_code(peer, noting)
        peer.close()
        await peer.closed.wait()

    actions = {code: action for action, codes in CODES.items() for code in codes}
    assert actions == {code: rule.action for code, rule in rules.items()}
    assert [] == unknown_fields(rules)
