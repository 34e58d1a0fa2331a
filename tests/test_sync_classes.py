"""Synchronous classes are derived from the asynchronous ones (issue 14): up to date, and with all of their methods."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FunctionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import pytest

import ternmq
from ternmq.admin.admin import Admin
from ternmq.client.blocking.loops import SyncMessages
from ternmq.client.blocking.transaction import SyncTransaction
from ternmq.client.consume.outlet import Messages
from ternmq.client.send.transaction import Transaction

GENERATOR: Final = Path(__file__).parent.parent / "script" / "generate_sync.py"

CLIENTS: Final = ("Producer", "PushConsumer", "PopConsumer", "PullConsumer", "LitePullConsumer")
#: The simulator's clock and network are for a loop, not for threads.
ONLY_ASYNC: Final = frozenset({"env"})


def pairs() -> Iterator[tuple[type, type]]:
    """Each asynchronous class with its synchronous version; also those of the nouns of ``Admin``."""
    for name in (*CLIENTS, "Admin"):
        yield getattr(ternmq, name), getattr(ternmq, f"Sync{name}")
    for noun, sync_noun in nouns().values():
        yield type(noun), type(sync_noun)


def nouns() -> dict[str, tuple[object, object]]:
    async def made() -> Admin:
        return Admin("127.0.0.1:1")

    admin, sync_admin = asyncio.run(made()), ternmq.SyncAdmin("127.0.0.1:1")
    public = {name: noun for name, noun in vars(admin).items() if not name.startswith("_")}
    return {name: (noun, getattr(sync_admin, name)) for name, noun in public.items()}


def methods(cls: type) -> dict[str, Callable[..., Any]]:
    """The public methods and properties of a class, and how it is made."""
    found: dict[str, Callable[..., Any]] = {}
    for name, member in inspect.getmembers_static(cls):
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and (name == "__init__" or not name.startswith("_")):
            found[name] = function
    return found


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    """Name, kind, default and type of each parameter."""
    types = get_type_hints(function)
    return [
        (name, one.kind, one.default, types.get(name))
        for name, one in inspect.signature(function).parameters.items()
        if name not in ONLY_ASYNC
    ]


def result(function: Callable[..., Any]) -> Any:
    """The type of the result, in its form for threads."""
    told = get_type_hints(function)["return"]
    if get_origin(told) is asyncio.Future:
        return Future[get_args(told)[0]]  # type: ignore[misc]  # a type that is known at run time only
    return {Messages: SyncMessages, Transaction: SyncTransaction}.get(told, told)


def test_the_synchronous_modules_are_up_to_date() -> None:
    """A failure shows the command to run."""
    checked = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False)
    assert (0, "") == (checked.returncode, checked.stdout), checked.stdout + checked.stderr


@pytest.mark.parametrize(("source", "sync"), [pytest.param(*pair, id=pair[1].__name__) for pair in pairs()])
def test_each_public_method_has_a_synchronous_version_with_the_same_types(source: type, sync: type) -> None:
    sync_methods = methods(sync)
    for name, method in methods(source).items():
        if name == "__init__" and source not in vars(ternmq).values():
            continue  # nouns are made by the admin alone
        assert name in sync_methods, f"{sync.__name__} has no {name}"
        assert parameters(method) == parameters(sync_methods[name]), f"{sync.__name__}.{name}"
        assert result(method) == result(sync_methods[name]), f"{sync.__name__}.{name}"
        assert not inspect.iscoroutinefunction(sync_methods[name])
        assert inspect.getdoc(method) is None or inspect.getdoc(sync_methods[name])


def test_their_documentation_is_about_synchronous_calls() -> None:
    for _, sync in pairs():
        for documented in (sync, *methods(sync).values()):
            text = inspect.getdoc(documented) or ""
            assert not any(word in text for word in ("await ", "async with", "async for", "event loop's thread"))
