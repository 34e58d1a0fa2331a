"""The change of roles: a slave becomes the master of its name, and the old master a slave (O1).

::

    slave B, asked to be promoted                       master A
      | ── status ───────────────────────────────────────▶ |
      | ── HAND_OVER ────────────────────────────────────▶ |  steps down: nothing is written any more
      | ◀──────────────── the rest of the log ──────────── |  until B has acknowledged all of it
      | ◀──────────────── done ─────────────────────────── |  has its role as slave on the disk
      |  all records folded, half a record dropped
      |  the new epoch, then the role, on the disk
      |  MASTER, registered with id 0                       follows B

A crash between any two steps leaves one master or none, never two: A is no master from its step-down on, unless B
fails to fetch the rest; B is none before its files are written. Promote again after a crash.

If A cannot be reached and no name server lists it, it is gone, and B becomes master with what it has. A returns with
its old settings, and asks the name servers before it takes a message (``check``, also before each registration): if
another master of its name is registered, the later epoch wins. The other one becomes a slave, and cuts what the new
master does not have off its log (``replication.slave``). A master that is registered and does not answer may be a later
one, so this broker waits until it answers or the name servers forget it.

Two promotions at the same time: each shows itself (``is_changing``) before it asks the others, so at least one sees the
other, and refuses, also by force. A master that begins a new epoch by force has no role for a moment: it has not agreed
to anything, so its slave is not promoted meanwhile. If they do not reach each other, both may become master, but never
of one epoch (``replication.epochs``): the one with the larger number stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from itertools import chain, count
from typing import Any, Final

import msgspec

from ternmq.broker.replicating import Replicating
from ternmq.broker.roles import MASTER_ID, Role, Roles, Term
from ternmq.errors import (
    InvalidParameter,
    NetworkError,
    NotMaster,
    RequestNotSupported,
    ServiceNotAvailable,
    TernError,
    refused,
)
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.replication.config import BrokerRole
from ternmq.replication.epochs import HEARD_MAX, next_number
from ternmq.replication.memory import GivenRole, Memory
from ternmq.replication.metadata import MasterCaller
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.replication import BrokerStatus
from ternmq.wire.bodies.routes import BrokerData
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Header
from ternmq.wire.requests_admin import HandOver, RegisterBrokerReply

log = logging.getLogger(__name__)

#: How long another broker may take to tell its state, a slave to fetch the rest of the log, and a master to hand over.
_STATUS_MS: Final = 3_000
_REST_MS: Final = 20_000
_HAND_OVER_MS: Final = 40_000
_FIRST_SLAVE_ID: Final = 1
_MASTERS: Final = frozenset({BrokerRole.SYNC_MASTER.value, BrokerRole.ASYNC_MASTER.value})


class Standing(Enum):
    """What another registered master means for this one."""

    #: There is none, or an older one, which will step down.
    ALONE = "alone"
    #: It is of a later epoch.
    DEPOSED = "deposed"
    #: It does not say which of both is the later one.
    UNSURE = "unsure"


class Promotion:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        roles: Roles,
        replicating: Replicating,
        memory: Memory,
        store: MessageStore,
        members: Callable[[], Awaitable[dict[int, list[str]] | None]],
        find_topics: Callable[[], None],
        caller: MasterCaller,
        ha_address: str,
        settings_id: int,
        tasks: Tasks,
    ) -> None:
        """``members`` asks the name servers for the brokers of this name. ``find_topics`` adds topics to the table that
        have messages: of those that were created last, a slave may have the records only. ``settings_id`` is the
        ``brokerId`` of the settings, whatever a promotion made of it."""
        self._roles = roles
        self._replicating = replicating
        self._memory = memory
        self._store = store
        self._members = members
        self._find_topics = find_topics
        self._caller = caller
        self._ha_address = ha_address
        self._settings_id = settings_id
        self._tasks = tasks
        self._changing = asyncio.Lock()
        #: It begins a term as soon as nothing speaks against it: at its start, and when it is not sure of being the
        #: only master.
        self._waits = True
        #: What speaks against it.
        self._doubt = ""

    async def settle(self) -> None:
        """All name servers were tried: begin the first term, unless one lists another master."""
        if not self._doubt:
            await self._serve()

    # --- A slave becomes master -------------------------------------------------------------------------------------

    async def promote(self, *, force: bool, role: str) -> None:
        """Become the master. Raises ``TernError`` with the reason and what to do; then this broker is what it was."""
        if role and role not in _MASTERS:
            raise InvalidParameter(f"invalid role {role!r}: expected SYNC_MASTER or ASYNC_MASTER")
        await self._whole(self._promote(role, force=force))

    def _role_of_master(self) -> str:
        """What the master was; empty if that is not known."""
        slave, given = self._replicating.slave, self._memory.given
        return (slave.master_role if slave is not None else "") or (given.master_role if given is not None else "")

    async def _promote(self, role: str, *, force: bool) -> None:
        if not self._replicating.is_slave:
            if not force:
                raise InvalidParameter(
                    f"{self._replicating.place.address} is not a slave; with --force it begins a new epoch, and "
                    "replaces another master"
                )
            role = role or self._replicating.config.broker_role.value
        role = role or self._role_of_master()
        if not role:
            raise InvalidParameter(
                "this slave has not met its master since its start, and does not know its role; give --role "
                "SYNC_MASTER or --role ASYNC_MASTER"
            )
        epoch, replaced = await self._make_way(force=force)
        await self._take_over(BrokerRole(role), epoch, replaced)
        for address in replaced:
            # One that is alive and did not agree. What it does not hear now it learns from the name servers.
            with contextlib.suppress(TernError):
                await self._tell(address, is_done=True, timeout_ms=_STATUS_MS)

    async def _make_way(self, *, force: bool) -> tuple[int, tuple[str, ...]]:
        """Have no other master, and no slave with more messages; returns the largest epoch that was seen, and the
        masters that are replaced."""
        own, members = self._replicating.place.address, await self._members()
        listed = set(members.get(MASTER_ID, [])) if members is not None else set()
        known = listed | {self._replicating.master_address() or own}
        # Before the masters: of a log that is being written, a slave then never has more than its master.
        others, silent = await self._ask_slaves(members or {})
        # One may have been promoted since it was listed.
        known |= {each.address for each in others if each.role in _MASTERS}
        slaves = [each for each in others if each.role == BrokerRole.SLAVE.value]
        for each in others:
            _check_rests(each)
        epoch = max([self._memory.epochs.newest, *(_epoch_of(each, force=force) for each in others)])
        has_agreed = has_handed_over = False
        for address in sorted(known - {own}):
            try:
                other = await self._status_of(address)
            except RequestNotSupported:
                _unless(force, f"the master at {address} is a broker of RocketMQ, or an older TernMQ: stop it first")
            except NetworkError as error:
                if address in listed:
                    _unless(
                        force,
                        f"the master at {address} cannot be reached ({error}), but name servers still list it. They "
                        "forget it after two minutes; if it is gone for certain",
                    )
            except TernError as error:
                _unless(force, f"the master at {address} is alive and does not tell its state: {error}")
            else:
                if not self._is_of_this_name(other):
                    # Another broker has the address now, so the master is not there any more.
                    continue
                _check_rests(other)
                epoch = max(epoch, _epoch_of(other, force=force))
                if other.role in _MASTERS and self._replicating.is_slave:
                    # Before it steps down: else a refusal would leave no master.
                    _check_none_has_more(slaves, _end_of(other), "its master", force=force)
                    try:
                        other = await self._ask_to_hand_over(address)
                        has_handed_over = True
                    except TernError as error:
                        _unless(force, f"the master at {address} is alive and does not hand over: {error}")
                elif other.role == BrokerRole.SLAVE.value:
                    # The name servers do not know yet.
                    slaves.append(other)
                elif other.role not in _MASTERS:
                    # It has not agreed: it may be the master in a moment, and have messages that this one lacks.
                    _unless(force, f"the broker at {address} has no role yet; ask again when it has")
                has_agreed = True
                await self._copy_tables(other)
        if members is None and not has_agreed:
            _unless(force, "no name server answers, so it is not known whether there is another master")
        if not has_handed_over:
            _check_none_has_more(slaves, _end_of(self._replicating.status()), "this one", force=force)
            for address, reason in silent.items():
                _unless(
                    force,
                    f"the slave at {address} may have more messages than this one, and does not tell how far it is "
                    f"({reason}). Start it, or wait until the name servers forget it; if its messages do not count",
                )
        return epoch, tuple(sorted(known - {own}))

    async def _ask_slaves(self, members: dict[int, list[str]]) -> tuple[list[BrokerStatus], dict[str, str]]:
        """The state of the other slaves, and by address why some do not tell it."""
        found: list[BrokerStatus] = []
        silent: dict[str, str] = {}
        addresses = {each for broker_id, some in members.items() if broker_id != MASTER_ID for each in some}
        for address in sorted(addresses - {self._replicating.place.address}):
            try:
                other = await self._status_of(address)
            except TernError as error:
                silent[address] = str(error)
            else:
                if self._is_of_this_name(other):
                    found.append(other)
        return found, silent

    def _is_of_this_name(self, other: BrokerStatus) -> bool:
        """Whether this is a copy of this broker: its address may have been given to another one."""
        place = self._replicating.place
        return (other.cluster, other.broker) == (place.cluster, place.broker)

    async def _take_over(self, role: BrokerRole, epoch: int, replaced: tuple[str, ...]) -> None:
        replicating, roles, memory = self._replicating, self._roles, self._memory
        given = memory.given
        former_id = roles.broker_id or (given.former_id if given is not None else 0)
        number = next_number(epoch, self._settings_id)
        roles.step_down(NotMaster(f"this broker begins epoch {number}"))
        await roles.ended()
        await replicating.end_following()
        try:
            await replicating.folded(NotMaster("this broker becomes the master"))
            self._find_topics()
            # Nothing is written between here and the beginning of the term.
            begun = memory.epochs.begun(self._store.written, number)
            await asyncio.to_thread(memory.keep_epochs, begun)
            await asyncio.to_thread(memory.keep_role, GivenRole(role, MASTER_ID, former_id, replaced=replaced))
            replicating.take_role(role, MASTER_ID)
        except Exception:
            # Not if the broker ends meanwhile: then nothing begins any more.
            if replicating.is_slave:
                replicating.begin_following()
            else:
                self._waits = True
                self._tasks.create_task(_caught(self._serve()), name="roles: begin a term")
            raise
        self._doubt = ""
        log.warning(
            "promoted: %s is the master now (%s), in epoch %d from log offset %d on",
            replicating.place.address,
            role.value,
            number,
            self._store.written,
        )
        await self._become_master()

    async def _become_master(self) -> None:
        self._waits = False
        await self._roles.become(Role.MASTER, Term(self._roles.term.number + 1), broker_id=MASTER_ID)

    # --- A master becomes slave -------------------------------------------------------------------------------------

    async def hand_over(
        self, broker_id: int, *, address: str, ha_address: str, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Become a slave with the id ``broker_id``, once the slave that has it now has all messages: it is the master
        from then on, with these addresses. ``is_wanted`` tells whether it still waits for that.

        Raises ``TernError``; then this broker is still the master, in a new term.
        """
        await self._whole(self._hand_over(broker_id, address, ha_address, is_wanted))

    async def deposed(self, address: str) -> None:
        """The broker at ``address`` says that it is the master now: look, and step down if it is the later one."""
        with contextlib.suppress(NotMaster):
            members = {each: addresses[0] for each, addresses in (await self._members() or {}).items()}
            known = BrokerData(broker_name=self._replicating.place.broker, broker_addrs={**members, MASTER_ID: address})
            await self.check(known, is_listed=False)

    async def _hand_over(self, broker_id: int, address: str, ha_address: str, is_wanted: Callable[[], bool]) -> None:
        roles, replicating = self._roles, self._replicating
        if not roles.is_master or replicating.master is None:
            raise NotMaster("this broker is not the master")
        if broker_id <= 0:
            raise InvalidParameter(f"invalid broker id {broker_id}: expected that of a slave")
        replica = f"{replicating.place.broker}:{broker_id}"
        if not replicating.master.replicas.in_sync_by_replica().get(replica):
            raise ServiceNotAvailable(f"slave {broker_id} does not keep up with this master; wait until it does")
        roles.step_down(NotMaster(f"this broker hands over to slave {broker_id}"))
        try:
            await self._give_the_rest(replica)
            if not is_wanted():
                raise ServiceNotAvailable(f"slave {broker_id} has gone")
            await self._keep_slave_role(broker_id)
        except (TernError, OSError):
            log.warning("slave %d has not fetched the rest of the log; this broker stays the master", broker_id)
            await self._become_master()
            raise
        await self._become_slave(broker_id)
        replicating.registered(RegisterBrokerReply(ha_address=ha_address, master_address=address))

    async def _give_the_rest(self, replica: str) -> None:
        await self._roles.ended()
        async with self._replicating.serving_the_rest() as master:
            if not await master.replicas.has_all(replica, self._store.written, _REST_MS):
                raise ServiceNotAvailable(f"slave {replica} did not fetch the rest of the log within {_REST_MS} ms")

    async def _keep_slave_role(self, broker_id: int) -> None:
        was = self._replicating.config.broker_role.value
        given = GivenRole(BrokerRole.SLAVE, broker_id, master_role=was)
        await asyncio.to_thread(self._memory.keep_role, given)

    async def _become_slave(self, broker_id: int) -> None:
        self._waits = False
        self._replicating.take_role(BrokerRole.SLAVE, broker_id)
        await self._roles.become(Role.SLAVE, Term(self._roles.term.number), broker_id=broker_id)
        self._replicating.begin_following()

    # --- A master that another one has replaced ---------------------------------------------------------------------

    async def check(self, known: BrokerData | None, *, is_listed: bool = True) -> None:
        """Before this broker registers, and now and then: whether it may be the master, by what a name server lists.

        Raises ``NotMaster`` if it may not now. It has stepped down then, and becomes a slave if the other is a later
        master. If no name server lists the other (``is_listed``), only a later master counts.
        """
        if self._replicating.is_slave or self._changing.locked():
            return
        standing, reason, former_id = await self._standing(known)
        # Others may have changed the role meanwhile.
        if self._replicating.is_slave or self._changing.locked():
            return
        if not is_listed and standing is not Standing.DEPOSED:
            return
        if standing is Standing.ALONE:
            self._doubt = ""
            await self._forget_replaced(known)
            if self._waits:
                # Not here: the end of it waits for this registration.
                self._tasks.create_task(_caught(self._serve()), name="roles: begin a term")
            return
        if reason != self._doubt:
            log.error("%s", reason)
            self._doubt = reason
        self._roles.step_down(NotMaster(reason))
        self._waits = standing is Standing.UNSURE
        if standing is Standing.DEPOSED:
            # Two slaves with one id would end each other's connections. The new master may be listed with its old id.
            taken = known.broker_addrs if known is not None else {}
            not_others = taken.get(MASTER_ID), self._replicating.place.address
            others = {each for each, address in taken.items() if address not in not_others}
            wanted = [former_id] if former_id else []
            own_id = next(each for each in chain(wanted, count(_FIRST_SLAVE_ID)) if each not in others)
            stepping_back = _caught(self._step_back(own_id))
            self._tasks.create_task(stepping_back, name="roles: become a slave")
        raise NotMaster(reason)

    async def _step_back(self, broker_id: int) -> None:
        async with self._changing:
            if not self._replicating.is_slave:
                await self._keep_slave_role(broker_id)
                await self._become_slave(broker_id)

    async def _serve(self) -> None:
        """Begin a term, unless that has happened, or something speaks against it."""
        async with self._changing:
            if self._waits and not self._doubt and not self._replicating.is_slave:
                await self._become_master()

    async def _forget_replaced(self, known: BrokerData | None) -> None:
        """A master that was replaced and is registered as a slave may become master again, by a later promotion."""
        given = self._memory.given
        slaves = {each for broker_id, each in known.broker_addrs.items() if broker_id} if known is not None else set()
        if given is not None and slaves.intersection(given.replaced):
            kept = tuple(each for each in given.replaced if each not in slaves)
            await asyncio.to_thread(self._memory.keep_role, msgspec.structs.replace(given, replaced=kept))

    async def _standing(self, known: BrokerData | None) -> tuple[Standing, str, int]:
        address = known.broker_addrs.get(MASTER_ID) if known is not None else None
        own = self._replicating.place
        given = self._memory.given
        replaced = given.replaced if given is not None else ()
        if address is None or address == own.address:
            return Standing.ALONE, "", 0
        cure = (
            "To decide, run `tern broker promote ADDRESS --force` for the one whose messages count; if they are two "
            "brokers, give this one another brokerName"
        )
        try:
            other = await self._status_of(address)
        except RequestNotSupported:
            reason = f"{address} is registered as master of {own.broker}, too, and does not tell its epoch. {cure}"
            return Standing.UNSURE, reason, 0
        except TernError as error:
            if address in replaced:
                return Standing.ALONE, "", 0
            reason = (
                f"{address} is registered as master of {own.broker}, too, and does not answer ({error}). This broker "
                f"takes no messages until it answers, or the name servers forget it. {cure}"
            )
            return Standing.UNSURE, reason, 0
        ours = self._memory.epochs.newest
        is_slave = other.role == BrokerRole.SLAVE.value
        if is_slave or other.epoch < ours or not self._is_of_this_name(other):
            return Standing.ALONE, "", 0
        if other.role not in _MASTERS:
            if other.epoch == ours:
                return Standing.ALONE, "", 0
            # It has just been started, and will be the master.
            reason = (
                f"{address} was promoted to master of {own.broker} (epoch {other.epoch}, here {ours}), and has not "
                f"begun its term. This broker takes no messages until it has. {cure}"
            )
            return Standing.UNSURE, reason, 0
        if other.epoch > ours:
            reason = (
                f"{address} was promoted to master of {own.broker} (epoch {other.epoch}, here {ours}); this broker "
                "becomes its slave"
            )
            return Standing.DEPOSED, reason, max(other.former_id, 0)
        reason = f"{address} is master of {own.broker}, too, and of the same epoch {ours}. {cure}"
        return Standing.UNSURE, reason, 0

    async def _whole(self, change: Coroutine[Any, Any, None]) -> None:
        """Carry a change out to its end, also if its caller goes away meanwhile: no other one begins before. Raises
        what it raises, and ``ServiceNotAvailable`` if another one is under way."""
        if self._changing.locked():
            change.close()
            raise ServiceNotAvailable("the role of this broker is being changed; ask again in a moment")
        error = await asyncio.shield(self._tasks.create_task(_caught(self._alone(change)), name="roles: change"))
        if error is not None:
            raise error

    async def _alone(self, change: Coroutine[Any, Any, None]) -> None:
        async with self._changing:
            # For others that are being promoted.
            self._replicating.is_changing = True
            try:
                await change
            finally:
                self._replicating.is_changing = False

    # --- Other brokers ----------------------------------------------------------------------------------------------

    async def _copy_tables(self, other: BrokerStatus) -> None:
        """Have the last offsets, topics and groups of a master that has stepped down."""
        metadata = self._replicating.metadata
        if metadata is None or other.log_end > self._store.written or other.role in _MASTERS:
            return
        try:
            async with asyncio.timeout(_REST_MS / 1000):
                await metadata.copy_now(other.address)
        except (TernError, TimeoutError) as error:
            log.warning("the last changes of the tables of %s are not known: %s", other.address, error)

    async def _ask_to_hand_over(self, address: str) -> BrokerStatus:
        told = await self._tell(address, is_done=False, timeout_ms=_HAND_OVER_MS)
        if self._store.written < told.log_end:
            raise ServiceNotAvailable(f"its log ends at {told.log_end}, and this one at {self._store.written}")
        return told

    async def _tell(self, address: str, *, is_done: bool, timeout_ms: int) -> BrokerStatus:
        header = HandOver(
            broker_id=self._roles.broker_id,
            broker_address=self._replicating.place.address,
            ha_address=self._ha_address,
            is_done=is_done,
        )
        return await self._call(address, RequestCode.HAND_OVER, header, timeout_ms=timeout_ms)

    async def _status_of(self, address: str) -> BrokerStatus:
        return await self._call(address, RequestCode.GET_BROKER_STATUS, timeout_ms=_STATUS_MS)

    async def _call(self, address: str, code: int, header: Header | None = None, *, timeout_ms: int) -> BrokerStatus:
        """Raises ``NetworkError`` if the other cannot be reached, ``BrokerRefused`` if it refuses."""
        async with Tasks() as tasks:
            peer = await self._caller.connect(address, Lanes([LaneConfig("client")]), tasks)
            try:
                response = await peer.call(code, header, timeout_ms=timeout_ms)
            finally:
                peer.close()
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, response.remark or "it does not say why", broker=address)
        return decode(bytes(response.body), BrokerStatus)


