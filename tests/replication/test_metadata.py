"""Tables that a slave copies from its master (O4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ternmq.env import Env
from ternmq.errors import NoPermission, SystemFailure
from ternmq.net.endpoint import bind
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.replication.metadata import MasterCaller, MetadataSync, Table, log_range
from ternmq.replication.returning import Returning
from ternmq.tasks import Tasks
from ternmq.wire.bodies.offsets import OwnOffset
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from tests.replication.world import until


class OldMaster:
    """A RocketMQ 4.9 master in miniature: no request modes, no file of delay offsets yet."""

    def __init__(self) -> None:
        self.topics = b"topics"
        self.fails = False

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: Route(self.all_topics, "work", ANY_CALLER),
            RequestCode.GET_ALL_DELAY_OFFSET: Route(self.delays, "work", ANY_CALLER),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route(self.groups, "work", ANY_CALLER),
            RequestCode.GET_BROKER_RUNTIME_INFO: Route(self.runtime, "work", ANY_CALLER),
        }

    def all_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        if self.fails:
            raise SystemFailure("the disk is on fire")
        return Reply(body=self.topics)

    def delays(self, _peer: Peer, _request: Request[object]) -> Reply:
        raise SystemFailure("No delay offset in this broker")

    def groups(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=b"groups")

    def runtime(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=b'{"table":{"commitLogMinOffset":"4096","commitLogMaxOffset":"9999"}}')


@asynccontextmanager
async def old_master(more: dict[int, Route] | None = None) -> AsyncIterator[tuple[OldMaster, str]]:
    master = OldMaster()
    async with Server.running(master.routes() | (more or {}), Lanes([LaneConfig("work")])) as server:
        bound = bind("127.0.0.1", 0)
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        await server.serve(bound)
        yield master, address


async def at_once(_log_offset: int) -> None:
    """The log of the slave has come so far."""


async def test_tables_are_taken_when_the_log_has_come_as_far_as_the_master_s() -> None:
    """O4: progress of groups must not know more than the log."""
    taken: list[bytes] = []
    asked: list[int] = []
    has_come = asyncio.Event()

    async def reached(log_offset: int) -> None:
        asked.append(log_offset)
        if log_offset:
            await has_come.wait()

    table = Table("topics", RequestCode.GET_ALL_TOPIC_CONFIG, taken.append)
    async with old_master() as (_, address), Tasks() as tasks:
        sync = MetadataSync([table], lambda: address, MasterCaller(), reached, period_s=0.01)
        tasks.create_task(sync.run())
        await until(lambda: len(asked) > 1)
        assert ([], [0, 9999]) == (taken, asked)

        has_come.set()
        await until(lambda: sync.rounds)
        assert b"topics" == taken[0]


async def test_a_master_is_asked_for_its_tables_when_its_log_comes() -> None:
    """O4: one that is being promoted has not copied those of the old master yet, which would get its own old ones back.
    Meanwhile the master may be another one."""
    taken: list[bytes] = []
    has_begun, addresses = asyncio.Event(), [""]

    async def reached(_log_offset: int) -> None:
        await has_begun.wait()

    table = Table("topics", RequestCode.GET_ALL_TOPIC_CONFIG, taken.append)
    async with old_master() as (promoted, address), old_master() as (other, elsewhere), Tasks() as tasks:
        addresses[0] = elsewhere
        sync = MetadataSync([table], lambda: addresses[0], MasterCaller(), reached, period_s=0.01)
        tasks.create_task(sync.run())
        await until(lambda: sync.known)
        addresses[0] = address
        promoted.topics, other.topics = b"all topics", b"topics of another one"
        has_begun.set()
        await until(lambda: sync.rounds)
        assert {b"all topics"} == set(taken)


async def test_a_table_that_the_master_does_not_have_does_not_hold_up_the_others() -> None:
    """O4: a master of 4.9 knows no request modes, and has no delay offsets before its first delayed message."""
    taken: dict[str, bytes] = {}
    tables = [
        Table(name, code, lambda data, name=name: taken.update({name: data}))  # type: ignore[misc]
        for name, code in (
            ("topics", RequestCode.GET_ALL_TOPIC_CONFIG),
            ("delays", RequestCode.GET_ALL_DELAY_OFFSET),
            ("modes", RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
            ("groups", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        )
    ]
    async with old_master() as (master, address), Tasks() as tasks:
        sync = MetadataSync(tables, lambda: address, MasterCaller(), at_once, period_s=0.01)
        tasks.create_task(sync.run())
        await until(lambda: sync.rounds)
        assert {"topics": b"topics", "groups": b"groups"} == taken
        assert not sync.trouble

        master.fails = True
        await until(lambda: sync.trouble)
        assert "the disk is on fire" in sync.trouble
        master.fails, master.topics = False, b"more topics"
        await until(lambda: taken["topics"] == b"more topics")
        await until(lambda: not sync.trouble)


class Own:
    """A slave that has an offset to return."""

    has_own = True

    def own(self) -> list[OwnOffset]:
        return [OwnOffset(group="g", topic="t", queue_id=0, queue_offset=5, committed_ms=7)]

    def returned(self, offsets: Sequence[OwnOffset], /) -> None:
        raise AssertionError("the master has not taken them")


async def test_offsets_that_the_master_does_not_take_do_not_hold_up_the_tables() -> None:
    """O3, O4: a slave may follow without being an admin."""
    taken: list[bytes] = []
    asked = 0

    def refuse(_peer: Peer, _request: Request[object]) -> Reply:
        nonlocal asked
        asked += 1
        raise NoPermission("only an admin may return offsets")

    table = Table("topics", RequestCode.GET_ALL_TOPIC_CONFIG, taken.append)
    returning = Returning(Own(), Env().clock, may=lambda: True)
    more: dict[int, Route] = {RequestCode.RETURN_OFFSETS: Route(refuse, "work", ANY_CALLER)}
    async with old_master(more) as (_, address), Tasks() as tasks:
        sync = MetadataSync([table], lambda: address, MasterCaller(), at_once, returning=returning, period_s=0.01)
        tasks.create_task(sync.run())
        await until(lambda: sync.trouble)
        assert [b"topics"] == taken[:1]
        assert "only an admin may return offsets" in sync.trouble
        await until(lambda: asked > 2)


async def test_a_master_tells_where_its_log_begins_and_ends() -> None:
    """O1: by the numbers for tools; one that cannot be reached does not."""
    async with old_master() as (_, address):
        assert (4096, 9999) == await log_range(address, MasterCaller())
    assert await log_range(address, MasterCaller()) is None
