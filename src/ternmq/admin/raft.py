"""Raft groups: where their members stand, which of them leads, and who is one (P4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import (
    BrokerMissing,
    CallTimeout,
    ConfigError,
    InvalidParameter,
    NetworkError,
    RequestNotSupported,
    TernError,
)
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.raft import RaftStatus
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests_admin import ChangeMembers, TransferLeadership, TransferReply

#: A transfer waits for an election.
_TRANSFER_MS = 10_000
#: How often a leader is asked for a change, four times a second.
_TRIES = 20


@dataclass(slots=True, frozen=True)
class RaftMemberInfo:
    """One member of a Raft group.

    Args:
        broker: Name of the broker, which all members share.
        member: Its id in the group: ``n0``, ``n1``, …
        raft_address: Where the other members reach it.
        address: Where clients reach it; empty if it is not registered or did not answer.
        role: ``leader``, ``follower`` or ``candidate``; empty if it did not answer.
        term: Its term.
        leader: The leader that it knows; empty for none.
        last_index: The last entry of its log.
        commit_index: Up to which entry it knows that a majority has the log.
        commit_lag: Entries of its log of which it does not know that.
        has_lease: Of the leader: whether no other member can lead at this moment, so that it serves reads.
        lag_entries: Entries of the leader's log that it lacks; None if no leader tells.
        lag_bytes: The same in bytes.
        trouble: Why it takes no part; empty if it does.
        votes: Whether it elects and counts; a new member is a learner first, and votes when it keeps up.
        filling: What it still waits for, because it lost its disk or was away for long; it does not vote. Empty if it
            has all.
    """

    broker: str
    member: str
    raft_address: str
    address: str
    role: str
    term: int
    leader: str
    last_index: int
    commit_index: int
    commit_lag: int
    has_lease: bool
    lag_entries: int | None
    lag_bytes: int | None
    trouble: str
    filling: str = ""
    votes: bool = True


class RaftAdmin:
    """Raft groups: ``admin.raft``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin) -> None:
        self._instance = instance
        self._brokers = brokers

    async def status(self, name: str | None = None) -> list[RaftMemberInfo]:
        """The members of all Raft groups, or of the broker ``name``. Brokers without a group are left out."""
        answers: dict[str, dict[str, tuple[BrokerInfo, RaftStatus]]] = {}
        for broker in await self._brokers.all():
            if name in (None, broker.name):
                status = await self._ask(broker)
                if status is not None:
                    answers.setdefault(broker.name, {})[status.id] = broker, status
        return [each for broker, members in sorted(answers.items()) for each in _members(broker, members)]

    async def transfer(self, name: str | None = None, *, to: str = "") -> str:
        """Let the member ``to`` lead the group of the broker ``name``; returns the id of the new leader.

        Without ``to``, the follower that has most of the log leads. Without ``name`` there must be one group only. It
        returns when the other member leads. Raises ``ConfigError`` for a name without a group, and ``BrokerRefused``
        if there is no leader, or the member cannot lead.
        """
        leader = await self._leader(name)
        response = await self._instance.ask(
            leader.address,
            RequestCode.TRANSFER_LEADERSHIP,
            TransferLeadership(to=to),
            timeout_ms=_TRANSFER_MS,
        )
        return response.read(TransferReply).leader

    async def add(self, member: str, name: str | None = None, *, wait_s: float = 600.0) -> None:
        """Let ``member`` (``n3-10.0.0.4:40911``) join the group of the broker ``name``, while it works.

        The new member must run, with ``raftJoin=true`` and ``dLegerPeers`` that name the group and itself. It is a
        learner first, gets all from the group, and votes when it keeps up; this returns then. With ``wait_s=0`` it
        returns when the group has taken the learner. Raises ``ConfigError`` for a name without a group,
        ``BrokerRefused`` if the group does not take it, and ``CallTimeout`` if it does not keep up in time: it stays a
        learner, and votes when it does.
        """
        await self._change(name, ChangeMembers(add=member))
        new, loop = member.partition("-")[0], asyncio.get_running_loop()
        end = loop.time() + wait_s
        while wait_s:
            found = next((each for each in await self.status(name) if each.member == new), None)
            if found is not None and found.votes:
                return
            if loop.time() >= end:
                lag = f"it lacks {found.lag_entries} entries" if found is not None and found.lag_entries else "no news"
                trouble = f"; {found.trouble}" if found is not None and found.trouble else ""
                raise CallTimeout(
                    f"{new} does not keep up yet ({lag}{trouble}): it is a learner, and votes when it does. "
                    f"`tern raft remove {new}` takes it back"
                )
            await asyncio.sleep(0.2)

    async def remove(self, member: str, name: str | None = None) -> None:
        """Let ``member`` (``n1``) leave the group of the broker ``name``; if it leads, another one leads first.

        It returns when the group has taken the change; then stop the member. Raises ``ConfigError`` for a name without
        a group, and ``BrokerRefused`` for one that is not a member, for the last one, and if the group would stop
        without it.
        """
        found = await self._leader(name)
        status = await self._ask(found)
        if status is not None and status.id == member and sum(each.is_voter for each in status.members) > 1:
            await self.transfer(found.name)
        await self._change(name, ChangeMembers(remove=member))

    async def _change(self, name: str | None, change: ChangeMembers) -> None:
        """Ask the leader, for a while: there may be none for a moment, or one that was just elected, has another change
        under way, or does not know yet how far the others are."""
        tries, is_unsure = _TRIES, False
        while True:
            try:
                leader = await self._leader(name)
                await self._instance.ask(leader.address, RequestCode.CHANGE_MEMBERS, change, timeout_ms=_TRANSFER_MS)
            except InvalidParameter:
                # What was asked for before, without an answer, may have been carried out.
                if is_unsure and await self._is_made(leader, change):
                    return
                raise
            except TernError as error:
                is_unsure = is_unsure or isinstance(error, NetworkError)
                tries -= 1
                if not tries or "not committed yet" in str(error):
                    raise
                await asyncio.sleep(0.25)
            else:
                return

    async def _is_made(self, leader: BrokerInfo, change: ChangeMembers) -> bool:
        status = await self._ask(leader)
        if status is None:
            return False
        members = {f"{each.id}-{each.address}" for each in status.members}
        return change.add in members if change.add else all(each.id != change.remove for each in status.members)

    async def _leader(self, name: str | None) -> BrokerInfo:
        masters = [broker for broker in await self._brokers.masters() if name in (None, broker.name)]
        found = [broker for broker in masters if await self._ask(broker) is not None]
        if not found:
            raise BrokerMissing(f"no broker{f' {name}' if name else ''} is a Raft group with a leader")
        if len(found) > 1:
            raise ConfigError(
                f"there are {len(found)} Raft groups ({', '.join(each.name for each in found)}); name one"
            )
        return found[0]

    async def _ask(self, broker: BrokerInfo) -> RaftStatus | None:
        """What a broker says of its group; None if it has none, or does not answer."""
        try:
            response = await self._instance.ask(broker.address, RequestCode.GET_RAFT_STATUS)
        except (RequestNotSupported, NetworkError):
            return None
        except TernError as error:
            if isinstance(error, TimeoutError):
                return None
            raise
        return decode(response.body, RaftStatus)


def _members(broker: str, answers: dict[str, tuple[BrokerInfo, RaftStatus]]) -> list[RaftMemberInfo]:
    newest = max((status for _, status in answers.values()), key=lambda each: (each.role == "leader", each.term))
    found = []
    for member in newest.members:
        info, status = answers.get(member.id, (None, None))
        is_known = newest.role == "leader" and member.lag_entries >= 0
        found.append(
            RaftMemberInfo(
                broker=broker,
                member=member.id,
                raft_address=member.address,
                address=info.address if info is not None else "",
                role=status.role if status is not None else "",
                term=status.term if status is not None else 0,
                leader=status.leader if status is not None else "",
                last_index=status.last_index if status is not None else -1,
                commit_index=status.commit_index if status is not None else -1,
                commit_lag=status.last_index - status.commit_index if status is not None else -1,
                has_lease=status is not None and status.has_lease,
                lag_entries=member.lag_entries if is_known else None,
                lag_bytes=member.lag_bytes if is_known else None,
                trouble=status.trouble if status is not None else "does not answer",
                filling=status.filling if status is not None else "",
                votes=member.is_voter,
            )
        )
    return found
