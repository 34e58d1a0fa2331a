"""The real program ``tern`` as a process: one cluster for all tests that only use it, more for those that break it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TERN = str(Path(sys.executable).with_name("tern"))

#: Nothing of the machine's own settings may reach the program.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("TERNMQ_", "NAMESRV_ADDR", "COLUMNS"))
}

#: Servers refuse nothing because the machine is busy: a test that is about such limits sets them (``--set`` wins).
PATIENT = {"TERNMQ_WAIT_TIME_MILLS_IN_SEND_QUEUE": "60000", "TERNMQ_SYNC_FLUSH_TIMEOUT": "60000"}


def tern(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [TERN, *arguments], input=stdin, capture_output=True, timeout=120, check=False, env=ENVIRONMENT | environment
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Serving:
    """A ``tern`` process that stays, after its ready line. Its log goes to a file, since it is not read meanwhile."""

    def __init__(
        self,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """``within``: what the command line begins with, for a program that becomes ``tern`` itself."""
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*within, TERN, *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=ENVIRONMENT | PATIENT | dict(environment or {}),
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}

    @property
    def errors(self) -> str:
        return self._log.read_text()

    @property
    def name_server(self) -> str:
        """The address of its name server, as its own ready line tells it."""
        address: str = self.ready["name_server"]
        return address.replace("0.0.0.0", "127.0.0.1")

    def end(self, number: int) -> int:
        """Send a signal, wait, and return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


Start = Callable[..., Serving]


@contextlib.contextmanager
def starter(directory: Path) -> Iterator[Start]:
    """Starts servers, and ends those that are still there at the end."""
    started: list[Serving] = []

    def start(*arguments: str, **environment: str) -> Serving:
        serving = Serving(*arguments, log=directory / f"{len(started)}.log", environment=environment)
        started.append(serving)
        return serving

    try:
        yield start
    finally:
        for serving in started:
            if serving.process.poll() is None:
                serving.process.terminate()
            serving.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two brokers that all tests share; each test uses topics and groups of its own."""
    directory = tmp_path_factory.mktemp("cluster")
    with starter(directory) as start:
        yield start("up", "--dir", str(directory / "data"), "--port", "0", "--broker-port", "0", "--brokers", "2")


@pytest.fixture
def on_cluster(cluster: Serving) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``tern`` with the shared cluster's name server in the environment, as a user would have it."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        return tern(*arguments, stdin=stdin, NAMESRV_ADDR=cluster.name_server)

    return run
