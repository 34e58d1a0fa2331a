"""One time as master: slaves fetch the log, and sends wait for them if they are to (O1, O2).

Its port belongs to the term (``broker.roles``), and the slaves are a level of the store's safety while it lasts.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from ternmq.errors import ConfigError, NetworkError, ServiceNotAvailable, TernError
from ternmq.net.endpoint import Bound
from ternmq.replication.config import BrokerRole
from ternmq.replication.master import Master
from ternmq.replication.replicas import Replicas
from ternmq.store.durable.safety import Level
from ternmq.store.durable.watermark import Watermark
from ternmq.store.store import MessageStore
from ternmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from ternmq.broker.replicating import Replicating

log = logging.getLogger(__name__)

#: How often a master tries to open its port for slaves.
_PORT_S: Final = 1.0
#: A watermark that is behind nothing: the level only checks.
_EVERYWHERE: Final = 1 << 62


class MasterTerm:
    """A ``roles.Runner``."""

    def __init__(self, replicating: Replicating, master: Master, store: MessageStore) -> None:
        self._replicating = replicating
        self._master = master
        self._safety = store.safety
        self._level = self._make_level()
        if self._level is not None:
            self._safety.add(self._level)

    def _make_level(self) -> Level | None:
        """The slaves as a level of safety; None if nothing depends on them."""
        config, replicas = self._master.config, self._master.replicas
        checks = config.min_in_sync_replicas > 1 or config.slave_waiting_max
        check_write = partial(self._check_write, replicas, config.slave_waiting_max) if checks else None
        room = partial(self._room, config.slave_waiting_max) if config.slave_waiting_max else None
        if config.broker_role is BrokerRole.SYNC_MASTER and config.waited_slaves:
            return Level(
                replicas.replicated,
                config.slave_timeout,
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                check_write=check_write,
                room=room,
                check_wait=self._check_wait,
            )
        if check_write is not None:
            return Level(
                Watermark(_EVERYWHERE),
                0,
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                is_awaited=False,
                check_write=check_write,
                room=room,
            )
        return None

    def _room(self, waiting_max: int) -> int:
        return waiting_max - self._safety.waiting

    def _check_write(self, replicas: Replicas, waiting_max: int) -> None:
        replicas.check_write()
        if waiting_max and self._safety.waiting >= waiting_max:
            raise ServiceNotAvailable(
                f"{self._safety.waiting} messages wait for slaves (slaveWaitingMax); messages are refused until a "
                "slave has caught up"
            )

    def _check_wait(self, end_offset: int) -> int:
        # A sender waits: its record is sent in this turn.
        self._master.wake()
        return self._master.replicas.check_wait(end_offset)

    async def run(self) -> None:
        bound = await self._port()
        if bound is None:
            return
        async with self._master:
            await self._master.accept(bound)
            await self._master.look()

    async def _port(self) -> Bound | None:
        """The port for slaves, as soon as no other program has it: a slave did not hold it before its promotion."""
        is_told = False
        while True:
            try:
                return self._replicating.take_port()
            except (NetworkError, ConfigError) as error:
                if not is_told:
                    is_told = True
                    log.error(
                        "slaves cannot fetch the log: %s; trying again every %g s. End the program that has the port, "
                        "or restart this broker with another haListenPort",
                        error,
                        _PORT_S,
                    )
            await asyncio.sleep(_PORT_S)

    def stop(self, _reason: TernError) -> None:
        if self._level is not None:
            self._safety.remove(self._level)
            self._level = None
        self._replicating.master = None
