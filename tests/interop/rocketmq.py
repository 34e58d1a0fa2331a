"""Apache RocketMQ's name server and broker as subprocesses, of either version, for tests and the benchmark (V2, V3).

``name_server()`` and ``broker()`` start one server each in a directory of its own and on free ports, and yield once it
answers: a broker is ready when its name server knows a route to it. Both stop it at the end of the block; should this
process die first, the server notices the end of its standard input and stops by itself (``TernServer``).

The settings make servers small (a few MB of sparse files) and patient (a slow test machine is no reason to refuse a
message); a test overrides what it is about. Starting blocks the caller for some seconds: inside a coroutine that also
serves others, use ``asyncio.to_thread``.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop import jvm

_READY_S: Final = 120.0
#: A clean stop may take this long before the server is killed, and the system this long to end what was killed.
_STOP_S: Final = 20.0
_KILLED_S: Final = 60.0
#: How often a server is started, on other ports each time, if it died for a reason that the test does not have.
_STARTS_MAX: Final = 3
_KILLED_BY_SYSTEM: Final = -9
#: What a JVM prints in such a case: another process took its port meanwhile, or the machine had no memory for it.
_OUTSIDE_CAUSES: Final = (
    "Address already in use",
    "BindException",
    "insufficient memory for the Java Runtime",
    "unable to create native thread",
)
_GET_ROUTE: Final = 105
_SUCCESS: Final = 0
_MIB: Final = 1024 * 1024

#: A nearly full disk of the test machine must not make the broker refuse messages (limits as system properties).
_DISK_LIMITS: Final = {
    "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
    "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.99",
}

#: Files of a size that fits tests instead of 1 GiB and more.
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 64 * _MIB,
    "mappedFileSizeConsumeQueue": 20 * 50_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "mappedFileSizeTimerLog": 4 * _MIB,
}

_PATIENT: Final = {
    "diskMaxUsedSpaceRatio": 95,
    "osPageCacheBusyTimeOutMills": 10_000,
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 10_000,
}

_FEATURES: Final = {
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "maxMessageSize": 4 * _MIB,
}


class ServerFailed(RuntimeError):
    """A RocketMQ server did not start; the message holds the end of its log."""


class OutsideFailure(ServerFailed):
    """It died while it started, for a reason that has nothing to do with the test: start it again elsewhere."""


@dataclass(slots=True)
class Server:
    """A running RocketMQ process."""

    version: str
    address: str
    directory: Path
    process: subprocess.Popen[bytes]
    #: Where the lines of this start begin in its log: earlier ones are of earlier starts.
    log_begin: int = 0

    @property
    def store(self) -> Path:
        """The broker's store directory."""
        return self.directory / "store"

    def log(self) -> str:
        """The last lines that the server printed."""
        return jvm.tail(self.directory / "server.log")

    def stop(self, limit_s: float = _STOP_S) -> None:
        """Stop cleanly, as an operator would, or kill what takes longer; may be called twice."""
        self.process.terminate()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """kill -9: the crash that recovery is for."""
        self.process.kill()
        self.process.wait(_KILLED_S)

    def died_by_chance(self) -> bool:
        """Whether it has ended, and for a reason outside of it: a port that was taken, or no memory."""
        if self.process.poll() is None:
            return False
        with (self.directory / "server.log").open("rb") as file:
            file.seek(self.log_begin)
            told = file.read().decode(errors="replace")
        return self.process.returncode == _KILLED_BY_SYSTEM or any(cause in told for cause in _OUTSIDE_CAUSES)


@dataclass(slots=True, frozen=True)
class RocketMQ:
    """One name server and one broker of a version."""

    version: str
    namesrv: Server
    broker: Server

    @property
    def address(self) -> str:
        """What clients take as the name server's address."""
        return self.namesrv.address


@contextmanager
def cluster(
    version: str,
    directory: Path,
    *,
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
    namesrv_properties: Mapping[str, str] | None = None,
) -> Iterator[RocketMQ]:
    """A name server and ``broker-a`` of cluster ``DefaultCluster``; ``settings`` go into broker.conf, ``properties``
    are system properties of the JVMs.

    Both are killed at the end and the store is deleted: a clean stop of 5.2.0 takes up to 18 s, without a use.
    """
    with ExitStack() as stack:
        names = stack.enter_context(name_server(version, directory / "namesrv", properties=namesrv_properties))
        first = stack.enter_context(
            broker(version, directory / "broker-a", namesrv=names.address, settings=settings, properties=properties)
        )
        try:
            yield RocketMQ(version, names, first)
        finally:
            first.kill()
            names.kill()
            shutil.rmtree(first.store)


