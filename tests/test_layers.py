"""The rules of architecture.md that a program can check: imports go down the layers only, time and chance come from
``env``, sockets are opened in ``net.endpoint``, and every task has an owner. A failure is a sentence with the file, the
line and the rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent.parent / "src" / "ternmq"

#: Level of each package or module (architecture.md, «Who may import whom»).
LEVELS: Final = {
    name: level
    for level, names in enumerate(
        (
            "message names errors conflicts config rocketmq_settings setting_files env allocation telemetry tasks turns"
            " types files side_threads rare_log kernels _native",
            "wire filter",
            "store net",
            "auth delay transaction pop share replication raft client",
            "namesrv broker admin outbox once",
            "cli console spark testing embedded",
        )
    )
    for name in names.split()
}
#: On levels 3 and 4, what runs in servers and what runs in applications never meet.
SERVERS: Final = frozenset({"auth", "delay", "transaction", "pop", "share", "replication", "raft", "namesrv", "broker"})
CLIENTS: Final = frozenset({"client", "admin", "outbox", "once"})
#: Level 0 is one vocabulary; on level 5, ``cli`` starts the others and ``testing`` builds on ``embedded``.
NEIGHBOURS: Final = frozenset({("cli", "console"), ("cli", "spark"), ("cli", "embedded"), ("testing", "embedded")})

#: What makes time, chance or identity out of nothing. Conversions such as ``time.localtime(seconds)`` do not.
WORLDLY_MODULES: Final = frozenset({"uuid", "secrets"})
WORLDLY_CALLS: Final = {
    f"{module}.{function}"
    for module, functions in {
        "time": ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"),
        "os": ("urandom", "getrandom"),
        "datetime": ("now", "utcnow", "today"),
        "date": ("today",),
    }.items()
    for function in functions
}

#: Calls that open a socket or make a connection of one, of ``socket``, of ``asyncio`` and of its loops.
OPENERS: Final = frozenset(
    {
        "connect_accepted_socket",
        "create_connection",
        "create_datagram_endpoint",
        "create_server",
        "create_unix_connection",
        "create_unix_server",
        "open_connection",
        "open_unix_connection",
        "sock_accept",
        "socketpair",
        "start_server",
        "start_unix_server",
    }
)
OPENER: Final = "net/endpoint.py"

#: What a service of the broker does not know: connections, requests, replies, and the handlers that translate them.
NOT_IN_SERVICES: Final = ("ternmq.net", "ternmq.wire.header", "ternmq.wire.template", "ternmq.broker.handlers")

FILES: Final = sorted(SOURCE.rglob("*.py"))
SERVICES: Final = sorted((SOURCE / "broker" / "services").glob("*.py"))


def area_of(module: str) -> str:
    """The package or module right under ``ternmq``; the package's own ``__init__`` is «ternmq»."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every import of ours in a file, also inside functions: a late import knows just as much."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] == "ternmq":
                        yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "ternmq":
                for alias in names:
                    yield node.lineno, f"{module}.{alias.name}" if module == "ternmq" else module
            case ast.ImportFrom(level=level) if level > 0:
                yield node.lineno, "." * level


def breach_of(importer: str, imported: str) -> str | None:
    """The rule that an import between two areas breaks."""
    if importer == imported:
        return None
    for area in (importer, imported):
        if area not in LEVELS:
            return f"{area} has no level; give it one in tests/test_layers.py and in the docs"
    ours, theirs = LEVELS[importer], LEVELS[imported]
    if theirs > ours:
        return f"imports go down only, and {imported} (level {theirs}) lies above {importer} (level {ours})"
    if ours == theirs > 0 and (importer, imported) not in NEIGHBOURS:
        return f"{importer} and {imported} are neighbours on level {ours} and must not know each other"
    if (importer in SERVERS and imported in CLIENTS) or (importer in CLIENTS and imported in SERVERS):
        return f"servers and clients never meet below level 5, and {importer} and {imported} are one of each"
    if importer == "client" and imported == "store":
        return "a client never imports the store: applications must not need it"
    return None


def name_of(node: ast.expr) -> str:
    """``a.b.c`` as text; a call within it as its own name with ``()``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{name_of(value)}.{attr}"
        case ast.Call(func=func):
            return f"{name_of(func)}()"
        case _:
            return "?"


def worldly_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a file takes time or chance from the world by itself."""
    given = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(arg.arg == "random" for arg in (*function.args.args, *function.args.kwonlyargs))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name in WORLDLY_MODULES:
                        yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if module in WORLDLY_MODULES or f"{module}.{alias.name}" in WORLDLY_CALLS:
                        yield node.lineno, f"{module}.{alias.name}"
            case ast.Attribute():
                name = name_of(node)
                # The random module's own generator has no seed of ours; one that was handed in has.
                unseeded = name.startswith("random.") and name != "random.Random" and node not in given
                if unseeded or any(name == call or name.endswith(f".{call}") for call in WORLDLY_CALLS):
                    yield node.lineno, name


def openers_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a file opens a socket: by a call, or by an import of what is called."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if alias.name in OPENERS or (module, alias.name) == ("socket", "socket"):
                        yield node.lineno, f"{module}.{alias.name}"
            case ast.Call(func=ast.Attribute(attr=attr) as func):
                name = name_of(func)
                if attr in OPENERS or name == "socket.socket":
                    yield node.lineno, name


