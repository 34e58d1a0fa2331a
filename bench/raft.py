"""``script/bench --raft``: a group of three, TernMQ's Raft beside RocketMQ's DLedger 4.9.4 on this machine (P1–P4).

For each system, a name server and three members are processes of their own. Both acknowledge a message when two
members have it in their page caches. ``ternmq-disk`` is TernMQ with ``flushDiskType=SYNC_FLUSH``: on two disks.
``single`` is one TernMQ broker without a group.

- sends of 64 threads of one Java client, and the CPU time of all members together for a message;
- a follower that was away while messages of 1 KiB were sent: how fast it catches up;
- the leader is killed with ``kill -9`` under load, again and again: until the next message is acknowledged. The load is
  TernMQ's producer for both systems: it asks for the new leader at once, so that the time is that of the servers.

The systems take turns with ``--rounds``, and the table shows medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench import load, systems
from bench.replication import caught_up
from bench.run import Figures, machine
from bench.systems import Node, System
from ternmq import Admin
from ternmq.errors import TernError
from tests.interop import rocketmq
from tests.raft.processes import Load, filled

MEMBERS: Final = ("n0", "n1", "n2")
#: Until a group has a leader: DLedger waits some seconds, Java starts slowly.
LONG_S: Final = 90.0
PARTS: Final = ("sends", "catch-up", "gaps")
ROWS: Final = (
    ("rate", "64 threads, 128 B: messages/s", "≥ 1.5× DLedger's, ≥ 0.4× of one broker"),
    ("cpu_us", "… CPU of all members, µs a message", ""),
    ("p50_us", "… p50, µs", ""),
    ("p99_us", "… p99, µs", ""),
    ("catch_up_mb_s", "catch-up of a follower that was away: MB/s", ""),
    ("gap_s", "kill -9 of the leader until the next acknowledged message: median, s", "≤ ⅓ of DLedger's"),
    ("gap_max_s", "… worst, s", ""),
)


@dataclass(slots=True, frozen=True)
class Kind:
    """How the nodes of a system are started: a node gets its directory, name server, id and the peers."""

    names: Callable[[Path], AbstractContextManager[str]]
    node: Callable[[Path, str, str, str], AbstractContextManager[Node]]
    members: tuple[str, ...] = MEMBERS
    #: Whether its members vote only when they have all that was committed before they began (``filled``).
    fills: bool = False


KINDS: Final = {
    "dledger": Kind(systems.start_rocketmq_names, systems.start_dledger_node),
    "ternmq": Kind(systems.start_ternmq_names, systems.start_raft_node, fills=True),
    "ternmq-disk": Kind(systems.start_ternmq_names, partial(systems.start_raft_node, flush="SYNC_FLUSH"), fills=True),
    "single": Kind(
        systems.start_ternmq_names,
        lambda directory, names, _member, _peers: systems.start_ternmq_node(directory, names, "ASYNC_MASTER", 0),
        ("n0",),
    ),
}


class Group:
    """Members that can be killed and started again."""

    def __init__(self, kind: Kind, directory: Path, names: str) -> None:
        self.names = names
        self._kind = kind
        self._directory = directory
        self._peers = ";".join(f"{member}-127.0.0.1:{rocketmq.free_port()}" for member in kind.members)
        self._exits: dict[str, ExitStack] = {}
        self.nodes: dict[str, Node] = {}

    def start(self, member: str) -> None:
        stack = ExitStack()
        node = self._kind.node(self._directory / member, self.names, member, self._peers)
        self.nodes[member] = stack.enter_context(node)
        self._exits[member] = stack

    def kill(self, member: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.nodes.pop(member).pid, signal.SIGKILL)
        self._exits.pop(member).close()

    def close(self) -> None:
        for member in list(self.nodes):
            self.kill(member)

    def system(self) -> System:
        first, *others = (node.pid for node in self.nodes.values())
        return System("group", self.names, first, 0.0, tuple(others))

    async def leader(self) -> str:
        """The member that is registered as the master, and runs."""
        async with asyncio.timeout(LONG_S), Admin(self.names) as admin:
            while True:
                with suppress(TernError):
                    masters = {broker.address for broker in await admin.brokers.masters()}
                    for member, node in self.nodes.items():
                        if node.address in masters:
                            return member
                await asyncio.sleep(0.05)


@contextmanager
def started(kind: Kind, directory: Path) -> Iterator[Group]:
    with kind.names(directory / "names") as names:
        group = Group(kind, directory, names)
        try:
            for member in kind.members:
                group.start(member)
            asyncio.run(group.leader())
            if kind.fills:
                asyncio.run(_filled(names))
            yield group
        finally:
            group.close()


async def _filled(names: str) -> None:
    async with Admin(names) as admin:
        await filled(admin)


async def _gaps(group: Group, rounds: int) -> list[float]:
    """Kill the leader so often; the seconds until a message was acknowledged again."""
    gaps: list[float] = []
    sending = Load(group.names)
    async with sending.running():
        for _ in range(rounds):
            await sending.goes_on()
            old = await group.leader()
            await sending.goes_on()
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(group.kill, old)
            await sending.goes_on(1)
            gaps.append(sending.at - began)
            print(f"  gap: {gaps[-1]:.2f} s", flush=True)
            await asyncio.to_thread(group.start, old)
            # It has what the others have before the next one dies: two of three must be there.
            await asyncio.to_thread(_catch_up, group, await group.leader(), old)
    return gaps


def _catch_up(group: Group, leader: str, follower: str) -> float:
    return caught_up(group.nodes[leader], group.nodes[follower])[0]


def measure(name: str, directory: Path, args: argparse.Namespace) -> Figures:
    """All figures of one system."""
    figures = Figures()
    is_group = len(KINDS[name].members) > 1
    with started(KINDS[name], directory) as group:
        if "sends" in args.parts:
            timing = {"threads": 64, "seconds": args.seconds, "warmUpS": args.warm_up, "bodyBytes": 128}
            measured = load.send(group.system(), directory, topic="bench-sends", **timing)
            print(f"  sends: {measured}", flush=True)
            figures |= {
                "rate": measured.rate,
                "cpu_us": measured.cpu_us_per_message,
                "p50_us": measured.p50_us,
                "p99_us": measured.p99_us,
            }
        if "catch-up" in args.parts and is_group:
            leader = asyncio.run(group.leader())
            away = next(member for member in group.nodes if member != leader)
            group.kill(away)
            waiting = {"threads": 16, "batch": 32, "bodyBytes": 1024, "count": args.messages}
            load.send(group.system(), directory, topic="bench-away", **waiting)
            group.start(away)
            figures["catch_up_mb_s"] = _catch_up(group, asyncio.run(group.leader()), away)
            print(f"  catch-up: {figures['catch_up_mb_s']:.0f} MB/s", flush=True)
        if "gaps" in args.parts and is_group:
            gaps = asyncio.run(_gaps(group, args.kills))
            figures |= {"gap_s": round(statistics.median(gaps), 2), "gap_max_s": round(max(gaps), 2)}
    return figures


def table(results: dict[str, list[Figures]]) -> str:
    medians = {
        name: {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        for name, rounds in results.items()
    }
    ours = medians.get("ternmq", {})
    bases = [name for name in ("dledger", "single") if name in medians and "ternmq" in medians]
    lines = [["", *medians, *(f"ternmq / {name}" for name in bases), "aim"]]
    lines.append(["---", *(["---:"] * (len(lines[0]) - 2)), "---"])
    for key, title, aim in ROWS:
        cells = [figures.get(key) for figures in medians.values()]
        if all(cell is None for cell in cells):
            continue
        shown = ["" if cell is None else f"{cell:,.0f}" if cell >= 1000 else f"{cell:.3g}" for cell in cells]
        ratios = [f"{ours[key] / base:.2f}×" if (base := medians[name].get(key)) else "" for name in bases]
        lines.append([title, *shown, *ratios, aim])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --raft")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not for the record")
    parser.add_argument("--warm-up", type=int, default=8, metavar="S", help="seconds before a send counts (8)")
    parser.add_argument("--seconds", type=int, default=8, metavar="S", help="seconds that count (8)")
    parser.add_argument(
        "--messages", type=int, default=100_000, metavar="N", help="of 1 KiB, for the catch-up (100000)"
    )
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="how often the leader is killed (10)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each system is measured (1)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    parser.add_argument("--systems", nargs="+", choices=list(KINDS), default=list(KINDS), help="which ones (all)")
    args = parser.parse_args()
    if args.quick:
        args.warm_up, args.seconds, args.messages, args.kills = 2, 3, 10_000, 2
    results: dict[str, list[Figures]] = {name: [] for name in args.systems}
    for round_number in range(args.rounds):
        for name in results:
            print(f"round {round_number + 1}: {name}", flush=True)
            directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
            began = time.monotonic()
            try:
                results[name].append(measure(name, directory, args))
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            print(f"  took {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{machine()}; measured {args.seconds} s, {args.rounds} round(s), {args.kills} kills\n\n{table(results)}")


if __name__ == "__main__":
    main()
