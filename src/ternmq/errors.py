"""The tree of all errors. Each error has fields for programs, a sentence for people that names the cure, and
``retriable``: whether the same call may succeed later or on another broker.

Errors of other libraries (``OSError``, ``ssl.SSLError``, codec errors) are converted once, where they
occur. A server's handlers raise ``BrokerRefused``; ``net.server`` converts it to a response with ``code``,
and a client converts that response to the same class again (``refused``).
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

#: What msgspec's decoders raise for bytes that are damaged or hostile: no such form, no UTF-8, too deep.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class TernError(Exception):
    """Base of all errors that TernMQ raises."""

    retriable: ClassVar[bool] = False


class InvalidName(TernError, ValueError):
    """A topic or group name that no broker accepts."""

    def __init__(self, message: str, *, name: str) -> None:
        self.name = name
        super().__init__(message)


class InvalidMessage(TernError, ValueError):
    """A message that the client refuses to send: empty, too large, to a system topic, and so on."""


class InvalidHandle(TernError, ValueError):
    """A text that is not the recall handle of a delayed message."""


class ConfigError(TernError, ValueError):
    """An invalid setting: names the file or source, the key and what is expected."""


class BrokerMissing(ConfigError):
    """The broker or cluster that was named is not registered."""


class RestartNeeded(ConfigError):
    """A setting cannot be changed while its server runs."""


class InvalidExpression(TernError, ValueError):
    """An invalid SQL filter. ``position`` counts characters of ``expression`` from 0."""

    def __init__(self, reason: str, *, expression: str, position: int) -> None:
        self.reason = reason
        self.expression = expression
        self.position = position
        near = expression if len(expression) <= 100 else f"…{expression[max(position - 30, 0) : position + 30]}…"
        super().__init__(f"invalid SQL filter {near!r} at character {position + 1}: {reason}")


class ExpressionTooLarge(InvalidExpression):
    """An SQL filter with more characters, terms or nesting than a broker allows; ``reason`` names its setting."""


class EvaluationFailed(TernError, ValueError):
    """An SQL filter cannot compare a property of a message; the message does not match."""


class NotRunning(TernError, RuntimeError):
    """A client or server was used before it was started or after it was closed."""


# --- Protocol violations ----------------------------------------------------------------------------------


class ProtocolError(TernError):
    """Bytes or calls that violate the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """This side tried to send something that the protocol does not support."""


class RemoteProtocolError(ProtocolError):
    """The other side violated the protocol; the connection cannot be used any more."""


# --- The network -------------------------------------------------------------------------------------------


class NetworkError(TernError, ConnectionError):
    """The connection failed, or was lost during a call."""

    retriable = True

    def __init__(self, message: str, *, address: str = "") -> None:
        self.address = address
        super().__init__(message)


class MachineSilent(NetworkError):
    """The other machine acknowledges nothing: it is down, or the network between is."""


class CallTimeout(NetworkError, TimeoutError):
    """No answer in time. The call may have been executed."""


class QueueLocked(TernError):
    """Another member of the group still has the lock of the queue, for orderly consumption."""

    retriable = True


class RequestTimeout(CallTimeout):
    """No consumer replied to a request in time. The request may have been consumed."""

    def __init__(self, message: str, *, topic: str, correlation_id: str) -> None:
        self.topic = topic
        self.correlation_id = correlation_id
        super().__init__(message)


class TooManyCalls(TernError):
    """The limit of calls in progress on one connection is reached."""

    retriable = True


# --- Files --------------------------------------------------------------------------------------------------


class StoreError(TernError):
    """An operation of the store failed."""


class CorruptRecord(StoreError):
    """A damaged record in the log."""

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        self.log_offset = log_offset
        super().__init__(message)


class CorruptFile(StoreError):
    """A file of the store with an invalid length, name or content."""

    def __init__(self, message: str, *, path: str) -> None:
        self.path = path
        super().__init__(message)


class TableUnsaved(StoreError):
    """A table could not be written to its file."""

    retriable = True

    def __init__(self, message: str, *, path: str) -> None:
        self.path = path
        super().__init__(message)