async def _caught(change: Coroutine[Any, Any, None]) -> TernError | OSError | None:
    """Carry out a change of roles, and return why it failed."""
    try:
        await change
    except (TernError, OSError) as error:
        log.warning("the role was not changed: %s", error)
        return error
    return None


def _epoch_of(node: BrokerStatus, *, force: bool) -> int:
    """The epoch of another broker, 0 if it cannot be one."""
    if node.epoch <= HEARD_MAX:
        return node.epoch
    _unless(force, f"the broker at {node.address} tells epoch {node.epoch}, which no promotion begins: stop it")
    return 0


def _check_rests(node: BrokerStatus) -> None:
    """Refuse while the role of another broker changes, also by force: it answers, so its change has an end."""
    if node.is_changing:
        raise ServiceNotAvailable(
            f"the broker at {node.address} is being promoted, or hands over: look at it, and ask again. If this does "
            "not end, stop that broker"
        )


def _end_of(node: BrokerStatus) -> tuple[int, int]:
    """The epoch of a node's last record, and where its log ends. The larger has more of what was acknowledged: bytes
    of an older epoch may be such that a later master never had. An older TernMQ does not tell the epoch of its last
    record (0): the one that it has heard of is the best guess."""
    return node.log_epoch or node.epoch, node.log_end


def _check_none_has_more(slaves: Sequence[BrokerStatus], than: tuple[int, int], whose: str, *, force: bool) -> None:
    """Refuse if a slave has more of the log, by ``_end_of``."""
    epoch, log_end = than
    for each in slaves:
        its_epoch, its_end = _end_of(each)
        if its_epoch > epoch:
            reason = f"has messages of epoch {its_epoch}, and {whose} none after epoch {epoch}"
            _unless(force, f"the slave at {each.address} {reason}: promote that one")
        elif its_epoch == epoch and its_end > log_end:
            lacks = its_end - log_end
            _unless(force, f"the slave at {each.address} has {lacks} bytes more than {whose}: promote that one")


def _unless(force: bool, reason: str) -> None:
    if not force:
        raise ServiceNotAvailable(f"{reason}; --force ignores this, and can lose messages")
    log.warning("promoted by force: %s", reason)
