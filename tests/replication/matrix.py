"""The failure matrix: what is lost of what was acknowledged, measured in simulations (O1, O2, C6).

Each cell of the table in ``docs/guides/replication.md`` is a failure of the master, under one way to flush and one way
to replicate. A producer sends to a simulated broker, alone or with a slave, until the master fails at some moment. Then
the logs of all nodes that are left are read. A message is *lost* if SEND_OK was returned for it and no node has it.

The table is printed and written into the page by::

    python -m tests.replication.matrix [--write] [--seeds N]

``test_matrix.py`` compares the page with the simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.disk.base import PAGE_BYTES
from ternmq.store.store import MessageStore
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from tests.store.small import HOST

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "replication.md"
BEGIN: Final = "<!-- made by python -m tests.replication.matrix --write -->"
END: Final = "<!-- end -->"
ROOT: Final = Path("/store")
TOPIC: Final = "orders"
SECTOR_BYTES: Final = 512
#: ASYNC_FLUSH writes all to the disk every 10 s, and looks twice a second.
UNFLUSHED_S: Final = 10.5
SEEDS: Final = 4


class Failure(Enum):
    """What befalls the master. The values stand in the table."""

    UNCLEAN_STOP = "Unclean stop: killed while it stops"
    PROCESS_CRASH = "Crash of the process (`kill -9`)"
    SYSTEM_CRASH = "Crash of the operating system"
    POWER_CUT = "Power cut"
    BOTH_CUT = "Power cut of master and slave at once"
    MACHINE_LOST = "Machine lost"
    DISK_LOST = "Disk lost, and replaced by an empty one"


class Copies(Enum):
    """How the master replicates."""

    ALONE = "alone"
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"


class Lost(Enum):
    """What is lost in a cell. The values stand in the table."""

    NOTHING = "nothing"
    #: The master does not have all, and its slave does.
    KEPT_BY_SLAVE = "nothing: the slave has it ¹"
    UNFLUSHED = "what was not flushed ²"
    LAG = "what the slave did not have yet ¹"
    UNFLUSHED_LAG = "what was neither flushed nor on the slave ¹ ²"
    UNFLUSHED_TWICE = "what was flushed on neither ²"
    EVERYTHING = "everything"


class WrongCell(AssertionError):
    """A failure took what it must not take."""


@dataclass(slots=True, frozen=True)
class Cell:
    failure: Failure
    flush: FlushDiskType
    copies: Copies


@dataclass(slots=True, frozen=True)
class Measured:
    """One life, or several: numbers of messages."""

    acknowledged: int = 0
    lost: int = 0
    #: Acknowledged, and not on the master any more.
    missing_on_master: int = 0
    #: Acknowledged so long before the failure.
    oldest_lost_s: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.acknowledged + other.acknowledged,
            self.lost + other.lost,
            self.missing_on_master + other.missing_on_master,
            max(self.oldest_lost_s, other.oldest_lost_s),
        )


def cells(failure: Failure) -> list[Cell]:
    """The cells of a row."""
    needs_slave = failure is Failure.BOTH_CUT
    return [
        Cell(failure, flush, copies)
        for flush in FlushDiskType
        for copies in Copies
        if copies is not Copies.ALONE or not needs_slave
    ]


def measure(cell: Cell, seeds: Sequence[int]) -> Measured:
    """What several lives lose together."""
    total = Measured()
    for seed in seeds:
        total += _Life(cell, seed).run()
    return total


def judge(cell: Cell, measured: Measured) -> Lost:
    """The words for what was measured. Raises ``WrongCell`` if there are none: it is more than was ever promised."""
    with_slave = cell.copies is not Copies.ALONE
    if not measured.lost:
        return Lost.KEPT_BY_SLAVE if measured.missing_on_master else Lost.NOTHING
    if not with_slave and cell.failure in (Failure.MACHINE_LOST, Failure.DISK_LOST):
        return Lost.EVERYTHING
    if cell.copies is Copies.SYNC_MASTER and cell.failure is not Failure.BOTH_CUT:
        raise WrongCell(f"{cell} lost {measured}: the slave had that")
    if cell.failure in (Failure.MACHINE_LOST, Failure.DISK_LOST):
        return Lost.LAG
    if cell.flush is FlushDiskType.SYNC_FLUSH or measured.oldest_lost_s > UNFLUSHED_S:
        raise WrongCell(f"{cell} lost {measured}: that was on the disk")
    if cell.failure is Failure.BOTH_CUT and with_slave:
        return Lost.UNFLUSHED_TWICE
    return Lost.UNFLUSHED_LAG if with_slave else Lost.UNFLUSHED


def table(found: dict[Cell, Lost]) -> str:
    """The table of the page: one for each way to flush."""
    parts = []
    for flush in FlushDiskType:
        heads = [copies.value if copies is Copies.ALONE else f"`{copies.value}`" for copies in Copies]
        lines = [f"| `{flush.value}` | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for failure in Failure:
            row = [found.get(Cell(failure, flush, copies)) for copies in Copies]
            lines.append(f"| {failure.value} | {' | '.join(cell.value if cell else '–' for cell in row)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def documented() -> str:
    """The table as it stands in the page."""
    return PAGE.read_text().partition(BEGIN + "\n")[2].partition(END)[0].strip() + "\n"


def documented_cells() -> dict[Cell, Lost]:
    """What the page says of each cell. Raises ``ValueError`` for words that are not ours."""
    found: dict[Cell, Lost] = {}
    flush = FlushDiskType.ASYNC_FLUSH
    for line in documented().splitlines():
        head, *texts = [text.strip() for text in line.strip("|").split("|")]
        if head.strip("`") in FlushDiskType.__members__:
            flush = FlushDiskType[head.strip("`")]
        elif head and not head.startswith("-"):
            row = zip(Copies, texts, strict=True)
            found |= {Cell(Failure(head), flush, copies): Lost(text) for copies, text in row if text != "–"}
    return found


class _Life:
    """One failure, from one seed."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self._cell = cell
        self._seed = seed
        #: Body → when SEND_OK came.
        self._acknowledged: dict[bytes, float] = {}

    def run(self) -> Measured:
        with simulated_loop() as loop:
            cluster = Cluster(loop, self._seed)
            measured = loop.run_until_complete(self._story(cluster))
            loop.check()
            return measured

    async def _story(self, cluster: Cluster) -> Measured:
        cell, chance = self._cell, cluster.random
        names = cluster.name_server()
        role = "SYNC_MASTER" if cell.copies is Copies.SYNC_MASTER else "ASYNC_MASTER"
        settings = {"flushDiskType": cell.flush.value, "waitTimeMillsInSendQueue": 60_000}
        master = cluster.broker("broker-a", brokerRole=role, **settings)
        nodes = [master]
        if cell.copies is not Copies.ALONE:
            slave = cluster.broker("slave", brokerName="broker-a", brokerId=1, brokerRole="SLAVE", **settings)
            nodes.append(slave)
        for node in nodes:
            # A power cut tears pages into sectors; a system that crashes writes whole pages or none.
            page_bytes = PAGE_BYTES if cell.failure is Failure.SYSTEM_CRASH else SECTOR_BYTES
            node.disk = SimulatedDisk(now_ms=node.clock.now_ms, page_bytes=page_bytes)
        shop = cluster.node("shop", self._send)
        await cluster.start(names, master)
        await cluster.start(*nodes[1:], shop)
        # Time to connect.
        await asyncio.sleep(4.0)
        cluster.network.weather = Weather(0.000_1, chance.choice((0.001, 0.05, 0.2)), chance.choice((0.0, 0.5)))
        await asyncio.sleep(chance.uniform(0.1, 14.0))
        for node in nodes:
            node.disk.write_back(chance)
        if self._seed % 4:
            # The slave falls behind.
            cluster.network.block(master.ip, nodes[-1].ip)
        await asyncio.sleep(chance.uniform(0.5, 2.5))
        now = cluster.loop.time()
        survivors = await self._fail(nodes, chance)
        cluster.network.heal()
        # Answers that are under way count as well.
        await asyncio.sleep(1.0)
        shop.kill()
        known = self._acknowledged
        for node in survivors:
            if not node.is_up:
                await cluster.start(node)
        cluster.network.weather = Weather()
        await asyncio.sleep(30.0)
        found = {node.name: _bodies(node, cell.flush) for node in survivors}
        everywhere: set[bytes] = set().union(*found.values())
        lost = [body for body in known if body not in everywhere]
        return Measured(
            acknowledged=len(known),
            lost=len(lost),
            missing_on_master=sum(body not in found.get(master.name, set()) for body in known),
            oldest_lost_s=max([now - known[body] for body in lost], default=0.0),
        )

    async def _fail(self, nodes: list[Node], chance: Random) -> list[Node]:
        """Let it happen; the nodes that are left, or come back."""
        master, *slaves = nodes
        match self._cell.failure:
            case Failure.UNCLEAN_STOP:
                master.stopping.set()
                await asyncio.sleep(chance.choice((0.0, 0.000_1, 0.01, 0.5)))
                if master.is_up:
                    master.kill()
            case Failure.PROCESS_CRASH:
                master.kill()
            case Failure.SYSTEM_CRASH | Failure.POWER_CUT:
                master.cut_power()
            case Failure.BOTH_CUT:
                for node in nodes:
                    node.cut_power()
            case Failure.MACHINE_LOST:
                master.cut_power()
                return slaves
            case Failure.DISK_LOST:
                master.cut_power()
                master.disk = SimulatedDisk(now_ms=master.clock.now_ms, page_bytes=SECTOR_BYTES)
        return nodes

    async def _send(self, node: Node) -> None:
        """A producer that sends all the time."""
        chance, number = node.env.random, 0
        async with Producer("shop", client=node.client_config()) as producer:
            node.is_ready()
            while True:
                await asyncio.sleep(chance.expovariate(1 / 0.1))
                number += 1
                body = b"%d." % number * chance.choice((1, 20, 100))
                try:
                    receipt = await producer.send(Message(TOPIC, body), timeout_ms=10_000)
                except TernError:
                    continue
                if receipt.status is SendStatus.OK:
                    self._acknowledged[body] = asyncio.get_running_loop().time()


def _bodies(node: Node, flush: FlushDiskType) -> set[bytes]:
    """The bodies in the log of a node, read by a store of its own."""
    config = StoreConfig(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50,
        max_index_num=200,
        max_message_size=4096,
        flush_disk_type=flush,
    )
    store = MessageStore.open(config, store_host=HOST, clock=node.clock, disk=node.disk.copy(), threads=False)
    return {bytes(record.body) for record in store._log.walk(store.min_log_offset) if record.topic == TOPIC}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.replication.matrix")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"lives for each cell ({SEEDS})")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: dict[Cell, Lost] = {}
    for cell in [cell for failure in Failure for cell in cells(failure)]:
        measured = measure(cell, range(given.seeds))
        found[cell] = judge(cell, measured)
        sys.stdout.write(f"{cell.failure.name} {cell.flush.value} {cell.copies.value}: {measured}\n")
    made = table(found)
    sys.stdout.write(made)
    if given.write:
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN + "\n")
        _, _, after = rest.partition(END + "\n")
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n{END}\n{after}")


if __name__ == "__main__":
    main()
