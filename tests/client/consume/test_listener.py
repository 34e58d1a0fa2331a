"""How listeners are called, and what their results mean (F1)."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Sequence

import pytest

from ternmq.client.consume.listener import BoundListener, ConsumeContext, ConsumeResult, Listener
from ternmq.message import ReceivedMessage
from tests.client.samples import QUEUE, messages


def context_of(count: int = 1) -> ConsumeContext:
    return ConsumeContext("billing", QUEUE, messages(*range(count)))


class Callable1:
    def __call__(self, message: ReceivedMessage) -> None: ...


class AsyncCallable:
    async def __call__(self, message: ReceivedMessage) -> None: ...

    async def method(self, message: ReceivedMessage) -> None: ...


async def coroutine(message: ReceivedMessage, context: ConsumeContext) -> None: ...


@pytest.mark.parametrize(
    ("listener", "is_async"),
    [
        (Callable1(), False),
        (lambda message: None, False),
        (AsyncCallable(), True),
        (AsyncCallable().method, True),
        (coroutine, True),
        (functools.partial(coroutine, context=context_of()), True),
    ],
)
def test_every_kind_of_callable_can_be_a_listener(listener: Listener, is_async: bool) -> None:
    """F1."""
    assert is_async == BoundListener(listener, single=True).is_async


@pytest.mark.parametrize("single", [True, False])
def test_a_listener_gets_what_it_asks_for(single: bool) -> None:
    """F1: one message or a list, with or without the context."""
    calls: list[tuple[object, ...]] = []

    def one(message: object) -> None:
        calls.append((message,))

    def two(message: object, context: ConsumeContext) -> None:
        calls.append((message, context))

    def any_number(*args: object) -> None:
        calls.append(args)

    def with_default(message: object, context: ConsumeContext | None = None) -> None:
        calls.append((message, context))

    context = context_of(1)
    for listener in (one, two, any_number, with_default):
        BoundListener(listener, single=single).call(context)
    argument: object = context.messages[0] if single else list(context.messages)
    assert [(argument,), (argument, context), (argument, context), (argument, context)] == calls


def returning(value: object) -> Callable[[object], object]:
    return lambda _: value


@pytest.mark.parametrize(
    ("value", "result", "error"),
    [
        (None, ConsumeResult.SUCCESS, None),
        (ConsumeResult.SUCCESS, ConsumeResult.SUCCESS, None),
        (ConsumeResult.RETRY, ConsumeResult.RETRY, None),
        (True, ConsumeResult.RETRY, TypeError),
        (ConsumeResult.COMMIT, ConsumeResult.RETRY, TypeError),
        (ConsumeResult.ROLLBACK, ConsumeResult.RETRY, TypeError),
    ],
)
def test_a_result_means_what_it_says(value: object, result: ConsumeResult, error: type[Exception] | None) -> None:
    """F1: nonsense is no success, and only an orderly listener decides for several calls at once."""
    context = context_of()
    BoundListener(returning(value), single=True).call(context)  # type: ignore[arg-type]  # nonsense is among them
    assert result is context.result
    assert error is (None if context.error is None else type(context.error))


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_an_error_means_again(error: type[BaseException]) -> None:
    """F1: also one that would end the thread."""

    def raises(_: object) -> None:
        raise error

    context = context_of(3)
    BoundListener(raises, single=False).call(context)
    assert ConsumeResult.RETRY is context.result
    assert context.messages == context.failed


@pytest.mark.parametrize(
    ("result", "done_count", "failed"),
    [
        (ConsumeResult.SUCCESS, None, []),
        (ConsumeResult.SUCCESS, 3, []),
        (ConsumeResult.SUCCESS, 1, [1, 2]),
        (ConsumeResult.SUCCESS, 0, [0, 1, 2]),
        (ConsumeResult.SUCCESS, -5, [0, 1, 2]),
        (ConsumeResult.SUCCESS, 99, []),
        (ConsumeResult.RETRY, 1, [0, 1, 2]),
        (None, None, [0, 1, 2]),
    ],
)
def test_a_part_of_a_batch_can_be_done(
    result: ConsumeResult | None, done_count: int | None, failed: Sequence[int]
) -> None:
    """F1: RocketMQ's ackIndex, as a count."""
    context = context_of(3)
    context.result, context.done_count = result, done_count
    assert failed == [message.queue_offset for message in context.failed]


@pytest.mark.parametrize(
    ("name", "value"),
    [("done_count", "1"), ("done_count", 0.5), ("delay_level", None), ("retry_ms", "soon"), ("retry_ms", math.inf)],
)
async def test_what_a_listener_sets_to_nonsense_means_again(name: str, value: object) -> None:
    """F1: it counts as an error of the listener, and is not found by the worker, which would end by it."""

    def listener(_: object, context: ConsumeContext) -> None:
        setattr(context, name, value)

    async def coroutine(_: object, context: ConsumeContext) -> None:
        setattr(context, name, value)

    in_thread, on_loop = context_of(2), context_of(2)
    BoundListener(listener, single=False).call(in_thread)
    await BoundListener(coroutine, single=False).call_async(on_loop)
    for context in (in_thread, on_loop):
        assert (ConsumeResult.RETRY, context.messages) == (context.result, context.failed)
        assert (0, None, None) == (context.delay_level, context.done_count, context.retry_ms)
        assert context.error is not None
