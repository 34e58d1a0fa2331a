"""Real database servers for tests: PostgreSQL, MariaDB and Redis of the system's packages (``script/bootstrap
databases``), each a process of its own with a directory and a port of its own. No service of the system is used.

``postgresql()``, ``mariadb()`` and ``redis()`` start one and stop it at the end of the block. ``Server.kill()`` is kill
-9 of all its processes, and ``start()`` brings it back on the same port with the same files. The fixtures of the same
names with ``_server`` start one for the whole test run; tests that kill start their own. Should this process die, the
servers die with it (``PR_SET_PDEATHSIG``); so start them in the main thread, as the signal is bound to the thread.

By default no server syncs its files: a killed process loses nothing of what it wrote, only a power cut would. With
``durable=True`` they sync each commit, as in production.

PostgreSQL refuses to run as root: it then runs as the user ``postgres``.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import psycopg
import pymysql
import pytest
from sqlalchemy import URL

from tests.interop.rocketmq import free_port

_READY_S: Final = 60.0
_STOP_S: Final = 30.0
_HOST: Final = "127.0.0.1"


class DatabaseFailed(RuntimeError):
    """A server did not start; the text has the end of its log."""


@dataclass(slots=True, frozen=True)
class Database:
    """One database, empty at first. A file, for SQLite."""

    #: ``postgresql``, ``mysql`` or ``sqlite``.
    dialect: str
    name: str
    port: int | None = None
    user: str | None = None

    def url(self, *, driver: str | None = None) -> str:
        """The URL for SQLAlchemy. ``driver`` is that for blocking calls, unless another one is named."""
        driver = driver or {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "pysqlite"}[self.dialect]
        host = _HOST if self.port else None
        return URL.create(
            f"{self.dialect}+{driver}", username=self.user, host=host, port=self.port, database=self.name
        ).render_as_string()

    @property
    def async_url(self) -> str:
        """The URL for an ``AsyncEngine``."""
        return self.url(driver={"postgresql": "psycopg", "mysql": "asyncmy", "sqlite": "aiosqlite"}[self.dialect])


class Server(ABC):
    """A server process that can be killed and started again."""

    def __init__(self, *, durable: bool = False) -> None:
        self.port = free_port()
        self.durable = durable
        self.directory = Path(tempfile.mkdtemp(prefix=f"ternmq-{type(self).__name__.lower()}-"))
        self._log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        try:
            self.prepare()
        except BaseException:
            shutil.rmtree(self.directory)
            raise

    @abstractmethod
    def prepare(self) -> None:
        """Fill the directory of a new server."""

    @abstractmethod
    def command(self) -> list[str]:
        """What starts the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it can be used now."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command()], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        limit = time.monotonic() + _READY_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise DatabaseFailed(f"{self} did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9 of the server with all its processes; their files stay."""
        assert self._process is not None
        # Stopped first, so that it starts no more processes while they are counted.
        self._process.send_signal(signal.SIGSTOP)
        processes = (self._process.pid, *_children_of(self._process.pid))
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        # PostgreSQL does not start while one of them still has its shared memory.
        limit = time.monotonic() + _STOP_S
        while any(map(_lives, processes)):
            assert time.monotonic() < limit, f"processes of {self} do not die"
            time.sleep(0.005)

    def pause(self) -> None:
        """It answers no more, and its connections stay open."""
        assert self._process is not None
        for pid in (self._process.pid, *_children_of(self._process.pid)):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *_children_of(self._process.pid)):
            # It may have been told to end meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and delete its files."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory)

    def __str__(self) -> str:
        return f"{type(self).__name__} on port {self.port}"


class PostgreSQL(Server):
    user: Final = "postgres"

    def prepare(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        initdb = [self._program("initdb"), "--no-sync", "--auth=trust", f"--username={self.user}", "--encoding=UTF8"]
        _run([*_as_postgres(), *initdb, "--locale=C", "--pgdata", str(self.data)])

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": _HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
            "fsync": self.durable,
            "full_page_writes": self.durable,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*_as_postgres(), self._program("postgres"), "-D", str(self.data), *options]

    def answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """A new database, until the end of the block."""
        name = f"test_{next(self._numbers)}"
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield Database("postgresql", name, self.port, self.user)
        finally:
            with self._connect() as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(host=_HOST, port=self.port, user=self.user, dbname="postgres", autocommit=True)

    @staticmethod
    def _program(name: str) -> str:
        # Debian keeps the server's programs of each version apart, out of PATH.
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
        program = str(found[-1]) if found else shutil.which(name)
        if program is None:
            raise DatabaseFailed(f"PostgreSQL's {name} is missing; run `script/bootstrap databases`")
        return program


class MariaDB(Server):
    user: Final = "root"

    def prepare(self) -> None:
        install = shutil.which("mariadb-install-db")
        if install is None:
            raise DatabaseFailed("mariadb-install-db is missing; run `script/bootstrap databases`")
        self.data.mkdir()
        _run(
            [
                install,
                "--no-defaults",
                f"--user={getpass.getuser()}",
                f"--datadir={self.data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-flush-method=nosync",
                "--innodb-log-file-size=16M",
            ]
        )

    def command(self) -> list[str]:
        return [
            shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin") or "mariadbd",
            "--no-defaults",
            f"--user={getpass.getuser()}",
            f"--datadir={self.data}",
            f"--bind-address={_HOST}",
            f"--port={self.port}",
            f"--socket={self.directory}/socket",
            f"--pid-file={self.directory}/pid",
            "--skip-name-resolve",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=16M",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
        ]

    def answers(self) -> bool:
        try:
            self._connect().close()
        except pymysql.OperationalError:
            return False
        return True

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """A new database, until the end of the block."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name}")
        try:
            yield Database("mysql", name, self.port, self.user)
        finally:
            self._execute(f"DROP DATABASE {name}")

    def _execute(self, statement: str) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            # What a test left open must not hold up the end of it.
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db LIKE 'test%'"
            )
            for (number,) in cursor.fetchall() if statement.startswith("DROP") else ():
                with contextlib.suppress(pymysql.OperationalError):
                    cursor.execute(f"KILL {number}")
            cursor.execute(statement)

    def _connect(self) -> pymysql.Connection:
        return pymysql.connect(host=_HOST, port=self.port, user=self.user, autocommit=True)


