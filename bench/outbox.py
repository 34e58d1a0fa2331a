"""The outbox beside bare inserts of the same rows, and the delay from commit to broker (J3).

    quiet .venv/bin/python -m bench.outbox

Threads of one process commit transactions: an order, and messages. *Bare* inserts the same rows, order and outbox row,
and sends nothing. *Outbox* sends them; its time ends when the table is empty, so it also has the deletions and all work
of relay and broker, on the same cores. Rounds alternate; the ratio of each pair is what counts. The database syncs each
commit.

The delay is that from the return of ``commit`` to the store time of the broker, at a fixed rate.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from ternmq import Message
from ternmq.env import Env
from ternmq.outbox.engines import executing
from ternmq.outbox.entry import to_entry
from ternmq.outbox.schema import TABLE, Dialect
from ternmq.outbox.service import unique_ids
from ternmq.outbox.sqlalchemy import Outbox
from ternmq.outbox.table import OutboxTable
from tests.cli.conftest import starter
from tests.databases import Database, mariadb, postgresql
from tests.outbox.topics import messages_of, wait_for

BODY = b"x" * 200
_ids, _lock = unique_ids(Env()), threading.Lock()


def new_id() -> str:
    with _lock:
        return _ids.next()


@contextmanager
def opened(kind: str, directory: Path) -> Iterator[Engine]:
    with ExitStack() as stack:
        if kind == "sqlite":
            database = Database("sqlite", str(directory / "bench.db"))
        elif kind == "mariadb":
            database = stack.enter_context(stack.enter_context(mariadb(durable=True)).database())
        else:
            database = stack.enter_context(stack.enter_context(postgresql(durable=True)).database())
        engine = create_engine(database.url(), pool_size=20)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (name VARCHAR(50) PRIMARY KEY)"))
        Outbox(engine).create()
        yield engine
        engine.dispose()


def transact(engine: Engine, outbox: Outbox | None, topic: str, name: str, messages: int) -> list[str]:
    """One transaction; without an outbox, bare inserts."""
    made = [Message(topic, BODY, keys=name) for _ in range(messages)]
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})
        if outbox is not None:
            sent = outbox.send(session, *made)
        else:
            entries = [to_entry(one, message_id=new_id(), body_bytes_max=1 << 22) for one in made]
            table = OutboxTable(TABLE, Dialect.of(engine.dialect.name))
            table.insert(executing(session.connection()), entries, now_ms=1, owner="bench", due_ms=1)
            sent = []
        session.commit()
    return sent


def rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT COUNT(*) FROM ternmq_outbox")) or 0)


def throughput(
    engine: Engine, outbox: Outbox | None, label: str, *, threads: int, transactions: int, messages: int
) -> tuple[float, float]:
    """Messages a second, and microseconds of this process for each message, which other programs do not change."""

    def work(thread: int) -> None:
        for number in range(transactions // threads):
            transact(engine, outbox, f"bench{messages}", f"{label}-{thread}-{number}", messages)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    began, cpu_began = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if outbox is not None:
        wait_for(lambda: rows(engine) == 0)
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM ternmq_outbox"))
    count = transactions // threads * threads * messages
    return count / taken, cpu / count * 1e6


def delays(engine: Engine, outbox: Outbox, names: str, *, rate: int, seconds: float) -> list[float]:
    committed: dict[str, float] = {}
    due = time.perf_counter()
    for number in range(int(rate * seconds)):
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        for one in transact(engine, outbox, "delays", f"delay-{number}", 1):
            committed[one] = time.time() * 1000
    wait_for(lambda: rows(engine) == 0)
    found = asyncio.run(messages_of(names, "delays"))
    return sorted(
        max(0.0, one.store_time_ms - committed[one.message_id]) for one in found if one.message_id in committed
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--databases", nargs="+", default=["postgresql", "mariadb", "sqlite"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transactions", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rate", type=int, default=100)
    options = parser.parse_args()
    for kind in options.databases:
        with TemporaryDirectory(prefix="ternmq-bench-") as directory, ExitStack() as stack:
            start = stack.enter_context(starter(Path(directory)))
            cluster = start("up", "--dir", f"{directory}/data", "--port", "0", "--broker-port", "0")
            engine = stack.enter_context(opened(kind, Path(directory)))
            threads = 1 if kind == "sqlite" else options.threads
            for messages in (1, 10):
                pairs = []
                for number in range(options.rounds):
                    # Without a relay, and with one; the same statements.
                    count = options.transactions // (3 if messages > 1 else 1)
                    bare = throughput(
                        engine, None, f"b{messages}-{number}", threads=threads, transactions=count, messages=messages
                    )
                    with Outbox(engine, name_servers=cluster.name_server) as outbox:
                        sent = throughput(
                            engine,
                            outbox,
                            f"o{messages}-{number}",
                            threads=threads,
                            transactions=count,
                            messages=messages,
                        )
                    pairs.append((bare, sent))
                ratios = [sent[0] / bare[0] for bare, sent in pairs]
                rates = [statistics.median(pair[which][0] for pair in pairs) for which in (0, 1)]
                costs = [statistics.median(pair[which][1] for pair in pairs) for which in (0, 1)]
                print(
                    f"{kind}, {messages} messages a transaction: bare {rates[0]:,.0f}/s, outbox {rates[1]:,.0f}/s, "
                    f"ratio {statistics.median(ratios):.2f} ({', '.join(f'{one:.2f}' for one in ratios)}); "
                    f"CPU of the application {costs[0]:.0f} and {costs[1]:.0f} µs a message",
                    flush=True,
                )
            with Outbox(engine, name_servers=cluster.name_server) as outbox:
                # A commit of SQLite syncs several times: 100 a second are all that a disk can do.
                rate = options.rate // 5 if kind == "sqlite" else options.rate
                delays(engine, outbox, cluster.name_server, rate=rate, seconds=1)
                with engine.begin() as connection:
                    connection.execute(text("DELETE FROM orders WHERE name LIKE 'delay%'"))
                found = delays(engine, outbox, cluster.name_server, rate=rate, seconds=10)
            p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
            print(
                f"{kind}: delay from commit to broker at {rate}/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
