"""Messages in the output of commands: fields for programs, text for people."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from ternmq.cli.times import format_ms

if TYPE_CHECKING:
    from ternmq.message import ReceivedMessage

#: Characters of a body in a list; ``show`` and ``--json`` have all of it.
PREVIEW_CHARACTERS: Final = 40


def fields_of(message: ReceivedMessage) -> dict[str, object]:
    """All fields of a message, under the names of ``--json``. A body that is not text is in ``body_base64``."""
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
    if message.body_error:
        fields["body_error"] = message.body_error
    try:
        return fields | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return fields | {"body_base64": base64.b64encode(message.body).decode()}


def body_text(message: ReceivedMessage) -> str:
    """The body as text for people, of any kind of body."""
    return message.body.decode("utf-8", "backslashreplace")


def body_preview(message: ReceivedMessage) -> str:
    """The beginning of the body, for a list."""
    return preview_of(message.body)


def preview_of(body: bytes) -> str:
    """The beginning of a body, for a list."""
    first, *more = body.decode("utf-8", "backslashreplace").splitlines() or [""]
    is_cut = bool(more) or len(first) > PREVIEW_CHARACTERS
    return first[:PREVIEW_CHARACTERS] + ("…" if is_cut else "")


def lines_of(message: ReceivedMessage) -> list[dict[str, object]]:
    """One line per field; properties that are shown as a field are not repeated."""
    known: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name or message.store_host,
        "queue": message.queue_id,
        "queue offset": message.queue_offset,
        "message id": message.message_id,
        "offset id": message.offset_id,
        "tags": message.tags or None,
        "keys": message.keys or None,
        "born": f"{format_ms(message.born_time_ms)} at {message.born_host}",
        "stored": f"{format_ms(message.store_time_ms)} at {message.store_host}",
        "reconsumed": message.reconsume_times,
        **{
            f"property {name}": value
            for name, value in sorted(message.properties.items())
            if name not in ("TAGS", "KEYS", "UNIQ_KEY")
        },
        **({"body error": message.body_error} if message.body_error else {}),
        "body": body_text(message),
    }
    return [{"field": field, "value": value} for field, value in known.items()]
