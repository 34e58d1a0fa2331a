"""A broker under ``tern up``: ``python -m ternmq.cli.supervised LOG_LEVEL KEY=VALUE…`` (see ``supervise``).

This is not a command for users, so it does not load the command-line framework, which would take as long as the start
of the broker.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ternmq.auth.access import own_credentials
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.cli import logs
from ternmq.cli.output import sentence_of
from ternmq.cli.progress import LONG_BYTES
from ternmq.cli.running import serve
from ternmq.cli.supervise import BrokerReport
from ternmq.config import Settings
from ternmq.env import Env
from ternmq.errors import NotRunning, TernError
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig

#: How long the members of a Raft group, which start together, have to elect a leader.
ELECTION_S: Final = 60.0


def main(log_level: str, flags: Sequence[str]) -> int:
    """Run the broker until SIGTERM or the end of stdin; returns the exit code."""
    try:
        settings = Settings.gather(env=os.environ, flags=flags)
        config = settings.build(BrokerConfig)
        logs.set_up(log_level, label=config.broker_name)
        own = settings.build(StoreConfig), settings.build(ReplicationConfig), settings.build(RaftConfig)
        serve(_broker(config, *own, origins=settings.origins(BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig)))
    except (TernError, OSError) as error:
        _tell(BrokerReport(error=sentence_of(error)))
        return 1
    return 0


async def _broker(
    config: BrokerConfig,
    store_config: StoreConfig,
    replication: ReplicationConfig,
    raft: RaftConfig,
    *,
    origins: dict[str, str],
) -> None:
    async with Broker(
        config,
        store_config,
        Env(),
        replication=replication,
        raft=raft,
        credentials=own_credentials(config, os.environ),
        on_progress=_steps(_tell),
        origins=origins,
    ) as broker:
        if broker.group is not None and not await broker.group.settled(ELECTION_S):
            raise NotRunning(f"the members of the Raft group did not elect a leader within {ELECTION_S:g} s")
        _tell(BrokerReport(ready=broker.address))
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(broker.failed())
            await _supervisor_gone()
            failing.cancel()


def _steps(tell: Callable[[BrokerReport], None]) -> Callable[[int, int], None]:
    """Reports a long recovery in steps of 1 %: the supervisor may not read yet, and a pipe has a small buffer."""
    told = 0

    def on_progress(done: int, total: int) -> None:
        nonlocal told
        if total >= LONG_BYTES and (done - told >= total // 100 or done == total):
            told = done
            tell(BrokerReport(done=done, total=total))

    return on_progress


def _tell(report: BrokerReport) -> None:
    """Write a line for the supervisor."""
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


async def _supervisor_gone() -> None:
    """Wait until the supervisor has closed our stdin or has ended."""
    ended = asyncio.Event()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _EndOfInput(ended), sys.stdin)
    try:
        await ended.wait()
    finally:
        transport.close()


class _EndOfInput(asyncio.Protocol):
    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - an error ends the input, too
        self._ended.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
