"""TernMQ's Python client beside the Python clients of other queues, each with its own server on this machine.

::

    .venv/bin/pip install -c constraints.txt -e .[bench]
    .venv/bin/python -m bench.python_peers                              # everything that is installed
    .venv/bin/python -m bench.python_peers flight consume --clients ternmq aiokafka --messages 50000

Bodies have 200 bytes. Each measurement is a process of its own; those of a row take turns, round by round, so that a
machine that becomes slower does so for all of them: compare ratios. CPU time is that of the client's process, without
the server. Kafka comes by Maven (``bench.kafka``), Redis and RabbitMQ from the system's packages, nats-server from Go's
module proxy into ``bench/java/target``. What cannot be had is left out, with a sentence. Servers have their own
defaults; Redis writes its append-only file, and RabbitMQ has quorum queues.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import uvloop

from bench.kafka import start_kafka
from bench.python_clients import BACKLOG, FILLS, SENT, TIMED, WAYS, Run
from ternmq import EmbeddedCluster
from tests.interop.rocketmq import free_port

_TARGET: Final = Path(__file__).parent / "java" / "target"
_NATS: Final = "github.com/nats-io/nats-server/v2@v2.10.24"
_READY_S: Final = 60.0
#: By client: its package and its server.
CLIENTS: Final = {
    "ternmq": ("ternmq", "ternmq"),
    "ternmq, sync": ("ternmq", "ternmq"),
    "ternmq, auto_batch": ("ternmq", "ternmq"),
    "ternmq, one by one": ("ternmq", "ternmq"),
    "aiokafka": ("aiokafka", "kafka"),
    "confluent-kafka": ("confluent_kafka", "kafka"),
    "redis-py": ("redis", "redis"),
    "nats-py": ("nats", "nats"),
    "aio-pika": ("aio_pika", "rabbitmq"),
}
#: Messages of a measurement, as a part of what was asked for.
_SHARE: Final = {"one": 0.05, "flight": 0.5, "lists": 2.0, "consume": 1.0, "latency": 0.03}
_TITLES: Final = {
    "one": "one awaited send after the other",
    "flight": "256 in flight",
    "lists": "the fastest acknowledged way to send",
    "consume": "a backlog consumed and acknowledged",
    "latency": "send to handler at 500 a second",
}


# --- Servers ---------------------------------------------------------------------------------------------------------


@contextmanager
def _process(command: list[str], port: int, log_path: Path, settings: dict[str, str] | None = None) -> Iterator[str]:
    """A server that listens on ``port``; killed at the end with its children, since its files are not needed."""
    environment = {**os.environ, **(settings or {})}
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + _READY_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start: {log_path.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _ternmq() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.python_peers", "--serve"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def _serve() -> None:
    """TernMQ's broker and name server, until standard input ends."""
    async with EmbeddedCluster() as cluster:
        print(cluster.name_servers, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def _server(name: str, directory: Path) -> Iterator[str]:
    """The address of a server; raises ``FileNotFoundError`` with the reason if it cannot be had."""
    if name == "ternmq":
        with _ternmq() as address:
            yield address
    elif name == "kafka":
        if shutil.which("java") is None or shutil.which("mvn") is None:
            raise FileNotFoundError("Kafka needs Java and Maven")
        with start_kafka(directory / "kafka") as kafka:
            for topic in (BACKLOG, SENT, TIMED):
                kafka.create(topic, partitions=4)
            yield kafka.address
    elif name == "redis":
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server is missing; install the package of the system")
        port = free_port()
        settings = ["--port", str(port), "--dir", str(directory), "--appendonly", "yes", "--save", ""]
        with _process([program, *settings], port, directory / "redis.log") as address:
            yield address
    elif name == "rabbitmq":
        with _rabbitmq(directory / "rabbitmq") as address:
            yield address
    else:
        port = free_port()
        command = [_nats_program(), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(directory / "nats")]
        with _process(command, port, directory / "nats.log") as address:
            yield address


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[str]:
    """A node of its own: names, ports and files in ``directory``, so that it meets no other one of this machine."""
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if not program.exists():
        raise FileNotFoundError("rabbitmq-server is missing; install the package of the system")
    directory.mkdir()
    plugins = directory / "plugins"
    plugins.write_text("[].")
    port, names_port = free_port(), free_port()
    settings = {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }
    try:
        with _process([str(program)], port, directory / "rabbitmq.log", settings) as address:
            yield address
    finally:
        # Erlang's name server, a daemon that outlives the node.
        subprocess.run(["epmd", "-kill"], env={**os.environ, **settings}, capture_output=True, check=False)


def _nats_program() -> str:
    program = _TARGET / "nats" / "nats-server"
    if not program.exists():
        go = shutil.which("go")
        if go is None:
            raise FileNotFoundError("nats-server needs Go")
        environment = {**os.environ, "GOBIN": str(program.parent.resolve())}
        done = subprocess.run([go, "install", _NATS], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FileNotFoundError(f"Go could not build nats-server: {done.stderr[-500:]}")
    return str(program)


# --- Measurements ----------------------------------------------------------------------------------------------------


def _measure(arguments: list[str]) -> None:
    """In a process of its own: one measurement, or the filling of a backlog."""
    row, client, address, count = arguments
    run = Run(address, int(count))
    way = FILLS[client] if row == "fill" else WAYS[row][client]

    async def work() -> None:
        async with asyncio.timeout(300):
            await way(run)

    uvloop.run(work())
    print(json.dumps({} if row == "fill" else run.result()))


def _in_process(row: str, client: str, address: str, count: int, *, pure: bool = False) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.python_peers", "--measure", row, client, address, str(count)]
    environment = {**os.environ, **({"TERNMQ_NATIVE": "0"} if pure else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{client}, {row}: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _rows(rows: list[str], clients: list[str], *, messages: int, rounds: int, addresses: dict[str, str]) -> None:
    for row in rows:
        count = int(messages * _SHARE[row])
        # TernMQ's client also without its kernels.
        runs = [(client, False) for client in clients if client in WAYS[row]]
        runs += [(client, True) for client, _ in runs if client.startswith("ternmq")]
        taken: dict[tuple[str, bool], list[dict[str, float]]] = {run: [] for run in runs}
        for number in range(rounds):
            for client, pure in runs[:: -1 if number % 2 else 1]:
                address = addresses[CLIENTS[client][1]]
                taken[client, pure].append(_in_process(row, client, address, count, pure=pure))
        print(f"\n{_TITLES[row]} ({count} messages, median of {rounds})")
        for (client, pure), results in taken.items():
            middle = {name: statistics.median(result[name] for result in results) for name in results[0]}
            shown = (
                f"p50 {middle['p50_ms']:6.2f} ms   p99 {middle['p99_ms']:6.2f} ms"
                if "p50_ms" in middle
                else f"{middle['rate']:10,.0f} /s {middle['cpu_us']:8.1f} µs"
            )
            print(f"  {client + (' (pure Python)' if pure else ''):36}{shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"which of {', '.join(WAYS)}; default: all")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--messages", type=int, default=100_000, help="in the backlog; sends have a share of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(_serve())
        return
    if options.measure:
        _measure(options.measure)
        return
    rows = options.rows or list(WAYS)
    clients, addresses = [], {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        for client in options.clients:
            package, server = CLIENTS[client]
            if find_spec(package) is None:
                print(f"{client} is left out: it is not installed (pip install -e .[bench])")
                continue
            try:
                if server not in addresses:
                    addresses[server] = stack.enter_context(_server(server, Path(directory)))
            except (FileNotFoundError, SystemExit) as error:
                print(f"{client} is left out: {error}")
                continue
            clients.append(client)
        if "consume" in rows:
            for server, address in addresses.items():
                _in_process("fill", server, address, options.messages)
        _rows(rows, clients, messages=options.messages, rounds=options.rounds, addresses=addresses)


if __name__ == "__main__":
    main()
