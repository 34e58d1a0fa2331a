"""What every key store must do, and what guards do with it (S1)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ternmq import ConsumeContext, ConsumeResult, MessageQueue, ReceivedMessage
from ternmq.errors import ConfigError, InvalidKey, KeyBusy, LeaseLost
from ternmq.once.guard import Busy, Guard, once
from ternmq.once.keystore import KeyStore, State, Verdict, claim, renew, settle
from ternmq.once.memory import MemoryKeys
from ternmq.once.sqlite import SqliteKeys
from tests.client.samples import received
from tests.manual_clock import ManualClock

LEASE_MS = 1_000
KEEP_MS = 10_000


def order(keys: str = "order-7", topic: str = "orders") -> ReceivedMessage:
    message = received(0)
    message.topic, message.properties = topic, {"KEYS": keys}
    return message


async def verdict_of(store: KeyStore, key: str, token: str) -> Verdict:
    return (await store.change(key, claim(token, LEASE_MS))).verdict


async def test_a_key_has_one_owner_until_it_is_done_and_is_forgotten(store: KeyStore, clock: ManualClock) -> None:
    """S1: running with a lease, done, expired."""
    assert Verdict.OURS is await verdict_of(store, "k", "a")
    assert Verdict.BUSY is await verdict_of(store, "k", "b")
    assert Verdict.OURS is await verdict_of(store, "K", "b")
    assert Verdict.OURS is await verdict_of(store, "k ", "b")
    assert not await store.change("k", settle("b", State.DONE, KEEP_MS))
    assert await store.change("k", settle("a", State.DONE, KEEP_MS))
    assert Verdict.DONE is await verdict_of(store, "k", "b")

    clock.advance(KEEP_MS / 1000)
    assert Verdict.OURS is await verdict_of(store, "k", "c")


async def test_a_failed_key_is_free_at_once(store: KeyStore) -> None:
    """S1."""
    await verdict_of(store, "k", "a")
    assert await store.change("k", settle("a", State.FAILED, KEEP_MS))

    assert Verdict.OURS is await verdict_of(store, "k", "b")


async def test_a_lease_that_is_over_can_be_taken_and_its_owner_is_fenced_off(
    store: KeyStore, clock: ManualClock
) -> None:
    """S1: take-over after a death; the token of the first owner has no effect any more."""
    await verdict_of(store, "k", "a")
    clock.advance(0.9)
    assert await store.change("k", renew("a"))
    clock.advance(0.9)
    assert Verdict.BUSY is await verdict_of(store, "k", "b")
    clock.advance(0.1)
    assert Verdict.OURS is await verdict_of(store, "k", "b")

    assert not await store.change("k", renew("a"))
    assert not await store.change("k", settle("a", State.DONE, KEEP_MS))
    assert not await store.change("k", settle("a", State.FAILED, KEEP_MS))
    assert await store.change("k", settle("b", State.DONE, KEEP_MS))


async def test_clock_jumps_neither_lock_a_key_for_long_nor_let_two_finish(store: KeyStore, clock: ManualClock) -> None:
    """S1: forward, the lease is over and the token fences; back, a lease is cut to its length."""
    await verdict_of(store, "k", "a")
    clock.advance(3_600)
    assert Verdict.OURS is await verdict_of(store, "k", "b")
    assert not await store.change("k", settle("a", State.DONE, KEEP_MS))

    clock.advance(-7_200)
    found = await store.change("k", claim("c", LEASE_MS))
    assert (Verdict.BUSY, LEASE_MS) == (found.verdict, found.wait_ms)
    clock.advance(1)
    assert Verdict.OURS is await verdict_of(store, "k", "c")


async def test_what_is_over_is_purged_and_no_more(store: KeyStore, clock: ManualClock) -> None:
    """S1: done keys expire."""
    for number in range(5):
        await verdict_of(store, f"done-{number}", "a")
        await store.change(f"done-{number}", settle("a", State.DONE, KEEP_MS))
    assert 0 == await store.purge(100)
    clock.advance(KEEP_MS / 1000)
    await verdict_of(store, "running", "a")

    purged = [await store.purge(3), await store.purge(100)]

    assert purged in ([3, 2], [0, 0])  # Redis forgets by itself
    assert Verdict.BUSY is await verdict_of(store, "running", "b")
    assert await store.change("running", settle("a", State.DONE, KEEP_MS))


async def test_many_claims_at_once_have_one_winner(live_store: KeyStore) -> None:
    """S1: also of keys that failed or whose lease is over, by the store's own clock."""
    for _ in range(3):
        claims = [live_store.change("k", claim(f"token-{number}", 60_000)) for number in range(8)]
        found = [found.verdict for found in await asyncio.gather(*claims)]
        assert 1 == found.count(Verdict.OURS)
        winner = f"token-{found.index(Verdict.OURS)}"
        assert await live_store.change("k", settle(winner, State.FAILED, KEEP_MS))


