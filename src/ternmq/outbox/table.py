"""All that is done with the outbox table, as functions of a transaction (J3).

The seam to databases is ``Execute``: it runs one statement with named values (``:name``) and returns rows. SQLAlchemy,
Django and ``sqlite3`` each have one, so that the statements stand here once. Every function below is one transaction of
its caller; a caller that dies in the middle leaves the table as it was.

**Taking without double work.** A relay selects rows that are due, with ``FOR UPDATE SKIP LOCKED`` where the database
has it, and writes itself into ``owner`` and the end of its lease into ``due_ms``. The update asks again whether the row
is still due: without row locks (SQLite, old MySQL), the second of two relays changes nothing, and sees that it did. All
that a relay does later asks for its own ``owner``: one whose lease ended changes nothing any more. The owner of each
take is a new text, so that a relay does not mistake a later lease for its own.

**Order.** Of the rows of one key only the first is ever selected, and it takes the rows behind it along as far as they
are due, so a key has one owner. A row that waits, is leased or dead holds the rows behind it. Rows are numbered when
they are inserted: transactions that both have a message of one key, and wait for no lock of each other, have no order.

**Rows that are held.** Many rows behind a first one that failed would be read by each take. A take that finds them in
its way puts them to sleep: their owner is ``HELD``, and they are not due for a long while, so that an outage does not
write them again at each back-off. They need not be woken up all at once. Each failed row with a key is marked with the
same owner, and a take or a discard of a marked row marks the one behind it and makes that one due. A marked row that
has not failed takes the sleeping rows behind it along. One that failed goes alone: it will often fail again. Should a
row be deleted without that, by another program, the end of the sleep is what wakes the others.

To put rows to sleep, a take locks the first one of their key. So it cannot do that behind a row that is being taken,
tried again or discarded in the same moment.
"""

# ruff: noqa: S608 - names of tables are checked, ids are numbers, and all else goes as values

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ternmq.outbox.entry import (
    DETAILS_BYTES_MAX,
    ERROR_LENGTH,
    MESSAGE_ID_LENGTH,
    ORDER_KEY_LENGTH,
    ROW_BYTES_MAX,
    TOPIC_LENGTH,
    NewRow,
    Row,
)
from ternmq.outbox.rules import TIMES_MAX, FailedAttempt
from ternmq.outbox.schema import DEAD, WAITING, Dialect, check_name

#: Where relays on PostgreSQL listen; a transaction that leaves messages to them notifies it.
CHANNEL: Final = "ternmq_outbox"

#: How often a transaction is done again that gave way to another one.
CONFLICTS_MAX: Final = 10

#: How long the end of a relay waits for a transaction that is under way.
CLOSE_S: Final = 5.0

#: The owner of rows with a key that wait behind another one, and of what failed and may have such rows behind it.
HELD: Final = "held"

#: So many keys may have rows behind their marked one taken along at once.
_ALONG_MAX: Final = 16
#: A take looks at so many times the rows that it may take.
_LOOK_FURTHER: Final = 20
#: Keys that a statement leaves out. Some databases take a thousand values.
_WITHOUT_MAX: Final = 900

Values = Mapping[str, object]


class Result(NamedTuple):
    """Rows that a statement returned, and how many it changed."""

    rows: Sequence[Sequence[object]]
    changed: int


class Execute(Protocol):
    """Runs one statement in the transaction of the caller; with a list of values, once for each."""

    def __call__(self, statement: str, values: Values | Sequence[Values] = ..., /) -> Result: ...


@dataclass(slots=True, frozen=True)
class Status:
    """How many messages are in an outbox."""

    waiting: int
    leased: int
    dead: int
    #: When the oldest message that is not dead was saved; None without one.
    oldest_ms: int | None


@dataclass(slots=True, frozen=True)
class DeadRow:
    """A message that is not sent any more."""

    id: int
    message_id: str | None
    topic: str
    order_key: str | None
    refusals: int
    error: str
    created_ms: int


class TakenRows(NamedTuple):
    """What a relay has leased, and how many rows it has moved out of its way."""

    rows: list[Row]
    postponed: int


