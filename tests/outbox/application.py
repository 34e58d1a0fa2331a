"""An application with an outbox that works until it is killed: what ``kills`` runs as a process.

    python -m tests.outbox.application DATABASE_URL NAME_SERVERS SEED

Each transaction changes a few of ten counters (a row lock each), and saves a message with the counter's new value, its
key as sharding key, and messages without a key. Beside each message it inserts the same text into the table ``work``:
that is the truth about what was committed. A third of the transactions are rolled back, wholly or by a savepoint.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from random import Random

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ternmq import Message
from ternmq.errors import OutboxFailed
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.sqlalchemy import Outbox

TOPIC = "work"
KEYS = 10
#: Short, so that what a dead process left is sent soon.
LEASE_MS = 4_000


def create(engine: Engine) -> None:
    """The tables of the application."""
    Outbox(engine).create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (body VARCHAR(100) PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE counters (name INTEGER PRIMARY KEY, value INTEGER NOT NULL)"))
        for name in range(KEYS):
            connection.execute(text("INSERT INTO counters VALUES (:name, 0)"), {"name": name})


def save(session: Session, outbox: Outbox, body: str, *, key: str = "") -> None:
    session.execute(text("INSERT INTO work VALUES (:body)"), {"body": body})
    outbox.send(session, Message(TOPIC, body.encode(), sharding_key=key))


def transact(session: Session, outbox: Outbox, chance: Random, unique: str) -> None:
    """One transaction, up to its commit or rollback."""
    # In one order, so that transactions do not wait for each other in a circle.
    for name in sorted(chance.sample(range(KEYS), chance.randrange(3))):
        session.execute(text("UPDATE counters SET value = value + 1 WHERE name = :name"), {"name": name})
        value = session.scalar(text("SELECT value FROM counters WHERE name = :name"), {"name": name})
        save(session, outbox, f"{name}:{value}", key=str(name))
    save(session, outbox, f"free:{unique}")
    if chance.random() < 0.2:
        inner = session.begin_nested()
        save(session, outbox, f"inner:{unique}")
        if chance.random() < 0.5:
            inner.rollback()
        else:
            inner.commit()
    if chance.random() < 0.2:
        session.rollback()
    else:
        session.commit()


def main(url: str, name_servers: str, seed: str) -> None:
    chance = Random(seed)
    engine = create_engine(url, pool_pre_ping=True)
    outbox = Outbox(engine, name_servers=name_servers, config=OutboxConfig(lease_ms=LEASE_MS))
    with outbox:
        for number in count():
            try:
                with Session(engine) as session:
                    transact(session, outbox, chance, f"{seed}-{number}")
            except (SQLAlchemyError, OutboxFailed):
                # The database was killed, or chose this transaction to break a deadlock.
                time.sleep(0.05)
            time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