async def test_two_consumers_with_one_message_work_once(live_store: KeyStore) -> None:
    """S1: the second waits until the first is done; the lease is renewed while the work runs."""
    ran: list[str] = []

    async def consume(name: str) -> bool:
        # Work during which the lease is renewed: after a third of it. The rest is for a busy machine.
        async with Guard(live_store, scope="billing", lease_ms=4_500)(order()) as first:
            if first:
                ran.append(name)
                await asyncio.sleep(1.7)
            return first

    assert [False, True] == sorted(await asyncio.gather(consume("a"), consume("b")))
    assert 1 == len(ran)


async def test_work_that_fails_is_done_by_the_next_one(live_store: KeyStore) -> None:
    """S1."""
    guard = Guard(live_store, scope="billing")
    with pytest.raises(ZeroDivisionError):
        async with guard(order()):
            raise ZeroDivisionError
    async with guard(order()) as first:
        assert first
    async with guard(order()) as first:
        assert not first
    async with Guard(live_store, scope="shipping")(order()) as first:
        assert first, "another group has keys of its own"
    async with guard(order(topic="payments")) as first:
        assert first, "another topic has keys of its own"


async def test_a_listener_is_called_once_plain_and_async() -> None:
    """S1: the decorator; RETRY is not done, and a busy key sends the message back."""
    store = MemoryKeys()
    calls: list[Any] = []
    results: list[ConsumeResult | None] = [ConsumeResult.RETRY, None]

    @once(store, key=lambda m: ("async", *m.keys))
    async def on_order(message: ReceivedMessage) -> ConsumeResult | None:
        calls.append("async")
        return results.pop(0)

    @once(store, key=lambda m: ("plain", *m.keys), scope="own", busy=Busy.RETRY)
    def on_order_plain(message: ReceivedMessage, context: ConsumeContext) -> None:
        calls.append(context.group)

    message = order()
    context = ConsumeContext("billing", MessageQueue("orders", "b", 0), [])
    assert "on_order" == on_order.__name__
    assert ConsumeResult.RETRY is await on_order(message, context)
    for _ in range(2):
        assert None is await on_order(message, context)
        assert None is await asyncio.to_thread(on_order_plain, message, context)
    assert ["async", "async", "billing"] == calls

    await store.change("own:orders:plain order-8", claim("another", 60_000))
    assert ConsumeResult.RETRY is await asyncio.to_thread(on_order_plain, order("order-8"), context)
    with pytest.raises(ConfigError, match="needs `scope`"):
        await on_order(message)


async def test_a_listener_that_is_an_object_is_called_and_what_it_gives_is_awaited() -> None:
    """S1: a key must not be done while its work has not begun: the copies of the message would be skipped."""
    calls: list[str] = []

    class Billing:
        async def __call__(self, message: ReceivedMessage) -> None:
            calls.extend(message.keys)

    store, billing = MemoryKeys(), Billing()
    await once(store, scope="billing")(billing)(order())
    assert ["order-7"] == calls

    plain = once(store, scope="billing")(lambda message: billing(message))
    for _ in range(2):
        with pytest.raises(ConfigError, match="make it an `async def`"):
            await asyncio.to_thread(plain, order("order-8"))
    assert ["order-7"] == calls


