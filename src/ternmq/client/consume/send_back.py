"""Messages that a group could not consume go back, to come again later (H1).

The first way is CONSUMER_SEND_MSG_BACK 36: only the message's log offset travels, its broker copies it to the group's
retry topic. If that fails (the broker is down or has lost the message), the message itself is sent to the retry topic,
on any broker, with the delay that the first would have given it. If that fails too, nothing was lost: the message is
still here and still undone, and the consumer tries it again by itself.

A message that cannot be read (``body_error``) goes back as it is: compressed as it was, and if its record is damaged,
with a property that says so. If brokers refuse even such a copy, the message is passed over: no later attempt would
change that, and the progress of its queue would wait for it for ever.
"""

from __future__ import annotations

import logging
from typing import Final

from ternmq.client.config import COMPRESSIONS, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import wrap
from ternmq.client.send.outgoing import compression_of, prepare, shrink
from ternmq.client.send.sender import Sender
from ternmq.errors import InvalidMessage, LocalProtocolError, MessageIllegal, TernError
from ternmq.message import Message, Property, ReceivedMessage
from ternmq.names import retry_topic
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import SendBack

log = logging.getLogger(__name__)

#: RocketMQ's name for what a consumer sends on its own account.
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TIMEOUT_MS: Final = 5_000
#: Level of the first retry (10 s); each further one waits a level longer.
FIRST_LEVEL: Final = 3
#: The "level" of a message that becomes a dead letter.
DEAD_LETTER: Final = -1

#: Set anew, or with no meaning for a copy.
_NOT_COPIED: Final = (
    Property.DELAY,
    Property.RECONSUME_TIME,
    Property.MAX_RECONSUME_TIMES,
    Property.MIN_OFFSET,
    Property.MAX_OFFSET,
    Property.CONSUME_START_TIME,
    # Or the copy would be taken for a half message that waits for its commit.
    Property.TRANSACTION,
)


class Returns:
    """Sends messages of one group back. ``group`` is its name on the wire."""

    def __init__(self, instance: ClientInstance, group: str, *, max_reconsume_times: int | None = None) -> None:
        self._instance = instance
        self._namespace = instance.config.namespace
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._sender = Sender(instance, INNER_GROUP, ProducerConfig(), ())

    async def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> bool:
        """Have ``message`` come again: at ``delay_level``, 0 for the broker's choice, below 0 as a dead letter.

        Whether a broker has it now. Failures are logged, not raised.
        """
        header = SendBack(
            log_offset=message.log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=wrap(self._namespace, message.topic),
            max_reconsume_times=self._max_reconsume_times,
        )
        try:
            await self._instance.ask(
                self._instance.broker_address(message.broker_name),
                RequestCode.CONSUMER_SEND_MSG_BACK,
                header,
                timeout_ms=TIMEOUT_MS,
            )
        except TernError as error:
            log.warning(
                "cannot send back message %s of group %s by its offset: %s; sending a copy of it instead",
                message.message_id,
                self._group,
                error,
            )
            return await self._send_whole(message)
        return True

    async def _send_whole(self, message: ReceivedMessage) -> bool:
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        copy = Message(
            retry_topic(self._group),
            message.body,
            properties=properties,
            flag=message.flag,
            delay_level=FIRST_LEVEL + message.reconsume_times,
        )
        config = self._sender.config
        try:
            outgoing = prepare(
                copy,
                message_id=message.message_id,
                system={
                    Property.RETRY_TOPIC: wrap(self._namespace, message.topic),
                    Property.ORIGIN_MESSAGE_ID: properties.get(Property.ORIGIN_MESSAGE_ID) or message.message_id,
                },
                sysflag=compression_of(message),
                reconsume_times=message.reconsume_times + 1,
                max_reconsume_times=self._max_reconsume_times,
            )
            if not message.body_error and len(message.body) >= config.compress_from_bytes:
                shrink(outgoing, kind=COMPRESSIONS[config.compression], level=config.compress_level)
            await self._sender.deliver(outgoing, timeout_ms=TIMEOUT_MS)
        except TernError as error:
            if message.body_error and isinstance(error, MessageIllegal | InvalidMessage | LocalProtocolError):
                log.error(
                    "message %s at queue offset %d of queue %d on %s (log offset %d) cannot be decoded (%s) and no "
                    "broker takes it back (%s); it is skipped",
                    message.message_id,
                    message.queue_offset,
                    message.queue_id,
                    message.broker_name,
                    message.log_offset,
                    message.body_error,
                    error,
                )
                return True
            log.warning(
                "cannot send back message %s of group %s: %s; it is delivered to this consumer again",
                message.message_id,
                self._group,
                error,
            )
            return False
        return True