@dataclass(slots=True)
class _Free:
    """Rows that can be taken now."""

    #: By id.
    sizes: dict[int, int] = field(default_factory=dict)
    #: The keys of those that have one.
    keys: dict[int, object] = field(default_factory=dict)
    #: Keys with a row that is marked: rows behind it may sleep.
    marked: set[object] = field(default_factory=set)

    def update(self, other: _Free) -> None:
        self.sizes.update(other.sizes)
        self.keys.update(other.keys)
        self.marked.update(other.marked)


class OutboxTable:
    """The statements for a table of a database.

    Args:
        name: Name of the table.
        dialect: Kind of the database.
        skip_locked: Whether it has ``FOR UPDATE SKIP LOCKED``.
    """

    def __init__(self, name: str, dialect: Dialect, *, skip_locked: bool = False) -> None:
        self.name = check_name(name)
        self.dialect = dialect
        self.skip_locked = skip_locked
        # SQLite takes texts of any length, whatever the type of the column. A key that is too long counts as none
        # here, but statements compare it: its rows are taken one by one, and are dead then.
        self._key = "order_key"
        if dialect is Dialect.SQLITE:
            self._key = f"CASE WHEN {self._size('order_key')} <= {4 * ORDER_KEY_LENGTH} THEN order_key END"
        self._is_marked = f"CASE WHEN owner = '{HELD}' THEN 1 ELSE 0 END"
        # For changes of rows by their ids. Else MariaDB reads the whole table if it has few other rows, as usual, and
        # waits for the locks of all transactions that have just inserted one.
        self._by_id = f"{self.name} FORCE INDEX (PRIMARY)" if dialect is Dialect.MYSQL else self.name

    @property
    def _lock(self) -> str:
        """Ends a SELECT whose rows must not be changed until the end of the transaction."""
        if self.dialect is Dialect.SQLITE:
            return ""
        return " FOR UPDATE SKIP LOCKED" if self.skip_locked else " FOR UPDATE"

    @property
    def _state_behind(self) -> str:
        """Columns of a row behind another one: id, size, whether it can be taken, whether it is marked."""
        return (
            f"id, {self._size('body')} + {self._size('message')}, CASE WHEN state = {WAITING} AND "
            f"(due_ms <= :now_ms OR owner = '{HELD}') THEN 1 ELSE 0 END, {self._is_marked}"
        )

    def exists(self, execute: Execute) -> bool:
        """Whether the database has the table."""
        schema, _, bare = self.name.rpartition(".")
        match self.dialect:
            case Dialect.POSTGRESQL:
                found = execute("SELECT 1 WHERE to_regclass(:name) IS NOT NULL", {"name": self.name})
            case Dialect.MYSQL:
                found = execute(
                    "SELECT 1 FROM information_schema.tables "
                    "WHERE table_name = :name AND table_schema = COALESCE(:schema, DATABASE())",
                    {"name": bare, "schema": schema or None},
                )
            case Dialect.SQLITE:
                catalogue = f"{schema}.sqlite_master" if schema else "sqlite_master"
                found = execute(f"SELECT 1 FROM {catalogue} WHERE type = 'table' AND name = :name", {"name": bare})
        return bool(found.rows)

    # --- The application's part ------------------------------------------------------------------------------

    def insert(
        self, execute: Execute, entries: Sequence[NewRow], *, now_ms: int, owner: str | None = None, due_ms: int = 0
    ) -> None:
        """Save messages. With an ``owner`` they are leased to it until ``due_ms``."""
        execute(
            f"INSERT INTO {self.name} (message_id, topic, body, message, order_key, due_ms, owner, created_ms) "
            "VALUES (:message_id, :topic, :body, :message, :order_key, :due_ms, :owner, :created_ms)",
            [
                {
                    "message_id": entry.message_id,
                    "topic": entry.topic,
                    "body": entry.body,
                    "message": entry.message,
                    "order_key": entry.order_key,
                    "due_ms": due_ms,
                    "owner": owner,
                    "created_ms": now_ms,
                }
                for entry in entries
            ],
        )

    def notify(self, execute: Execute) -> None:
        """Wake relays when this transaction is committed, if the database can."""
        if self.dialect is Dialect.POSTGRESQL:
            execute("SELECT pg_notify(:channel, '')", {"channel": CHANNEL})

    def held(self, execute: Execute, entries: Sequence[NewRow], *, owner: str, until_ms: int) -> list[Row]:
        """Those of our entries that are committed, and leased to ``owner`` beyond ``until_ms``."""
        # As text: with SQLAlchemy, hundreds of values cost seven times as much as all else here. The ids are our own.
        assert all(entry.message_id.isalnum() for entry in entries)
        message_ids = "', '".join(entry.message_id for entry in entries)
        found = execute(
            f"SELECT id, message_id FROM {self.name} WHERE message_id IN ('{message_ids}') "
            f"AND owner = {_word(owner)} AND due_ms > {int(until_ms)}",
        ).rows
        ids = {message_id: _number(row_id) for row_id, message_id in found}
        return [Row.of(ids[entry.message_id], entry) for entry in entries if entry.message_id in ids]

    def has_key(self, execute: Execute, order_key: str | None = None) -> bool:
        """Whether a message of this key is in the table; without one, of any key."""
        if order_key is None:
            return bool(execute(f"SELECT 1 FROM {self.name} WHERE order_key IS NOT NULL LIMIT 1").rows)
        found = execute(f"SELECT 1 FROM {self.name} WHERE order_key = :order_key LIMIT 1", {"order_key": order_key})
        return bool(found.rows)

    # --- The relay's part ------------------------------------------------------------------------------------

    def take(
        self,
        execute: Execute,
        *,
        owner: str,
        now_ms: int,
        lease_ms: int,
        rows_max: int,
        bytes_max: int,
        hold_ms: int = 0,
    ) -> TakenRows:
        """Lease the rows that are due to ``owner``, a text that was never used before.

        If most of the oldest rows that are due are behind others of their key, they are put to sleep for ``hold_ms``,
        so that no take reads them again and again.
        """
        chosen, postponed = self._chosen(
            execute, now_ms=now_ms, rows_max=rows_max, bytes_max=bytes_max, hold_ms=hold_ms
        )
        ids = list(chosen.sizes)
        if not ids:
            return TakenRows([], postponed)
        # «+ 0»: else SQLite takes the index of what is due, and reads all of it.
        values: dict[str, object] = {"owner": owner, "until_ms": now_ms + lease_ms, "now_ms": now_ms}
        changed = execute(
            f"UPDATE {self._by_id} SET owner = :owner, due_ms = :until_ms "
            f"WHERE id IN ({_numbers(ids)}) AND state + 0 = {WAITING} AND (due_ms + 0 <= :now_ms OR owner = '{HELD}')",
            values,
        ).changed
        if not changed:
            return TakenRows([], postponed)
        # The last one of each key: its rows stand in the order of ids.
        if last := {key: row_id for row_id, key in chosen.keys.items() if key in chosen.marked}:
            self._pass_on(execute, last.values(), now_ms=now_ms)
        size = f"{self._size('body')} + {self._size('message')}"
        is_read = f"{size} <= {ROW_BYTES_MAX} AND {self._size('message')} <= {DETAILS_BYTES_MAX}"
        found = execute(
            f"SELECT id, {self._short('message_id', MESSAGE_ID_LENGTH)}, {self._short('topic', TOPIC_LENGTH)}, "
            f"CASE WHEN {is_read} THEN body END, CASE WHEN {is_read} THEN message END, "
            f"{self._short('order_key', ORDER_KEY_LENGTH)}, attempts, refusals, {size} "
            f"FROM {self.name} WHERE id IN ({_numbers(ids)}) AND owner = :owner ORDER BY id",
            {"owner": owner},
        ).rows
        rows = [_row(fields) for fields in found]
        return TakenRows(rows if changed == len(ids) else self._whole(execute, rows, ids, owner=owner), postponed)

    def _size(self, column: str) -> str:
        """The bytes of a column."""
        if self.dialect is not Dialect.SQLITE:
            return f"OCTET_LENGTH({column})"
        # SQLite has that function from 3.43 on, and counts texts up to their first NUL. Any column may have a text.
        return f"LENGTH(CASE TYPEOF({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END)"

    def _short(self, column: str, length: int) -> str:
        """A column that is read; on SQLite one character more than allowed at most."""
        return f"SUBSTR({column}, 1, {length + 1})" if self.dialect is Dialect.SQLITE else column

    def _whole(self, execute: Execute, rows: Sequence[Row], ids: Sequence[int], *, owner: str) -> list[Row]:
        """Of what we got, the rows that may be sent now: another relay was faster with some, and with their keys.

        A row with a key follows those before it; if one of them is not ours, it is given back.
        """
        wanted, ours = set(ids), {row.id for row in rows}
        lost = wanted - ours
        kept = [row for row in rows if row.order_key is None or not any(one < row.id for one in lost)]
        if len(kept) < len(rows):
            self.release(execute, ours - {row.id for row in kept}, owner=owner)
        return kept

    def _chosen(
        self, execute: Execute, *, now_ms: int, rows_max: int, bytes_max: int, hold_ms: int
    ) -> tuple[_Free, int]:
        """What to take, in the order of ids: what is due, as far as it fits. And how many rows were put to sleep."""
        # Only among the oldest that are due. To look for the first rows of as many keys as fit would read the whole
        # table after a long outage: most of its rows are behind others.
        oldest = self._oldest(execute, now_ms=now_ms, rows_max=rows_max)
        free = self._free(execute, oldest, now_ms=now_ms, rows_max=rows_max)
        postponed = 0
        if len(oldest) == rows_max and len(free.sizes) < max(rows_max // 2, 1):
            # Most of them are held by others, or another relay takes them now. Those others may be due as well, and be
            # found much later, as the end of a lease or of a back-off is later than the time of what never failed.
            held = {row_id: oldest[row_id] for row_id in oldest.keys() - free.sizes}
            firsts = self._firsts(execute, held)
            free.update(self._free(execute, firsts.values(), last_id=max(oldest), now_ms=now_ms, rows_max=rows_max))
            postponed = self._postpone(execute, held, firsts, now_ms=now_ms, hold_ms=hold_ms)
            further = self._oldest(execute, now_ms=now_ms, rows_max=rows_max * _LOOK_FURTHER)
            free.update(self._free(execute, further, now_ms=now_ms, rows_max=rows_max))
            if not free.sizes and not postponed:
                firsts = self._firsts(execute, further)
                free = self._free(
                    execute, firsts.values(), last_id=max(further, default=0), now_ms=now_ms, rows_max=rows_max
                )
            if not free.sizes and not postponed:
                # All of them are behind rows that are being sent, of keys that have more rows than are looked at.
                others = self._oldest(execute, now_ms=now_ms, rows_max=rows_max, without=set(further.values()))
                free = self._free(execute, others, now_ms=now_ms, rows_max=rows_max)
        chosen = _Free()
        total = 0
        # By id, as the rows behind a first one come after it: what is cut off leaves a beginning of each key.
        for row_id, size in sorted(free.sizes.items())[:rows_max]:
            total += size
            if chosen.sizes and total > bytes_max:
                break
            chosen.sizes[row_id] = size
            if row_id in free.keys:
                chosen.keys[row_id] = free.keys[row_id]
        chosen.marked = free.marked
        return chosen, postponed

    def _oldest(
        self, execute: Execute, *, now_ms: int, rows_max: int, without: Collection[object] = ()
    ) -> dict[int, object]:
        """Ids and keys of the oldest rows that are due, ``without`` those of some keys if these are not many."""
        keys = {f"key{number}": key for number, key in enumerate(set(without) - {None}) if number < _WITHOUT_MAX}
        others = f"AND (order_key IS NULL OR order_key NOT IN (:{', :'.join(keys)})) " if keys else ""
        found = execute(
            f"SELECT id, {self._key} FROM {self.name} WHERE state = {WAITING} AND due_ms <= {int(now_ms)} {others}"
            f"ORDER BY due_ms, id LIMIT {int(rows_max)}",
            keys,
        ).rows
        return {_number(row_id): key for row_id, key in found}

    def _firsts(self, execute: Execute, rows: Mapping[int, object]) -> dict[object, int]:
        """The first row of each key of these rows that are behind another one, by their keys."""
        one_of_each = {key: row_id for row_id, key in rows.items() if key is not None}
        if not one_of_each:
            return {}
        # ORDER BY and LIMIT find the first one without a look at the others.
        found = execute(
            f"SELECT o.id, f.id FROM {self.name} o, {self.name} f "
            f"WHERE o.id IN ({_numbers(one_of_each.values())}) AND f.id = "
            f"(SELECT p.id FROM {self.name} p WHERE p.order_key = o.order_key ORDER BY p.id LIMIT 1)"
        ).rows
        return {rows[_number(row_id)]: _number(first) for row_id, first in found if first != row_id}

    def _postpone(
        self,
        execute: Execute,
        held: Mapping[int, object],
        firsts: Mapping[object, int],
        *,
        now_ms: int,
        hold_ms: int,
    ) -> int:
        """Put those rows to sleep whose first one of the key is dead or waits; returns how many."""
        if not firsts:
            return 0
        if self.dialect is Dialect.SQLITE:
            # It has no locks of rows, and Python's driver begins a transaction with the first change.
            execute(f"UPDATE {self.name} SET state = state WHERE id IN ({_numbers(firsts.values())})")
        # Leases may end at any moment.
        waiting = execute(
            f"SELECT id, state, due_ms, owner FROM {self._by_id} WHERE id IN ({_numbers(firsts.values())}) "
            f"AND (state + 0 <> {WAITING} OR (due_ms + 0 > {int(now_ms)} AND (owner IS NULL OR owner = '{HELD}'))) "
            f"ORDER BY id{self._lock}"
        ).rows
        # A row of another program that is to be sent later has not failed: those behind it are due with it.
        until_ms = {
            _number(row_id): _number(due_ms) if state == WAITING and its_owner is None else None
            for row_id, state, due_ms, its_owner in waiting
        }
        postponed = 0
        for sleeps in (True, False):
            group = [
                row_id
                for row_id, key in held.items()
                if firsts.get(key) in until_ms and (until_ms[firsts[key]] is None) is sleeps
            ]
            if group:
                # The earliest time for all of them: one UPDATE, whatever the number of keys.
                # What is marked stays so: rows behind it may sleep.
                owner = f"'{HELD}'" if sleeps else f"CASE WHEN owner = '{HELD}' THEN owner END"
                due_ms = min(until_ms[firsts[held[row_id]]] or now_ms + hold_ms for row_id in group)
                postponed += execute(
                    # Their leases, if they had any, are over.
                    f"UPDATE {self._by_id} SET due_ms = {due_ms}, owner = {owner} "
                    f"WHERE id IN ({_numbers(group)}) AND state + 0 = {WAITING} AND due_ms + 0 <= {int(now_ms)}"
                ).changed
        return postponed

    def _free(
        self, execute: Execute, oldest: Collection[int], *, now_ms: int, rows_max: int, last_id: int = 0
    ) -> _Free:
        """Those of the ``oldest`` rows that can be taken now, and rows behind them (up to ``last_id``)."""
        free = _Free()
        if not oldest:
            return free
        found = execute(
            f"SELECT o.id, {self._key}, {self._size('body')} + {self._size('message')}, {self._is_marked}, o.attempts "
            f"FROM {self.name} o "
            # «+ 0»: as in ``take``.
            f"WHERE o.id IN ({_numbers(oldest)}) AND o.state + 0 = {WAITING} AND o.due_ms + 0 <= {int(now_ms)} "
            f"AND (o.order_key IS NULL OR NOT EXISTS "
            f"(SELECT 1 FROM {self.name} p WHERE p.order_key = o.order_key AND p.id < o.id)) "
            f"ORDER BY o.due_ms, o.id LIMIT {rows_max}{self._lock if self.skip_locked else ''}"
        ).rows
        with_others: list[object] = []
        for row_id, key, size, is_marked, attempts in found:
            free.sizes[_number(row_id)] = _number(size)
            if key is not None:
                free.keys[_number(row_id)] = key
                if is_marked:
                    free.marked.add(key)
                # One that failed goes alone: what it would take along is written twice if it fails again.
                if not _times(attempts):
                    with_others.append(key)
        if with_others:
            free.update(
                self._behind(execute, with_others, last_id=last_id or max(oldest), now_ms=now_ms, rows_max=rows_max)
            )
            self._add_sleeping(execute, free, with_others, now_ms=now_ms, rows_max=rows_max)
        return free

    def _behind(self, execute: Execute, keys: Sequence[object], *, last_id: int, now_ms: int, rows_max: int) -> _Free:
        """The rows of these keys, from the first on, as far as they can be taken now."""
        names = {f"k{number}": key for number, key in enumerate(keys)}
        found = execute(
            f"SELECT order_key, {self._state_behind} "
            f"FROM {self.name} WHERE order_key IN ({', '.join(map(':{}'.format, names))}) AND id <= {last_id} "
            f"ORDER BY id LIMIT {rows_max}",
            {**names, "now_ms": now_ms},
        ).rows
        free = _Free()
        held: set[object] = set()
        for key, row_id, size, is_due, is_marked in found:
            if not is_due:
                held.add(key)
            elif key not in held:
                free.sizes[_number(row_id)] = _number(size)
                free.keys[_number(row_id)] = key
                if is_marked:
                    free.marked.add(key)
        return free

    def _add_sleeping(
        self, execute: Execute, free: _Free, keys: Iterable[object], *, now_ms: int, rows_max: int
    ) -> None:
        """Add rows that sleep behind those that can be taken, while there is room for them."""
        marked = [key for key in keys if key in free.marked][:_ALONG_MAX]
        share = max(rows_max - len(free.sizes), 0) // len(marked) if marked else 0
        last = {key: row_id for row_id, key in sorted(free.keys.items())}
        for key in marked if share else ():
            found = execute(
                f"SELECT {self._state_behind} FROM {self.name} WHERE order_key = :key AND id > {last[key]} "
                f"ORDER BY id LIMIT {share}",
                {"key": key, "now_ms": now_ms},
            ).rows
            for row_id, size, is_due, _ in found:
                if not is_due:
                    break
                free.sizes[_number(row_id)] = _number(size)
                free.keys[_number(row_id)] = key

    def _pass_on(self, execute: Execute, ids: Iterable[int], *, now_ms: int) -> None:
        """Mark the row behind each of these, which are marked and go away, and wake it. Rows of another program that
        are to be sent later cannot be marked: who is marked is taken along. So the mark passes them."""
        is_later = f"p.state + 0 = {WAITING} AND p.due_ms + 0 > {int(now_ms)} AND p.owner IS NULL"
        found = execute(
            f"SELECT (SELECT p.id FROM {self.name} p WHERE p.order_key = o.order_key AND p.id > o.id "
            f"AND NOT ({is_later}) ORDER BY p.id LIMIT 1) FROM {self.name} o WHERE o.id IN ({_numbers(ids)})"
        ).rows
        if following := [_number(row_id) for (row_id,) in found if row_id is not None]:
            execute(
                f"UPDATE {self._by_id} SET owner = '{HELD}', due_ms = 0 WHERE id IN ({_numbers(following)}) "
                f"AND state + 0 = {WAITING} AND (due_ms + 0 <= {int(now_ms)} OR owner = '{HELD}')"
            )

    def delete(self, execute: Execute, ids: Iterable[int], *, owner: str) -> int:
        """Delete rows that were sent, as far as they still belong to ``owner``."""
        # Only a DELETE of several tables, here one, can name an index.
        target = f"{self.name} USING" if self.dialect is Dialect.MYSQL else ""
        return execute(
            f"DELETE FROM {target} {self._by_id} WHERE id IN ({_numbers(ids)}) AND owner = {_word(owner)}"
        ).changed

    def release(self, execute: Execute, ids: Iterable[int], *, owner: str) -> None:
        """Give rows back that were not sent."""
        execute(
            f"UPDATE {self._by_id} SET owner = NULL, due_ms = 0 WHERE id IN ({_numbers(ids)}) AND owner = :owner",
            {"owner": owner},
        )

    def fail(self, execute: Execute, verdicts: Sequence[FailedAttempt], *, owner: str) -> None:
        """Store what became of failed attempts."""
        execute(
            f"UPDATE {self.name} SET owner = CASE WHEN order_key IS NOT NULL THEN '{HELD}' END, state = :state, "
            "due_ms = :due_ms, attempts = :attempts, refusals = :refusals, error = :error "
            "WHERE id = :id AND owner = :owner",
            [
                {
                    "id": verdict.row_id,
                    "owner": owner,
                    "state": DEAD if verdict.is_dead else WAITING,
                    "due_ms": verdict.due_ms,
                    "attempts": verdict.attempts,
                    "refusals": verdict.refusals,
                    "error": verdict.error,
                }
                for verdict in verdicts
            ],
        )

    # --- The operator's part ---------------------------------------------------------------------------------

    def status(self, execute: Execute, *, now_ms: int) -> Status:
        """How many messages there are in each state."""
        found = execute(
            f"SELECT state, CASE WHEN owner <> '{HELD}' AND due_ms > :now_ms THEN 1 ELSE 0 END AS leased, "
            f"COUNT(*), MIN(created_ms) FROM {self.name} GROUP BY 1, 2",
            {"now_ms": now_ms},
        ).rows
        counts = {(state, bool(leased)): _number(count) for state, leased, count, _ in found}
        oldest = [created_ms for state, _, _, created_ms in found if state != DEAD and isinstance(created_ms, int)]
        dead = counts.get((DEAD, False), 0) + counts.get((DEAD, True), 0)
        return Status(
            counts.get((WAITING, False), 0), counts.get((WAITING, True), 0), dead, min(oldest) if oldest else None
        )

    def dead(self, execute: Execute, *, count_max: int) -> list[DeadRow]:
        """Dead messages, the oldest first."""
        found = execute(
            f"SELECT id, {self._short('message_id', MESSAGE_ID_LENGTH)}, {self._short('topic', TOPIC_LENGTH)}, "
            f"{self._key}, refusals, {self._short('error', ERROR_LENGTH)}, created_ms "
            f"FROM {self.name} WHERE state = {DEAD} ORDER BY id LIMIT {int(count_max)}"
        ).rows
        return [
            DeadRow(
                _number(row_id),
                _text_or_none(message_id),
                str(topic),
                _text_or_none(key),
                _times(refusals),
                str(error or ""),
                created_ms if isinstance(created_ms, int) else 0,
            )
            for row_id, message_id, topic, key, refusals, error, created_ms in found
        ]

    def retry(self, execute: Execute, ids: Sequence[int] | None) -> int:
        """Let dead messages wait again, with all their attempts; None: all of them. Returns how many there were."""
        which = "" if ids is None else f" AND id IN ({_numbers(ids)})"
        return execute(
            f"UPDATE {self.name} SET state = {WAITING}, due_ms = 0, attempts = 0, refusals = 0, "
            f"owner = CASE WHEN order_key IS NOT NULL THEN '{HELD}' END WHERE state = {DEAD}{which}"
        ).changed

    def discard(self, execute: Execute, ids: Sequence[int], *, now_ms: int) -> int:
        """Delete dead messages, which will never be sent. Returns how many there were."""
        dead = f"state = {DEAD} AND id IN ({_numbers(ids)})"
        # Locked, so that no take puts the rows behind them to sleep meanwhile.
        found = execute(f"UPDATE {self.name} SET owner = '{HELD}' WHERE {dead}").changed
        if found:
            self._pass_on(execute, ids, now_ms=now_ms)
        return execute(f"DELETE FROM {self.name} WHERE {dead}").changed


def _numbers(ids: Iterable[int]) -> str:
    """Numbers for an IN (…); as text, since they are ours and statements have few places for values."""
    return ", ".join(str(int(one)) for one in ids)


def _word(owner: str) -> str:
    """An owner as text of a statement; they are ours."""
    assert owner.replace(".", "").isalnum()
    return f"'{owner}'"


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _times(value: object) -> int:
    """How often something failed; what another program wrote there may be anything."""
    return min(max(value, 0), TIMES_MAX) if isinstance(value, int) else 0


def _text(value: object) -> str:
    # SQLite has bytes in columns of texts, if another program wrote them so; and the other way round.
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode("utf-8", "replace")


def _row(fields: Sequence[object]) -> Row:
    row_id, message_id, topic, body, message, order_key, attempts, refusals, size = fields
    is_unread = body is None or message is None
    return Row(
        _number(row_id),
        _text_or_none(message_id),
        str(topic),
        b"" if is_unread else _bytes(body),
        "" if is_unread else _text(message),
        _text_or_none(order_key),
        _times(attempts),
        _times(refusals),
        unread_bytes=_number(size) if is_unread else 0,
    )
