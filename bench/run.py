"""``script/bench``: TernMQ compared with RocketMQ 4.9.4 and a bare echo, one after the other on this machine.

Each system is started anew and gets: sync sends of 128 bytes from 64 threads; batches of 32 from 16 threads; and (not
the echo) push consumption of waiting messages, once to warm up and once to measure, and messages at a fixed rate whose
time from the sender to the listener is measured. Every load warms up first.
With ``--pop`` TernMQ is compared with RocketMQ 5.2.0 instead, and a Java client of that version pops waiting messages.
With ``--transactions`` a Java client commits transactions, and sends plain messages for comparison.
With ``--rounds`` the systems take turns, and the table shows medians: a machine's speed drifts within minutes.

Writes a table in Markdown, and everything that was measured as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench import load, systems
from bench.systems import System

Figures = dict[str, float]

SYSTEMS: Final[dict[str, Callable[[Path], AbstractContextManager[System]]]] = {
    "rocketmq": systems.start_rocketmq,
    "ternmq": systems.start_ternmq,
    "ternmq-2": partial(systems.start_ternmq, brokers=2),
    "echo": systems.start_echo,
}
#: Unless others are named; two brokers are for machines whose cores one does not fill.
USUAL_SYSTEMS: Final = ("rocketmq", "ternmq", "echo")
#: With ``--pop``: what only RocketMQ 5 has.
POP_SYSTEMS: Final[dict[str, Callable[[Path], AbstractContextManager[System]]]] = {
    "rocketmq": partial(systems.start_rocketmq, version=systems.POP_VERSION),
    "ternmq": systems.start_ternmq,
}
#: With ``--transactions``: an echo has none.
TRANSACTION_SYSTEMS: Final = {name: SYSTEMS[name] for name in ("rocketmq", "ternmq")}


@dataclass(slots=True, frozen=True)
class Row:
    """A line of the table: a figure, and the target for TernMQ's ratio to RocketMQ."""

    key: str
    title: str
    aim: str = ""


ROWS: Final = (
    Row("sync.rate", "64 threads, sync, 128 B: messages/s", "≥ 1.5×"),
    Row("sync.cpu_us_per_message", "… broker CPU, µs a message", "≤ 0.5×"),
    Row("sync.client_cpu_us_per_message", "… CPU of the Java client, µs a message"),
    Row("sync.p50_us", "… p50, µs"),
    Row("sync.p99_us", "… p99, µs", "≤ 1.0×"),
    Row("sync.max_us", "… max, µs"),
    Row("batch.rate", "16 threads, batches of 32: messages/s", "≥ 1.0×"),
    Row("batch.cpu_us_per_message", "… broker CPU, µs a message"),
    Row("batch.client_cpu_us_per_message", "… CPU of the Java client, µs a message"),
    Row("batch.p99_us", "… p99 a batch, µs"),
    Row("transactions.rate", "64 threads, committed transactions of 128 B: per second", "≥ 1.0×"),
    Row("transactions.cpu_us_per_message", "… broker CPU, µs a transaction"),
    Row("transactions.p50_us", "… p50 of a call, µs"),
    Row("transactions.p99_us", "… p99 of a call, µs"),
    Row("transactions.stored", "… messages in the topic after it, with the warm-up"),
    Row("plain.rate", "64 threads, sync, 128 B, for comparison: messages/s"),
    Row("push.rate", "push consumption of waiting messages: messages/s", "≥ 1.5×"),
    Row("push.cpu_us_per_message", "… broker CPU, µs a message"),
    Row("push.client_cpu_us_per_message", "… CPU of the Java client, µs a message"),
    Row("pop.rate", "pop of waiting messages: messages/s", "≥ 1.5×"),
    Row("pop.cpu_us_per_message", "… broker CPU, µs a message"),
    Row("pop.client_cpu_us_per_message", "… CPU of the Java client, µs a message"),
    Row("end.p50_us", "from send to listener at 1,000 messages/s: p50, µs", "≤ 1.0×"),
    Row("end.p99_us", "… p99, µs", "≤ 1.0×"),
    Row("memory_mb", "broker memory after that (RSS less mapped files), MB", "≤ 0.1×, ≤ 120 MB"),
    Row("memory_idle_mb", "… before it, MB"),
    Row("ready_s", "name server and broker ready, s", "≤ 1 s"),
)


