"""What an application gives a push consumer: a function that is called with messages (F1, E8).

A listener takes a message, or with ``batch_max`` above 1 a list of them, and if it wants to also a ``ConsumeContext``.
It may be a plain function, which runs in a thread, or an ``async`` one, which runs on the loop::

    def on_order(message):                      async def on_orders(messages, context):
        ship(message.body)                          await save(messages)
                                                    return ConsumeResult.SUCCESS

Returning None or ``SUCCESS`` means done. ``RETRY`` or any exception means "again later": the messages are delivered
again with ``reconsume_times`` one higher. In an orderly consumer (F2) it means "again in a moment, and
nothing else before". ``Outage`` means that no message can be done at present (``outage``).

An orderly listener may also decide for several calls at once. With ``context.auto_commit = False`` what is done is not
done for good, but *taken*, until a later call on the same queue returns ``COMMIT``, for all that was taken, or
``ROLLBACK``: then all of it comes again.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final

from ternmq.client.consume.claimed import Claimed
from ternmq.errors import Outage
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)


class ConsumeResult(enum.Enum):
    """What a listener did with its messages.

    - ``SUCCESS``: they are done.
    - ``RETRY``: they must be delivered again later; in an orderly consumer soon, before any other of the queue.
    - ``COMMIT``, only in an orderly consumer: they are done, and with them all that were taken from the queue since the
      last commit.
    - ``ROLLBACK``, only in an orderly consumer: they must be delivered again after a moment, and with them all that
      were taken from the queue since the last commit.
    """

    # RocketMQ's CONSUME_SUCCESS and RECONSUME_LATER; in an orderly consumer SUCCESS and SUSPEND_CURRENT_QUEUE_A_MOMENT.
    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


_OF_ORDERLY: Final = (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener. The listener may set ``delay_level``, ``done_count``, ``retry_ms`` and ``auto_commit``.

    Attributes:
        group: Name of the consumer group.
        queue: The queue that the messages came from; for messages that are delivered again, one of the group's retry
            topic.
        messages: The messages of this call.
        delay_level: When failed messages are delivered again. 0: the broker decides (after 10 s, 30 s, 1 min, …). 1 to
            18: after this delay level. Below 0: never, they become dead letters.
        done_count: How many messages of the list, from its first on, are done; the others are delivered again. None:
            all.
        retry_ms: In an orderly consumer, after how many ms failed messages are tried again, 10 to 30,000. None:
            ``orderly_retry_ms`` of the settings.
        auto_commit: In an orderly consumer, set it to False to let what is done count only with the next ``COMMIT``.
        result: What the listener returned, for hooks after the call.
        error: What the listener raised, for hooks after the call.
        notes: Whatever a hook notes before the call, for itself after it.
        is_call: False if there is no listener: the application takes messages in a loop, or polls. Then the hooks are
            not called in its task.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[Claimed]
    delay_level: int = 0
    done_count: int | None = None
    retry_ms: int | None = None
    auto_commit: bool = True
    result: ConsumeResult | None = None
    error: BaseException | None = None
    notes: dict[object, object] = field(default_factory=dict)
    is_call: bool = True

    @property
    def failed(self) -> Sequence[Claimed]:
        """The messages that must come back."""
        if self.result is not ConsumeResult.SUCCESS and self.result is not ConsumeResult.COMMIT:
            return self.messages
        return () if self.done_count is None else self.messages[max(0, self.done_count) :]


class ConsumeHook:
    """Base of hooks around each call of a listener: every method does nothing, override what you need.

    Without a listener, a message begins when a loop or a poll gets it, and ends when it is settled. Hooks run where the
    listener runs, in its thread or on the loop. An error raised in one is logged and has no other effect.
    """

    def before_consume(self, context: ConsumeContext) -> None:
        """Called before the listener, with its ``context``."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Called after the listener; ``context.result`` and ``context.error`` say how it ended."""


Listener = Callable[..., Awaitable[ConsumeResult | None] | ConsumeResult | None]


