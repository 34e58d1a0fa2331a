"""Messages over HTTP, and what probes ask: ``httpPort`` (R5).

::

    GET /healthz                                            the process answers
    GET /readyz                                             a master in its term, or a slave that follows its master
    GET /metrics                                            what is measured, for Prometheus (T4)
    GET /messages/<offset id>                               one message by its place in the log
    GET /topics/<topic>/messages?key=K | id=U               by key or unique id; begin_ms, end_ms, limit
    GET /topics/<topic>/queues/<n>/messages?offset=N        from a queue offset on; limit
                                           ?time_ms=T       from the first message since a time on; limit

All is read only, on masters and slaves. A request reads at most ``ANSWER_BYTES_MAX`` of records (one record at least)
within ``QUERY_S``, and only ``QUERIES_MAX`` do so at once.

With access control a caller sends HTTP Basic: the access key as user, the secret key as password, over TLS or from this
machine. The broker signs the request with it as a client would, and passes it to its gate: accounts, policies, limits
for guesses, audit and validators are those of the port for clients. A topic needs SUB; metrics need what a
list of all groups does, as they name topics and groups of others.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import msgspec

from ternmq.broker.metrics import BrokerMetrics
from ternmq.broker.replicating import Replicating
from ternmq.broker.roles import Role, Roles
from ternmq.broker.services.access import Access as TopicAccess
from ternmq.broker.services.access import Way
from ternmq.broker.services.positions import Positions
from ternmq.broker.services.reading import Reading
from ternmq.errors import ConfigError, InvalidName, NoPermission, NotFound, TernError
from ternmq.message import Property
from ternmq.net.exposition import CONTENT_TYPE
from ternmq.net.gate import ANY_CALLER, Action, Gate, Rights, Rule, check_record
from ternmq.net.http import HttpAnswer, HttpRequest, plain
from ternmq.net.peer import format_address
from ternmq.store.read.query import QueryResult
from ternmq.store.store import MessageStore
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import NO_BODY, Fields, Request
from ternmq.wire.ids import offset_id, parse_offset_id
from ternmq.wire.properties import parse
from ternmq.wire.record import Record, Sysflag, unpack_host, unpack_record

#: Requests that read at once; others wait for them, within their time.
QUERIES_MAX: Final = 4
QUERY_S: Final = 5.0
#: Bytes of records in one answer, unless the first one has more.
ANSWER_BYTES_MAX: Final = 1 << 20
LIMIT_MAX: Final = 64
_LIMIT: Final = 32
_INT64_MAX: Final = (1 << 63) - 1
_READ_TOPIC: Final = Rule(Action.SUB, topic="topic")
_encode: Final = msgspec.json.Encoder().encode


class _Wrong(Exception):
    """What a caller is told instead of messages."""

    def __init__(self, status: HTTPStatus, text: str, **headers: str) -> None:
        self.answer = plain(status, text, **headers)
        super().__init__(text)


class _Caller:
    """For validators (``net.gate.CallingPeer``)."""

    def __init__(self, request: HttpRequest) -> None:
        self.address = request.address
        self.remote_ip = request.ip
        self.certificate = request.certificate
        self.access: Rights | None = None
        self.proved = ""


class Web:
    """``answer`` is for ``net.http.HttpServer``. All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        reading: Reading,
        positions: Positions,
        topics: TopicAccess,
        roles: Roles,
        replicating: Replicating,
        gate: Gate | None,
        metrics: BrokerMetrics,
        group_trouble: Callable[[], str] | None = None,
    ) -> None:
        """``group_trouble`` tells why this member of a Raft group takes no part in it; empty if it does."""
        self._group_trouble = group_trouble
        self._store = store
        self._reading = reading
        self._positions = positions
        self._topics = topics
        self._roles = roles
        self._replicating = replicating
        self._gate = gate
        self._metrics = metrics
        self._reads = asyncio.Semaphore(QUERIES_MAX)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        try:
            match request.path:
                case ("healthz",):
                    return plain(HTTPStatus.OK, "ok")
                case ("readyz",):
                    return self._ready()
            async with asyncio.timeout(QUERY_S), self._reads:
                if request.path == ("metrics",):
                    self._admit(request, "", RequestCode.GET_BROKER_CONSUME_STATS, ANY_CALLER)
                    return HttpAnswer(HTTPStatus.OK, await self._metrics.text(), CONTENT_TYPE)
                return await self._messages(request)
        except _Wrong as wrong:
            return wrong.answer
        except TimeoutError:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, f"not read within {QUERY_S:g} s; ask for less, or later")
        except NotFound as error:
            return plain(HTTPStatus.NOT_FOUND, str(error))
        except NoPermission as error:
            return plain(HTTPStatus.FORBIDDEN, str(error))
        except TernError as error:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _ready(self) -> HttpAnswer:
        role, replicating = self._roles.role, self._replicating
        if role is Role.NONE:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "this broker has no role yet")
        if self._group_trouble is not None and (trouble := self._group_trouble()):
            return self._unready("this member takes no part in its Raft group", trouble)
        if role is Role.SLAVE and replicating.is_slave and not replicating.is_following:
            slave = replicating.slave
            why = slave.trouble or slave.state.value if slave is not None else "it does not follow"
            return self._unready("this slave does not follow its master", why)
        return plain(HTTPStatus.OK, f"ok: {role.name.lower()}")

    def _unready(self, what: str, why: str) -> HttpAnswer:
        """Probes ask without a key. Where callers are checked, they are not told the reason, which names machines."""
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, f"{what}: {why}" if self._gate is None else f"{what}; see its log")

    async def _messages(self, request: HttpRequest) -> HttpAnswer:
        given = dict(request.parameters)
        match request.path:
            case ("messages", message_id):
                access = self._admit(request, "")
                _none_left(given)
                return _shown([await self._by_offset_id(message_id, access)])
            case ("topics", topic, "messages"):
                self._admit(request, topic)
                return await self._by_key(topic, given)
            case ("topics", topic, "queues", queue, "messages"):
                self._admit(request, topic)
                self._topics.may_read(None, topic, Way.QUERY)
                return await self._by_offset(topic, _number("queue", queue, most=1 << 30), given)
        raise _Wrong(HTTPStatus.NOT_FOUND, "no such path; see the page on messages over HTTP in the documentation")

    # --- Who asks -----------------------------------------------------------------------------------------------------

    def _admit(
        self,
        request: HttpRequest,
        topic: str,
        code: RequestCode = RequestCode.QUERY_MESSAGE,
        rule: Rule = _READ_TOPIC,
    ) -> Rights | None:
        """What the caller may read; None: all. Raises ``_Wrong`` or ``NoPermission``."""
        if self._gate is None:
            return None
        fields: Fields = {"topic": topic} if topic else {}
        credentials = _credentials(request)
        if credentials is not None:
            credentials.sign(fields, NO_BODY)
        caller = _Caller(request)
        try:
            self._gate.admit(caller, Request(code, header=fields, body=NO_BODY), rule)
        except NoPermission as error:
            if credentials is not None:
                raise
            challenge = {"WWW-Authenticate": 'Basic realm="TernMQ", charset="UTF-8"'}
            raise _Wrong(HTTPStatus.UNAUTHORIZED, str(error), **challenge) from None
        return caller.access

    # --- Ways to find messages --------------------------------------------------------------------------------------

    async def _by_offset_id(self, message_id: str, access: Rights | None) -> Record:
        try:
            host, port, log_offset = parse_offset_id(message_id)
        except InvalidName:
            raise _Wrong(
                HTTPStatus.BAD_REQUEST,
                f"{message_id[:100]!r} is not an offset id; a unique id needs its topic: /topics/TOPIC/messages?id=ID",
            ) from None
        found = await self._reading.record(log_offset)
        record = unpack_record(found) if found is not None else None
        if record is None or offset_id(record.store_host, record.log_offset) != message_id.upper():
            raise _Wrong(HTTPStatus.NOT_FOUND, f"no message {log_offset} of {host}:{port} is in this log")
        check_record(access, record.topic)
        self._topics.may_read(None, record.topic, Way.QUERY)
        return record

    async def _by_key(self, topic: str, given: dict[str, str]) -> HttpAnswer:
        key, unique_id = given.pop("key", ""), given.pop("id", "")
        begin_ms, end_ms = _take(given, "begin_ms", 0), _take(given, "end_ms", _INT64_MAX)
        limit = _take(given, "limit", _LIMIT, most=LIMIT_MAX)
        _none_left(given)
        if bool(key) == bool(unique_id):
            raise _Wrong(HTTPStatus.BAD_REQUEST, "give either key or id")
        found = self._reading.by_key(topic, key or unique_id, count_max=max(limit, 1), begin_ms=begin_ms, end_ms=end_ms)
        result = found if isinstance(found, QueryResult) else await found
        name = Property.KEYS if key else Property.UNIQUE_KEY
        records = []
        for data in result.buffers:
            record = unpack_record(data)
            value = parse(record.properties).get(name, "")
            # The index finds by hashes.
            if record.topic == topic and (key or unique_id) in (value.split(" ") if key else [value]):
                records.append(record)
        if not records:
            raise NotFound(f"no message of {topic} has this {'key' if key else 'id'} in this time")
        return _shown(records[-limit:] if limit else [])

    async def _by_offset(self, topic: str, queue_id: int, given: dict[str, str]) -> HttpAnswer:
        store = self._store
        has_offset, has_time = "offset" in given, "time_ms" in given
        queue_offset, time_ms = _take(given, "offset", 0), _take(given, "time_ms", 0)
        limit = _take(given, "limit", _LIMIT, most=LIMIT_MAX)
        _none_left(given)
        if has_offset == has_time:
            raise _Wrong(HTTPStatus.BAD_REQUEST, "give either offset or time_ms")
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if end <= 0:
            raise NotFound(f"{topic} has no queue {queue_id} with messages here")
        if has_time:
            found = self._positions.by_time(topic, queue_id, time_ms, upper=False)
            queue_offset = found if isinstance(found, int) else await found
        if not first <= queue_offset <= end:
            raise NotFound(f"queue {queue_id} of {topic} has messages {first} to {end - 1} here")
        records: list[Record] = []
        size = 0
        for entry in store.entries(topic, queue_id, queue_offset, limit):
            if records and size + entry.size > ANSWER_BYTES_MAX:
                break
            data = await self._reading.record(entry.log_offset)
            if data is not None:
                # A copy: other reads are waited for before it is shown.
                records.append(unpack_record(bytes(data)))
                size += entry.size
        following = records[-1].queue_offset + 1 if records else queue_offset
        return _shown(records, next_offset=following, min_offset=first, max_offset=end)