@contextmanager
def name_server(
    version: str, directory: Path, *, port: int | None = None, properties: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A RocketMQ name server, ready to answer."""
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"

    def start(port: int) -> Server:
        settings = {
            "listenPort": port,
            "kvConfigPath": directory / "kv.json",
            "configStorePath": directory / "namesrv.properties",
        }
        return _start(version, directory, main, settings, port=port, heap_mb=128, properties=properties)

    def is_ready(server: Server) -> bool:
        return _route_code(server.address, "TBW102") is not None

    with _running(start, "the name server answers", is_ready, port=port, neighbours=()) as server:
        yield server


@contextmanager
def broker(
    version: str,
    directory: Path,
    *,
    namesrv: str,
    name: str = "broker-a",
    port: int | None = None,
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
    small: bool = True,
    heap_mb: int = 512,
    flags: Sequence[str] = jvm.SMALL,
    has_route: bool = True,
) -> Iterator[Server]:
    """A RocketMQ master that the name server at ``namesrv`` (RocketMQ's or ours) has a route to.

    The store stays in ``directory`` afterwards: a second start finds it again. ``small=False`` leaves file sizes and
    limits as RocketMQ has them. Without ``has_route`` it is a slave, whose topics have no route.
    """
    store = directory / "store"
    main = "org.apache.rocketmq.broker.BrokerStartup"

    def start(port: int) -> Server:
        all_settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": namesrv,
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            **_FEATURES,
            **({**_PATIENT, **SMALL_FILES} if small else {}),
            **(settings or {}),
        }
        return _start(
            version, directory, main, all_settings, port=port, heap_mb=heap_mb, flags=flags, properties=properties
        )

    first = namesrv.split(";", maxsplit=1)[0]

    def is_ready(server: Server) -> bool:
        # A broker's own name is a topic of it, so this route says that this broker has registered.
        return (not has_route or _route_code(first, name) == _SUCCESS) and _answers(server)

    with _running(start, "the broker is registered", is_ready, port=port, neighbours=(-2, 1)) as server:
        yield server


@contextmanager
def _running(
    start: Callable[[int], Server],
    what: str,
    is_ready: Callable[[Server], bool],
    *,
    port: int | None,
    neighbours: Sequence[int],
) -> Iterator[Server]:
    """A server that is ready, on ``port``, or on free ports.

    Between the choice of a free port and the moment when a JVM binds it, a second or more passes, and another process
    may take it. Only a server that died for such a reason is started again.
    """
    for left in reversed(range(_STARTS_MAX if port is None else 1)):
        server = start(port if port is not None else free_port(neighbours=neighbours))
        try:
            try:
                _wait(server, what, partial(is_ready, server))
            except OutsideFailure:
                if not left:
                    raise
                continue
            yield server
            return
        finally:
            server.stop()


def free_port(*, neighbours: Sequence[int] = ()) -> int:
    """A port that is free together with those at the given distances (the broker's VIP and HA ports).

    Below the range from which the system gives ports to outgoing connections: one of those would take it in the second
    that a JVM needs to start.
    """
    for _ in range(100):
        port = random.randrange(15_000, 32_000)
        with ExitStack() as stack:
            try:
                for distance in (0, *neighbours):
                    # On all addresses, as RocketMQ does: another program may have it on one of them.
                    stack.enter_context(socket.socket()).bind(("", port + distance))
            except OSError:
                continue
            return port
    raise ServerFailed("no free ports next to each other on 127.0.0.1")


def _start(
    version: str,
    directory: Path,
    main: str,
    settings: Mapping[str, object],
    *,
    port: int,
    heap_mb: int,
    flags: Sequence[str] = jvm.SMALL,
    properties: Mapping[str, str] | None = None,
) -> Server:
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "server.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = jvm.command(
        version,
        "ternmq.TernServer",
        *(main, "-c", str(config)),
        home=directory,
        heap_mb=heap_mb,
        flags=flags,
        properties=_DISK_LIMITS | dict(properties or {}),
    )
    with (directory / "server.log").open("ab") as log:
        log_begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=jvm.environment(directory),
        )
    return Server(version, f"127.0.0.1:{port}", directory, process, log_begin)


def _wait(server: Server, what: str, is_ready: Callable[[], bool]) -> None:
    """Raises ``ServerFailed`` if the server ends first, or is not ready in time."""
    deadline = time.monotonic() + _READY_S
    while True:
        # Asked first: if another process has the port, that one answers.
        ready, has_ended = is_ready(), server.process.poll() is not None
        if ready and not has_ended:
            return
        if has_ended or time.monotonic() > deadline:
            ended = f"ended with {server.process.returncode}" if has_ended else f"runs, after {_READY_S:.0f} s"
            kind = OutsideFailure if server.died_by_chance() else ServerFailed
            raise kind(
                f"RocketMQ {server.version} at {server.address} {ended}: not true that {what}; its log ends:\n"
                f"{server.log()}"
            )
        time.sleep(0.05)


def _answers(server: Server) -> bool:
    host, port = server.address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _route_code(namesrv: str, topic: str) -> int | None:
    """The code that a name server answers a route request with, by a hand-made frame; None when it does not answer.

    Not by TernMQ's client: the harness must work where that is broken.
    """
    header = json.dumps(
        {"code": _GET_ROUTE, "language": "JAVA", "version": 401, "opaque": 1, "flag": 0, "extFields": {"topic": topic}}
    ).encode()
    host, port = namesrv.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection, connection.makefile("rb") as replies:
            connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
            _, header_bytes = struct.unpack(">ii", replies.read(8))
            code = json.loads(replies.read(header_bytes))["code"]
    except (OSError, struct.error):
        return None
    assert isinstance(code, int)
    return code
