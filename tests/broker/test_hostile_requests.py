"""Well-formed requests with hostile values, for every request code, over a real socket (issue 13).

For each code there is a request that would succeed, on a topic, group and queue that exist. Each of its fields, in the
header and in the body, is then left out, and replaced by each of a set of values: numbers that are negative, huge or
none, names with path separators, NUL or 32,000 characters, values of another type. Whatever comes:

- each request is answered, on a connection that stays open, and the server serves others afterwards;
- no handler ends with an error that is not one of ours (the log line "the handler of … failed");
- nothing stays behind but topics and groups with valid names, and no file but those of topics that exist.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from ternmq import names
from ternmq.broker.tables.topics import QUEUES_MAX
from ternmq.embedded import EmbeddedCluster
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.groups import GroupTable
from ternmq.wire.bodies.routes import ClusterInfo
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_reply
from ternmq.wire.header import Reply, Response, _headers

TOPIC, GROUP = "orders", "billing"
ANSWER_S: Final = 60.0
#: Requests under way on one connection: fewer than a lane holds.
WINDOW: Final = 200

CLIENT_ID: Final = "127.0.0.1@1"
POP_TIME_MS: Final = 1_700_000_000_000
PROPERTIES: Final = f"KEYS\x01k\x02TAGS\x01a\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01{CLIENT_ID}\x02"
VERSION: Final = {"counter": 1, "stateVersion": 0, "timestamp": POP_TIME_MS}
SUBSCRIPTION: Final = {
    "classFilterMode": False,
    "codeSet": [],
    "expressionType": "TAG",
    "subString": "*",
    "subVersion": 1,
    "tagsSet": [],
    "topic": TOPIC,
}
QUEUE: Final = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}
CONFIG: Final = {
    "order": False,
    "perm": 6,
    "readQueueNums": 1,
    "topicFilterType": "SINGLE_TAG",
    "topicName": TOPIC,
    "topicSysFlag": 0,
    "writeQueueNums": 1,
}
GROUP_CONFIG: Final = {
    "brokerId": 0,
    "consumeEnable": True,
    "groupName": GROUP,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}

#: Fields of the header under their names on the wire, wherever a code has them.
FIELDS: Final[dict[str, str]] = {
    "topic": TOPIC,
    "b": TOPIC,
    "consumerGroup": GROUP,
    "producerGroup": "shop",
    "a": "shop",
    "group": GROUP,
    "groupName": GROUP,
    "queueId": "0",
    "e": "0",
    "queueOffset": "0",
    "offset": "0",
    "commitOffset": "0",
    "maxMsgNums": "1",
    "invisibleTime": "60000",
    "initMode": "0",
    "pollTime": "0",
    "bornTime": "1700000000000",
    "timestamp": "1700000000000",
    "extraInfo": f"0 {POP_TIME_MS} 60000 0 0 broker-a 0 0",
    "clientID": CLIENT_ID,
    "clientId": CLIENT_ID,
    "brokerName": "broker-x",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "DefaultCluster",
    "cluster": "DefaultCluster",
    "brokerId": "0",
    "haServerAddr": "127.0.0.1:2",
    "namespace": "space",
    "key": "k",
    "value": "v",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "sysFlag": "0",
    "properties": PROPERTIES,
    "i": PROPERTIES,
    "suspendTimeoutMillis": "1",
    "subscription": "*",
    "srcGroup": GROUP,
    "destGroup": "other",
    "compareGroup": GROUP,
    "maxNum": "1",
    "beginTimestamp": "0",
    "endTimestamp": "1700000000000",
    "isForce": "true",
    "msgId": "7F00000100002A9F0000000000000000",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "index": "0",
    "count": "1",
}

#: Bodies that the codes with one take.
BODIES: Final[dict[RequestCode, object]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [CONFIG]},
    RequestCode.HEART_BEAT: {
        "clientID": CLIENT_ID,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": GROUP,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [SUBSCRIPTION],
                "unitMode": False,
            }
        ],
        "producerDataSet": [{"groupName": "shop"}],
    },
    RequestCode.LOCK_BATCH_MQ: {"clientId": CLIENT_ID, "consumerGroup": GROUP, "mqSet": [QUEUE]},
    RequestCode.UNLOCK_BATCH_MQ: {"clientId": CLIENT_ID, "consumerGroup": GROUP, "mqSet": [QUEUE]},
    RequestCode.CHECK_CLIENT_CONFIG: {
        "clientId": CLIENT_ID,
        "group": GROUP,
        "namespace": "",
        "subscriptionData": SUBSCRIPTION,
    },
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GROUP_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [GROUP_CONFIG]},
    RequestCode.QUERY_ASSIGNMENT: {
        "clientId": CLIENT_ID,
        "consumerGroup": GROUP,
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": TOPIC,
    },
    RequestCode.SET_MESSAGE_REQUEST_MODE: {
        "consumerGroup": GROUP,
        "mode": "POP",
        "popShareQueueNum": 0,
        "topic": TOPIC,
    },
    RequestCode.BATCH_ACK_MESSAGE: {
        "brokerName": "broker-a",
        "acks": [
            {"b": "AQ==", "c": GROUP, "it": 60_000, "pt": POP_TIME_MS, "q": 0, "r": "0", "rq": 0, "so": 0, "t": TOPIC}
        ],
    },
    RequestCode.REGISTER_BROKER: {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": {TOPIC: CONFIG}},
    },
    RequestCode.QUERY_DATA_VERSION: VERSION,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: {
        "brokerDatas": [],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
        ],
    },
}

LONG: Final = "x" * 32_000
#: Instead of any field, instead of a number and instead of a text. None is JSON's null.
ANYTHING: Final[tuple[object, ...]] = ("", "a", "-1", "9223372036854775808", LONG, None, -1, 1.5, True, [], {"a": 1})
NUMBERS: Final[tuple[object, ...]] = (
    *("-2147483648", "2147483647", "2147483648", "-9223372036854775808", "9223372036854775807", "1" + "0" * 400),
    *("1e3", "NaN", "0x10", " 1", "true", 10**30),
)
TEXTS: Final[tuple[object, ...]] = (
    *(" ", "\x00", "a\x00b", "a\nb", "/", "..", "../../x", "a/b", "%", "%s%n", "%RETRY%", "%DLQ%" + LONG, "𐍈é"),
    *("@", "a@b", "0 0", ";", "=", "SCHEDULE_TOPIC_XXXX", "TOOLS_CONSUMER", "a || b", "(" * 1_000),
    *("DELAY\x01-1\x02", "DELAY\x0199999999999\x02", "\x01\x02\x01\x02", "KEYS\x01" + "k " * 1_000, "0 " * 9),
)
#: Instead of a whole body.
RAW_BODIES: Final = (
    *(b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"\x00", b"\xff\xfe", b"[" * 10_000, b'{"a":' * 10_000),
    *(b"a=b", b"=", b"x" * 32_000, b"\n\n"),
)


class Connection:
    """Raw frames to a server, and its answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._reading = asyncio.create_task(self._read())

    @staticmethod
    @asynccontextmanager
    async def to(address: str) -> AsyncIterator[Connection]:
        host, port = address.rsplit(":", 1)
        connection = Connection(*await asyncio.open_connection(host, int(port)))
        try:
            yield connection
        finally:
            connection._reading.cancel()
            connection._writer.close()

    async def call(self, code: int, fields: object = None, body: bytes = b"") -> Response:
        """The answer to a request; fails when the connection closes or nothing comes."""
        self._opaque += 1
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[self._opaque] = answer
        envelope = {"code": code, "flag": 0, "language": "JAVA", "opaque": self._opaque, "version": 401}
        head = json.dumps(envelope | ({"extFields": fields} if fields is not None else {})).encode()
        self._writer.write(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
        async with asyncio.timeout(ANSWER_S):
            await self._writer.drain()
            return await answer

    async def _read(self) -> None:
        decoder = FrameDecoder()
        try:
            while data := await self._reader.read(1 << 16):
                for command in decoder.feed(data):
                    if isinstance(command, Response):
                        answer = self._waiting.pop(command.opaque)
                        if not answer.done():
                            answer.set_result(command)
                    elif not command.oneway:
                        # Passed on from a tool, which would wait for it.
                        self._writer.writelines(encode_reply(command, Reply(ResponseCode.SYSTEM_ERROR)))
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the server closed the connection"))


def headers_of(code: RequestCode) -> Iterator[dict[str, object]]:
    """Each header to try: with all its fields, without any, without one of them, and with a hostile one."""
    yield {**FIELDS}
    yield {}
    kind = _headers.get(code)
    for field in msgspec.structs.fields(kind) if kind is not None else ():
        yield {name: value for name, value in FIELDS.items() if name != field.encode_name}
        for value in (*ANYTHING, *(TEXTS if "str" in str(field.type) else NUMBERS)):
            yield {**FIELDS, field.encode_name: value}


def bodies_of(code: RequestCode) -> Iterator[bytes]:
    """Each body to try: a good one, with a hostile value in each of its places, and what is none."""
    if code in BODIES:
        for value in hostile(BODIES[code]):
            yield json.dumps(value).encode()
    yield from RAW_BODIES


def hostile(value: Any) -> Iterator[Any]:
    """A JSON value, and all that come of it when one of its parts is replaced."""
    yield value
    yield from ANYTHING
    if isinstance(value, dict):
        for name, part in value.items():
            for changed in itertools.islice(hostile(part), 1, None):
                yield value | {name: changed}
            yield {other: part for other, part in value.items() if other != name}
        yield from ({name: value} for name in ("", "a\x00b", "../x", LONG))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            for changed in itertools.islice(hostile(part), 1, None):
                yield [*value[:index], changed, *value[index + 1 :]]
    elif isinstance(value, str):
        yield from TEXTS
    else:
        yield from (-(2**31), 2**31 - 1, 2**31, -(2**63), 2**63 - 1, 2**63, 10**30, *NUMBERS)


def is_held(code: RequestCode, fields: dict[str, object]) -> bool:
    """Whether a request is one to wait for ever, as far as the client is concerned."""
    return code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION) and fields.get("pollTime") not in ("0", None)


