"""Messages of records, for tests that read what is stored."""

from __future__ import annotations

from ternmq.message import ReceivedMessage
from ternmq.wire.compress import BODY_BYTES_MAX
from ternmq.wire.record import Record, Sysflag
from ternmq.wire.stored import StoredMessage, inflate


def to_message(record: Record, broker_name: str, *, bytes_max: int = BODY_BYTES_MAX) -> ReceivedMessage:
    """The message of a record as a consumer gets it, with a readable body if there is one."""
    message = StoredMessage.of(record, broker_name)
    if message.sysflag & Sysflag.COMPRESSED and not message.body_error:
        message.body, message.sysflag, message.body_error = inflate(message.body, message.sysflag, bytes_max=bytes_max)
    return ReceivedMessage(*message.__reduce__()[1])
