"""What a message must be before it goes to the network (E2, E6): each check refuses with the reason and the cure.

A broker checks the same and more, but its answer comes a round trip later and, for one-way sends, never.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from ternmq.errors import InvalidMessage
from ternmq.message import RESERVED_PROPERTIES, Message, MessageQueue, Property
from ternmq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_topic, may_send

#: E1; RocketMQ's ``maxMessageSize``. Brokers have the same limit.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
#: A record has two signed bytes for their length.
PROPERTIES_BYTES_MAX: Final = 32_767

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)

#: Properties that have an attribute of ``Message`` to set them by.
_ATTRIBUTES: Final = {
    Property.KEYS: "keys",
    Property.TAGS: "tags",
    Property.WAIT: "wait_store_ok",
    Property.DELAY: "delay_level",
    Property.SHARDING_KEY: "sharding_key",
    Property.TIMER_DELIVER_MS: "deliver_at",
    Property.START_DELIVER_TIME: "deliver_at",
    Property.TIMER_DELAY_MS: "delay",
    Property.TIMER_DELAY_SEC: "delay",
}


def check_message(message: Message, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise ``InvalidMessage`` or ``InvalidName`` for what no broker should see, ``TypeError`` for a text as body."""
    topic, body = message.topic, message.body
    check_sendable(topic)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"invalid body of type {type(body).__name__}: expected bytes; for text use text.encode()")
    if isinstance(body, memoryview) and (len(body) != body.nbytes or not body.c_contiguous):
        # Its frame would tell a wrong length, and what is behind that would be read as frames of its own.
        raise TypeError("invalid body: a memoryview of other items than single bytes in a row; use view.tobytes()")
    if not body:
        raise InvalidMessage(f"the message to {topic!r} has an empty body; send at least one byte")
    if len(body) > body_bytes_max:
        raise InvalidMessage(
            f"the body of {len(body)} bytes to {topic!r} is larger than the {body_bytes_max} allowed; split it, "
            "or store it elsewhere and send its address"
        )
    if "||" in message.tags:
        raise InvalidMessage(
            f"invalid tag {message.tags!r}: it contains '||', which separates tags in subscriptions; give a single tag"
        )
    if not -(2**31) <= message.flag < 2**31:
        raise InvalidMessage(f"invalid flag {message.flag}: expected a number of 32 bits, {-(2**31)} to {2**31 - 1}")
    if message.delay_level < 0:
        raise InvalidMessage(f"invalid delay_level {message.delay_level}: expected 1 to 18, or 0 for no delay")
    if message.deliver_at is not None or message.delay is not None:
        _check_delivery_time(message)
    if message.properties and not RESERVED_PROPERTIES.isdisjoint(message.properties):
        _refuse_reserved(message)


def time_ms(time: datetime) -> int:
    """Milliseconds since 1970, rounded up: never early."""
    return -((_EPOCH - time) // _MS)


def duration_ms(duration: timedelta) -> int:
    """Milliseconds, rounded up."""
    # The longest duration has no negative.
    whole, rest = divmod(duration, _MS)
    return whole + bool(rest)


def _check_delivery_time(message: Message) -> None:
    deliver_at, delay, topic = message.deliver_at, message.delay, message.topic
    if (deliver_at is not None) + (delay is not None) + bool(message.delay_level) > 1:
        raise InvalidMessage(
            f"the message to {topic!r} has more than one of deliver_at, delay and delay_level; set only one of them"
        )
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise TypeError(f"invalid deliver_at of type {type(deliver_at).__name__}: expected a datetime")
        if deliver_at.utcoffset() is None:
            raise InvalidMessage(
                f"invalid deliver_at {deliver_at}: it has no time zone; use datetime.now(UTC) + …, or "
                "deliver_at.astimezone() if it is local time"
            )
        if deliver_at < _EPOCH:
            raise InvalidMessage(f"invalid deliver_at {deliver_at}: expected a time after 1970")
    if delay is not None:
        if not isinstance(delay, timedelta):
            raise TypeError(
                f"invalid delay of type {type(delay).__name__}: expected a timedelta, such as timedelta(seconds=90)"
            )
        if delay < timedelta(0):
            raise InvalidMessage(f"invalid delay {delay}: expected 0 or more")


@lru_cache(1024)
def check_sendable(topic: str) -> None:
    """Raise ``InvalidName`` or ``InvalidMessage`` for a topic that an application cannot send to."""
    # Kept, as programs send to the same few topics again and again; errors are not.
    check_topic(topic)
    if not may_send(topic):
        raise InvalidMessage(f"{topic!r} is a system topic; send to another topic")


def check_queue(message: Message, queue: MessageQueue) -> None:
    """Raise ``InvalidMessage`` if a queue chosen by the caller is not one of the message's topic."""
    if queue.topic != message.topic:
        raise InvalidMessage(f"the queue {queue} is not one of topic {message.topic!r}; choose from producer.queues()")


def check_properties_text(properties: str) -> None:
    """Raise ``InvalidMessage`` if the properties of a message do not fit a record, or are no text at all."""
    if properties.isascii():
        properties_bytes = len(properties)
    else:
        try:
            properties_bytes = len(properties.encode())
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"the tags, keys or properties contain a lone surrogate ({error.object[error.start]!r}), which "
                "UTF-8 cannot encode; it often comes from decoding with surrogateescape, so put such bytes into "
                "the body"
            ) from None
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(
            f"the properties need {properties_bytes} bytes, at most {PROPERTIES_BYTES_MAX} are allowed; put long "
            "values into the body"
        )