def place(path: Path, line: int) -> str:
    return f"src/ternmq/{by_name(path)}:{line}"


def by_name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def trees(*, but_for: str = "") -> Iterator[tuple[Path, ast.Module]]:
    """All files but ``but_for``, parsed once for all rules."""
    for path in FILES:
        if by_name(path) != but_for:
            yield path, parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_imports_go_down_the_layers() -> None:
    """architecture.md, «Who may import whom». The front door, ``ternmq/__init__.py``, exports from everywhere."""
    breaches = []
    for path, tree in trees(but_for="__init__.py"):
        area = path.relative_to(SOURCE).with_suffix("").parts[0]
        for line, module in imports_of(tree):
            rule = "write imports in full, from ternmq" if module[0] == "." else breach_of(area, area_of(module))
            if rule is not None:
                breaches.append(f"{place(path, line)} imports {module}: {rule}")

    assert not breaches, "\n".join(breaches)


def test_time_and_chance_come_from_env() -> None:
    """architecture.md, «Seams and the simulation»: a whole cluster must run from one seed."""
    breaches = [
        f"{place(path, line)} uses {name}: take time and chance from ternmq.env"
        for path, tree in trees(but_for="env.py")
        for line, name in worldly_in(tree)
    ]

    assert not breaches, "\n".join(breaches)


def test_every_task_has_an_owner() -> None:
    """style.md, «Asyncio»: no bare create_task."""
    breaches = [
        f"{place(path, line)} starts a task without an owner: use ternmq.tasks.Tasks"
        for path, tree in trees(but_for="tasks.py")
        for line in bare_tasks_in(tree)
    ]

    assert not breaches, "\n".join(breaches)


def bare_tasks_in(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, method = name_of(node.func.value).removesuffix("()").lower(), node.func.attr
            is_loop = name == "asyncio" or name.endswith("loop")
            if is_loop and method in ("create_task", "ensure_future"):
                yield node.lineno


def test_sockets_are_opened_in_one_place() -> None:
    """Issue 14: one place where a connection is dialled or accepted. Simulated networks open none."""
    breaches = [
        f"{place(path, line)} calls {name}: use ternmq.net.endpoint"
        for path, tree in trees(but_for=OPENER)
        for line, name in openers_in(tree)
    ]

    assert not breaches, "\n".join(breaches)


def test_services_know_no_connection() -> None:
    """Issue 14: rules apart from the protocol, so that a console and gRPC can call them."""
    breaches = [
        f"{place(path, line)} imports {module}: a service knows no connection and no request; translate in a handler"
        for path, tree in trees()
        if path in SERVICES
        for line, module in imports_of(tree)
        if any(module == known or module.startswith(f"{known}.") for known in NOT_IN_SERVICES)
    ]

    assert not breaches, "\n".join(breaches)


def test_the_rules_catch_what_they_should() -> None:
    """The checks themselves: each kind of breach, and what is allowed."""
    assert None is breach_of("broker", "store")
    assert None is breach_of("admin", "client")
    assert None is breach_of("names", "errors")
    assert None is breach_of("cli", "embedded")
    assert "imports go down only" in (breach_of("wire", "net") or "")
    assert "neighbours on level 4" in (breach_of("namesrv", "broker") or "")
    assert "never meet" in (breach_of("broker", "client") or "")
    assert "never meet" in (breach_of("admin", "raft") or "")
    assert "never imports the store" in (breach_of("client", "store") or "")
    assert "has no level" in (breach_of("broker", "plumbing") or "")


def test_the_world_is_found_in_all_its_forms() -> None:
    text = """
import uuid, time, random, os
from time import monotonic
from datetime import datetime
a = time.time(), os.urandom(4), datetime.now(), random.random()
def good(random: random.Random): return random.random(), time.localtime(5)
"""

    found = [name for _, name in worldly_in(ast.parse(text))]

    assert ["datetime.now", "os.urandom", "random.random", "time.monotonic", "time.time", "uuid"] == sorted(found)


def test_sockets_are_found_in_all_their_forms() -> None:
    text = """
import asyncio, socket
from socket import create_connection, socket as Socket, getaddrinfo
async def dial(loop):
    socket.socket(), socket.create_server(("", 0)), socket.getaddrinfo("", 0)
    await asyncio.open_connection("", 0)
    await loop.create_connection(None, "", 0)
    await asyncio.get_running_loop().create_server(None)
async def create_server(self): return self.network.listen()
"""

    found = sorted(name for _, name in openers_in(ast.parse(text)))

    assert [
        "asyncio.get_running_loop().create_server",
        "asyncio.open_connection",
        "loop.create_connection",
        "socket.create_connection",
        "socket.create_server",
        "socket.socket",
        "socket.socket",
    ] == found


def test_tasks_without_an_owner_are_found_in_all_their_forms() -> None:
    text = """
asyncio.create_task(a()), asyncio.ensure_future(a())
self._loop.create_task(a()), asyncio.get_running_loop().create_task(a())
tasks.create_task(a())
"""

    assert [2, 2, 3, 3] == sorted(bare_tasks_in(ast.parse(text)))
