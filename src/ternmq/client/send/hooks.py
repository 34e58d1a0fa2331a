"""Hooks around every send (E8): tracing, metrics, signing, and a last word on what may be sent.

A hook is an object of a class derived from ``SendHook``, given to ``Producer(hooks=[…])``. It sees each *attempt*: a
send that is retried passes twice. Hooks run on the loop, in the order given, and must not block.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ternmq.message import Message, MessageQueue, Outcome, ReceivedMessage, SendReceipt

log = logging.getLogger(__name__)


class SendMode(enum.Enum):
    """How the caller waits for the answer (E1)."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


@dataclass(slots=True)
class SendContext:
    """One attempt to send, as hooks see it.

    Attributes:
        group: Name of the producer group.
        client_id: Id of the client.
        messages: The message, or those of a batch.
        message_id: The unique id; for a batch those of all messages, joined by commas.
        queue: Where the message is sent to.
        broker_address: Address of the broker.
        mode: Whether the caller waits for the answer, gets it later, or asks for none.
        born_time_ms: When the message was made, in ms since 1970.
        receipt: The broker's answer, after a successful attempt; a one-way send has none. For a batch, its ids are
            joined by commas, and the queue offset is that of the first message.
        error: The error, after a failed attempt.
        is_half: Whether it is the first part of a transaction.
        notes: Whatever a hook notes before the attempt, for itself after it.
    """

    group: str
    client_id: str
    messages: Sequence[Message]
    message_id: str
    queue: MessageQueue
    broker_address: str
    mode: SendMode
    born_time_ms: int
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    is_half: bool = False
    notes: dict[object, object] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class EndContext:
    """The end of a transaction, as hooks see it.

    Attributes:
        group: Name of the producer group.
        message: The message of the transaction; as it was stored, if a checker has decided.
        message_id: Its unique id.
        transaction_id: The id of the transaction, usually the same.
        broker_address: Address of the broker that has the first part.
        outcome: What the broker was told.
        from_check: Whether a checker has decided, not the block of the transaction.
    """

    group: str
    message: Message | ReceivedMessage
    message_id: str
    transaction_id: str
    broker_address: str
    outcome: Outcome
    from_check: bool = False


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
        """Called first. Raise to forbid the attempt that ``context`` describes; ``send`` raises that error, and does
        not retry.
        """

    def add_properties(self, message: Message) -> Mapping[str, str]:
        """Called once for each message of a send, before its first attempt: properties that ``message`` gets on its
        way, as the context of a distributed trace. ``message`` itself stays as it is. An error raised here is logged.
        """
        del message
        return {}

    def before_send(self, context: SendContext) -> None:
        """Called before the attempt that ``context`` describes. An error raised here is logged and does not stop it."""

    def after_send(self, context: SendContext) -> None:
        """Called after the attempt; ``context`` has the receipt or the error. An error raised here is logged."""

    def after_end(self, context: EndContext) -> None:
        """Called when a broker is told how the transaction of ``context`` ended, by its block or by a checker. An error
        raised here is logged.
        """


def adders(hooks: Sequence[SendHook]) -> tuple[SendHook, ...]:
    """Those of the hooks that add properties."""
    return tuple(hook for hook in hooks if type(hook).add_properties is not SendHook.add_properties)


def added(hooks: Sequence[SendHook], message: Message) -> dict[str, str]:
    """What these hooks add to a message."""
    properties: dict[str, str] = {}
    for hook in hooks:
        try:
            properties |= hook.add_properties(message)
        except Exception:
            log.exception("the send hook %s failed to add properties", type(hook).__name__)
    return properties


def run_before(hooks: Sequence[SendHook], context: SendContext) -> None:
    """Ask every hook whether the attempt may be made, then tell every hook that it is."""
    for hook in hooks:
        hook.check_forbidden(context)
    for hook in hooks:
        try:
            hook.before_send(context)
        except Exception:
            log.exception("the send hook %s failed before a send", type(hook).__name__)


def run_after(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.after_send(context)
        except Exception:
            log.exception("the send hook %s failed after a send", type(hook).__name__)


def run_after_end(hooks: Sequence[SendHook], context: EndContext) -> None:
    for hook in hooks:
        try:
            hook.after_end(context)
        except Exception:
            log.exception("the send hook %s failed after the end of a transaction", type(hook).__name__)