def check_batch(messages: Sequence[Message], *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise if ``messages`` cannot travel as one batch (E6). Its size is checked once it is packed."""
    if not messages:
        raise InvalidMessage("the batch is empty; give at least one message")
    first = messages[0]
    for message in messages:
        check_message(message, body_bytes_max=body_bytes_max)
        if message.topic != first.topic:
            raise InvalidMessage(
                f"the batch contains the topics {first.topic!r} and {message.topic!r}; send one batch per topic"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise InvalidMessage("the batch contains different values of wait_store_ok; send one batch per value")
        if message.is_delayed:
            raise InvalidMessage("a batch cannot be delayed; send messages with a delay one by one")
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"a batch cannot go to the retry topic {first.topic!r}; send its messages one by one")


def check_batch_bytes(batch_bytes: int, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise ``InvalidMessage`` if a packed batch is too large."""
    if batch_bytes > body_bytes_max:
        raise InvalidMessage(
            f"the batch needs {batch_bytes} bytes, at most {body_bytes_max} are allowed; split it with "
            "ternmq.split_batch()"
        )


def _refuse_reserved(message: Message) -> None:
    for name in message.properties:
        if name in RESERVED_PROPERTIES:
            attribute = _ATTRIBUTES.get(name)
            cure = f"set Message.{attribute} instead" if attribute else "choose another name"
            raise InvalidMessage(f"the property {name!r} is reserved; {cure}")


#: A year.
_CHECK_AFTER_S_MAX: Final = 365 * 24 * 3600


def check_transaction(message: Message, check_after_s: int | None) -> None:
    """Raise ``InvalidMessage`` for a message that cannot be part of a transaction.

    Java's client drops the delay of such a message without a word. RocketMQ's broker would let the half itself wait,
    and check it nowhere.
    """
    asked = {"delay_level": message.delay_level or None, "deliver_at": message.deliver_at, "delay": message.delay}
    for name, value in asked.items():
        if value is not None:
            raise InvalidMessage(
                f"the message to {message.topic!r} has {name}={value}, which a transaction cannot have; send it "
                "without a delay, and let the consumer send a delayed message on"
            )
    if message.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        raise InvalidMessage(f"a message to {message.topic!r} cannot be part of a transaction; use a topic of your own")
    if check_after_s is not None and type(check_after_s) is not int:
        # A broker leaves aside what has a point.
        raise TypeError(
            f"invalid check_after_s of type {type(check_after_s).__name__}: expected an int, in whole seconds"
        )
    if check_after_s is not None and not 0 < check_after_s <= _CHECK_AFTER_S_MAX:
        raise InvalidMessage(f"invalid check_after_s {check_after_s}: expected 1 to {_CHECK_AFTER_S_MAX} seconds")
