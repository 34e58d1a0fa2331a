"""``tern outbox``: relay, sweep, status, retry, discard, create (J3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ternmq.cli import logs
from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, LogLevel, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import run, serve
from ternmq.cli.times import age_text
from ternmq.env import SystemClock
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from ternmq.outbox.config import OutboxConfig
    from ternmq.outbox.relay import Database
    from ternmq.outbox.service import Service

T = TypeVar("T")

app = Commands(no_args_is_help=True, help="Send messages that applications saved in their databases.")

Databases = Annotated[
    list[str] | None,
    typer.Option(
        "--database",
        "-d",
        envvar="TERNMQ_OUTBOX_DATABASE",
        metavar="URL",
        help="Database as a URL of SQLAlchemy, such as postgresql+psycopg://user:password@host/db. Can be repeated.",
    ),
]
Spools = Annotated[
    list[str] | None, typer.Option("--spool", metavar="FILE", help="File of a spooling producer. Can be repeated.")
]
TableName = Annotated[str, typer.Option("--table", metavar="NAME", help="Name of the outbox table.")]
Group = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="Name of the producer group.")]

_TABLE = "ternmq_outbox"


@app.command()
def relay(
    databases: Databases = None,
    spools: Spools = None,
    table: TableName = _TABLE,
    interval: Annotated[
        float, typer.Option("--interval", min=0.01, help="Look into the tables every … seconds.")
    ] = 1.0,
    lease: Annotated[
        float, typer.Option("--lease", min=1.0, help="Other relays take over what this one took after … seconds.")
    ] = 60.0,
    refusals: Annotated[
        int, typer.Option("--refusals", min=1, help="A message is dead after brokers refused it this often.")
    ] = 16,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", min=0, max=65535, help="Serve counters to Prometheus on this port."),
    ] = None,
    group: Group = _TABLE,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Send the messages of outbox tables, and run until Ctrl-C. Any number of relays can run at once.

    Applications send their messages themselves after the commit. A relay sends what they left, and all messages of
    applications that only save. On PostgreSQL with psycopg it is woken up by the commit.

    Examples:

        tern outbox relay -d postgresql+psycopg://shop@127.0.0.1/shop

        tern outbox relay --spool /var/spool/shop.db
    """
    from ternmq.outbox.config import OutboxConfig

    logs.set_up(log_level)
    config = OutboxConfig(sweep_interval_ms=int(interval * 1000), lease_ms=int(lease * 1000), refusals_max=refusals)
    output = Output(as_json=as_json)

    async def work() -> None:
        async with _opened(databases, spools, table) as opened:
            await _check(opened)
            async with _service(opened, group, name_servers, config) as service:
                with _metrics(metrics, service):
                    names = [database.name for database in opened]
                    output.item({"event": "ready", "databases": names}, f"ready: relaying from {', '.join(names)}")
                    try:
                        await asyncio.Event().wait()  # until cancelled
                    finally:
                        counters = _counters(service)
                        output.item({"event": "stopped", **counters}, _told(counters))

    serve(work())


