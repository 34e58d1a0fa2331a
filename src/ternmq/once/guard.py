"""``once`` and ``Guard``: the work for a key runs once, whichever store keeps the keys (S1).

Around the work: *claim* the key; renew the lease while the work runs; then the key is *done*, or *failed* if the work
raised. What that means for a message that comes twice:

=====================================================  =========================================================
The first one                                          The second one
=====================================================  =========================================================
is done                                                is skipped: there is nothing to do
failed, or was sent back by its listener               does the work
is being worked on                                     waits (``Busy.WAIT``), or is sent back (``Busy.RETRY``)
died                                                   does the work when the lease is over
is being worked on, but its lease ended unnoticed      does the work; the first one gets ``LeaseLost`` at its end
=====================================================  =========================================================

The last row, and a death after the work and before the key is done, are why a guard alone means «hardly ever twice».
Only work in the transaction that also finishes the key has its effect exactly once (``sqlalchemy``).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from ternmq.client.blocking.loop_thread import loop_thread
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult, is_async, takes_two
from ternmq.env import Clock, SystemClock, unpredictable
from ternmq.errors import ConfigError, InvalidKey, KeyBusy, KeyStoreFailed, LeaseLost
from ternmq.message import ReceivedMessage
from ternmq.once.keystore import (
    TOKEN_LENGTH,
    KeyStore,
    State,
    Verdict,
    check_key,
    check_scope,
    claim,
    full_name,
    renew,
    settle,
)
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

LEASE_LEAST_MS: Final = 100
#: A hundred years: stores cannot add more to their time.
_TIME_MAX_MS: Final = 100 * 365 * 24 * 3_600_000
#: While it waits, a guard looks at the key this often, at first and at last.
_LOOK_FIRST_S: Final = 0.02
_LOOK_LAST_S: Final = 1.0
#: How often a guard has its store forget keys, and how many at a time: at the latest when it has claimed half as many,
#: so that a store does not grow for ever.
_PURGE_S: Final = 60.0
_PURGE_COUNT: Final = 1_000

#: The listener that comes out takes a message and a context, whatever went in.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
KeyOf = Callable[[Any], object]


def keys_of(message: ReceivedMessage) -> object:
    """The keys of a message, as the sender gave them."""
    return message.keys


class Busy(enum.Enum):
    """What becomes of a message whose key another consumer works on: it waits here, or is delivered again later."""

    WAIT = "wait"
    RETRY = "retry"


class Held:
    """A key that is ours, in a ``Guard.hold`` block."""

    __slots__ = ("is_finished", "is_lost", "name", "token")

    def __init__(self, name: str, token: str) -> None:
        self.name = name
        self.token = token
        #: Whether a renewal has found that another consumer owns the key.
        self.is_lost = False
        #: Whether the key is done already, or about to be; then the end of the block leaves it.
        self.is_finished = False

    def check(self) -> None:
        """Raise ``LeaseLost`` if it is known that another consumer has taken over; for long work, between steps."""
        if self.is_lost:
            raise self.lost()

    def lost(self) -> LeaseLost:
        return LeaseLost(
            f"the lease of key {self.name!r} ended during the work, and another consumer took over; use a longer "
            "lease_ms, and do not block the event loop",
            key=self.name,
        )


class Guard:
    """Lets the work for each key run once.

    ::

        guard = Guard(SqliteKeys("keys.db"), scope="billing")

        async def on_order(message):
            async with guard(message) as first:
                if first:
                    await bill(message)

    Args:
        store: Where the keys are kept. All consumers that share work must use the same.
        scope: What the keys belong to, such as the consumer group. Equal keys of other scopes, and of other topics, are
            different keys.
        key: Function that gives the key of a message, a text of up to 255 characters. Default: its keys.
        lease_ms: For how long a consumer that died keeps a key; the lease is renewed while the work runs. At least 100.
        keep_ms: How long a key is remembered after its work is done: longer than a copy of the message may come late.
        busy: What becomes of a message whose key another consumer works on.
        wait_ms: With ``Busy.WAIT``, how long a message waits before it is sent back.
        waiting_max: With ``Busy.WAIT``, how many messages may wait here at the same time; others are sent back at once.
        clock: For tests. Default: that of the system.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        scope: str,
        key: KeyOf = keys_of,
        lease_ms: int = 60_000,
        keep_ms: int = 7 * 24 * 3_600_000,
        busy: Busy = Busy.WAIT,
        wait_ms: int = 30_000,
        waiting_max: int = 100,
        clock: Clock | None = None,
    ) -> None:
        if not hasattr(store, "change"):
            raise ConfigError(f"invalid store {store!r}: expected SqliteKeys, SqlAlchemyKeys, RedisKeys or MemoryKeys")
        for name, value, least in (
            ("lease_ms", lease_ms, LEASE_LEAST_MS),
            ("keep_ms", keep_ms, 1),
            ("wait_ms", wait_ms, 0),
            ("waiting_max", waiting_max, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _TIME_MAX_MS:
                raise ConfigError(f"invalid {name} {value!r}: expected a number from {least} to {_TIME_MAX_MS}")
        if not callable(key):
            raise ConfigError(f"invalid key {key!r}: expected a function of a message")
        self.store = store
        self.keep_ms = keep_ms
        self._scope = check_scope(scope)
        self._key = key
        self._lease_ms = lease_ms
        self._busy = Busy(busy)
        self._wait_ms = wait_ms
        self._waiting_max = waiting_max
        self._waiting = 0
        self._clock = clock or SystemClock()
        self._purged = self._clock.monotonic()
        self._claims = 0

    @contextlib.asynccontextmanager
    async def __call__(self, message: ReceivedMessage) -> AsyncIterator[bool]:
        """A block for the work; gives whether it is to be done. Leaving it without an error means that it is done.

        Raises ``InvalidKey``, ``KeyBusy``, ``KeyStoreFailed``, and at the end ``LeaseLost``.
        """
        async with self.hold(message) as held:
            yield held is not None

    @contextlib.asynccontextmanager
    async def hold(self, message: ReceivedMessage) -> AsyncIterator[Held | None]:
        """The same; gives what is held, or None if the work was done before."""
        if isinstance(message, list):
            raise InvalidKey("a guard takes one message at a time; use batch_max=1, or a guard for each of the list")
        name = full_name(self._scope, message.topic, check_key(self._key(message)))
        held = await self._claim(name)
        if held is None:
            yield None
            return
        async with Tasks() as tasks:
            ended = asyncio.Event()
            renewing = tasks.create_task(self._renew_until(ended, held), name=f"renew {name}")
            try:
                try:
                    yield held
                finally:
                    # Not cancelled: a statement that is cut off costs its connection.
                    ended.set()
                    await asyncio.wait([renewing])
            except BaseException:
                await self._give_up(held)
                raise
            if not held.is_finished:
                held.is_finished = True
                if not await self.store.change(name, settle(held.token, State.DONE, self.keep_ms)):
                    raise held.lost()

    async def _claim(self, name: str) -> Held | None:
        held = Held(name, unpredictable(TOKEN_LENGTH // 2))
        await self._purge_sometimes()
        look = claim(held.token, self._lease_ms)
        found = await self.store.change(name, look)
        if found.verdict is Verdict.BUSY and self._busy is Busy.WAIT and self._waiting < self._waiting_max:
            self._waiting += 1
            try:
                until, pause_s = self._clock.monotonic() + self._wait_ms / 1000, _LOOK_FIRST_S
                while found.verdict is Verdict.BUSY and (left_s := until - self._clock.monotonic()) > 0:
                    # The end of the lease may be sooner, and be put off meanwhile.
                    await asyncio.sleep(min(pause_s, left_s, found.wait_ms / 1000 + 0.001))
                    pause_s = min(2 * pause_s, _LOOK_LAST_S)
                    found = await self.store.change(name, look)
            finally:
                self._waiting -= 1
        if found.verdict is Verdict.BUSY:
            raise KeyBusy(
                f"another consumer works on key {name!r}, for {found.wait_ms} ms more at least if it died", key=name
            )
        return held if found.verdict is Verdict.OURS else None

    async def _renew_until(self, ended: asyncio.Event, held: Held) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_ms / 3000):
                    await ended.wait()
            if ended.is_set():
                return
            try:
                is_ours = await self.store.change(held.name, renew(held.token))
            except KeyStoreFailed as error:
                log.warning("cannot renew the lease of key %r: %s; trying again", held.name, error)
                continue
            if not is_ours and not held.is_finished:
                held.is_lost = True
                log.warning("the lease of key %r ended during the work; another consumer took over", held.name)
                return

    async def _give_up(self, held: Held) -> None:
        """The work failed: let the next one try at once."""
        try:
            await self.store.change(held.name, settle(held.token, State.FAILED, self.keep_ms))
        except KeyStoreFailed as error:
            log.warning("cannot release key %r: %s; it is free when its lease is over", held.name, error)

    async def _purge_sometimes(self) -> None:
        now = self._clock.monotonic()
        self._claims += 1
        if now - self._purged >= _PURGE_S or self._claims >= _PURGE_COUNT // 2:
            self._purged, self._claims = now, 0
            await self.store.purge(_PURGE_COUNT)


class SentBack(Exception):
    """The listener wants its message delivered again."""

    def __init__(self, result: ConsumeResult) -> None:
        self.result = result
        super().__init__(result)


def once(store: KeyStore, key: KeyOf = keys_of, *, scope: str | None = None, **options: Any) -> Decorator:
    """A decorator for a listener of single messages, plain or ``async``: it is called once for each key.

    ::

        @once(SqliteKeys("keys.db"), key=lambda m: m.keys)
        async def on_order(message): ...

    ``scope`` is the consumer group unless it is given; for ``options`` see ``Guard``. A message that was done before is
    skipped. One whose key is busy for too long, or whose lease was lost, is delivered again. While the store cannot be
    used, the consumer pauses (``Outage``).
    """
    guards = Guards(store, key, scope, options)

    def decorate(listener: Callable[..., Any]) -> Callable[..., Any]:
        wants_context = takes_two(listener)

        def arguments(message: ReceivedMessage, context: ConsumeContext | None) -> tuple[Any, ...]:
            return (message, context) if wants_context else (message,)

        if is_async(listener):

            async def call_async(message: ReceivedMessage, context: ConsumeContext | None = None) -> object:
                with outcome(message) as told:
                    async with guards.of(context).hold(message) as held:
                        if held is not None:
                            told.result = checked(await listener(*arguments(message, context)), context)
                return told.result

            return dressed(call_async, listener)

        def call(message: ReceivedMessage, context: ConsumeContext | None = None) -> object:
            with outcome(message) as told, held_here(guards.of(context), message) as held:
                if held is not None:
                    told.result = checked(listener(*arguments(message, context)), context)
            return told.result

        return dressed(call, listener)

    return decorate


class Guards:
    """The guards of one decorator: one for each scope, which is known when the first message comes."""

    def __init__(self, store: KeyStore, key: KeyOf, scope: str | None, options: dict[str, Any]) -> None:
        self._store = store
        self._key = key
        self._options = options
        self._scope = scope
        self._by_scope: dict[str, Guard] = {}
        # What is wrong with the arguments is said now, not with the first message.
        self._make(scope if scope is not None else "checked")

    def _make(self, scope: str) -> Guard:
        return Guard(self._store, scope=scope, key=self._key, **self._options)

    def of(self, context: ConsumeContext | None) -> Guard:
        scope = self._scope
        if scope is None:
            if context is None:
                raise ConfigError("a listener with `once` that is called by hand needs `scope`")
            scope = context.group
        guard = self._by_scope.get(scope)
        if guard is None:
            guard = self._by_scope.setdefault(scope, self._make(scope))
        return guard


class Told:
    """What a listener returned."""

    __slots__ = ("result",)

    def __init__(self) -> None:
        self.result: object = None


@contextlib.contextmanager
def outcome(message: ReceivedMessage) -> Iterator[Told]:
    """Make results of errors that are none of the listener's."""
    told = Told()
    try:
        yield told
    except SentBack as sent:
        told.result = sent.result
    except (KeyBusy, LeaseLost) as error:
        log.warning("message %s will be delivered again: %s", message.message_id, error)
        told.result = ConsumeResult.RETRY


@contextlib.contextmanager
def held_here(guard: Guard, message: ReceivedMessage) -> Iterator[Held | None]:
    """``Guard.hold`` for a plain function: the store is used on the loop of the blocking clients."""
    thread = loop_thread()
    holding = guard.hold(message)
    held = thread.run(_entered(holding))
    try:
        yield held
    except BaseException as error:
        thread.run(_left(holding, error))
        raise
    thread.run(_left(holding, None))


async def _entered(holding: contextlib.AbstractAsyncContextManager[Held | None]) -> Held | None:
    return await holding.__aenter__()


async def _left(holding: contextlib.AbstractAsyncContextManager[Held | None], error: BaseException | None) -> None:
    if error is None:
        await holding.__aexit__(None, None, None)
    else:
        with contextlib.suppress(type(error)):  # the caller raises it
            await holding.__aexit__(type(error), error, error.__traceback__)


def checked(result: object, context: ConsumeContext | None) -> object:
    """A listener's result if it means that the work is done. Raises ``SentBack`` if it does not."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigError(
            "a listener with `once` that is not `async` returned something to wait for, so its work is not done; "
            "make it an `async def`"
        )
    if result is ConsumeResult.RETRY:
        raise SentBack(ConsumeResult.RETRY)
    if result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK) or (context is not None and not context.auto_commit):
        raise ConfigError(
            "a listener with `once` decides for each message alone; it must leave auto_commit as it is, and return "
            "None, ConsumeResult.SUCCESS or ConsumeResult.RETRY"
        )
    return result


def dressed(call: Callable[..., Any], listener: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` with the name of the listener, but with its own signature: consumers shall see the context in it."""
    functools.update_wrapper(call, listener)
    del call.__wrapped__  # type: ignore[attr-defined]
    return call
