"""Who the members of a group are while it runs, and how its leader changes them (P1, P3).

A leader that is to change the members first asks all of them how far they are: a member that has just lost its disk
must not be counted among those that can elect a leader (``RaftCore.check_change``). Learners that keep up are made
voters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ternmq import names
from ternmq.env import Env
from ternmq.errors import BrokerRefused, NotMaster, ServiceNotAvailable, StoreError
from ternmq.raft.config import RaftConfig
from ternmq.raft.core import RaftCore
from ternmq.raft.group import Members
from ternmq.raft.links import Links
from ternmq.raft.log import RaftLog
from ternmq.raft.membership import MEMBERS_FLAG, Change, ListedMember, check_peers, describe, members_of, pack_body
from ternmq.raft.ready import Ready
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore

log = logging.getLogger(__name__)

#: How often a leader looks whether learners keep up.
_PROMOTE_S: Final = 0.5


class Leader(Protocol):
    """What a change needs of this member (``raft.node.RaftNode``)."""

    @property
    def id(self) -> str: ...

    @property
    def config(self) -> RaftConfig: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def log(self) -> RaftLog: ...

    @property
    def links(self) -> Links: ...

    @property
    def store(self) -> MessageStore: ...

    @property
    def confirmed(self) -> int:
        """The last entry that the store has confirmed."""

    @property
    def is_busy(self) -> bool:
        """Whether the core must not be called now."""

    def leads(self) -> bool:
        """Whether this member leads, and has committed and dispatched the first record of its term."""

    def now_ms(self) -> int: ...

    def do_now(self, call: Callable[[int], Ready], /) -> None: ...

    async def turned(self) -> bool:
        """Wait until messages were handled; False if the node is closed."""


class MemberChanges:
    def __init__(self, node: Leader, env: Env, store_host: bytes) -> None:
        self._node = node
        self._env = env
        self._store_host = store_host
        #: The change that ``links`` know of.
        self._seen: Change | None = None

    @property
    def peers(self) -> tuple[ListedMember, ...]:
        """The members by the newest entry that names them, committed or not; by the settings if none does."""
        node = self._node
        newest = node.log.membership.newest
        if newest is not None:
            return newest.members
        joins, own = node.config.raft_join, node.id
        return tuple(
            ListedMember(each.id, each.address, votes=not joins or each.id != own) for each in node.config.members
        )

    async def change(self, peers: Sequence[ListedMember]) -> int:
        """As leader: make these the members. Returns the position up to which the log must be committed for that.

        Raises ``BrokerRefused`` if that cannot be now, ``ConfigError`` for what is no group, ``StoreError``.
        """
        node = self._node
        peers, membership = tuple(peers), node.log.membership
        check_peers(peers)
        newest = membership.newest
        await self._check(members_of(peers))
        if membership.newest is not newest:
            raise ServiceNotAvailable("the members of the group have just changed; look at them, and ask again")
        index = node.log.last_index + 1
        membership.add(Change(index, node.core.term, peers), committed=node.confirmed)
        now_ms = self._env.clock.now_ms()
        draft = Draft(names.RAFT_MEMBERS_TOPIC, 0, pack_body(peers), "", now_ms, self._store_host, flag=MEMBERS_FLAG)
        try:
            placed = node.store.put(draft)
        except BaseException:
            membership.cut(index)
            raise
        assert node.log.last_index == index, "it is the next entry"
        self.see()
        return placed.end_offset

    async def _check(self, members: Members) -> None:
        """Whether the members may change, by what they answer now. Raises ``BrokerRefused``."""
        node = self._node
        since_ms = node.now_ms()
        end_ms = since_ms + node.config.election_ms
        node.do_now(node.core.ask_all)
        is_open = True
        while True:
            if not node.leads():
                raise NotMaster(f"{node.id} does not lead its Raft group: ask {node.core.leader or 'later'}")
            try:
                node.core.check_change(members, node.now_ms(), since_ms=since_ms)
            except ServiceNotAvailable:
                if node.now_ms() >= end_ms or not is_open:
                    raise
            else:
                return
            is_open = await node.turned()

    def see(self) -> None:
        """Who the members are may have changed: connect to them."""
        node = self._node
        newest = node.log.membership.newest
        if newest is self._seen:
            return
        self._seen = newest
        peers = self.peers
        node.links.follow([peer.member for peer in peers if peer.id != node.id], node.log.members_index)
        log.info("the members of the group are %s", describe(peers))
        if removal := self.removal:
            log.warning(removal)

    @property
    def removal(self) -> str:
        """That this member is none any more; empty if it is one. One that is filling may have only the beginning of the
        log, where it is no member yet."""
        node, peers = self._node, self.peers
        if node.core.is_filling or any(peer.id == node.id for peer in peers):
            return ""
        return f"{node.id} was removed from the group, whose members are {describe(peers)}; stop it"

    async def promote_now_and_then(self) -> None:
        """As leader: let learners vote that keep up. Raises what the disk does not take."""
        while True:
            await asyncio.sleep(_PROMOTE_S)
            await self._promote()

    async def _promote(self) -> None:
        node = self._node
        if not node.leads() or node.is_busy:
            return
        peers, now_ms = self.peers, node.now_ms()
        for learner in peers:
            if not learner.votes and node.core.keeps_up(learner.id, now_ms):
                promoted = tuple(ListedMember(each.id, each.address) if each is learner else each for each in peers)
                with contextlib.suppress(BrokerRefused, StoreError):
                    await self.change(promoted)
                    log.info("%s keeps up, and votes from now on", learner.id)
                return