@app.command()
def sweep(
    databases: Databases = None,
    spools: Spools = None,
    table: TableName = _TABLE,
    group: Group = _TABLE,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send all messages that are due now, and end. For a timer, or to see an error at once.

    The exit code is 1 if a message could not be sent.

    Example:

        tern outbox sweep -d postgresql+psycopg://shop@127.0.0.1/shop
    """
    from ternmq.outbox.config import OutboxConfig

    async def work() -> dict[str, int]:
        async with _opened(databases, spools, table) as opened:
            await _check(opened)
            async with _service(opened, group, name_servers, OutboxConfig(), sweeps=False) as service:
                for one in service.relays:
                    await one.sweep()
                return _counters(service)

    counters = run(work())
    Output(as_json=as_json).item(counters, _told(counters))
    if counters["outages"] or counters["refusals"]:
        raise typer.Exit(1)


@app.command(cls=Watched)
def status(
    databases: Databases = None,
    spools: Spools = None,
    table: TableName = _TABLE,
    dead: Annotated[int, typer.Option("--dead", min=0, help="Also list up to … dead messages of each.")] = 0,
    as_json: Json = False,
) -> None:
    """Show how many messages wait, are being sent, or are dead.

    Example:

        tern outbox status -d postgresql+psycopg://shop@127.0.0.1/shop --dead 10
    """
    now_ms = SystemClock().now_ms()

    async def of(database: Database) -> dict[str, object]:
        found = await database.run(lambda execute: database.table.status(execute, now_ms=now_ms))
        lost = await database.run(lambda execute: database.table.dead(execute, count_max=dead)) if dead else []
        oldest_ms = None if found.oldest_ms is None else max(0, now_ms - found.oldest_ms)
        return {
            "database": database.name,
            "waiting": found.waiting,
            "leased": found.leased,
            "dead": found.dead,
            "oldest_ms": oldest_ms,
            "oldest": None if oldest_ms is None else age_text(oldest_ms // 1000),
            "dead_messages": [
                {
                    "id": one.id,
                    "topic": one.topic,
                    "message_id": one.message_id,
                    "order_key": one.order_key,
                    "refusals": one.refusals,
                    "created_ms": one.created_ms,
                    "error": one.error,
                }
                for one in lost
            ],
        }

    rows = run(_each(databases, spools, table, of))
    output = Output(as_json=as_json)
    output.rows(rows, columns=("database", "waiting", "leased", "dead", "oldest"), empty="no databases")
    letters = [one for row in rows if isinstance(shown := row["dead_messages"], list) for one in shown]
    if letters and not as_json:
        output.rows(letters, columns=("id", "topic", "message_id", "refusals", "error"), empty="")


@app.command()
def retry(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Ids of dead messages.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All dead messages.")] = False,
    databases: Databases = None,
    spools: Spools = None,
    table: TableName = _TABLE,
    as_json: Json = False,
) -> None:
    """Let dead messages wait again; a relay sends them.

    Examples:

        tern outbox retry 17 18 -d postgresql+psycopg://shop@127.0.0.1/shop

        tern outbox retry --all -d postgresql+psycopg://shop@127.0.0.1/shop
    """
    if bool(ids) == everything:
        raise ConfigError("name the ids of dead messages, or --all; `tern outbox status --dead 10` lists them")

    async def of(database: Database) -> int:
        return await database.run(lambda execute: database.table.retry(execute, None if everything else ids))

    count = sum(run(_each(databases, spools, table, of)))
    _changed(count, ids, "retried", "wait again", as_json=as_json)


@app.command(cls=Destructive)
def discard(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="Ids of dead messages.")],
    databases: Databases = None,
    spools: Spools = None,
    table: TableName = _TABLE,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete dead messages for ever. Messages of the same sharding key that wait behind them are sent then.

    Example:

        tern outbox discard 17 -d postgresql+psycopg://shop@127.0.0.1/shop
    """

    now_ms = SystemClock().now_ms()

    async def of(database: Database) -> int:
        return await database.run(lambda execute: database.table.discard(execute, ids, now_ms=now_ms))

    numbers = ", ".join(map(str, ids[:32])) + (" …" if len(ids) > 32 else "")
    confirm([f"the dead messages {numbers} are deleted for ever"], "delete them?", yes=yes)
    count = sum(run(_each(databases, spools, table, of)))
    _changed(count, ids, "discarded", "are deleted", as_json=as_json)


@app.command()
def create(databases: Databases = None, table: TableName = _TABLE, as_json: Json = False) -> None:
    """Create the outbox table, if it does not exist.

    Example:

        tern outbox create -d postgresql+psycopg://shop@127.0.0.1/shop
    """
    from ternmq.outbox.engines import EngineDatabase

    async def of(database: Database) -> None:
        if isinstance(database, EngineDatabase):
            await database.create()

    run(_each(databases, None, table, of, check=False))
    Output(as_json=as_json).item({"table": table}, f"the table {table} exists")


def _changed(count: int, ids: list[int] | None, key: str, verb: str, *, as_json: bool) -> None:
    if ids and count < len(set(ids)):
        note(f"{len(set(ids)) - count} of {len(set(ids))} ids are not those of dead messages")
    Output(as_json=as_json).item({key: count}, f"{count} messages {verb}")
    if ids and not count:
        raise typer.Exit(1)


async def _each(
    databases: list[str] | None,
    spools: list[str] | None,
    table: str,
    work: Callable[[Database], Awaitable[T]],
    *,
    check: bool = True,
) -> list[T]:
    async with _opened(databases, spools, table) as opened:
        if check:
            await _check(opened)
        return [await work(database) for database in opened]


async def _check(opened: list[Database]) -> None:
    """A missing table is an error now, not a line in a log."""
    for database in opened:
        await database.run(partial(database.table.status, now_ms=0))


@contextlib.asynccontextmanager
async def _opened(urls: list[str] | None, spools: list[str] | None, table: str) -> AsyncIterator[list[Database]]:
    """The databases of a command, until its end."""
    if not urls and not spools:
        raise ConfigError(
            "no database is given; name one with --database URL or TERNMQ_OUTBOX_DATABASE, or a spool with --spool FILE"
        )
    async with contextlib.AsyncExitStack() as stack:
        opened: list[Database] = []
        for url in urls or ():
            from ternmq.outbox.engines import EngineDatabase

            engine = EngineDatabase(_engine(url), table)
            stack.callback(engine.engine.dispose)
            stack.push_async_callback(engine.close)
            opened.append(engine)
        for path in spools or ():
            from ternmq.outbox.spool import SpoolFile

            file = SpoolFile(path, create=False)
            stack.push_async_callback(file.close)
            opened.append(file)
        yield opened


def _engine(url: str) -> Engine:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        # Connections that broke meanwhile are made anew.
        return create_engine(url, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError) as error:
        # Without the URL, which has a password.
        raise ConfigError(
            f"invalid --database: {type(error).__name__}; expected a URL of SQLAlchemy, such as "
            "postgresql+psycopg://user:password@host/db"
        ) from None
    except ImportError as error:
        raise ConfigError(
            f"the driver of the database is missing ({error}); install it, or name another one in the URL, such as "
            "postgresql+psycopg://, mysql+pymysql://"
        ) from None


def _service(
    opened: list[Database], group: str, name_servers: str, config: OutboxConfig, *, sweeps: bool = True
) -> Service:
    from ternmq.client.config import ClientConfig
    from ternmq.outbox.service import Service

    return Service(opened, group=group, client=ClientConfig(name_servers), config=config, sweeps=sweeps)


def _counters(service: Service) -> dict[str, int]:
    from ternmq.outbox.relay import Counters

    total = Counters.sum(one.counters for one in service.relays).as_dict()
    return {"sent": total.pop("sent_directly") + total.pop("sent_later"), **total}


def _told(counters: dict[str, int]) -> str:
    text = f"{counters['sent']} messages sent"
    failed = counters["outages"] + counters["refusals"]
    return f"{text}, {failed} attempts failed, {counters['buried']} messages died" if failed else text


def _metrics(port: int | None, service: Service) -> contextlib.AbstractContextManager[None]:
    if port is None:
        return contextlib.nullcontext()
    try:
        from ternmq.cli.outbox_metrics import serving
    except ImportError:
        raise ConfigError(
            "--metrics needs prometheus-client; install it with `pip install prometheus-client`"
        ) from None
    return serving(port, service.relays)