class StoreLocked(StoreError):
    """The store directory is in use by another process."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"the store directory {path} is in use by another process; stop that broker, or give this one "
            "another directory (storePathRootDir)"
        )


class RecordRefused(StoreError):
    """A message that cannot be stored: too large, or a field out of range. The broker answers MESSAGE_ILLEGAL."""


class DiskFull(StoreError):
    """No space is left for the next segment."""

    retriable = True


# --- Answers of a broker or name server ---------------------------------------------------------------------


class BrokerRefused(TernError):
    """A response with a code other than success. ``code`` is the response code, ``broker`` the broker that sent it."""

    code: int = 1
    retriable = False

    def __init__(self, message: str, *, broker: str = "", code: int | None = None) -> None:
        self.broker = broker
        if code is not None:
            self.code = code
        super().__init__(message)


class SystemFailure(BrokerRefused):
    """SYSTEM_ERROR: the broker failed in a way that has no code of its own."""

    code, retriable = 1, True


class SystemBusy(BrokerRefused):
    """SYSTEM_BUSY: flow control. Retry later, or use another broker."""

    code, retriable = 2, True


class RequestNotSupported(BrokerRefused):
    code = 3


class MessageIllegal(BrokerRefused):
    code = 13


class ServiceNotAvailable(BrokerRefused):
    """The broker cannot store now: disk full, shutting down, or a slave."""

    code, retriable = 14, True


class NotMaster(ServiceNotAvailable):
    """The broker is not the master (any more): it neither stores messages nor hands them out by pop."""


class NoPermission(BrokerRefused):
    code, retriable = 16, True


class TopicMissing(BrokerRefused):
    code, retriable = 17, True


class PullOffsetMoved(BrokerRefused):
    code = 21


class NotFound(BrokerRefused):
    """QUERY_NOT_FOUND: no such offset, message or configuration."""

    code = 22


class SubscriptionInvalid(BrokerRefused):
    """SUBSCRIPTION_PARSE_FAILED: the filter expression is invalid."""

    code = 23


class SubscriptionMissing(BrokerRefused):
    code, retriable = 24, True


class SubscriptionOutdated(BrokerRefused):
    code, retriable = 25, True


class GroupMissing(BrokerRefused):
    code = 26


class FilterMissing(BrokerRefused):
    """FILTER_DATA_NOT_EXIST: the group's SQL filter is invalid, or no heartbeat with it was received yet."""

    code, retriable = 27, True


class FilterOutdated(BrokerRefused):
    code, retriable = 28, True


class InvalidParameter(BrokerRefused):
    code = 29


class ConsumerOffline(BrokerRefused):
    """CONSUMER_NOT_ONLINE: no live member of the group is connected to this broker."""

    code = 206


class ConsumeTimeout(BrokerRefused):
    code = 207


class NoMessage(BrokerRefused):
    """The message does not exist: the offset is outside of its queue, or the handle has expired."""

    code = 208


class IllegalOperation(BrokerRefused):
    """ILLEGAL_OPERATION: a delayed message cannot be recalled: it was delivered, was recalled, or is unknown."""

    code = 604


_BY_CODE: dict[int, type[BrokerRefused]] = {kind.code: kind for kind in BrokerRefused.__subclasses__()}


def refused(code: int, message: str, *, broker: str = "") -> BrokerRefused:
    """The error for a response code, for the side that received it."""
    return _BY_CODE.get(code, BrokerRefused)(message, broker=broker, code=code)


# --- The client's own -----------------------------------------------------------------------------------------


class RouteMissing(TernError):
    """No name server knows a broker for the topic."""

    retriable = True

    def __init__(self, message: str, *, topic: str) -> None:
        self.topic = topic
        super().__init__(message)


class NameServersUnreachable(NetworkError):
    """None of the configured name servers answers."""


class OffsetStoreFailed(TernError):
    """The application's own offset store raised an error."""

    retriable = True


class SendFailed(TernError):
    """All attempts of a send failed; ``attempts`` has the error of each one."""

    def __init__(self, message: str, *, attempts: tuple[BaseException, ...] = ()) -> None:
        self.attempts = attempts
        super().__init__(message)


class TransactionUncertain(TernError):
    """The end of a transaction may not have reached the broker. The broker asks a checker of the group, whose answer
    decides: the local work is done or not, independently of this error.
    """

    retriable = False

    def __init__(self, message: str, *, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        super().__init__(message)


class MessagesLost(TernError):
    """Messages were deleted before a reader could read them: those from queue offset ``first`` to before ``end``."""

    def __init__(self, message: str, *, first: int, end: int) -> None:
        self.first = first
        self.end = end
        super().__init__(message)


class OutboxFailed(TernError):
    """The outbox could not use its database. Messages that are in it stay there; ``database`` names it."""

    retriable = True

    def __init__(self, message: str, *, database: str) -> None:
        self.database = database
        super().__init__(message)


class OutboxMissing(OutboxFailed):
    """A database has no outbox table, or one without the columns that it must have."""

    retriable = False


class Outage(TernError):
    """Raised by a listener when something that all messages need is down, such as a database.

    The consumer pauses and tries again by itself; no message loses a retry.

    Args:
        message: What is down, for the log.
    """

    retriable = True

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class KeyStoreFailed(Outage):
    """A key store could not be used, so no listener was called; ``store`` names it. For consumers it is an outage."""

    def __init__(self, message: str, *, store: str) -> None:
        self.store = store
        super().__init__(message)


class KeyTableMissing(KeyStoreFailed):
    """A database has no table for keys, or one without the columns that it must have."""


class InvalidKey(TernError, ValueError):
    """A message has no key, or one that a key store does not take."""


class KeyBusy(TernError):
    """Another consumer works on the same key; ``key`` names it."""

    retriable = True

    def __init__(self, message: str, *, key: str) -> None:
        self.key = key
        super().__init__(message)


class LeaseLost(TernError):
    """The lease of a key ended during the work, and another consumer has taken it over; ``key`` names it."""

    retriable = True

    def __init__(self, message: str, *, key: str) -> None:
        self.key = key
        super().__init__(message)