def _credentials(request: HttpRequest) -> Credentials | None:
    """What the caller has sent to prove who it is. Raises ``_Wrong``."""
    kind, _, text = request.authorization.partition(" ")
    if not kind:
        return None
    if not request.is_tls and not _is_here(request.ip):
        raise _Wrong(
            HTTPStatus.FORBIDDEN, "a secret key was sent without TLS, and is not checked; use https, and change the key"
        )
    try:
        if kind.lower() != "basic":
            raise ValueError
        user, colon, password = b64decode(text.strip(), validate=True).decode().partition(":")
        if not colon:
            raise ValueError
        return Credentials(user, password)
    except (ValueError, binascii.Error, ConfigError):
        raise _Wrong(HTTPStatus.BAD_REQUEST, "expected HTTP Basic with an access key and its secret key") from None


def _is_here(ip: str) -> bool:
    try:
        return ip_address(ip.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _take(given: dict[str, str], name: str, default: int, *, most: int = _INT64_MAX) -> int:
    text = given.pop(name, None)
    return default if text is None else _number(name, text, most=most)


def _number(name: str, text: str, *, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise _Wrong(HTTPStatus.BAD_REQUEST, f"invalid {name} {text[:100]!r}: expected 0 to {most}")
    return int(text)


def _none_left(given: dict[str, str]) -> None:
    if given:
        raise _Wrong(HTTPStatus.BAD_REQUEST, f"unknown parameter {next(iter(given))[:100]!r}")


def _shown(records: Sequence[Record], **more: int) -> HttpAnswer:
    kept: list[dict[str, object]] = []
    size = 0
    for record in reversed(records):
        size += record.size
        if kept and size > ANSWER_BYTES_MAX:
            break
        kept.append(_fields(record))
    body = _encode({"messages": kept[::-1], **more})
    return HttpAnswer(HTTPStatus.OK, body, "application/json")


def _address(host: bytes) -> str:
    return format_address(*unpack_host(host))


def _fields(record: Record) -> dict[str, object]:
    properties = parse(record.properties)
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_offset": record.log_offset,
        "offset_id": offset_id(record.store_host, record.log_offset),
        "id": properties.get(Property.UNIQUE_KEY, ""),
        "tags": properties.get(Property.TAGS, ""),
        "keys": properties.get(Property.KEYS, ""),
        "born_time_ms": record.born_time_ms,
        "born_host": _address(record.born_host),
        "store_time_ms": record.store_time_ms,
        "store_host": _address(record.store_host),
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
        "properties": properties,
        "is_compressed": bool(record.sysflag & Sysflag.COMPRESSED),
        "body_base64": b64encode(record.body).decode(),
    }
