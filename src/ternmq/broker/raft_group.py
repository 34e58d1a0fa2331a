"""A broker as a member of a Raft group: what its role in the group means for the broker (P4).

::

    core: LEADER    ─▶ first record of the term committed, all dispatched ─▶ runners start ─▶ registered with id 0
    core: any other ─▶ step down, in the same turn ─▶ registered with the member's own id, tables are copied

The node (``raft.node``) moves the log. Tables (topics, groups, offsets, delay progress) are not in the log: a follower
copies them from the leader every few seconds (``replication.metadata``). When it becomes the leader, it makes the
changes of topics and groups that came after the last copy (``services.table_journal``), and finds topics whose messages
it has by itself. So it copies deletions of topics, too: else they would come back. The classic port for slaves is not
opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.raft_deletions import delete_on_leader
from ternmq.broker.raft_reads import not_leading
from ternmq.broker.raft_views import broker_status_of, ha_status_of, runtime_of
from ternmq.broker.roles import Role, Roles, Term
from ternmq.broker.tables.included import Included
from ternmq.env import Env
from ternmq.errors import BrokerRefused, ConfigError, InvalidParameter, NotMaster, ServiceNotAvailable
from ternmq.net.endpoint import Bound, bind, split_address
from ternmq.net.gate import Gate
from ternmq.net.tls import LiveTls
from ternmq.raft.config import RaftConfig, parse_member
from ternmq.raft.copies import CHUNK_BYTES, FillingSender
from ternmq.raft.dledger_links import DledgerLinks
from ternmq.raft.dledger_view import NodeView
from ternmq.raft.filling import Filling, FillingPlaces
from ternmq.raft.greeting import VERSION, Hello
from ternmq.raft.links import Links
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.raft.membership import Change, ListedMember, describe
from ternmq.raft.node import RaftNode
from ternmq.raft.ready import RaftRole as RaftRole
from ternmq.raft.ready import RoleChange
from ternmq.raft.term_file import TermFile
from ternmq.raft.wire import FRAME_EXTRA_BYTES
from ternmq.replication.metadata import MasterCaller, MetadataSync, Table
from ternmq.store.config import RECORD_EXTRA_BYTES, FlushDiskType, StoreConfig
from ternmq.store.disk.base import Disk
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.dledger import ENTRY_BYTES_MAX
from ternmq.wire.bodies.raft import DeletedTopicsBody, QueueNumbers, RaftStatus
from ternmq.wire.bodies.replication import BrokerStatus
from ternmq.wire.bodies.stats import HaStatus
from ternmq.wire.codes import RequestCode
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES

log = logging.getLogger(__name__)

#: How often a follower copies the tables: as often as consumers commit their progress.
TABLES_S: Final = 5.0
#: How often a follower of a RocketMQ broker asks a name server where that is.
_FIND_S: Final = 2.0


class RaftGroup:
    """``async with group.running(…)`` takes part in the group. All methods belong to the broker's loop."""

    def __init__(
        self,
        config: RaftConfig,
        broker: BrokerConfig,
        store_config: StoreConfig,
        *,
        disk: Disk,
        env: Env,
        caller: MasterCaller,
        is_guarded: bool,
        part_directories: Sequence[Path],
        on_exchange: Callable[[], None],
    ) -> None:
        """``caller`` is how the leader is asked for its tables. ``is_guarded``: the broker checks who calls it.

        ``part_directories`` are those of derived parts. ``on_exchange``: the broker is to close, call
        ``exchange_files``, and open again.

        Raises ``ConfigError`` for messages that are too large for RocketMQ brokers in the group.
        """
        message_bytes_max = ENTRY_BYTES_MAX - RECORD_EXTRA_BYTES - ENTRY_HEADER_BYTES
        if config.is_mixed and store_config.max_message_size > message_bytes_max:
            raise ConfigError(
                f"invalid maxMessageSize {store_config.max_message_size}: in a group with RocketMQ brokers "
                f"(raftPeerProtocol=dledger) expected at most {message_bytes_max}, because DLedger takes no entry of "
                "more than 4 MiB"
            )
        self.config = config
        self._broker = broker
        self._store_config = store_config
        self._disk = disk
        self._env = env
        self._caller = caller
        self._is_guarded = is_guarded
        self._home = store_config.store_path_root_dir / f"dledger-{config.d_leger_self_id}"
        paths = RaftPaths(
            (config.store_path_d_ledger_commit_log or self._home / "data",), self._home, store_config.log_paths.all
        )
        self._places = FillingPlaces(
            disk,
            store_config.store_path_root_dir,
            paths,
            part_directories=part_directories,
            segment_bytes=store_config.mapped_file_size_commit_log,
        )
        self._on_exchange = on_exchange
        self.log: Final = RaftLog(
            disk,
            paths,
            segment_bytes=store_config.mapped_file_size_commit_log,
            index_file_bytes=config.raft_index_file_bytes,
            on_sealed=self._sealed,
            takes_changes=not config.is_mixed,
        )
        self._node: RaftNode | None = None
        self._roles: Roles | None = None
        self._tables: Sequence[Table] = ()
        self._forget_topic: Callable[[str], object] = lambda _topic: None
        self._included: Sequence[Included] = ()
        #: Deletions of topics that were copied from a leader.
        self._deletions: dict[str, int] = {}
        self._copies: MetadataSync | None = None
        #: By id, the addresses of the brokers of this name, as name servers know them.
        self._registered: Callable[[], Awaitable[dict[int, list[str]] | None]] | None = None
        #: Where clients reach the leader, if it is a RocketMQ broker.
        self._their_address: str | None = None
        self._wanted: RoleChange | None = None
        self._news = asyncio.Event()
        #: Set while there is a leader.
        self._has_leader = asyncio.Event()
        if config.warning:
            log.warning(config.warning)

    def _compare_settings(self, node: RaftNode) -> None:
        """After a change of members the log counts. The settings are what a member knows that has lost its disk."""
        settings = {(each.id, each.address) for each in self.config.members}
        if self.log.members_index >= 0 and settings != {(each.id, each.address) for each in node.members.peers}:
            log.warning(
                "dLegerPeers names other members than the log, which counts: %s; correct it on all members, because a "
                "member that loses its disk knows nothing else",
                describe(node.members.peers),
            )

    def exchange_files(self) -> None:
        """Before the store is opened: put files into their places that were copied from the leader. Blocks. Raises
        ``StoreError``."""
        self._places.carry_out()

    @property
    def node(self) -> RaftNode:
        assert self._node is not None, "the group is running"
        return self._node

    def bind(self) -> Bound:
        """Hold the port of this member. Raises ``NetworkError`` or ``ConfigError``."""
        return bind(self._broker.bind_address, split_address(self.config.me.address)[1])

    @asynccontextmanager
    async def running(
        self,
        bound: Bound,
        *,
        store: MessageStore,
        roles: Roles,
        tables: Sequence[Table],
        included: Sequence[Included],
        forget_topic: Callable[[str], object],
        registered: Callable[[], Awaitable[dict[int, list[str]] | None]],
        address: str,
        store_host: bytes,
        tls: LiveTls | None,
        gate: Gate | None = None,
    ) -> AsyncIterator[RaftNode]:
        """Take part. ``address`` is where clients reach this broker, ``tables`` is what a follower copies. ``gate`` is
        that of the broker: other members prove to it who they are.
        ``included`` are the numbers of the tables of topics and groups. ``forget_topic`` is told of topics that the
        leader has deleted, for all tables that know them. ``registered`` asks the name servers for the brokers of this
        name."""
        self._registered = registered
        self._roles = roles
        self._forget_topic = forget_topic
        self._included = included
        # Deletions first: what the other tables have of such a topic belongs to a new one of that name.
        deletions = Table("deleted topics", RequestCode.GET_DELETED_TOPICS, self._take_deletions)
        numbers = Table("numbers of queues", RequestCode.GET_QUEUE_NUMBERS, self._take_numbers)
        self._tables = (deletions, *tables, numbers)
        config, broker = self.config, self._broker
        hello = Hello(
            VERSION,
            config.d_leger_group or broker.broker_name,
            broker.broker_cluster_name,
            broker.broker_name,
            config.d_leger_self_id,
            "",
            tuple(member.id for member in config.members),
            self._store_config.mapped_file_size_commit_log,
            address,
            raft_address=config.me.address,
            peer_protocol=config.raft_peer_protocol,
        )

        def links(node: RaftNode) -> Links:
            entry_bytes = ENTRY_HEADER_BYTES + self._store_config.max_message_size + RECORD_EXTRA_BYTES
            theirs = None
            if config.is_mixed:
                theirs = DledgerLinks(
                    hello.group,
                    config.d_leger_self_id,
                    config.members,
                    NodeView(lambda: node.core, self.log),
                    node.take,
                    now_ms=lambda: int(self._env.clock.monotonic() * 1000),
                    client_tls=broker.client_tls(),
                )
            return Links(
                hello,
                config.others,
                node.deliver,
                frame_bytes_max=max(config.raft_append_bytes, entry_bytes, CHUNK_BYTES) + FRAME_EXTRA_BYTES,
                server_tls=tls,
                client_tls=broker.client_tls(),
                is_guarded=self._is_guarded,
                gate=gate,
                credentials=self._caller.credentials,
                theirs=theirs,
            )

        term_file = TermFile(self._disk, self._home / "currterm")
        self._node = node = RaftNode(
            config,
            store=store,
            commit_log=self.log,
            term_file=term_file,
            links=links,
            listener=self,
            env=self._env,
            store_host=store_host,
            is_sync=self._store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )
        self._delete_as_planned(store)
        filling = Filling(
            self._places,
            FillingSender(
                self._disk,
                self._store_config.store_path_root_dir,
                _Source(self.log, store),
                segment_bytes=self._store_config.mapped_file_size_commit_log,
            ),
            send=node.links.send,
            member=node.missing,
            on_ready=self._on_exchange,
            bytes_per_second=config.raft_catch_up_bytes_per_second,
            self_id=node.id,
        )
        node.missing.files = filling
        if self._places.plan() is not None:
            node.missing.await_tables()
        self._compare_settings(node)
        with closing(term_file):
            async with Tasks() as tasks:
                tasks.create_task(self._take_roles(roles), name="raft: take roles")
                tasks.create_task(filling.run(), name="raft: copy files of the leader")
                tasks.create_task(filling.serve(), name="raft: send files to members")
                async with node:
                    await node.serve(bound)
                    yield node

    async def hand_over(self) -> None:
        """Before this broker stops: let another member lead, and wait until it does. The vote of this one counts: the
        third may be away, or slow."""
        if self._node is not None and self._node.is_leader and len(self._node.core.members.voters) > 1:
            try:
                if await self._node.transfer():
                    await self.settled(self.config.election_ms / 1000)
                else:
                    log.warning("no other member took the leadership over; the others elect a leader by themselves")
            except BrokerRefused as error:
                log.warning("the leadership is not handed over: %s", error)

    async def transfer(self, to: str) -> str:
        """Let another member lead, the one that has most if ``to`` is empty; returns the new leader.

        Raises ``BrokerRefused``.
        """
        if not await self.node.transfer(to or None):
            raise ServiceNotAvailable("the other member did not take the leadership over in time; this one still leads")
        await self.settled(self.config.raft_commit_timeout / 1000)
        return self.node.core.leader or ""

    async def add(self, member: str) -> str:
        """Let ``n3-host:port`` join the group: as a learner, that votes when it keeps up. Returns the members.

        Returns when the change is committed. Raises ``BrokerRefused`` and ``ConfigError``.
        """
        new, peers = parse_member(member), self.node.members.peers
        known = next((peer for peer in peers if peer.id == new.id), None)
        if known is not None:
            state = "is a member already" if known.votes else "joins already, and votes when it keeps up"
            raise InvalidParameter(f"{new.id} ({known.address}) {state}")
        return await self._change((*peers, ListedMember(new.id, new.address, votes=False)))

    async def remove(self, member: str) -> str:
        """Let a member leave the group. Returns the members when the change is committed. Raises ``BrokerRefused``."""
        peers = self.node.members.peers
        left = tuple(peer for peer in peers if peer.id != member)
        if len(left) == len(peers):
            raise InvalidParameter(f"{member!r} is not a member of the group: {describe(peers)}")
        if not any(peer.votes for peer in left):
            raise InvalidParameter(f"{member} is the last member that votes; stop the broker instead")
        return await self._change(left)

    async def _change(self, peers: tuple[ListedMember, ...]) -> str:
        if self.config.is_mixed:
            raise InvalidParameter(
                "the group may have RocketMQ brokers, which know their members by dLegerPeers only: stop all members, "
                "change dLegerPeers, and start them"
            )
        try:
            end = await self.node.members.change(peers)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from None
        if not await self.node.committed.reached(end, self.config.raft_commit_timeout):
            raise ServiceNotAvailable(
                "the change of members is not committed yet: a majority of the new members is needed; "
                "`tern raft status` shows whether it is made"
            )
        return describe(self.node.members.peers)

    async def settled(self, limit_s: float) -> bool:
        """Wait until there is a leader, and this broker has the role that follows; False if it takes longer."""
        try:
            async with asyncio.timeout(limit_s):
                await self._has_leader.wait()
        except TimeoutError:
            return False
        return True

    async def folded(self) -> None:
        """Wait until this leader may begin its term (``Roles``)."""
        if not await self.node.led() and self._roles is not None:
            self._roles.step_down(NotMaster("this member does not lead its group any more"))

    def why_absent(self) -> str:
        """Why this member takes no part in its group; empty if it does."""
        node = self._node
        if node is None:
            return "it is being started"
        no_leader = "" if node.core.leader is not None else "the group has no leader"
        return node.trouble or node.missing.reason or no_leader

    def status(self) -> RaftStatus:
        return self.node.status()

    def runtime(self) -> dict[str, str]:
        return runtime_of(self.node)

    def ha_status(self) -> HaStatus:
        return ha_status_of(self.node)

    def broker_status(self) -> BrokerStatus:
        broker_id = self._roles.broker_id if self._roles is not None else self.config.me.broker_id
        return broker_status_of(self.node, self._broker, broker_id)

    async def delete_on_leader(self, topic: str) -> None:
        """As follower: have the leader delete a topic. Raises ``BrokerRefused``."""
        address = self._leader_address()
        if address is None:
            raise not_leading(self.node)
        await delete_on_leader(self._caller, address, topic, member=self.node.id)

    def deleted_topics(self) -> DeletedTopicsBody:
        """For followers: which topics were deleted, and where in the log."""
        return DeletedTopicsBody(topics=dict(self.node.store.deletions), changes_included=self._changes_included())

    def queue_numbers(self) -> QueueNumbers:
        """For followers: how queues without messages are numbered."""
        queues: dict[str, dict[int, int]] = {}
        for (topic, queue_id), next_offset in self.node.store.numbers().items():
            queues.setdefault(topic, {})[queue_id] = next_offset
        return QueueNumbers(queues=queues)

    def _take_numbers(self, data: bytes) -> None:
        """As follower: number queues as the leader does, which this member has no records of. Dispatch has come to
        where the leader was, so a queue that is not here has no record in the log."""
        for topic, queues in decode(data, QueueNumbers).queues.items():
            for queue_id, next_offset in queues.items():
                self.node.store.keep_number(topic, queue_id, next_offset)

    def _delete_as_planned(self, store: MessageStore) -> None:
        """While this member is being filled: topics are deleted where the leader deleted them. Told later, records of
        a new topic of the same name would be among those of the old one."""
        plan = self._places.plan()
        if plan is not None:
            for topic, log_offset in plan.content.deletions.items():
                if log_offset > store.dispatched:
                    store.delete_topics({topic}, as_of=log_offset)

    def _take_deletions(self, data: bytes) -> None:
        """As follower: delete what the leader has deleted. Dispatch has come so far (``MetadataSync``)."""
        body = decode(data, DeletedTopicsBody)
        copied = body.topics
        for topic, log_offset in copied.items():
            if self._deletions.get(topic, 0) < log_offset:
                self.node.store.delete_topics({topic}, as_of=log_offset)
                self._forget_topic(topic)
        # Only what the leader still has: it drops what its log no longer reaches back to.
        self._deletions = copied
        # The tables are asked for later, one after the other: they may lack a topic or a group whose deletion is not
        # among these, or was after its offsets were copied.
        for each in self._included:
            each.limit(body.changes_included)

    def _changes_included(self) -> int | None:
        counts = [each.count for each in self._included]
        known = [count for count in counts if count is not None]
        return min(known) if known and len(known) == len(counts) else None

    # --- The node's listener ------------------------------------------------------------------------------------------

    def lost(self, reason: NotMaster) -> None:
        if self._roles is not None:
            self._roles.step_down(reason)

    def changed(self, change: RoleChange) -> None:
        is_master = self._roles is not None and self._roles.is_master
        assert change.role is RaftRole.LEADER or not is_master, "a deposed leader steps down in the same turn"
        self._wanted = change
        self._has_leader.clear()
        self._news.set()

    # ------------------------------------------------------------------------------------------------------------------

    async def _take_roles(self, roles: Roles) -> None:
        """Have the broker follow the node, one change after the other; changes that are over are left out."""
        while True:
            await self._news.wait()
            self._news.clear()
            async with Tasks() as tasks:
                change, self._copies = self._wanted, None
                assert change is not None
                if change.role is RaftRole.LEADER:
                    await self._lead(roles, Term(change.term))
                elif roles.role is not Role.SLAVE:
                    # A candidate may still lead the term that it has begun.
                    term = Term(change.term) if change.role is RaftRole.FOLLOWER else roles.term
                    await roles.become(Role.SLAVE, term, broker_id=self.config.me.broker_id)
                if self._wanted is change and (change.leader is not None):
                    self._has_leader.set()
                if change.role is RaftRole.FOLLOWER and change.leader is not None:
                    copies = self._copies = MetadataSync(
                        self._tables,
                        self._leader_address,
                        self._caller,
                        self._dispatched,
                        on_copied=self._copied,
                        period_s=TABLES_S,
                    )
                    tasks.create_task(copies.run(), name="raft: copy the leader's tables")
                    if self.config.is_mixed:
                        tasks.create_task(self._find_leader(change.leader), name="raft: find the leader's address")
                await self._news.wait()

    async def _lead(self, roles: Roles, term: Term) -> None:
        try:
            await roles.become(Role.MASTER, term)
        except Exception:
            # A part of the broker cannot begin. Another member may be luckier.
            log.exception("this broker cannot be the master in term %d", term.number)
            await self.hand_over()

    @property
    def tables_copied(self) -> int:
        """How often the tables of the present leader were copied."""
        return self._copies.rounds if self._copies is not None else 0

    def _copied(self, _log_end: int) -> None:
        self.node.missing.tables_copied()

    def _sealed(self) -> None:
        if self._node is not None:
            self._node.wake()

    def _leader_address(self) -> str | None:
        """Where clients reach the leader, as it has told itself."""
        leader = self.node.core.leader
        hello = self.node.links.known.get(leader) if leader is not None else None
        return hello.address if hello is not None else self._their_address

    async def _find_leader(self, leader: str) -> None:
        """A RocketMQ broker does not say where its clients are, but it registers as the master."""
        self._their_address = None
        links, own = self.node.links, self.node.links.hello.address
        assert self._registered is not None, "the group is running"
        while leader not in links.known:
            found = await self._registered() or {}
            self._their_address = next((address for address in found.get(0, ()) if address != own), None)
            await asyncio.sleep(_FIND_S)
        self._their_address = None

    async def _dispatched(self, log_offset: int) -> None:
        reached = asyncio.Event()
        self.node.store.when_dispatched(log_offset, reached.set)
        await reached.wait()


class _Source:
    """What this member has for another one that begins anew (``raft.copies.FillingSource``)."""

    def __init__(self, commit_log: RaftLog, store: MessageStore) -> None:
        self._log = commit_log
        self._store = store

    def begin(self) -> tuple[int, int, int]:
        return self._log.entries_begin

    def old_segments(self) -> Sequence[Path]:
        return self._log.old_segments()

    def part_files(self) -> Sequence[Sequence[Path]]:
        return self._store.part_files()

    def deletions(self) -> Mapping[str, int]:
        return self._store.deletions

    def members(self, index: int) -> Change | None:
        return self._log.membership.committed(index)
