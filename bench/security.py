"""What access control and TLS cost a broker: ``python -m bench.security``.

Brokers without security, with access control, and with TLS take turns; each gets the same sends of 128 bytes, in
windows of 64, and the CPU time of its process is read before and after. Medians of the rounds are printed: on a busy
machine, CPU time per send says more than sends a second.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from ternmq.cli import certs
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.message import Message
from ternmq.net.endpoint import dial_blocking
from ternmq.net.tls import TlsConfig
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import encode_request
from ternmq.wire.properties import join
from ternmq.wire.requests import SendMessageV2

_ACCOUNTS: Final = """\
accounts:
- {accessKey: boss-key, secretKey: secret-of-the-boss, admin: true}
- {accessKey: shop-key, secretKey: secret-of-the-shop, topicPerms: [orders=PUB, others=SUB], groupPerms: [a=SUB]}
"""
_BODY: Final = b"x" * 128
_IN_FLIGHT: Final = 64


class Serving:
    """A ``tern up`` with one broker."""

    def __init__(self, directory: Path, name: str, settings: list[str], client: dict[str, Any]) -> None:
        flags = [flag for setting in settings for flag in ("--set", setting)]
        program = str(Path(sys.executable).with_name("tern"))
        ports = ("--port", "0", "--broker-port", "0")
        self.process = subprocess.Popen(
            [program, "up", "--dir", str(directory / name), *ports, "--json", *flags],
            stdout=subprocess.PIPE,
            env=os.environ | {"TERNMQ_ACCESS_KEY": "boss-key", "TERNMQ_SECRET_KEY": "secret-of-the-boss"},
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.client = ClientConfig(ready["name_server"], **client)
        self._pid: int = ready["pids"]["broker-a"]

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def flood(server: Serving, count: int) -> None:
    """So many sends, in windows of some, with frames that were made before: the client costs next to nothing."""
    route = asyncio.run(_route(server.client))
    header = SendMessageV2(
        topic="orders",
        queue_id=0,
        producer_group="shop",
        born_time_ms=1_700_000_000_000,
        properties=join({"UNIQ_KEY": "C00002027A1AB1409933538854460000", "WAIT": "true"}),
    )
    signing = server.client.credentials()
    window = b"".join(
        buffer
        for opaque in range(_IN_FLIGHT)
        for buffer in encode_request(Code.SEND_MESSAGE_V2, header, _BODY, opaque=opaque, credentials=signing)
    )
    with dial_blocking(route, server.client.tls_context(), timeout_ms=60_000) as connection:
        for _ in range(count // _IN_FLIGHT):
            connection.sendall(window)
            data = bytearray()
            for _ in range(_IN_FLIGHT):
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                    data += connection.recv(1 << 16)
                if b'"code":0,' not in data[: 4 + int.from_bytes(data[:4], "big")]:
                    raise SystemExit(f"refused: {bytes(data[:300])!r}")
                del data[: 4 + int.from_bytes(data[:4], "big")]


async def _route(client: ClientConfig) -> str:
    """Where the broker of the topic is; the topic is made by a first send."""
    async with Producer("shop", client=client) as producer:
        await producer.send(Message("orders", _BODY))
    async with ClientInstance(client) as instance:
        return (await instance.routes.of("orders")).address("broker-a") or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "plain_acl.yml").write_text(_ACCOUNTS)
        (directory / "plain_acl.yml").chmod(0o600)
        certificates = directory / "certs"
        certs.make(certificates, [], days=2, now=datetime.datetime.now(datetime.UTC))
        keys = {"access_key": "shop-key", "secret_key": "secret-of-the-shop"}
        kinds: dict[str, tuple[list[str], dict[str, Any]]] = {
            "off": ([], {}),
            "acl": (["aclEnable=true", f"aclPath={directory}"], keys),
            "tls": (
                [f"tls.config.file={certificates / 'tls.properties'}"],
                {"tls": TlsConfig(ca_file=str(certificates / "ca.pem"))},
            ),
        }
        serving = {kind: Serving(directory, kind, settings, client) for kind, (settings, client) in kinds.items()}
        figures: dict[str, list[float]] = {kind: [] for kind in kinds}
        try:
            for round_number in range(options.rounds + 1):
                for kind, server in serving.items():
                    before = server.cpu_s()
                    flood(server, options.count)
                    if round_number:  # the first one warms up
                        figures[kind].append((server.cpu_s() - before) / options.count * 1e6)
        finally:
            for server in serving.values():
                server.end()
    base = statistics.median(figures["off"])
    for kind, values in figures.items():
        median = statistics.median(values)
        rounds = ", ".join(f"{value:.1f}" for value in sorted(values))
        print(f"{kind}: {median:.1f} us of the broker's CPU a send ({median / base:.2f}x); rounds: {rounds}")


if __name__ == "__main__":
    main()
