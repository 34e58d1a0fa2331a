"""How a member of a Raft group shows itself to tools that know masters and slaves (P4, D6)."""

from __future__ import annotations

from ternmq.broker.config import BrokerConfig
from ternmq.raft.node import RaftNode
from ternmq.raft.ready import RaftRole
from ternmq.wire.bodies.replication import BrokerStatus, FollowedMaster, SlaveLine
from ternmq.wire.bodies.stats import HaClient, HaConnection, HaStatus


def runtime_of(node: RaftNode) -> dict[str, str]:
    """This member among the figures of the broker (``mqadmin brokerStatus``); RocketMQ has no such keys."""
    status, store = node.status(), node.store
    lags = [each.lag_bytes for each in status.members if each.id != status.id and each.lag_bytes >= 0]
    return {
        "raftRole": status.role,
        "raftTerm": str(status.term),
        "raftLeader": status.leader,
        "raftHasLease": str(status.has_lease).lower(),
        "raftLastIndex": str(status.last_index),
        "raftCommitIndex": str(status.commit_index),
        # What waits for a majority; and as leader, what the slowest member lacks.
        "raftCommitLag": str(status.last_index - status.commit_index),
        "raftCommitLagBytes": str(store.written - node.committed.value),
        "raftFollowerLagBytes": str(max(lags, default=-1)),
        "raftTrouble": status.trouble,
    }


def ha_status_of(node: RaftNode) -> HaStatus:
    """The group as ``mqadmin haStatus`` shows slaves."""
    status = node.status()
    end = node.log.end
    if status.role != RaftRole.LEADER.value:
        leader = next((each.address for each in status.members if each.id == status.leader), "")
        client = HaClient(master_addr=leader, max_offset=end, is_activated=bool(leader))
        return HaStatus(master=False, ha_client_runtime_info=client)
    others = [each for each in status.members if each.id != status.id]
    return HaStatus(
        master=True,
        master_commit_log_max_offset=end,
        in_sync_slave_nums=sum(each.is_linked for each in others),
        ha_client_runtime_info=HaClient(),
        ha_connection_info=[
            HaConnection(
                addr=each.address,
                slave_ack_offset=end - each.lag_bytes,
                diff=each.lag_bytes,
                in_sync=each.is_linked,
                transferred_byte_in_second=0,
                transfer_from_where=end - each.lag_bytes,
            )
            for each in others
        ],
    )


def broker_status_of(node: RaftNode, config: BrokerConfig, broker_id: int) -> BrokerStatus:
    """This member as ``tern broker status`` shows masters and slaves; the epoch is the term."""
    status = node.status()
    is_leader = status.role == RaftRole.LEADER.value
    end = node.log.end
    return BrokerStatus(
        cluster=config.broker_cluster_name,
        broker=config.broker_name,
        broker_id=broker_id,
        address=node.links.hello.address,
        role=f"RAFT_{status.role.upper()}",
        epoch=status.term,
        log_begin=node.log.begin,
        log_end=end,
        messages=sum(node.store.max_offset(*queue) for queue in node.store.queues()),
        stored_ms=node.log.store_time_ms,
        slaves=[
            SlaveLine(
                address=each.address,
                broker_id=int(each.id[1:]) + 1,
                state="following" if each.is_linked else "away",
                acked=end - each.lag_bytes,
                lag_bytes=each.lag_bytes,
                in_sync=each.is_linked,
            )
            for each in status.members
            if is_leader and each.id != status.id
        ],
        master=None
        if is_leader
        else FollowedMaster(
            address=next((each.address for each in status.members if each.id == status.leader), ""),
            state="following" if status.leader else "waiting for a leader",
            trouble=status.trouble,
        ),
    )
