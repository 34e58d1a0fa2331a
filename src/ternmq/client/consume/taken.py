"""Hooks around messages that an application takes by itself, in a loop or by polling (E8, Q1).

A listener's call has a begin and an end. Here a message begins when it is taken, and ends when it is settled: acked,
retried, done because the next one was asked for, or sent back because it took too long. What is taken and never settled
has no end, as for a listener whose process dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext, ConsumeHook, ConsumeResult, tell


class Taken:
    """Messages that were taken and are not settled; no more than the limits of the lots. On the loop's thread."""

    def __init__(self, group: str, hooks: Sequence[ConsumeHook]) -> None:
        self._group = group
        self._hooks = hooks
        #: By the identity of the message, which its context keeps.
        self._open: dict[int, ConsumeContext] = {}

    def begin(self, messages: Iterable[Claimed]) -> None:
        for message in messages:
            context = ConsumeContext(self._group, message.lot.queue, [message], is_call=False)
            self._open[id(message)] = context
            tell(self._hooks, "before_consume", context)

    def end(self, messages: Iterable[Claimed], *, is_done: bool) -> None:
        """They are settled; those that were settled before are left alone."""
        for message in messages:
            context = self._open.pop(id(message), None)
            if context is not None:
                context.result = ConsumeResult.SUCCESS if is_done else ConsumeResult.RETRY
                tell(self._hooks, "after_consume", context)


def taken(group: str, hooks: Sequence[ConsumeHook]) -> Taken | None:
    """None without hooks: that costs nothing."""
    return Taken(group, hooks) if hooks else None
