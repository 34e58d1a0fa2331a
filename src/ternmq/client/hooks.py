"""Hooks around every send (E8): tracing, metrics, signing, and a last word on what may be sent.

A hook is an object of a class derived from ``SendHook``, given to ``Producer(hooks=[…])``. It sees each *attempt*: a
send that is retried passes twice. Hooks run on the loop, in the order given, and must not block.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ternmq.message import Message, MessageQueue, SendReceipt

log = logging.getLogger(__name__)


class SendMode(enum.Enum):
    """How the caller waits for the answer (E1)."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


@dataclass(slots=True)
class SendContext:
    """One attempt to send, as hooks see it. ``receipt`` or ``error`` is there after it; one-way sends have neither."""

    group: str
    client_id: str
    #: One message, or those of a batch.
    messages: Sequence[Message]
    #: The unique id, for a batch all of them joined by commas.
    message_id: str
    queue: MessageQueue
    broker_address: str
    mode: SendMode
    born_time_ms: int
    receipt: SendReceipt | None = None
    error: BaseException | None = None


class SendHook:
    """Base of hooks: every method does nothing, override what you need.

    ::

        class Count(SendHook):
            sent = 0

            def after_send(self, context: SendContext) -> None:
                self.sent += context.receipt is not None

        async with Producer("orders", name_servers="127.0.0.1:9876", hooks=[Count()]) as producer: ...
    """

    def check_forbidden(self, context: SendContext) -> None:
        """Raise to forbid the attempt; the caller of ``send`` gets the error, and nothing is retried."""

    def before_send(self, context: SendContext) -> None:
        """The attempt is about to go out. An error raised here is logged and does not stop it."""

    def after_send(self, context: SendContext) -> None:
        """The attempt has ended, well or not. An error raised here is logged."""


def run_before(hooks: Sequence[SendHook], context: SendContext) -> None:
    """Ask every hook whether the attempt may be made, then tell every hook that it is."""
    for hook in hooks:
        hook.check_forbidden(context)
    for hook in hooks:
        try:
            hook.before_send(context)
        except Exception:
            log.exception("a hook failed before a send", extra={"hook": type(hook).__name__})


def run_after(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.after_send(context)
        except Exception:
            log.exception("a hook failed after a send", extra={"hook": type(hook).__name__})
