"""A filter of the application's own, after those of the broker (K1): RocketMQ's ``FilterMessageHook``.

Tags and SQL are compared by brokers, before a message travels. What they cannot express, a function of the application
may decide here. A message that it does not want is done: it is neither delivered nor sent back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ternmq.message import ReceivedMessage

log = logging.getLogger(__name__)

#: Whether a message is wanted. Called on the event loop with each message that was fetched, so it must be quick.
MessageFilter = Callable[[ReceivedMessage], bool]


def is_chosen(message: ReceivedMessage, chooses: MessageFilter) -> bool:
    """Whether the application gets a message: also one that cannot be read, or whose filter fails."""
    if message.body_error:
        return True
    try:
        return chooses(message)
    except Exception:
        # To deliver one too many is safe; to drop it would lose it.
        log.exception("the message filter failed with message %s; it is delivered", message.message_id)
        return True
