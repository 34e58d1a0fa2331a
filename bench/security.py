"""``script/bench --security``: what access control and TLS cost, TernMQ beside RocketMQ 4.9.4 on this machine (N1, N2).

All servers run side by side, and take turns: without security, with access control, with TLS. A fourth kind, *signed*,
is a client that signs and a broker that does not check: beside it, *acl* shows what the gate alone costs.

- **Throughput**: the same Java client, 64 threads that send 128 bytes synchronously over one connection. Client and
  broker share the machine, and the client pays for signatures and TLS as well.
- **Gate** (``--gate`` for these two alone): decoding and admission of a send in this process, without and with access
  control. The best of many short samples, so it is hardly disturbed by other work.
- **Broker in process**: what a broker does with 64 sends of one read, from the bytes to the replies, without a socket;
  likewise the best of many samples. Each kind has processes of its own, in turns: one that serves both kinds is slower.
- **CPU** of the broker (TernMQ only): frames that were made and signed before, in windows of 64. The client costs next
  to nothing, so this is what the gate alone costs.

The tables show medians of the rounds, and each figure beside that without security. What the gate costs in throughput
is printed as the ratio of *acl* to *signed* in the same round: both drift with the machine, their ratio less so.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bench import load, systems
from bench.run import machine
from bench.systems import System
from ternmq import kernels
from ternmq.auth import acl_file
from ternmq.auth.accounts import AccessRules
from ternmq.auth.plain import PlainAcl
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.cli import certs
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.env import SystemClock
from ternmq.message import Message
from ternmq.net import lanes, server
from ternmq.net.endpoint import dial_blocking
from ternmq.net.gate import Action, Gate, Rights, Rule
from ternmq.net.peer import Peer
from ternmq.net.tls import TlsConfig
from ternmq.store.config import StoreConfig
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Request
from ternmq.wire.properties import join
from ternmq.wire.requests import SendMessageV2
from tests.interop import jvm

TOPIC: Final = "bench-orders"
_ACCOUNTS: Final = f"""\
accounts:
- {{accessKey: boss-key, secretKey: secret-of-the-boss, admin: true}}
- {{accessKey: shop-key, secretKey: secret-of-the-shop, topicPerms: [{TOPIC}=PUB, others=SUB], groupPerms: [a=SUB]}}
"""
_KEYS: Final = {"access_key": "shop-key", "secret_key": "secret-of-the-shop"}
#: On a busy machine, a send may wait for a second; it must not be refused for that.
_PATIENT: Final[dict[str, object]] = {"waitTimeMillsInSendQueue": 10_000}
_BODY: Final = b"x" * 128
_IN_FLIGHT: Final = 64


@dataclass(slots=True, frozen=True)
class Kind:
    """One way of being secure: of TernMQ, of RocketMQ, and of the clients of both."""

    ternmq: dict[str, object] = field(default_factory=dict)
    rocketmq: dict[str, object] = field(default_factory=dict)
    #: System properties of RocketMQ's servers, and of the Java client.
    server_properties: Mapping[str, str] = field(default_factory=dict)
    client_properties: Mapping[str, str] = field(default_factory=dict)
    #: Options of the Java client, and of ``ClientConfig``.
    load: Mapping[str, object] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)


def kinds_in(directory: Path) -> dict[str, Kind]:
    """The kinds, with their files in a directory."""
    # RocketMQ's broker looks for its file below its own home, each TernMQ below aclPath.
    for conf in (directory / "acl", directory / "rocketmq-acl" / "broker-a" / "conf"):
        _write_accounts(conf)
    made = directory / "certs"
    certs.make(made, [], days=2, now=datetime.datetime.now(datetime.UTC))
    keys = {"accessKey": _KEYS["access_key"], "secretKey": _KEYS["secret_key"]}
    return {
        "none": Kind(),
        "signed": Kind(load=keys, client=_KEYS),
        "acl": Kind(
            ternmq={"aclEnable": "true", "aclPath": directory / "acl"},
            rocketmq={"aclEnable": "true"},
            load=keys,
            client=_KEYS,
        ),
        "tls": Kind(
            ternmq={"tls.config.file": made / "tls.properties"},
            server_properties={
                "tls.test.mode.enable": "false",
                # What starts them asks plainly whether they are ready.
                "tls.server.mode": "permissive",
                "tls.server.certPath": str(made / "server.pem"),
                "tls.server.keyPath": str(made / "server.key"),
                "tls.enable": "false",
            },
            client_properties={
                "tls.enable": "true",
                "tls.test.mode.enable": "false",
                "tls.client.authServer": "true",
                "tls.client.trustCertPath": str(made / "ca.pem"),
            },
            client={"tls": TlsConfig(ca_file=str(made / "ca.pem"))},
        ),
    }


def _write_accounts(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, text in (
        ("plain_acl.yml", _ACCOUNTS),
        ("tools.yml", "accessKey: boss-key\nsecretKey: secret-of-the-boss\n"),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    return directory


def _window(signing: Credentials | None, *, queue_id: int = 0) -> bytes:
    """Frames of sends, as many as are in flight."""
    header = SendMessageV2(
        topic=TOPIC,
        queue_id=queue_id,
        producer_group="ternmq-load",
        born_time_ms=1_700_000_000_000,
        properties=join({"UNIQ_KEY": "C00002027A1AB1409933538854460000", "WAIT": "true"}),
    )
    return b"".join(
        buffer
        for opaque in range(_IN_FLIGHT)
        for buffer in encode_request(Code.SEND_MESSAGE_V2, header, _BODY, opaque=opaque, credentials=signing)
    )


def gate() -> None:
    """Print what decoding and admission of one send take, without and with access control."""
    accounts = acl_file.read(_ACCOUNTS.encode()).accounts
    signing, keeper = Credentials(*_KEYS.values()), Gate([PlainAcl(AccessRules(accounts), SystemClock())])
    rule, caller = Rule(Action.PUB, topic="b"), _Caller()
    data, signed_data = _window(None, queue_id=3), _window(signing, queue_id=3)
    plain, guarded = FrameDecoder(), FrameDecoder(typed=False)

    def without() -> None:
        for _ in plain.feed(data):
            pass

    def with_gate() -> None:
        for request in guarded.feed(signed_data):
            assert isinstance(request, Request)
            admitted = keeper.admit(caller, request, rule)
            if admitted is not None:
                guarded.learn(request.code, admitted)

    best = {without: math.inf, with_gate: math.inf}
    for _ in range(1000):
        for work, found in best.items():
            before = time.thread_time_ns()
            work()
            best[work] = min(found, (time.thread_time_ns() - before) / _IN_FLIGHT / 1000)
    off, on = best.values()
    print(
        f"\nDecoding and admission of a send: {off:.2f} us without access control, {on:.2f} with, {on - off:.2f} more"
    )


def broker_in_process(rounds: int = 5) -> None:
    """Print what a broker takes for one send, without and with access control."""
    best = {"none": math.inf, "signed": math.inf, "acl": math.inf}
    for _ in range(rounds):
        for kind, found in best.items():
            command = [sys.executable, "-m", "bench.security", "--window", kind]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            best[kind] = min(found, float(printed))
    off, signed, on = best.values()
    print(
        f"\nA broker's work for a send, in process: {off:.2f} us without access control, {on:.2f} with, "
        f"{on - off:.2f} more ({on / off:.3f}x); signed, but not checked: {signed:.2f} ({on / signed:.3f}x)",
        flush=True,
    )


async def window(kind: str) -> float:
    """The best CPU time of the loop for a send, of windows that are given to a connection as if read, in µs."""
    connected: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

    class Watched(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            connected.set_result(self)

    best = math.inf
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        # A turn of the loop that was interrupted by another process must not end early.
        stack.enter_context(mock.patch.object(lanes, "TURN_S", 10.0))
        stack.enter_context(mock.patch.object(server, "Peer", Watched))
        directory = Path(name)
        acl = _write_accounts(directory / "acl") if kind == "acl" else None
        config = BrokerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            wait_time_mills_in_send_queue=60_000,
            acl_enable=acl is not None,
            acl_path=acl,
        )
        store = StoreConfig(store_path_root_dir=directory / "store", mapped_file_size_commit_log=1 << 28)
        data = _window(Credentials(*_KEYS.values()) if kind != "none" else None)
        async with Broker(config, store) as broker:
            host, _, port = broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            peer = await connected
            # The first windows create the topic, and show who calls.
            for number in range(1000):
                before = time.thread_time_ns()
                peer.data_received(data)
                took = (time.thread_time_ns() - before) / _IN_FLIGHT / 1000
                for _ in range(_IN_FLIGHT):
                    reply = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                    if number and b'"code":0,' not in reply:
                        raise SystemExit(f"refused: {reply[:300]!r}")
                best = min(best, took if number > 10 else math.inf)
            writer.close()
    return best


class _Caller:
    """A connection, as the gate sees it."""

    address, remote_ip, proved = "127.0.0.1:1", "127.0.0.1", ""
    access: Rights | None = None
    certificate: Mapping[str, object] = {}


def flood(system: System, kind: Kind, count: int) -> float:
    """So many sends by frames that were made before; returns the CPU time of the broker for one, in µs."""
    config = ClientConfig(system.namesrv, **kind.client)
    address = asyncio.run(_route(config))
    data = _window(config.credentials())
    with dial_blocking(address, config.tls_context(), timeout_ms=60_000) as connection:
        before_s = system.cpu_s()
        for _ in range(count // _IN_FLIGHT):
            connection.sendall(data)
            replies = bytearray()
            for _ in range(_IN_FLIGHT):
                while len(replies) < 4 or len(replies) < 4 + int.from_bytes(replies[:4], "big"):
                    replies += connection.recv(1 << 16)
                if b'"code":0,' not in replies[: 4 + int.from_bytes(replies[:4], "big")]:
                    raise SystemExit(f"refused: {bytes(replies[:300])!r}")
                del replies[: 4 + int.from_bytes(replies[:4], "big")]
        return (system.cpu_s() - before_s) / count * 1e6


async def _route(client: ClientConfig) -> str:
    """Where the broker of the topic is; the topic is made by a first send."""
    async with Producer("shop", client=client) as producer:
        await producer.send(Message(TOPIC, _BODY))
    async with ClientInstance(client) as instance:
        return (await instance.routes.of(TOPIC)).address("broker-a") or ""


def _print(title: str, unit: str, figures: dict[tuple[str, str], list[float]]) -> None:
    """Print what was measured so far, also if a later round failed."""
    print(f"\n{title}\n")
    for (system, kind), values in figures.items():
        if not values:
            continue
        base = figures.get((system, "none"))
        median = statistics.median(values)
        ratio = f"{median / statistics.median(base):.3f}x" if base else ""
        rounds = ", ".join(f"{value:.1f}" for value in values)
        print(f"  {system:9} {kind:6} {median:10.1f} {unit:14} {ratio:7} rounds: {rounds}")
    for system in dict.fromkeys(system for system, _ in figures):
        pairs = zip(figures.get((system, "acl"), ()), figures.get((system, "signed"), ()), strict=False)
        ratios = sorted(acl / signed for acl, signed in pairs)
        if len(ratios) > 1:
            low, median, high = statistics.quantiles(ratios, n=4)
            print(
                f"  {system:9} acl beside signed, round by round: median {median:.3f}x, half of the rounds {low:.3f}x "
                f"to {high:.3f}x, {len(ratios)} rounds"
            )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --security", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--count", type=int, default=200_000, help="sends of a round that measures CPU")
    parser.add_argument("--cpu-rounds", type=int, default=7)
    parser.add_argument("--gate", action="store_true", help="only the gate, and a broker in process")
    parser.add_argument("--window", choices=("none", "signed", "acl"), help=argparse.SUPPRESS)
    parser.add_argument("--system", choices=("ternmq", "rocketmq"), help="only this one")
    parser.add_argument("--kinds", help="only these, separated by commas; signed,acl for what the gate costs")
    options = parser.parse_args()
    if options.window:
        print(asyncio.run(window(options.window)))
        return
    if not options.gate and (options.rounds or options.system != "ternmq"):
        # Before minutes of measurements, not after them.
        try:
            jvm.installed(systems.ROCKETMQ_VERSION)
        except jvm.JavaMissing as error:
            raise SystemExit(f"{error}; without Java: --gate, or --system ternmq --rounds 0") from None
    print(f"{machine()}; {kernels.describe()}", flush=True)
    gate()
    broker_in_process()
    if options.gate:
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        kinds = kinds_in(directory)
        if options.kinds:
            kinds = {name: kinds[name] for name in options.kinds.split(",")}
        starts: dict[str, Callable[[str, Kind], AbstractContextManager[System]]] = {
            "rocketmq": lambda name, kind: systems.start_rocketmq(
                directory / f"rocketmq-{name}", settings=_PATIENT | kind.rocketmq, properties=kind.server_properties
            ),
            "ternmq": lambda name, kind: systems.start_ternmq(
                directory / f"ternmq-{name}", settings=_PATIENT | kind.ternmq
            ),
        }
        wanted = [options.system] if options.system else list(starts)
        running = {
            (system, name): stack.enter_context(starts[system](name, kind))
            for system in wanted
            for name, kind in kinds.items()
        }
        cpu: dict[tuple[str, str], list[float]] = {key: [] for key in running if key[0] == "ternmq"}
        for round_number in range(options.cpu_rounds + 1 if cpu else 0):
            for key, figures in cpu.items():
                figure = flood(running[key], kinds[key[1]], options.count)
                if round_number:  # the first one warms up
                    figures.append(figure)
        if options.cpu_rounds and cpu:
            _print("CPU of the broker for a send, made before, 64 in flight", "us", cpu)
        rates: dict[tuple[str, str], list[float]] = {key: [] for key in running}
        loads: dict[tuple[str, str], list[float]] = {key: [] for key in running}
        try:
            for _ in range(options.rounds):
                for key, system in running.items():
                    kind = kinds[key[1]]
                    measured = load.send_with(
                        kind.client_properties,
                        system,
                        directory,
                        topic=TOPIC,
                        threads=options.threads,
                        warmUpS=4,
                        seconds=options.seconds,
                        **kind.load,
                    )
                    if measured.failed:
                        raise SystemExit(f"{key}: {measured.failed} sends failed")
                    rates[key].append(measured.rate)
                    loads[key].append(measured.cpu_us_per_message)
        finally:
            if options.rounds:
                _print(f"Java client, {options.threads} threads, synchronous sends of 128 bytes", "messages/s", rates)
                _print("CPU of the broker for each of them", "us", loads)


if __name__ == "__main__":
    main()
