"""Messages as commands print them: fields for programs, text for people."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ternmq.message import ReceivedMessage


def fields_of(message: ReceivedMessage) -> dict[str, object]:
    """Everything of a message, under the names of ``--json``. A body that is no text is in ``body_base64``."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_time_ms": message.born_time_ms,
        "born_host": message.born_host,
        "store_time_ms": message.store_time_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
    }
    try:
        return fields | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return fields | {"body_base64": base64.b64encode(message.body).decode()}


def body_text(message: ReceivedMessage) -> str:
    """The body for people, whatever it is."""
    return message.body.decode("utf-8", "backslashreplace")
