"""The one error tree. Each error has fields for programs, a sentence for people that names the cure, and
``retriable``: whether the same call may succeed later or on another broker.

Foreign errors (``OSError``, ``ssl.SSLError``, codec errors) become ours once, at the border where they
arise. A server's handlers raise ``BrokerRefused``; ``net.server`` turns it into a response with ``code``,
and a client turns that response into the same class again (``refused``).
"""

from __future__ import annotations

from typing import ClassVar


class TernError(Exception):
    """Base of all errors that TernMQ raises."""

    retriable: ClassVar[bool] = False


class InvalidName(TernError, ValueError):
    """A topic or group name that no broker accepts (E2)."""

    def __init__(self, message: str, *, name: str) -> None:
        self.name = name
        super().__init__(message)


class InvalidMessage(TernError, ValueError):
    """A message refused before the network: empty, too large, to a system topic, … (E2)."""


class ConfigError(TernError, ValueError):
    """A wrong setting: names the file or source, the key and what is expected (T2)."""


class InvalidExpression(TernError, ValueError):
    """An SQL filter that cannot be read (K2). ``position`` counts characters of ``expression`` from 0."""

    def __init__(self, reason: str, *, expression: str, position: int) -> None:
        self.reason = reason
        self.expression = expression
        self.position = position
        near = expression if len(expression) <= 100 else f"…{expression[max(position - 30, 0) : position + 30]}…"
        super().__init__(f"the SQL filter {near!r} is wrong at character {position + 1}: {reason}")


class EvaluationFailed(TernError, ValueError):
    """An SQL filter met a property that it cannot compare; the message does not match (K2)."""


class NotRunning(TernError, RuntimeError):
    """A client or server was used before its start or after its end."""


# --- Bytes that are not what the protocol says ------------------------------------------------------------


class ProtocolError(TernError):
    """Bytes or calls that break the remoting protocol (B5)."""


class LocalProtocolError(ProtocolError):
    """This side tried to send what the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the protocol does not allow; the connection is of no more use."""


# --- The network -------------------------------------------------------------------------------------------


class NetworkError(TernError, ConnectionError):
    """No connection, or one that broke while a call was under way."""

    retriable = True

    def __init__(self, message: str, *, address: str = "") -> None:
        self.address = address
        super().__init__(message)


class CallTimeout(NetworkError, TimeoutError):
    """No answer in time. The call may have been carried out."""


class QueueLocked(TernError):
    """Another member of the group reads the queue in order, and has not given back its lock yet (F2)."""

    retriable = True


class RequestTimeout(CallTimeout):
    """Nobody replied to a request in time (E7). Somebody may have consumed it."""

    def __init__(self, message: str, *, topic: str, correlation_id: str) -> None:
        self.topic = topic
        self.correlation_id = correlation_id
        super().__init__(message)


class TooManyCalls(TernError):
    """The limit on calls in flight over one connection is reached (B2)."""

    retriable = True


# --- Files --------------------------------------------------------------------------------------------------


class StoreError(TernError):
    """The store cannot do what was asked."""


class CorruptRecord(StoreError):
    """Bytes in the log that are not the record they should be."""

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        self.log_offset = log_offset
        super().__init__(message)


class CorruptFile(StoreError):
    """A file of the store whose length, name or content cannot be right."""

    def __init__(self, message: str, *, path: str) -> None:
        self.path = path
        super().__init__(message)


class StoreLocked(StoreError):
    """Another process holds the store directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"another process holds the store directory {path}; stop that broker, or give this one a directory "
            "of its own (storePathRootDir)"
        )


class RecordRefused(StoreError):
    """A message that no record can hold: too large, or a field out of range (C1). The broker says MESSAGE_ILLEGAL."""


class DiskFull(StoreError):
    """No space is left for the next segment."""

    retriable = True


# --- Answers of a broker or name server ---------------------------------------------------------------------


class BrokerRefused(TernError):
    """A response code other than success. ``code`` is the number on the wire, ``broker`` who said so."""

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
    """SYSTEM_BUSY: flow control (M1). Try again later; another broker may be free."""

    code, retriable = 2, True


class RequestNotSupported(BrokerRefused):
    code = 3


class MessageIllegal(BrokerRefused):
    code = 13


class ServiceNotAvailable(BrokerRefused):
    """The broker cannot store now: disk full, shutting down, or a slave."""

    code, retriable = 14, True


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
    """SUBSCRIPTION_PARSE_FAILED: the filter expression cannot be read (K2)."""

    code = 23


class SubscriptionMissing(BrokerRefused):
    code, retriable = 24, True


class SubscriptionOutdated(BrokerRefused):
    code, retriable = 25, True


class GroupMissing(BrokerRefused):
    code = 26


class FilterMissing(BrokerRefused):
    """FILTER_DATA_NOT_EXIST: the group's SQL filter could not be read, or no heartbeat has brought it yet (K2)."""

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
    """There is no such message (any more): an offset outside its queue, or a handle whose time is over."""

    code = 208


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


class SendFailed(TernError):
    """All attempts of a send failed; ``attempts`` tells how each one did."""

    def __init__(self, message: str, *, attempts: tuple[BaseException, ...] = ()) -> None:
        self.attempts = attempts
        super().__init__(message)


class MessagesLost(TernError):
    """Messages that a reader was to read exactly once are not in their queue any more: those from queue offset
    ``first`` to before ``end``."""

    def __init__(self, message: str, *, first: int, end: int) -> None:
        self.first = first
        self.end = end
        super().__init__(message)