async def attack(address: str, code: RequestCode) -> None:
    """Send all that there is for a code; each request must be answered."""
    good = next(bodies_of(code))
    async with Connection.to(address) as connection:
        await connection.call(RequestCode.HEART_BEAT, {}, json.dumps(BODIES[RequestCode.HEART_BEAT]).encode())
        if (await connection.call(code, FIELDS, good)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return
        tries = [(fields, good) for fields in headers_of(code)] + [({**FIELDS}, body) for body in bodies_of(code)]
        for start in range(0, len(tries), WINDOW):
            calls = [
                (asyncio.ensure_future(connection.call(code, fields, body)), is_held(code, fields))
                for fields, body in tries[start : start + WINDOW]
            ]
            await asyncio.gather(*(call for call, held in calls if not held))
            for call, _ in calls:
                call.cancel()


async def put_right(broker: Connection) -> None:
    """The topic and the group as they were: an administrator may have changed them in the midst of it."""
    fields = {name: FIELDS[name] for name in ("topic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")}
    assert 0 == (await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code
    body = json.dumps(GROUP_CONFIG).encode()
    assert 0 == (await broker.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code


def no_handler_failed(caplog: pytest.LogCaptureFixture, code: RequestCode) -> None:
    assert [] == [record.exc_text for record in caplog.records if record.levelno >= logging.ERROR], code.name


def check_files(root: Path) -> None:
    """Nothing was written beside the store, and no queue that no topic has."""
    store = root / "stores" / "broker-a"
    assert ([store.parent], [store]) == ([*root.iterdir()], [*store.parent.iterdir()])
    for directory in (store / "consumequeue").iterdir():
        names.check_topic(directory.name)
        assert all(int(queue.name) < QUEUES_MAX for queue in directory.iterdir())


async def test_a_broker_answers_hostile_values_and_keeps_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B2, issue 13"""
    async with EmbeddedCluster(directory=tmp_path / "stores") as cluster:
        address = cluster.brokers[0].address
        async with Connection.to(address) as other:
            for code in RequestCode:
                await put_right(other)
                await attack(address, code)
                no_handler_failed(caplog, code)
                sent = await other.call(RequestCode.SEND_MESSAGE, {"topic": TOPIC, "queueId": "0"}, b"it")
                assert 0 == sent.code, (code.name, sent.remark)
            topics = decode((await other.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicTable).topic_config_table
            groups = decode((await other.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body, GroupTable)
        assert all(names.check_topic(topic) == config.topic_name for topic, config in topics.items())
        assert max(max(config.read_queue_nums, config.write_queue_nums) for config in topics.values()) <= QUEUES_MAX
        for group in groups.subscription_group_table:
            names.check_group(group, length_max=names.SERVED_GROUP_LENGTH_MAX)
    check_files(tmp_path)
    # And what was kept can be read again.
    async with EmbeddedCluster(directory=tmp_path / "stores"):
        pass


async def test_a_name_server_answers_hostile_values_and_keeps_no_brokers(caplog: pytest.LogCaptureFixture) -> None:
    """A2, B2, issue 13: what a connection registered goes with it."""
    async with EmbeddedCluster() as cluster:
        async with Connection.to(cluster.name_servers) as other:
            for code in RequestCode:
                await attack(cluster.name_servers, code)
                no_handler_failed(caplog, code)
                route = await other.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": names.AUTO_CREATE_TOPIC})
                assert 0 == route.code, (code.name, route.remark)
            info = decode((await other.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)
        assert {"broker-a"} == info.broker_addr_table.keys()
