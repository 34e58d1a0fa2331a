"""Requests of RocketMQ's tools that a TernMQ broker does not offer: each is refused with the reason and the cure (D6).

The table of ``docs/rocketmq.md`` has the same reasons in the words of an operator.
"""

from __future__ import annotations

from typing import Final

from ternmq.broker.flow import ADMIN
from ternmq.net.peer import Route
from ternmq.net.unsupported import CONTROLLER, refusing
from ternmq.wire.codes import RequestCode

_CONTAINER: Final = "one process is one broker, and there are no containers of brokers; "
_COLD_READS: Final = (
    "there are no limits for cold data by group: old messages are read on threads of their own, and groups take turns; "
)
_ROCKSDB: Final = "TernMQ does not use RocksDB; "

#: By code, why it is not supported, and what to do instead.
NOT_OFFERED: Final = {
    **CONTROLLER,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB
    + "to compare the queues of a stopped broker with its log, use `tern store verify`",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB
    + "topics, groups and offsets already are JSON files in the directory config of the store",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics, whose queues are numbered over several brokers, are not supported; create the topic with "
        "`mqadmin updateTopic` or `tern topic create` on each broker of the cluster"
    ),
    RequestCode.ADD_BROKER: _CONTAINER + "start another process with `tern broker`",
    RequestCode.REMOVE_BROKER: _CONTAINER + "stop the process of the broker that you want to remove",
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        "a slave keeps no flush offset of its master: it finds the end of their common log by epochs when it connects; "
        "`tern broker status` shows how far it is"
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD_READS
    + "to stop a group that reads too much, use `mqadmin updateSubGroup -g GROUP -s false`",
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD_READS + "nothing has to be removed",
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD_READS
    + "`mqadmin brokerStatus` shows the time that each group took (pullTimeMs_GROUP)",
    RequestCode.SET_COMMITLOG_READ_MODE: (
        "the read-ahead mode of the log cannot be set: old messages are read by their place and size, not through "
        "the mapped file, so the system does not read ahead of them"
    ),
    RequestCode.POP_ROLLBACK: (
        "popped messages are noted in the revive topic only, and not in a store of their own; there is nothing to "
        "roll back"
    ),
}


def routes() -> dict[int, Route]:
    return refusing(NOT_OFFERED, ADMIN)
