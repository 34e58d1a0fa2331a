"""Transactions of databases that gave way to another one (J3, S1)."""

from __future__ import annotations

from typing import Final

#: Serialization failure and deadlock, of PostgreSQL.
_STATES: Final = frozenset({"40001", "40P01"})
#: Changed row, lock wait time-out and deadlock, of MariaDB and MySQL.
_NUMBERS: Final = frozenset({1020, 1205, 1213})


def is_conflict(error: BaseException | None) -> bool:
    """Whether a driver's ``error`` means that the database let another transaction go first: this one can be done again
    at once.

    Programs meet each other in the indexes, and InnoDB answers that with a deadlock now and then. SQLite refuses a
    write at once if another connection has written since this transaction read.
    """
    number = error.args[0] if error is not None and error.args else None
    return (
        getattr(error, "sqlstate", None) in _STATES
        or number in _NUMBERS
        # Of SQLite, whose errors come through drivers that keep the text only.
        or "database is locked" in str(error)
    )
