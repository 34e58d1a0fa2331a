"""A Raft group of real processes on hosts of their own, whose network loses what some of them send (P3, P4).

``script/soak raft-network [ROUNDS] [--seed N]``. The simulation has such networks by the thousand; this is the same
with the kernel's TCP: connections that stay open and answer nothing, one direction alone, two members that do not hear
each other. What was acknowledged is on all members in the end, their files are equal, and a consumer has had it all.

The program builds the hosts, and runs itself on that of the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.tasks import Tasks
from tests.hosts import Hosts, hosts
from tests.raft.processes import LONG_S, Load, check, complete, filled, leader, level, running

log = logging.getLogger(__name__)

MEMBERS: Final = ("n0", "n1", "n2")
#: How long each way lasts, at least; it goes on until messages are acknowledged again.
LOST_S: Final = 4.0
ALL: Final = (*MEMBERS, "names", "client")

#: What is lost, from the leader and its two followers.
Loss = Callable[[Hosts, str, str, str], None]


def only_clients_reach_the_leader(net: Hosts, leader: str, one: str, other: str) -> None:
    net.part(leader, one, other)


def nothing_reaches_the_leader(net: Hosts, leader: str, one: str, other: str) -> None:
    net.part(leader, one, other, "names", "client")


def followers_do_not_hear_the_leader(net: Hosts, leader: str, one: str, other: str) -> None:
    net.cut(leader, one)
    net.cut(leader, other)


def the_leader_does_not_hear_followers(net: Hosts, leader: str, one: str, other: str) -> None:
    net.cut(one, leader)
    net.cut(other, leader)


def nothing_reaches_a_follower(net: Hosts, leader: str, one: str, other: str) -> None:
    net.part(one, leader, other, "names", "client")


def a_follower_does_not_hear_the_leader(net: Hosts, leader: str, one: str, other: str) -> None:
    """It would ask for votes again and again; those who hear the leader give none."""
    net.cut(leader, one)


def leader_and_follower_do_not_hear_each_other(net: Hosts, leader: str, one: str, other: str) -> None:
    net.part(leader, one)


def names_do_not_hear_the_leader(net: Hosts, leader: str, one: str, other: str) -> None:
    net.cut(leader, "names")


LOSSES: Final[tuple[Loss, ...]] = (
    only_clients_reach_the_leader,
    nothing_reaches_the_leader,
    followers_do_not_hear_the_leader,
    the_leader_does_not_hear_followers,
    nothing_reaches_a_follower,
    a_follower_does_not_hear_the_leader,
    leader_and_follower_do_not_hear_each_other,
    names_do_not_hear_the_leader,
)


class Reader:
    """A consumer that was there all the time."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    @asynccontextmanager
    async def running(self, name_servers: str) -> AsyncIterator[None]:
        consumer = PushConsumer("readers", name_servers=name_servers, start=StartPosition.FIRST)
        consumer.subscribe("orders")
        async with consumer, Tasks() as tasks:
            tasks.create_task(self._read(consumer))
            yield

    async def _read(self, consumer: PushConsumer) -> None:
        async for message in consumer:
            with message:
                self.numbers.add(int(re.findall(rb"<(\d+)>", message.body)[0]))

    async def has(self, numbers: set[int]) -> None:
        async with asyncio.timeout(LONG_S):
            while not numbers <= self.numbers:
                await asyncio.sleep(0.05)


async def lose_network(directory: Path, net: Hosts, losses: list[Loss]) -> tuple[list[tuple[str, float]], list[str]]:
    """Lose the network in these ways, one after the other, under load; the longest time without an answer in each, and
    what sends raised.

    Raises ``AssertionError`` if a message that was acknowledged is lost, or the members differ.
    """
    silences = []
    async with running(directory, hosts=net) as processes, Admin(processes.name_servers) as admin:
        load, reader = Load(processes.name_servers, pause_s=0.002), Reader()
        await filled(admin)
        async with load.running(), reader.running(processes.name_servers):
            for loss in losses:
                await load.goes_on()
                await complete(admin)
                old = await leader(admin)
                load.silence_s = 0.0
                one, other = (member for member in MEMBERS if member != old)
                log.info("%s: %s leads", loss.__name__, old)
                await asyncio.to_thread(loss, net, old, one, other)
                lost_at = time.monotonic()
                # Elections, leases and dead connections are a matter of two seconds.
                while time.monotonic() - lost_at < LOST_S:
                    await load.goes_on()
                await asyncio.to_thread(net.mend)
                await load.goes_on()
                silences.append((loss.__name__.replace("_", " "), load.silence_s))
            await complete(admin)
            acknowledged = load.acknowledged.copy()
            await reader.has(acknowledged)
        await level(admin)
        await asyncio.to_thread(processes.stop)
        check(processes, load)
    return silences, load.errors


def chosen(seed: int, rounds: int) -> list[Loss]:
    """Each way once before any of them comes again, in the order of a seed."""
    rng = random.Random(seed)
    losses: list[Loss] = []
    while len(losses) < rounds:
        losses += rng.sample(LOSSES, len(LOSSES))
    return losses[:rounds]


def inside(options: argparse.Namespace) -> None:
    """The part of the program that is a client."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    net = Hosts(options.inside, ALL)
    with tempfile.TemporaryDirectory() as directory:
        silences, errors = asyncio.run(lose_network(Path(directory), net, chosen(options.seed, options.rounds)))
    for way, silence_s in silences:
        print(f"{silence_s:6.2f} s without an answer: {way}")  # noqa: T201 - the result of a program
    longest = [silence_s for _, silence_s in silences]
    print(  # noqa: T201
        f"{len(silences)} times a lost network, no acknowledged message lost; the longest time without an answer: "
        f"median {statistics.median(longest):.2f} s, worst {max(longest):.2f} s; {len(errors)} sends raised an error",
        *errors,
        sep="\n",
    )


def run_on_hosts(rounds: int, seed: int) -> subprocess.CompletedProcess[str]:
    """The program on hosts of its own, which are gone afterwards."""
    with hosts(*ALL) as net:
        return net.run("client", "tests.raft.lost_network", str(rounds), "--seed", str(seed), "--inside", net.prefix)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak raft-network")
    parser.add_argument("rounds", type=int, nargs="?", default=24, help="how often the network is lost (24)")
    parser.add_argument("--seed", type=int, default=os.getpid(), help="of the order in which it is lost")
    parser.add_argument("--inside", metavar="PREFIX", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    done = run_on_hosts(options.rounds, options.seed)
    print(done.stdout, done.stderr, sep="\n")  # noqa: T201
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
