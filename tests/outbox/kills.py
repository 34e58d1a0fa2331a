"""kill -9 at random, of applications, relays, the database and the broker, and what holds then (J3).

Two applications and two relays are real processes on a real database server and a real broker. Every fraction of a
second one of them is killed and started again. In the end all of them live for a while, and then the table ``work`` of
the database and the topic are compared:

- what was rolled back was never sent: each message of the topic is in the table;
- what was committed was sent at least once: each row of the table is in the topic;
- the first copies of the messages of a key stand in the topic in the order of the key's counter.

    script/soak outbox --minutes 10 --database mariadb
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from sqlalchemy import create_engine, text

from tests.cli.conftest import ENVIRONMENT, TERN, Serving
from tests.databases import Database, MariaDB, PostgreSQL, mariadb, postgresql
from tests.interop.rocketmq import free_port
from tests.outbox import application
from tests.outbox.topics import bodies_of, wait_for

SERVERS: Final = {"postgresql": postgresql, "mariadb": mariadb}
_ROOT: Final = Path(__file__).parent.parent.parent


@dataclass(slots=True)
class Outcome:
    """What a run has done."""

    committed: int
    copies: int
    kills: dict[str, int]


class Stage:
    """All processes of a run."""

    def __init__(self, directory: Path, server: PostgreSQL | MariaDB, database: Database, seed: int) -> None:
        self._directory = directory
        self._server = server
        self._url = database.url()
        self._seed = seed
        self._ports = free_port(), free_port()
        self._starts = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._broker: Serving | None = None
        self.names = f"127.0.0.1:{self._ports[0]}"
        self._name_server = Serving(
            "namesrv", "-p", str(self._ports[0]), "--set", "kvConfigPath=", log=directory / "namesrv.log"
        )
        self._start_broker()
        for name in ("application-1", "application-2", "relay-1", "relay-2"):
            self._start(name)

    def victims(self) -> dict[str, Callable[[], None]]:
        """Names of what can be killed, and what kills it and starts it again."""
        processes = {name: partial(self._again, name) for name in self._processes}
        return {**processes, "database": self._kill_database, "broker": self._kill_broker}

    def stop_applications(self) -> None:
        for name in ("application-1", "application-2"):
            self._kill(name)

    def close(self) -> None:
        for name in self._processes:
            self._kill(name)
        for server in (self._broker, self._name_server):
            if server is not None and server.process.poll() is None:
                server.process.kill()
                server.wait()

    def logs(self) -> str:
        """The ends of all logs, for a failure."""
        found = sorted(self._directory.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in found[-12:])

    def _start(self, name: str) -> None:
        self._starts += 1
        if name.startswith("application"):
            seed = f"{self._seed}-{self._starts}"
            command = [sys.executable, "-m", "tests.outbox.application", self._url, self.names, seed]
        else:
            lease = str(application.LEASE_MS / 1000)
            command = [
                TERN,
                "outbox",
                "relay",
                "-d",
                self._url,
                "-n",
                self.names,
                "--lease",
                lease,
                "--interval",
                "0.2",
            ]
        with (self._directory / f"{name}-{self._starts}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ENVIRONMENT, cwd=_ROOT
            )

    def _kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def _again(self, name: str) -> None:
        self._kill(name)
        self._start(name)

    def _kill_database(self) -> None:
        self._server.kill()
        self._server.start()

    def _start_broker(self) -> None:
        self._starts += 1
        settings = {
            "storePathRootDir": self._directory / "store",
            "listenPort": self._ports[1],
            "brokerIP1": "127.0.0.1",
            "haListenPort": 0,
            "mappedFileSizeCommitLog": 16 << 20,
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        log = self._directory / f"broker-{self._starts}.log"
        self._broker = Serving("broker", "-n", self.names, *flags, log=log)
        assert self._broker.ready, self._broker.errors

    def _kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.process.kill()
        self._broker.wait()
        self._start_broker()


@contextmanager
def staged(kind: str, seed: int) -> Iterator[tuple[Stage, Database]]:
    with TemporaryDirectory(prefix="ternmq-kills-") as directory, SERVERS[kind]() as server:
        assert isinstance(server, PostgreSQL | MariaDB)
        with server.database() as database:
            engine = create_engine(database.url())
            application.create(engine)
            engine.dispose()
            stage = Stage(Path(directory), server, database, seed)
            try:
                yield stage, database
            except BaseException:
                sys.stderr.write(stage.logs())
                raise
            finally:
                stage.close()


def run(kind: str, *, seed: int, kills: int, seconds: float = 0.0) -> Outcome:
    """Kill ``kills`` times, or for so many ``seconds``; then compare. Raises ``AssertionError``."""
    chance = Random(seed)
    counts: dict[str, int] = {}
    deck: list[str] = []
    with staged(kind, seed) as (stage, database):
        end = time.monotonic() + seconds
        while sum(counts.values()) < kills or time.monotonic() < end:
            # Now and then right after the last one.
            time.sleep(chance.choice((0.0, 0.2, 1.0, 2.0)) * chance.random())
            # Each of them in turn, in another order each time: a short run has all of them.
            if not deck:
                deck = sorted(stage.victims())
                chance.shuffle(deck)
            name = deck.pop()
            stage.victims()[name]()
            counts[name] = counts.get(name, 0) + 1
        # All of them live: whatever was left is sent.
        time.sleep(2.0)
        stage.stop_applications()
        engine = create_engine(database.url())
        try:
            with engine.connect() as connection:
                committed = set(connection.scalars(text("SELECT body FROM work")))

            def is_empty() -> bool:
                with engine.connect() as connection:
                    return not connection.scalar(text("SELECT COUNT(*) FROM ternmq_outbox"))

            wait_for(is_empty)
        finally:
            engine.dispose()
        found = [body.decode() for body in asyncio.run(bodies_of(stage.names, application.TOPIC))]
        compare(committed, found)
        return Outcome(len(committed), len(found), counts)


def compare(committed: set[str], found: list[str]) -> None:
    """What holds between the table and the topic."""
    sent = set(found)
    assert not sent - committed, f"rolled back, but sent: {sorted(sent - committed)[:10]}"
    assert not committed - sent, f"committed, but not sent: {sorted(committed - sent)[:10]}"
    for key in map(str, range(application.KEYS)):
        first = list(dict.fromkeys(body for body in found if body.partition(":")[0] == key))
        expected = [f"{key}:{number}" for number in range(1, len(first) + 1)]
        assert expected == first, f"key {key} is out of order: {first[:50]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak outbox", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=[*SERVERS, "both"], default="both")
    options = parser.parse_args()
    # A time limit from outside ends all processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds = list(SERVERS) if options.database == "both" else [options.database]
    end = time.monotonic() + options.minutes * 60
    seed = options.seed
    while time.monotonic() < end:
        for kind in kinds:
            outcome = run(kind, seed=seed, kills=30, seconds=0)
            again = outcome.copies - outcome.committed
            sys.stdout.write(
                f"seed {seed} {kind}: {outcome.committed} committed, {again} sent again, {outcome.kills}\n"
            )
            sys.stdout.flush()
        seed += 1


if __name__ == "__main__":
    main()
