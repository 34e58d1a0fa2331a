"""``script/bench --replication``: a master with one slave, TernMQ beside RocketMQ 4.9.4 on this machine (O1, O2).

For each system, name server, master and slave are processes of their own:

- sends to an ASYNC_MASTER without and with a slave: what a slave costs its master;
- a slave that was away while messages of 1 KiB were sent: how fast it catches up, from its first new byte to the last;
- the lag of a slave at a steady rate: from the moment when the master has a message until its slave has it, as two
  requests for the ends of both logs see it. Where the machine is too slow for the rate, the rate that was reached is
  reported;
- sends to a SYNC_MASTER, and the CPU time of master and slave together for a message.

The systems take turns with ``--rounds``, and the table shows medians.

``--fold`` measures one thing in this process, in CPU time, so that other programs do not matter: what a slave does for
each record of 1 KiB that it has received, until its queues and index have it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import load, systems
from bench.pace import Pace
from bench.run import Figures, machine
from bench.systems import Node, System
from ternmq import Message, Producer
from ternmq.env import SystemClock
from ternmq.errors import TernError
from ternmq.net.dial import connect
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.replication.session import FOLD_S
from ternmq.store.config import StoreConfig
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.properties import join
from ternmq.wire.record import pack_host

#: Longer than a slave of RocketMQ waits before it connects, and until it has 200 MB.
LONG_S: Final = 120.0
LAG_BATCH: Final = 10


@dataclass(slots=True, frozen=True)
class Kind:
    """How the nodes of a system are started."""

    names: Callable[[Path], AbstractContextManager[str]]
    node: Callable[[Path, str, str, int], AbstractContextManager[Node]]


KINDS: Final = {
    "rocketmq": Kind(systems.start_rocketmq_names, systems.start_rocketmq_node),
    "ternmq": Kind(systems.start_ternmq_names, systems.start_ternmq_node),
}
ROWS: Final = (
    ("sync.rate", "SYNC_MASTER, one slave, 64 threads, 128 B: messages/s", "≥ 1×"),
    ("sync.cpu_us_per_message", "… CPU of master and slave, µs a message", "≤ 1×"),
    ("sync.p99_us", "… p99, µs", ""),
    ("catch_up_mb_s", "catch-up of a slave that was away, until it has the log: MB/s", "≥ 1×"),
    ("folded_mb_s", "… until its queues have it, too: MB/s", ""),
    ("lag.p50_ms", "lag of a slave at the steady rate: p50, ms", ""),
    ("lag.p99_ms", "… p99, ms", ""),
    ("lag.rate", "… the rate: messages/s", ""),
    ("alone.rate", "ASYNC_MASTER without a slave, 64 threads, 128 B: messages/s", ""),
    ("async.rate", "… with a slave: messages/s", ""),
    ("async.cost", "… what the slave costs: part of the rate", "≤ 0.1"),
)


async def log_end(peer: Peer) -> int:
    return (await _ends(peer))[0]


async def _ends(peer: Peer) -> tuple[int, int]:
    """Where a log ends, and up to where it is dispatched."""
    while True:
        response = await peer.call(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=10_000)
        if response.code == ResponseCode.SUCCESS:
            table = decode(bytes(response.body), KvTable).table
            end = int(table["commitLogMaxOffset"])
            return end, end - int(table["dispatchBehindBytes"])
        # RocketMQ listens before it is ready.
        await asyncio.sleep(0.05)


async def dialled(node: Node, tasks: Tasks) -> Peer:
    return await connect(node.address, routes={}, lanes=Lanes([LaneConfig("client")]), tasks=tasks)


async def _caught_up(master: Node, slave: Node) -> tuple[float, float]:
    """MB/s at which a slave that is being started gets what it lacks: into its log, and into its queues."""
    async with Tasks() as tasks:
        ours, theirs = await dialled(master, tasks), await dialled(slave, tasks)
        end, begin = await log_end(ours), await log_end(theirs)
        began = time.monotonic()
        deadline = began + LONG_S
        at, first, first_at = begin, begin, began
        while at < end:
            await asyncio.sleep(0.01)
            at, now = await log_end(theirs), time.monotonic()
            if at > begin and first == begin:
                first, first_at = at, now
            if now > deadline:
                raise SystemExit(f"the slave has {at} of {end} bytes after {LONG_S} s")
        took_s = time.monotonic() - first_at
        while (await _ends(theirs))[1] < end:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        folded_s = time.monotonic() - first_at
        ours.close()
        theirs.close()
        return (end - first) / 1e6 / max(took_s, 1e-3), (end - first) / 1e6 / max(folded_s, 1e-3)


def caught_up(master: Node, slave: Node) -> tuple[float, float]:
    return asyncio.run(_caught_up(master, slave))


async def _lag(names: str, master: Node, slave: Node, *, rate: int, seconds: float) -> Figures:
    samples: list[float] = []
    is_measured = asyncio.Event()

    async def send(producer: Producer, pace: Pace, until: float) -> None:
        messages = [Message("bench-lag", b"x" * 128) for _ in range(LAG_BATCH)]
        while time.monotonic() < until:
            try:
                await producer.send_batch(messages)
            except TernError as error:
                if not error.retriable:
                    raise
                # On a slow machine the rate may be too high.
                await asyncio.sleep(pace.after_refusal(time.monotonic()))
            else:
                await asyncio.sleep(pace.after_send(time.monotonic()))

    async def sample(ours: Peer, theirs: Peer) -> None:
        while True:
            end, asked_at = await log_end(ours), time.monotonic()
            while await log_end(theirs) < end:
                pass
            samples.append(time.monotonic() - asked_at)
            is_measured.set()
            await asyncio.sleep(0.003)

    async with Producer("bench", name_servers=names) as producer, Tasks() as tasks:
        await producer.send(Message("bench-lag", b"first"))
        ours, theirs = await dialled(master, tasks), await dialled(slave, tasks)
        watching = tasks.create_task(sample(ours, theirs))
        began = time.monotonic()
        pace = Pace(rate=rate, batch=LAG_BATCH, now_s=began)
        await send(producer, pace, began + seconds)
        reached = pace.rate(time.monotonic())
        async with asyncio.timeout(LONG_S):
            await is_measured.wait()
        watching.cancel()
        ours.close()
        theirs.close()
    if pace.refused:
        print(f"  lag: the broker was busy {pace.refused} times; {reached:,.0f} of {rate:,} messages/s were reached")
    ordered = sorted(samples)
    return {
        "lag.p50_ms": round(ordered[len(ordered) // 2] * 1000, 2),
        "lag.p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2),
        "lag.rate": round(reached),
    }


def measure(name: str, directory: Path, args: argparse.Namespace) -> Figures:
    """All figures of one system."""
    kind, figures = KINDS[name], Figures()

    def sends(key: str, system: System, **options: object) -> load.Measured:
        measured = load.send(system, directory, topic=f"bench-{key}", bodyBytes=128, **options)
        print(f"  {key}: {measured}", flush=True)
        figures.update(
            {
                f"{key}.rate": measured.rate,
                f"{key}.cpu_us_per_message": measured.cpu_us_per_message,
                f"{key}.p99_us": measured.p99_us,
            }
        )
        return measured

    timing = {"threads": 64, "seconds": args.seconds}
    with kind.names(directory / "names") as names:
        with kind.node(directory / "master", names, "ASYNC_MASTER", 0) as master:
            system = System(name, names, master.pid, 0.0)
            sends("alone", system, warmUpS=args.warm_up, **timing)
            with kind.node(directory / "slave", names, "SLAVE", 1) as slave:
                caught_up(master, slave)
                sends("async", system, warmUpS=args.warm_up // 2, **timing)
                caught_up(master, slave)
                figures |= asyncio.run(_lag(names, master, slave, rate=args.rate, seconds=args.seconds))
                print(
                    f"  lag: {figures['lag.p50_ms']} ms, p99 {figures['lag.p99_ms']} ms, at {figures['lag.rate']} "
                    "messages/s",
                    flush=True,
                )
                caught_up(master, slave)
            load.send(system, directory, topic="bench-away", threads=16, batch=32, bodyBytes=1024, count=args.messages)
            with kind.node(directory / "slave", names, "SLAVE", 1) as slave:
                figures["catch_up_mb_s"], figures["folded_mb_s"] = caught_up(master, slave)
                print(f"  catch-up: {figures['catch_up_mb_s']:.0f} MB/s", flush=True)
        for part in ("master", "slave"):
            shutil.rmtree(directory / part)
        figures["async.cost"] = round(1 - figures["async.rate"] / figures["alone.rate"], 3)
        with (
            kind.node(directory / "sync-master", names, "SYNC_MASTER", 0) as master,
            kind.node(directory / "sync-slave", names, "SLAVE", 1) as slave,
        ):
            system = System(name, names, master.pid, 0.0, (slave.pid,))
            # Until the slave counts, sends are answered at once: those of the warm-up.
            sends("sync", system, warmUpS=args.warm_up + 5, **timing)
    return figures


def fold(directory: Path, messages: int) -> str:
    """The CPU time of a slave for the records of a log that it has received."""

    def opened(name: str) -> MessageStore:
        config = StoreConfig(store_path_root_dir=directory / name)
        return MessageStore.open(config, store_host=pack_host("127.0.0.1", 1), clock=SystemClock(), threads=False)

    master, slave = opened("master"), opened("slave")
    for number in range(messages):
        properties = {"UNIQ_KEY": f"7F00000100002A139A55{number:012X}", "WAIT": "true"}
        born_host = pack_host("127.0.0.1", 2)
        master.put(Draft("bench-away", number % 8, b"x" * 1024, join(properties), 1_699_999_999_000, born_host))
    at, end = 0, master.written
    while at < end:
        part = master.log.view(at, min(end - at, 32 * 1024))
        assert part is not None, "it was just written"
        slave.append_raw(at, part)
        at += len(part)
    began = time.process_time()
    while not slave.follow(FOLD_S):
        pass
    took_s = time.process_time() - began
    assert slave.dispatched == end, "all is folded"
    slave.close()
    master.close()
    return f"fold: {took_s / messages * 1e6:.1f} µs of CPU a record, {end / 1e6 / took_s:.0f} MB for a second of CPU"


def table(results: dict[str, list[Figures]]) -> str:
    medians = {
        name: {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        for name, rounds in results.items()
    }
    lines = [["", *medians, "ratio", "aim"]]
    lines.append(["---", *(["---:"] * (len(lines[0]) - 1))])
    for key, title, aim in ROWS:
        values = [figures[key] for figures in medians.values()]
        is_ratio = len(values) == 2 and values[0] > 0 and not key.endswith("cost")
        ratio = f"{medians['ternmq'][key] / medians['rocketmq'][key]:.2f}×" if is_ratio else ""
        shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
        lines.append([title, *shown, ratio, aim])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --replication")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not for the record")
    parser.add_argument("--warm-up", type=int, default=8, metavar="S", help="seconds before a send counts (8)")
    parser.add_argument("--seconds", type=int, default=8, metavar="S", help="seconds that count (8)")
    parser.add_argument(
        "--messages", type=int, default=200_000, metavar="N", help="of 1 KiB, for the catch-up (200000)"
    )
    parser.add_argument("--rate", type=int, default=10_000, metavar="N", help="messages a second, for the lag (10,000)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each system is measured (1)")
    parser.add_argument("--systems", nargs="+", choices=list(KINDS), default=list(KINDS), help="which ones (all)")
    parser.add_argument("--fold", action="store_true", help="only the CPU time that a slave needs for each record")
    args = parser.parse_args()
    if args.fold:
        with tempfile.TemporaryDirectory(prefix="ternmq-bench-") as root:
            print(fold(Path(root), min(args.messages, 100_000)))
        return
    if args.quick:
        args.warm_up, args.seconds, args.messages = 2, 3, 20_000
    results: dict[str, list[Figures]] = {name: [] for name in args.systems}
    for round_number in range(args.rounds):
        for name in results:
            print(f"round {round_number + 1}: {name}", flush=True)
            directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
            try:
                results[name].append(measure(name, directory, args))
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    print(f"\n{machine()}; measured {args.seconds} s, {args.rounds} round(s)\n\n{table(results)}")


if __name__ == "__main__":
    main()
