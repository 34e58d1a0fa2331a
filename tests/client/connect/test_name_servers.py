"""Several name servers: stay with one, move on when it fails (A6)."""

from __future__ import annotations

import random

import pytest

from ternmq.client.connect.name_servers import NameServers
from ternmq.errors import NameServersUnreachable, NetworkError
from ternmq.wire.header import Response

ADDRESSES = ("a:9876", "b:9876", "c:9876")


class Calls:
    """Answers from every address but those that are down."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.made: list[str] = []

    async def __call__(self, address: str) -> Response:
        self.made.append(address)
        if address in self.down:
            raise NetworkError(f"cannot connect to {address}: refused", address=address)
        return Response(0, 1, address, {}, memoryview(b""))


async def test_a_client_stays_with_one_name_server() -> None:
    """A6."""
    servers, calls = NameServers(ADDRESSES, random=random.Random(1)), Calls()
    for _ in range(5):
        await servers.ask(calls)
    assert [servers.current] * 5 == calls.made


async def test_clients_spread_over_the_name_servers() -> None:
    chance = random.Random(7)
    assert set(ADDRESSES) == {NameServers(ADDRESSES, random=chance).current for _ in range(30)}


async def test_a_client_that_loses_one_moves_on_and_stays_there() -> None:
    """A6."""
    servers = NameServers(ADDRESSES, random=random.Random(1))
    first = servers.current
    following = ADDRESSES[(ADDRESSES.index(first) + 1) % 3]
    calls = Calls(first)

    assert (await servers.ask(calls)).remark == following
    calls.down.clear()
    assert (await servers.ask(calls)).remark == following
    assert [first, following, following] == calls.made


async def test_when_none_answers_the_error_names_all_and_the_cure() -> None:
    servers, calls = NameServers(ADDRESSES, random=random.Random(1)), Calls(*ADDRESSES)
    with pytest.raises(NameServersUnreachable, match=r"a:9876, b:9876, c:9876 .*start one with `tern up`") as caught:
        await servers.ask(calls)
    assert caught.value.retriable
    assert sorted(ADDRESSES) == sorted(calls.made)
