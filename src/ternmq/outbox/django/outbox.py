"""What Django applications call (J3).

::

    from ternmq.outbox.django.outbox import outbox

    with transaction.atomic():
        order.save()
        outbox.send(Message("orders", b"paid", sharding_key=str(order.pk)))

``send`` inserts a row on Django's own connection, so the transaction decides about the message, also with savepoints
(inner ``atomic`` blocks). ``transaction.on_commit`` tells the relay of this process, which starts with the first
``send``. Without a transaction Django commits each statement: the message is saved, then sent.

Settings, all optional::

    TERNMQ_OUTBOX = {
        "name_servers": "127.0.0.1:9876",       # or the variable NAMESRV_ADDR
        "client": ClientConfig(…),              # instead: keys, TLS, …
        "group": "shop",
        "producer": ProducerConfig(…),
        "config": OutboxConfig(…),
        "relay": True,                          # False: only save; `manage.py outbox_relay` sends
    }
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.env import Env
from ternmq.errors import ConfigError, NotRunning
from ternmq.message import Message
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.django.database import DjangoDatabase, executing
from ternmq.outbox.entry import NewRow, fitting, to_entry
from ternmq.outbox.relay import Counters, Relay
from ternmq.outbox.service import GROUP, Service, publish, unique_ids

_NAMES = ("name_servers", "client", "group", "producer", "config", "relay")


class DjangoOutbox:
    """Saves messages in the transactions of a Django application, and sends them after the commit.

    Applications use the one object ``ternmq.outbox.django.outbox.outbox``. Its methods may be called in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._proven: set[str] = set()

    def send(self, *messages: Message, using: str = DEFAULT_DB_ALIAS) -> list[str]:
        """Save ``messages`` in the current transaction of the database ``using``; they are sent after its commit, and
        never after a rollback. Returns their ids.

        Outside a transaction they are saved, and then sent. Raises ``InvalidMessage``, ``InvalidName``, ``TypeError``,
        ``OutboxMissing`` without a table, and ``OutboxFailed``. The transaction is as it was then, unless the database
        itself has ended it.
        """
        process = self._here()
        entries = [process.entry(message) for message in messages]
        if not entries:
            return []
        database = process.database(using)
        relay = process.relay(database)
        try:
            if using in self._proven:
                self._insert(process, database, entries, relay)
            else:
                # The first time anything may be wrong with the table. A failed statement must not end the transaction.
                # The table is not looked for in front: SQLite refuses a write behind a read while others write.
                with transaction.atomic(using=using):
                    self._insert(process, database, entries, relay)
                self._proven.add(using)
        except Error as error:
            self._proven.discard(using)
            database.check_exists_if_possible()
            raise database.failed(error) from error
        return [entry.message_id for entry in entries]

    @staticmethod
    def _insert(process: _Process, database: DjangoDatabase, entries: Sequence[NewRow], relay: Relay | None) -> None:
        now_ms, table = process.env.clock.now_ms(), database.table
        execute = executing(connections[database.alias])
        leased = process.fitting(entries) if relay is not None and relay.has_room else []
        known = {entry.message_id for entry in leased}
        others = [entry for entry in entries if entry.message_id not in known]
        if relay is not None and leased:
            table.insert(execute, leased, now_ms=now_ms, owner=relay.owner, due_ms=now_ms + process.config.lease_ms)
            transaction.on_commit(_Leased(process, relay, leased), using=database.alias)
        if others:
            table.insert(execute, others, now_ms=now_ms)
            if relay is not None:
                transaction.on_commit(partial(process.call, relay.wake), using=database.alias)
            else:
                table.notify(execute)

    def publish(self, message: Message, *, using: str = DEFAULT_DB_ALIAS, even_unsaved: bool = False) -> bool:
        """Save a ``message`` in a transaction of its own, send it, and wait for that. True: the broker has it. False:
        it is saved, and will be sent later.

        ``even_unsaved``: send it also if it cannot be saved. The transaction of the caller has no part in it. Raises
        what ``Outbox.publish`` raises.
        """
        process = self._here()
        entry = process.entry(message)
        relay = process.relay(process.database(using))
        if relay is None or process.service is None:
            raise NotRunning("TERNMQ_OUTBOX has relay=False, so this process sends nothing; use outbox.send")
        call = publish(relay, process.service, entry, even_unsaved=even_unsaved, config=process.config, env=process.env)
        return process.thread.run(call)

    @property
    def counters(self) -> dict[str, Counters]:
        """What this process has sent, for each database."""
        process = self._here()
        relays = process.service.relays if process.service is not None else []
        return {relay.database.name: relay.counters for relay in relays}

    def close(self) -> None:
        """Send what is being sent, and stop. The next ``send`` starts again."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _here(self) -> _Process:
        """What this process has; after a fork it begins anew."""
        with self._lock:
            if self._process is None or self._process.pid != os.getpid():
                self._process = _Process()
                atexit.register(self.close)
            return self._process


class _Process:
    """The relays of one process."""

    def __init__(self) -> None:
        given: dict[str, Any] = dict(getattr(settings, "TERNMQ_OUTBOX", None) or {})
        if unknown := [name for name in given if name not in _NAMES]:
            raise ConfigError(f"invalid TERNMQ_OUTBOX: {unknown[0]!r} is unknown; expected {', '.join(_NAMES)}")
        self.pid = os.getpid()
        self.config: OutboxConfig = given.get("config") or OutboxConfig()
        self.env = Env()
        self._producer: ProducerConfig = given.get("producer") or ProducerConfig()
        self._ids = unique_ids(self.env)
        self._ids_lock = threading.Lock()
        self._lock = threading.Lock()
        self._databases: dict[str, DjangoDatabase] = {}
        #: What transactions that run have saved for relays of this process.
        self.leased_bytes = 0
        #: Entered again when a transaction that is rolled back is cleared away meanwhile.
        self.leased_lock = threading.RLock()
        self.service: Service | None = None
        self.thread: LoopThread = loop_thread()
        if given.get("relay", True):
            # All databases that may have the table; those without one are never searched.
            self.service = Service(
                [],
                group=given.get("group") or GROUP,
                client=given.get("client") or ClientConfig(given.get("name_servers") or ""),
                producer=self._producer,
                config=self.config,
                env=self.env,
            )
            self.thread.run(self.service.__aenter__())

    def entry(self, message: Message) -> NewRow:
        with self._ids_lock:
            message_id = self._ids.next()
        return to_entry(message, message_id=message_id, body_bytes_max=self._producer.body_bytes_max)

    def database(self, alias: str) -> DjangoDatabase:
        with self._lock:
            if alias not in self._databases:
                database = DjangoDatabase(alias)
                if self.service is not None:
                    self.thread.run(self.service.add(database))
                self._databases[alias] = database
            return self._databases[alias]

    def fitting(self, entries: Sequence[NewRow]) -> list[NewRow]:
        """Those of the entries that may be kept in memory until the commit."""
        return fitting(entries, used_bytes=self.leased_bytes, bytes_max=self.config.direct_bytes_max)

    def relay(self, database: DjangoDatabase) -> Relay | None:
        return self.service.relay_of(database) if self.service is not None else None

    def call(self, function: Any, *args: object) -> None:
        """Call on the loop's thread. At the end of the program nothing may be left to call."""
        if self.pid == os.getpid():
            with contextlib.suppress(RuntimeError, NotRunning):
                self.thread.call_soon(function, *args)

    def stop(self) -> None:
        if self.pid == os.getpid() and self.service is not None:
            with contextlib.suppress(NotRunning):
                self.thread.run(self.service.__aexit__(None, None, None))
                for database in self._databases.values():
                    self.thread.run(database.close())


class _Leased:
    """Entries of a transaction that are leased to a relay of this process; its commit calls it. Django forgets it after
    the commit, and with a rollback, also of a savepoint: then it does not count any more."""

    def __init__(self, process: _Process, relay: Relay, entries: Sequence[NewRow]) -> None:
        self._process, self._relay, self._entries = process, relay, entries
        self._bytes = sum(entry.size_bytes for entry in entries)
        with process.leased_lock:
            process.leased_bytes += self._bytes

    def __call__(self) -> None:
        if self._process.pid == os.getpid():
            self._relay.committed(self._entries)

    def __del__(self) -> None:
        with self._process.leased_lock:
            self._process.leased_bytes -= self._bytes


#: The outbox of this application.
outbox = DjangoOutbox()