class Redis(Server):
    def prepare(self) -> None:
        self.data.mkdir()

    def command(self) -> list[str]:
        options = {
            "bind": _HOST,
            "port": self.port,
            "dir": self.data,
            "appendonly": "yes",
            "appendfsync": "always" if self.durable else "no",
            "save": "",
        }
        return ["redis-server", *(part for name, value in options.items() for part in (f"--{name}", str(value)))]

    def answers(self) -> bool:
        try:
            with socket.create_connection((_HOST, self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self.port}/0"


def _as_postgres() -> list[str]:
    if os.geteuid() != 0:
        return []
    # The outer setpriv asked for the signal; a change of the user clears it.
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False, cwd="/")
    if done.returncode != 0:
        raise DatabaseFailed(f"{command[0]} failed:\n{(done.stdout + done.stderr).decode()[-3000:]}")


def _children_of(parent: int) -> list[int]:
    """The processes that ``parent`` started."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _state_and_parent(pid)[1] == parent]


def _lives(pid: int) -> bool:
    return _state_and_parent(pid)[0] not in ("", "Z")


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        # The name, in parentheses, may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended
        return "", 0
    return fields[0], int(fields[1])


_S = TypeVar("_S", bound=Server)


@contextlib.contextmanager
def _running(server: _S) -> Iterator[_S]:
    try:
        server.start()
        yield server
    finally:
        server.close()


def postgresql(*, durable: bool = False) -> contextlib.AbstractContextManager[PostgreSQL]:
    """A PostgreSQL server."""
    return _running(PostgreSQL(durable=durable))


def mariadb(*, durable: bool = False) -> contextlib.AbstractContextManager[MariaDB]:
    """A MariaDB server."""
    return _running(MariaDB(durable=durable))


def redis(*, durable: bool = False) -> contextlib.AbstractContextManager[Redis]:
    """A Redis server."""
    return _running(Redis(durable=durable))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgreSQL]:
    """One PostgreSQL server for all tests that only use it."""
    with postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """One MariaDB server for all tests that only use it."""
    with mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """One Redis server for all tests that only use it."""
    with redis() as server:
        yield server


@pytest.fixture
def postgresql_database(postgresql_server: PostgreSQL) -> Iterator[Database]:
    """A new database on PostgreSQL."""
    with postgresql_server.database() as database:
        yield database


@pytest.fixture
def mariadb_database(mariadb_server: MariaDB) -> Iterator[Database]:
    """A new database on MariaDB."""
    with mariadb_server.database() as database:
        yield database


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Database:
    """A new database of SQLite, a file."""
    return Database("sqlite", str(tmp_path / "test.db"))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_database(request: pytest.FixtureRequest) -> Database:
    """A new database of each kind in turn."""
    database = request.getfixturevalue(f"{request.param}_database")
    assert isinstance(database, Database)
    return database
