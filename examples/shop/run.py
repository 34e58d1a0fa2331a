"""Open the shop, kill its processes at random, close it, and look at the books.

    python examples/shop/run.py --seconds 20 --seed 1

``DATABASE_URL`` names a PostgreSQL database for it, such as ``postgresql+psycopg://shop@127.0.0.1/shop``. The tables of
the shop must not exist there, and that server is not killed. Without it, a server of its own is started, and killed
like everything else; that one is borrowed from the tests of this repository (``script/bootstrap databases``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from sqlalchemy import Engine, func, inspect, make_url, select, update
from sqlalchemy.orm import Session

sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent.parent)]

from shop import books  # noqa: E402
from shop.schema import Door, Order, Shop, State  # noqa: E402
from shop.servers import READY_S, Servers  # noqa: E402

#: Price in cents, and pieces.
STOCK = {"book": (1_999, 60), "pen": (149, 90), "lamp": (4_950, 15)}
#: How long the last orders may take after the shop is closed.
SETTLED_S = 180.0


@contextlib.contextmanager
def database() -> Iterator[tuple[str, dict[str, Callable[[], None]]]]:
    """The URL of the database, and how to kill its server and start it again, if it is ours."""
    given = os.environ.get("DATABASE_URL")
    if given:
        url = make_url(given.replace("postgres://", "postgresql://", 1))
        if url.get_backend_name() != "postgresql":
            raise SystemExit(f"DATABASE_URL is a database of {url.get_backend_name()}; the shop needs PostgreSQL")
        yield url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False), {}
        return
    try:
        from tests.databases import postgresql
    except ImportError:
        raise SystemExit(
            "set DATABASE_URL to an empty PostgreSQL database, or run this in TernMQ's repository"
        ) from None
    with postgresql() as server, server.database() as made:

        def again() -> None:
            server.kill()
            server.start()

        yield made.url(), {"postgresql": again}


class Killer:
    """Kills one process after the other, each in turn and in another order each time, and starts it again."""

    def __init__(self, servers: Servers, others: dict[str, Callable[[], None]], engine: Engine, seed: int) -> None:
        self._servers = servers
        self._engine = engine
        self._victims: dict[str, Callable[[], None]] = dict(others)
        self._chance = Random(seed)
        self._deck: list[str] = []
        self.kills: Counter[str] = Counter()
        for name in servers.processes:
            self._victims[name] = partial(self._again, name)

    def run(self, *, seconds: float) -> None:
        """From the first shipped order on, for so many ``seconds``."""
        self._wait(State.SHIPPED, 1, READY_S)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            # On a slow machine, a process that is killed all the time would never do anything.
            self._wait(State.PLACED, self._chance.choice((0, 5, 20)), 5.0)
            if not self._deck:
                self._deck = sorted(self._victims)
                self._chance.shuffle(self._deck)
            self._servers.tend()
            name = self._deck.pop()
            self._victims[name]()
            self.kills[name] += 1

    def _wait(self, step: State, count: int, limit_s: float) -> None:
        """Until so many more orders have gone this step, or for so long."""
        goal = self._orders(step) + count
        end = time.monotonic() + limit_s
        while self._orders(step) < goal and time.monotonic() < end:
            self._servers.tend()
            time.sleep(0.05)

    def _orders(self, step: State) -> int:
        known = select(func.count()).select_from(Order)
        with Session(self._engine) as session:
            return session.scalar(known if step is State.PLACED else known.where(Order.state == step)) or 0

    def _again(self, name: str) -> None:
        self._servers.kill(name)
        # Away for a while: others must take over, or wait.
        time.sleep(self._chance.choice((0.0, 1.0, 1.5)) * self._chance.random())
        self._servers.start(name)


def run(directory: Path, *, seconds: float, seed: int, program: str = "shop") -> books.Ledger:
    """One life of the shop, with stores and logs in ``directory``. ``program`` is the package that it runs."""
    with database() as (url, others):
        servers = Servers(directory, url, seed, program)
        shop = Shop.at(url, "")
        engine = shop.engine
        try:
            if inspect(engine).has_table("orders"):
                raise SystemExit("the database has a table 'orders' already; give the shop an empty one")
            shop.create(STOCK)
            servers.start_all()
            killer = Killer(servers, others, engine, seed)
            killer.run(seconds=seconds)
            print(f"{killer.kills.total()} kills: {', '.join(sorted(killer.kills))}", flush=True)
            with Session(engine) as session, session.begin():
                session.execute(update(Door).values(is_open=False))
            settle(servers, lambda: books.unfinished(engine))
            return books.audit(engine)
        finally:
            servers.close()
            engine.dispose()


def settle(servers: Servers, unfinished: Callable[[], str]) -> None:
    limit = time.monotonic() + SETTLED_S
    while left := unfinished():
        servers.tend()
        if time.monotonic() > limit:
            print(f"after {SETTLED_S:.0f} s there are still {left}", flush=True)
            return
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop whose processes are killed, and whose books balance.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long processes are killed (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills and the customers (1)")
    parser.add_argument("--program", default="shop", help="package whose worker and customers are run (shop)")
    parser.add_argument("--dir", type=Path, help="keep stores and logs in this empty directory")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = given.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shop-")))
        directory.mkdir(parents=True, exist_ok=True)
        ledger = run(directory, seconds=given.seconds, seed=given.seed, program=given.program)
    print(ledger)
    sys.exit(1 if ledger.faults else 0)


if __name__ == "__main__":
    main()