class BoundListener:
    """A listener with its signature looked up once, and its hooks."""

    __slots__ = ("_call", "_hooks", "_orderly", "_single", "_wants_context", "is_async")

    def __init__(
        self, listener: Listener, *, single: bool, hooks: Sequence[ConsumeHook] = (), orderly: bool = False
    ) -> None:
        self._call: Final = listener
        self._single: Final = single
        self._orderly: Final = orderly
        self._hooks: Final = tuple(hooks)
        self.is_async: Final = is_async(listener)
        self._wants_context: Final = takes_two(listener)

    def call(self, context: ConsumeContext) -> None:
        """Call a plain listener; whatever it does ends up in ``context``."""
        if self._hooks:
            self._tell("before_consume", context)
        try:
            context.result = self._checked(self._start(context))
        except BaseException as error:
            # SystemExit, too: it does not end the program from here, but could end the loop, or one of its tasks.
            self._raised(context, error)
        if self._hooks:
            self._tell("after_consume", context)
        self._check_said(context)

    async def call_async(self, context: ConsumeContext) -> None:
        """The same for an ``async`` listener; a cancellation of its task passes through."""
        if self._hooks:
            self._tell("before_consume", context)
        try:
            context.result = self._checked(await self._start(context))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                context.result, context.error = ConsumeResult.RETRY, error
                if self._hooks:
                    # What they have begun, a span say, must end.
                    self._tell("after_consume", context)
                raise
            # Something that the listener waited for was cancelled, not the listener.
            self._raised(context, error)
        except Exception as error:
            self._raised(context, error)
        if self._hooks:
            self._tell("after_consume", context)
        self._check_said(context)

    def _start(self, context: ConsumeContext) -> Any:
        argument = context.messages[0] if self._single else list(context.messages)
        return self._call(argument, context) if self._wants_context else self._call(argument)

    def _checked(self, result: object) -> ConsumeResult:
        if result is None:
            return ConsumeResult.SUCCESS
        if not isinstance(result, ConsumeResult):
            raise TypeError(
                f"the listener returned {result!r}: expected None, ConsumeResult.SUCCESS or ConsumeResult.RETRY"
            )
        if result in _OF_ORDERLY and not self._orderly:
            raise TypeError(f"the listener returned {result}, which is allowed only with orderly=True")
        return result

    def _check_said(self, context: ConsumeContext) -> None:
        """What listener and hooks have set is used where an error would end the worker, so it is looked at here."""
        is_usual = type(context.delay_level) is int and not context.delay_level
        if is_usual and context.done_count is None and context.retry_ms is None:
            return  # nothing was set
        try:
            context.delay_level = index(context.delay_level)
            context.done_count = None if context.done_count is None else index(context.done_count)
            context.retry_ms = None if context.retry_ms is None else int(context.retry_ms)
        except (TypeError, ValueError, OverflowError) as error:
            context.delay_level, context.done_count, context.retry_ms = 0, None, None
            self._raised(context, error)

    @staticmethod
    def _raised(context: ConsumeContext, error: BaseException) -> None:
        context.result, context.error = ConsumeResult.RETRY, error
        if isinstance(error, Outage):
            return  # said once for all messages, by ``Outages``
        first = context.messages[0]
        log.warning(
            "the listener of group %s failed with message %s of topic %s; its messages will be delivered again",
            context.group,
            first.message_id,
            first.topic,
            exc_info=error,
        )

    def _tell(self, method: str, context: ConsumeContext) -> None:
        tell(self._hooks, method, context)


def tell(hooks: Sequence[ConsumeHook], method: str, context: ConsumeContext) -> None:
    """Call a method of all hooks."""
    for hook in hooks:
        try:
            getattr(hook, method)(context)
        except Exception:
            log.exception("the consume hook %s failed", type(hook).__name__)


def is_async(listener: Callable[..., Any]) -> bool:
    """Whether a listener is ``async``: a function, or an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - asks what calling would give, not whether it can be called
    )


def takes_two(listener: Listener) -> bool:
    """Whether a listener wants the context too: it has a second positional parameter (or takes any number)."""
    try:
        parameters = inspect.signature(listener).parameters.values()
    except (TypeError, ValueError):
        return False  # built-ins without a signature
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