async def test_waiting_is_bounded_in_time_and_number() -> None:
    """S1."""
    store = MemoryKeys()
    await store.change("billing:orders:order-7", claim("another", 60_000))
    for options in ({"wait_ms": 30}, {"waiting_max": 0}, {"busy": Busy.RETRY}):
        guard = Guard(store, scope="billing", **options)
        with pytest.raises(KeyBusy, match="another consumer works on key 'billing:orders:order-7'"):
            async with guard(order()):
                pass


async def test_a_lost_lease_is_told_at_the_end_and_between() -> None:
    """S1: another consumer took over; the first one must not believe that it is done."""
    clock = ManualClock()
    store = MemoryKeys(clock=clock)
    with pytest.raises(LeaseLost, match="use a longer lease_ms"):
        async with Guard(store, scope="billing", lease_ms=100).hold(order()) as held:
            assert held is not None
            clock.advance(1)
            await store.change(held.name, claim("another", 60_000))
            while not held.is_lost:
                await asyncio.sleep(0.01)
            with pytest.raises(LeaseLost):
                held.check()


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (None, "the message has no key; send it with keys="),
        ("", "the message has no key"),
        ((), "the message has no key"),
        (7, "invalid key of type int: expected a str"),
        (b"7", "invalid key of type bytes"),
        ((b"7",), "invalid key of type tuple"),
        ("x" * 256, "it has 256 characters, 255 are allowed"),
        ("a\0b", "characters that databases do not store"),
        ("\ud800", "characters that databases do not store"),
    ],
)
async def test_bad_keys_are_refused(key: object, sentence: str) -> None:
    """S1."""
    with pytest.raises(InvalidKey, match=sentence):
        async with Guard(MemoryKeys(), scope="billing", key=lambda _: key)(order()):
            pass


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lease_ms": 99}, "invalid lease_ms 99: expected a number from 100"),
        ({"keep_ms": "7"}, "invalid keep_ms '7'"),
        ({"keep_ms": 10**19}, "expected a number from 1 to 3153600000000"),
        ({"waiting_max": -1}, "invalid waiting_max -1"),
        ({"scope": "a:b"}, "invalid scope 'a:b'"),
        ({"scope": ""}, "invalid scope ''"),
        ({"key": "keys"}, "invalid key 'keys': expected a function"),
        ({"store": object()}, "expected SqliteKeys, SqlAlchemyKeys"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    """S1: when the guard is made, not with the first message."""
    with pytest.raises(ConfigError, match=sentence):
        Guard(**{"store": MemoryKeys(), "scope": "billing", **options})


async def test_a_list_of_messages_is_refused() -> None:
    """S1."""
    with pytest.raises(InvalidKey, match="one message at a time; use batch_max=1"):
        async with Guard(MemoryKeys(), scope="billing")([order()]):  # type: ignore[arg-type]
            pass


def _exit_of_a_child(keys: SqliteKeys) -> int:
    """The exit code of a forked child that claims a key while the parent is in a transaction."""
    child = os.fork()
    if not child:
        try:
            found = asyncio.run(keys.change("k", claim("child", 60_000)))
            os._exit(0 if found.verdict is Verdict.BUSY else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_file_of_keys_is_opened_again_after_a_fork(tmp_path: Path) -> None:
    """S1: SQLite's connections must not be used in a child, and the lock may be held by a thread of the parent."""
    keys = SqliteKeys(tmp_path / "keys.db")
    asyncio.run(keys.change("k", claim("parent", 60_000)))
    before = keys._connection
    with keys._lock:
        assert 0 == _exit_of_a_child(keys)
    assert keys._connection is before
    assert asyncio.run(keys.change("k", settle("parent", State.DONE, KEEP_MS)))
    keys.close()
