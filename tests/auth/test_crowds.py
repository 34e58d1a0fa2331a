"""Ten thousand connections without a key, to each port of a broker (N1, N2, B5): what they cost it, and whom."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.broker.ports import VIP_PORT_STEP
from ternmq.net.endpoint import OPENING_MAX
from ternmq.net.http import CONNECTIONS_MAX
from ternmq.net.limits import Limits
from ternmq.replication.master import NEW_LINES_MAX
from ternmq.wire.codes import RequestCode, ResponseCode
from tests.auth.accounts import BOSS, acl_in, dialled
from tests.auth.certificates import Certificates
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.interop.rocketmq import free_port

CROWD: Final = 10_000
#: Half of a frame of 8 MiB; the beginning of a handshake.
HALF_FRAME: Final = b"\0\x80\0\0\0\0\x10\0" + b"x" * 4_000
HALF_HANDSHAKE: Final = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"x" * 200
#: Measured: 105 for half frames on the main port, 82 for half handshakes, less than 20 on the others.
GROWTH_MIB_MAX: Final = 300


@contextmanager
def broker(*settings: str) -> Iterator[subprocess.Popen[bytes]]:
    options = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        [TERN, "broker", "--json", *options], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def memory_mib(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def open_files(process: subprocess.Popen[bytes]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@contextmanager
def crowd(port: int, data: bytes) -> Iterator[None]:
    """All connections at once, of some machines: one may have 2,000."""
    strangers = []
    try:
        for number in range(CROWD):
            stranger = socket.socket()
            strangers.append(stranger)
            stranger.bind((f"127.0.0.{2 + number // Limits().max_connections_per_address}", 0))
            # It may be closed for a later one already.
            with contextlib.suppress(ConnectionError):
                stranger.connect(("127.0.0.1", port))
                stranger.send(data)
        yield
    finally:
        for stranger in strangers:
            stranger.close()


async def asked(address: str) -> int:
    """What a client with a key is answered, on another machine than the crowd."""
    async with dialled(address, BOSS) as client:
        return (await client.call(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=60_000)).code


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["disabled", "permissive"])
def test_ten_thousand_connections_cost_a_bounded_amount_and_keep_no_client_out(tmp_path: Path, mode: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CROWD:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CROWD), hard))
    certificates = Certificates(tmp_path / "certs")
    port, http = free_port(neighbours=(-VIP_PORT_STEP, 1)), free_port()
    #: How many connections each port keeps of a crowd that says half of something.
    ports = {
        port: CROWD,
        port - VIP_PORT_STEP: CROWD,
        port + 1: NEW_LINES_MAX,
        http: CONNECTIONS_MAX,
    }
    acl = acl_in(tmp_path / "acl")
    settings = [
        f"listenPort={port}",
        f"httpPort={http}",
        "bindAddress=127.0.0.1",
        "brokerIP1=127.0.0.1",
        "aclEnable=true",
        f"aclPath={acl}",
        f"storePathRootDir={tmp_path / 'store'}",
    ]
    if mode != "disabled":
        settings += [f"tls.config.file={certificates / 'tls.properties'}", f"tls.server.mode={mode}"]
    with broker(*settings) as process:
        files, memory = open_files(process), memory_mib(process)
        for number, kept in ports.items():
            for data in (HALF_FRAME, HALF_HANDSHAKE):
                with crowd(number, data):
                    most = OPENING_MAX if data is HALF_HANDSHAKE and mode != "disabled" else kept
                    assert open_files(process) <= files + most + 20
                    assert ResponseCode.SUCCESS == asyncio.run(asked(f"127.0.0.1:{port}"))
        assert memory_mib(process) < memory + GROWTH_MIB_MAX
