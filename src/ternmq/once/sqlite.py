"""Keys in a file of SQLite, for the consumers of one machine (S1). It needs nothing but Python.

Each change is a transaction that begins with the write lock, so a change sees all changes before it. The file and its
table are made when they are first used. Calls run in threads, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from threading import Lock
from typing import Final
from weakref import WeakSet

from ternmq.env import Clock, SystemClock
from ternmq.errors import KeyStoreFailed
from ternmq.once.keystore import ABANDONED_MS, Decide, KeyEntry, State, T

_BUSY_S: Final = 10.0
_CREATE: Final = """\
CREATE TABLE IF NOT EXISTS ternmq_once (
  name TEXT PRIMARY KEY NOT NULL,
  state INTEGER NOT NULL,
  token TEXT NOT NULL,
  until_ms INTEGER NOT NULL,
  lease_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  since_ms INTEGER NOT NULL
) WITHOUT ROWID"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS ternmq_once_until ON ternmq_once (until_ms)"
_SELECT: Final = "SELECT state, token, until_ms, lease_ms, attempts, since_ms FROM ternmq_once WHERE name = ?"
_STORE: Final = "INSERT OR REPLACE INTO ternmq_once VALUES (?, ?, ?, ?, ?, ?, ?)"
_PURGE: Final = """\
DELETE FROM ternmq_once WHERE name IN (
  SELECT name FROM ternmq_once WHERE until_ms <= :now_ms AND (state <> :running OR until_ms <= :now_ms - :abandoned_ms)
  ORDER BY until_ms LIMIT :count_max
)"""


#: All that may have an open file when this process forks.
_all: WeakSet[SqliteKeys] = WeakSet()


def _after_fork() -> None:
    for keys in _all:
        keys.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


class SqliteKeys:
    """A ``KeyStore`` in the file ``path``. May be used in any thread and loop; ``close`` it at the end."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.name = f"SQLite {os.fspath(path)}"
        self._path = os.fspath(path)
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        #: That of the parent after a fork. It is never closed here: that would end a transaction of the parent.
        self._of_parent: sqlite3.Connection | None = None
        _all.add(self)

    def forked(self) -> None:
        """Open the file again in a child process: SQLite's connections and our lock are of the parent."""
        self._of_parent, self._connection, self._lock = self._connection, None, Lock()

    async def change(self, key: str, decide: Decide[T]) -> T:
        return await asyncio.to_thread(self._change, key, decide)

    async def purge(self, count_max: int) -> int:
        return await asyncio.to_thread(self._purge, count_max)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _change(self, key: str, decide: Decide[T]) -> T:
        with self._transaction() as connection:
            row = connection.execute(_SELECT, (key,)).fetchone()
            entry = None if row is None else KeyEntry(State(row[0]), *row[1:])
            result, changed = decide(entry, self._clock.now_ms())
            if changed is not None and changed is not entry:
                connection.execute(
                    _STORE,
                    (
                        key,
                        int(changed.state),
                        changed.token,
                        changed.until_ms,
                        changed.lease_ms,
                        changed.attempts,
                        changed.since_ms,
                    ),
                )
            return result

    def _purge(self, count_max: int) -> int:
        with self._transaction() as connection:
            values = {
                "now_ms": self._clock.now_ms(),
                "running": int(State.RUNNING),
                "abandoned_ms": ABANDONED_MS,
                "count_max": count_max,
            }
            return connection.execute(_PURGE, values).rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, ValueError) as error:
                raise KeyStoreFailed(f"cannot use the key store {self.name}: {error}", store=self.name) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                connection.execute(_CREATE)
                connection.execute(_INDEX)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection
