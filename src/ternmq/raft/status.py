"""Where a member of a Raft group stands, for tools (P4)."""

from __future__ import annotations

from collections.abc import Sequence

from ternmq.raft.core import RaftCore
from ternmq.raft.links import Links
from ternmq.raft.log import RaftLog
from ternmq.raft.membership import ListedMember
from ternmq.raft.ready import RaftRole
from ternmq.wire.bodies.raft import RaftMember, RaftStatus


def status_of(
    own_id: str,
    peers: Sequence[ListedMember],
    core: RaftCore,
    log: RaftLog,
    links: Links,
    *,
    has_lease: bool,
    trouble: str,
    filling: str,
    has_failed: bool,
) -> RaftStatus:
    """What a member knows of itself and, if it leads, of the others. One that ``has_failed`` leads no more, whatever
    its core did last."""
    stored = {each.node: each.match for each in core.followers()} | {own_id: log.last_index}
    members = []
    for member in peers:
        index = stored.get(member.id)
        end = log.end_of(index) if index is not None else None
        members.append(
            RaftMember(
                id=member.id,
                address=member.address,
                is_voter=member.votes,
                is_linked=member.id == own_id or links.is_linked(member.id),
                stored_index=index if index is not None else -1,
                lag_entries=log.last_index - index if index is not None else -1,
                lag_bytes=log.end - (end if end is not None else log.begin) if index is not None else -1,
            )
        )
    return RaftStatus(
        group=links.hello.group,
        id=own_id,
        role=(RaftRole.FOLLOWER if has_failed else core.role).value,
        term=core.term,
        leader=(not has_failed and core.leader) or "",
        first_index=log.first_index,
        last_index=log.last_index,
        commit_index=core.commit,
        has_lease=has_lease,
        members=tuple(members),
        trouble=trouble,
        filling=filling,
    )
