"""Hooks on the consumption of a broker (E8): plain objects that hear what goes out to groups, and what comes back.

They are given to ``Broker(hooks=[…])``, or named in the setting ``consumeHooks`` as ``module:factory``, separated by
commas; each factory is called without arguments and returns one. For billing, audits, measures of one's own::

    class Bill(ConsumptionHook):
        def delivered(self, group, topic, messages, size_bytes):
            self.bytes[group] += size_bytes

They run on the broker's loop, once for each answer to a pull, pop or share request that has messages, so they must not
block: note something, and let a thread do the rest. What one raises is logged, a few lines at most, and has no other
effect: the broker serves on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, cast

from ternmq.config import made_by
from ternmq.env import Clock
from ternmq.errors import ConfigError
from ternmq.rare_log import RareLog

log = logging.getLogger(__name__)

_METHODS: Final = ("delivered", "sent_back")


class ConsumptionHook:
    """Base of hooks: every method does nothing, override what you need."""

    def delivered(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """So many messages of ``topic`` go to a consumer of ``group``, with one answer. A retry has its retry topic."""

    def sent_back(self, group: str, topic: str, size_bytes: int, *, is_dead: bool) -> None:
        """A consumer of ``group`` could not consume a message of ``topic``; if ``is_dead`` it is not tried again."""


class ConsumptionHooks:
    """All hooks of one broker. Methods belong to its loop."""

    def __init__(self, hooks: Sequence[ConsumptionHook], clock: Clock) -> None:
        self._hooks = tuple(hooks)
        self._log = RareLog(log, clock.monotonic)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def delivered(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        for hook in self._hooks:
            try:
                hook.delivered(group, topic, messages, size_bytes)
            except Exception as error:
                self._failed(hook, error)

    def sent_back(self, group: str, topic: str, size_bytes: int, *, is_dead: bool) -> None:
        for hook in self._hooks:
            try:
                hook.sent_back(group, topic, size_bytes, is_dead=is_dead)
            except Exception as error:
                self._failed(hook, error)

    def _failed(self, hook: ConsumptionHook, error: Exception) -> None:
        name = type(hook).__name__
        self._log.error("failed", f"the consumption hook {name} failed: {type(error).__name__}: {error}")


def make_hooks(names: Iterable[str]) -> list[ConsumptionHook]:
    """The hooks that a setting names. Raises ``ConfigError``."""
    return [_made(name) for name in names]


def _made(name: str) -> ConsumptionHook:
    hook = made_by("consumeHooks", name)
    for method in _METHODS:
        if not callable(getattr(hook, method, None)):
            raise ConfigError(f"the hook that {name} of consumeHooks returned has no method {method}")
    return cast("ConsumptionHook", hook)  # as just tested
