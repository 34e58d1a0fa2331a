"""A client whose server's machine goes without a word, run on a host of its own by ``test_dead_machine``."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import pytest

from ternmq.client.connect.connections import Connections
from ternmq.errors import MachineSilent
from ternmq.net.endpoint import dial_blocking
from ternmq.net.lanes import Lanes
from ternmq.net.line import CallLine
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import encode_request
from tests.hosts import Hosts

HOSTS: Final = ("client", "server")
LONG_S: Final = 90.0
PORT: Final = 9876
#: Accepts connections, and never reads nor answers.
_DEAF: Final = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
kept = []
while True:
    kept.append(listener.accept())
"""


async def notice(net: Hosts, lose: Callable[[], None]) -> None:
    address = f"{net.address('server')}:{PORT}"
    async with Tasks() as tasks, asyncio.timeout(LONG_S):
        watches: list[asyncio.Task[None]] = []

        async def dial() -> Peer:
            connections = Connections(
                {},
                Lanes([]),
                tasks,
                timeout_ms=2_000,
                on_open=lambda *_: None,
                on_lost=lambda _: None,
                is_wanted=lambda _: False,
            )
            watches.append(tasks.create_task(connections.watch()))
            return await connections.to(address)

        received, late, idle = await dial(), await dial(), await dial()
        # One call was received when the machine goes; one is made afterwards, and never arrives.
        calls = [received.start_call(RequestCode.HEART_BEAT)]
        await asyncio.sleep(0.2)
        lose()
        calls.append(late.start_call(RequestCode.HEART_BEAT))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, MachineSilent), error
            assert "its machine" in str(error), error
        # One that is not used.
        await idle.closed.wait()
        # One that is not made.
        with pytest.raises(MachineSilent):
            await dial()
        for watch in watches:
            watch.cancel()


def notice_blocking(net: Hosts) -> None:
    """As Spark's tasks wait, in a thread without a loop."""
    with dial_blocking(f"{net.address('server')}:{PORT}") as connection:
        net.part("client", "server")
        connection.settimeout(LONG_S)
        connection.sendall(b"1234")
        # Both the kernel's and the socket's are of this class; only the kernel's has a number.
        with pytest.raises(TimeoutError) as caught:
            connection.recv(1)
        assert caught.value.errno == errno.ETIMEDOUT, "the time-out of the socket came first"


def notice_line(net: Hosts, *, is_received: bool) -> None:
    """As threads wait that send by themselves: for an answer, or for a request to arrive."""
    address = f"{net.address('server')}:{PORT}"
    began = time.monotonic()

    def now() -> float:
        if is_received and time.monotonic() >= began + 1.0:
            # The request has arrived by now, and the thread waits for its answer.
            net.part("client", "server")
        return time.monotonic()

    with closing(CallLine(address, dial_blocking(address, is_watched=True), now)) as line:
        if not is_received:
            net.part("client", "server")
        with pytest.raises(MachineSilent, match="its machine does not acknowledge"):
            line.call(1, encode_request(RequestCode.HEART_BEAT, opaque=1), began + LONG_S)


def main() -> None:
    net = Hosts(sys.argv[1], HOSTS)
    command = [*net.within("server"), sys.executable, "-c", _DEAF, net.address("server"), str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            server.stdout.readline()
            asyncio.run(notice(net, lambda: net.part("client", "server")))
            net.mend()
            notice_blocking(net)
            net.mend()
            for is_received in (True, False):
                notice_line(net, is_received=is_received)
                net.mend()
            asyncio.run(notice(net, lambda: net.unplug("server")))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