def measure(system: System, directory: Path, args: argparse.Namespace) -> Figures:
    """All figures of one started system."""
    figures: Figures = {"ready_s": round(system.ready_s, 3), "memory_idle_mb": round(system.memory_mb(), 1)}

    def keep(name: str, measured: load.Measured) -> None:
        if measured.failed:
            print(f"  {name}: {measured.failed} sends failed")
        figures.update({f"{name}.{field}": value for field, value in dataclasses.asdict(measured).items()})
        print(f"  {name}: {measured}", flush=True)

    if args.pop:
        waiting = {"topic": "bench-pop", "count": args.messages}
        load.send(system, directory, threads=16, batch=32, bodyBytes=128, **waiting)
        keep("pop-warm-up", load.pop(system, directory, group="bench-warm-up", **waiting))
        keep("pop", load.pop(system, directory, group="bench-measured", **waiting))
        figures["memory_mb"] = round(system.memory_mb(), 1)
        return figures
    timing = {"warmUpS": args.warm_up, "seconds": args.seconds, "bodyBytes": 128}
    if args.transactions:
        keep("plain", load.send(system, directory, topic="bench-plain", threads=64, **timing))
        measured, stored = load.transactions(system, directory, topic="bench-transactions", threads=64, **timing)
        keep("transactions", measured)
        print(f"  {stored} messages are committed, with those of the warm-up")
        figures["transactions.stored"] = stored
        figures["memory_mb"] = round(system.memory_mb(), 1)
        return figures
    keep("sync", load.send(system, directory, topic="bench-sync", threads=64, **timing))
    keep("batch", load.send(system, directory, topic="bench-batch", threads=16, batch=32, **timing))
    if system.name != "uvloop echo":
        waiting = {"topic": "bench-push", "count": args.messages}
        load.send(system, directory, threads=16, batch=32, bodyBytes=128, **waiting)
        keep("push-warm-up", load.consume(system, directory, group="bench-warm-up", **waiting))
        keep("push", load.consume(system, directory, group="bench-measured", **waiting))
        keep("end", load.latency(system, directory, topic="bench-latency", threads=4, rate=1000, **timing))
    figures["memory_mb"] = round(system.memory_mb(), 1)
    return figures


def table(results: dict[str, list[Figures]]) -> str:
    """The figures side by side, medians of all rounds, in Markdown; with TernMQ's ratios to the others."""
    medians = {
        name: {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        for name, rounds in results.items()
    }
    others = [name for name in ("rocketmq", "echo") if name in medians and "ternmq" in medians]
    lines = [["", *medians, *(f"ternmq / {other}" for other in others), "aim"]]
    lines.append(["---", *(["---:"] * (len(lines[0]) - 1))])
    measured = {key for figures in medians.values() for key in figures}
    for row in ROWS:
        if row.key not in measured:
            continue
        cells = [_figure(figures.get(row.key)) for figures in medians.values()]
        ratios = [_ratio(medians["ternmq"].get(row.key), medians[other].get(row.key)) for other in others]
        lines.append([row.title, *cells, *ratios, row.aim])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}×" if ours is not None and theirs else ""


def machine() -> str:
    """One line about the machine of the measurement."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    processor = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} × {processor}, {memory_gib:.0f} GiB; Python {platform.python_version()}, {java}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not for the record")
    parser.add_argument("--warm-up", type=int, default=20, metavar="S", help="seconds before a send counts (20)")
    parser.add_argument("--seconds", type=int, default=30, metavar="S", help="seconds that count (30)")
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N", help="waiting messages (1,000,000)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each system is measured (1)")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=list(SYSTEMS),
        default=list(USUAL_SYSTEMS),
        help=f"which ones ({', '.join(USUAL_SYSTEMS)})",
    )
    parser.add_argument("--pop", action="store_true", help="pop, beside RocketMQ 5.2.0")
    parser.add_argument("--transactions", action="store_true", help="committed transactions, beside RocketMQ 4.9.4")
    parser.add_argument("--output", type=Path, default=Path(".cache/bench"), metavar="DIR", help="where results go")
    args = parser.parse_args()
    if args.quick:
        args.warm_up, args.seconds, args.messages = 3, 5, 100_000

    known = POP_SYSTEMS if args.pop else TRANSACTION_SYSTEMS if args.transactions else SYSTEMS
    results: dict[str, list[Figures]] = {name: [] for name in args.systems if name in known}
    for round_number in range(args.rounds):
        for name in results:
            print(f"round {round_number + 1}: {name}", flush=True)
            directory = Path(tempfile.mkdtemp(prefix="ternmq-bench-"))
            try:
                with known[name](directory / name) as system:
                    results[name].append(measure(system, directory, args))
            finally:
                shutil.rmtree(directory)

    args.output.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(), "options": {**vars(args), "output": None}, "results": results}
    (args.output / "results.json").write_text(json.dumps(report, indent=2) + "\n")
    text = (
        f"{machine()}; warm-up {args.warm_up} s, measured {args.seconds} s, {args.rounds} round(s)\n\n{table(results)}"
    )
    (args.output / "results.md").write_text(text)
    print(f"\n{text}\nwritten to {args.output}/results.md and results.json")


if __name__ == "__main__":
    main()
