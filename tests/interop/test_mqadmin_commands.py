"""The subcommands of RocketMQ's admin tool on TernMQ and on RocketMQ: what works there works here, in the same shape
(V1, D6). Nightly: it starts a JVM for each subcommand.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, MessageQueue
from ternmq.wire.auth import Credentials
from tests.auth.accounts import BOSS, acl_in
from tests.client.listening import Collector
from tests.interop import jvm, rocketmq
from tests.interop.java import Java, PeerFailed
from tests.interop.rocketmq import RocketMQ

# On a quiet machine 3 minutes; the limit of other tests is 5.
pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(1800)]

#: Subcommands in an order in which each finds what it needs. Names in braces are filled in (``Place``).
COMMANDS: Final = (
    "updateTopic -c {cluster} -t made -r 2 -w 2",
    "updateTopicPerm -c {cluster} -t made -p 6",
    "updateOrderConf -t made -m put -v {name}:2",
    "updateOrderConf -t made -m get",
    "updateOrderConf -t made -m delete",
    "topicList",
    "topicList -c",
    "topicRoute -t orders",
    "topicStatus -t orders",
    "topicClusterList -t orders",
    "allocateMQ -t orders -i 10.0.0.1,10.0.0.2",
    "statsAll -t orders",
    "updateSubGroup -c {cluster} -g made",
    "getConsumerConfig -g billing",
    "consumerConnection -g billing",
    "consumerProgress -g billing",
    "consumerProgress",
    "consumerStatus -g billing",
    "producerConnection -g shop -t orders",
    "producer -b {broker}",
    "cloneGroupOffset -s billing -d made -t orders",
    "resetOffsetByTime -g made -t orders -s -1",
    "skipAccumulatedMessage -g made -t orders",
    "deleteSubGroup -c {cluster} -g made",
    "queryMsgById -i {offset_id}",
    "queryMsgByKey -t orders -k order-7",
    "queryMsgByUniqueKey -t orders -i {message_id}",
    "queryMsgByOffset -t orders -b {name} -i 0 -o 0",
    "queryMsgTraceById -i {message_id}",
    "queryCq -t orders -q 0 -i 0 -c 2",
    "sendMessage -t orders -p hello",
    "sendMsgStatus -b {name} -s 10 -c 1",
    "checkMsgSendRT -t orders -a 1 -s 10",
    "printMsg -t orders",
    "printMsgByQueue -t orders -a {name} -i 0 -p true -f true",
    "consumeMessage -t orders -c 1",
    "brokerStatus -b {broker}",
    "brokerStatus -c {cluster}",
    "brokerConsumeStats -b {broker}",
    "clusterList",
    "clusterList -m",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v 48",
    "updateBrokerConfig -c {cluster} -k fileReservedTime -v 49",
    "getBrokerConfig -b {broker}",
    "getBrokerConfig -c {cluster}",
    "updateNamesrvConfig -k orderMessageEnable -v false",
    "getNamesrvConfig",
    "updateKvConfig -s space -k key -v value",
    "deleteKvConfig -s space -k key",
    "wipeWritePerm -b {name}",
    "addWritePerm -b {name}",
    "cleanExpiredCQ -b {broker}",
    "cleanExpiredCQ -c {cluster}",
    "cleanUnusedTopic -b {broker}",
    "cleanUnusedTopic -c {cluster}",
    "exportMetadata -c {cluster} -f {home}",
    "exportMetadata -b {broker} -t -f {home}",
    "exportMetadata -b {broker} -g -f {home}",
    "exportConfigs -c {cluster} -f {home}",
    "exportMetrics -c {cluster} -f {home}",
    "deleteTopic -c {cluster} -t made",
    "deleteExpiredCommitLog -b {broker}",
)
COMMANDS_5: Final = (
    "setConsumeMode -c {cluster} -t orders -g billing -m PULL",
    "haStatus -b {broker}",
    "getBrokerEpoch -b {name}",
)
#: What RocketMQ does and TernMQ does not; ``broker.handlers.not_offered`` and ``net.unsupported`` say why.
NOT_OFFERED: Final = (
    "updateStaticTopic -t fixed -qn 4 -c {cluster}",
    "addBroker -c {broker} -b /nowhere/broker.conf",
    "removeBroker -c {broker} -b {cluster}:{name}:0",
    "resetMasterFlushOffset -b {broker} -o 0",
    "getColdDataFlowCtrInfo -b {broker}",
    "updateColdDataFlowCtrGroupConfig -b {broker} -g billing -v 100",
    "removeColdDataFlowCtrGroupConfig -b {broker} -g billing",
    "setCommitLogReadAheadMode -b {broker} -m 1",
    "electMaster -a {broker} -b 0 -bn {name} -c {cluster}",
    "getControllerMetaData -a {broker}",
    "getControllerMetaData -a {name_server}",
    "getSyncStateSet -a {broker} -b {name}",
    "updateControllerConfig -a {broker} -k key -v value",
    "getControllerConfig -a {broker}",
    "cleanBrokerMetadata -a {broker} -bn {name} -b 0 -c {cluster}",
)
#: What RocketMQ refuses, too: a topic of both is no static one.
FAILS_THERE_TOO: Final = ("remappingStaticTopic -t orders -c {cluster}",)
#: With access control, and credentials of an administrator.
ACL_COMMANDS: Final = (
    "updateAclConfig -c {cluster} -a fresh-key -s secret-of-fresh -t orders=PUB|SUB -g billing=SUB -m false",
    "clusterAclConfigVersion -c {cluster}",
    "updateGlobalWhiteAddr -c {cluster} -g 10.10.154.1,10.10.154.2",
    "deleteAclConfig -c {cluster} -a fresh-key",
)
ACL_COMMANDS_4: Final = ("getAclConfig -c {cluster}",)
#: A broker of 4.9.4 does not reset a group without members, and the tool then does it in another way; TernMQ resets it,
#: as RocketMQ 5 does.
OTHER_HEADINGS: Final = {
    ("4.9.4", "resetOffsetByTime -g made -t orders -s -1"),
    ("4.9.4", "skipAccumulatedMessage -g made -t orders"),
}
#: What the tool throws, and stack traces. A group without members is an exception in the text of a message's track.
_FAILURE: Final = re.compile(r"SubCommandException|^\s+at [\w.$]+\(", re.MULTILINE)
_CAUSES: Final = re.compile(r"^Caused by: .*$", re.MULTILINE)
_HEADINGS: Final = re.compile(r"^#.*$", re.MULTILINE)


class Shown(NamedTuple):
    """What a subcommand printed: whether it failed, and its headings, without what differs from run to run."""

    failed: bool
    headings: tuple[str, ...]
    text: str


class Place(NamedTuple):
    name_server: str
    broker: str
    fields: dict[str, str]
    credentials: Credentials | None


@asynccontextmanager
async def ready(
    name_server: str, broker: str, version: str, credentials: Credentials | None = None
) -> AsyncIterator[Place]:
    """A topic with a message, its producer, and a group that consumes it."""
    client = ClientConfig(name_server, serialization=jvm.form_for(version))
    if credentials is not None:
        client = replace(client, access_key=credentials.access_key, secret_key=credentials.secret_key)
    seen = Collector()
    consumer = PushConsumer("billing", seen, client=client, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    async with Producer("shop", client=client, trace=True) as producer:
        receipt = await producer.send(Message("orders", b"hello", keys="order-7"))
        for queue_id in range(4):
            await producer.send(
                Message("orders", b"1"), queue=MessageQueue("orders", receipt.queue.broker_name, queue_id)
            )
        async with consumer:
            await seen.wait(5)
            fields = {
                "cluster": "DefaultCluster",
                "name_server": name_server,
                "name": receipt.queue.broker_name,
                "broker": broker,
                "offset_id": receipt.offset_id,
                "message_id": receipt.message_id,
            }
            yield Place(name_server, broker, fields, credentials)


async def run(version: str, place: Place, directory: Path, command: str) -> Shown:
    signed = None if place.credentials is None else (place.credentials.access_key, place.credentials.secret_key)
    home = directory / re.sub(r"\W+", "-", command)
    await asyncio.to_thread(home.mkdir, parents=True)
    words = [word.format(**place.fields, home=home) for word in command.split()]
    try:
        text = await Java(version, home, credentials=signed).admin(place.name_server, *words)
        failed = False
    except PeerFailed as error:
        text, failed = str(error), True
    errors = await asyncio.to_thread((next(home.glob("java-*")) / "stderr.log").read_text)
    headings = tuple(re.sub(r"\s+|\d+", " ", line).strip() for line in _HEADINGS.findall(text))
    told = f"{text}\n{errors}"
    return Shown(failed or _FAILURE.search(told) is not None, headings, told)


async def run_all(version: str, place: Place, directory: Path, commands: tuple[str, ...]) -> dict[str, Shown]:
    return {command: await run(version, place, directory, command) for command in commands}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """consumerStatus writes what members say into a directory below the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["4.9.4", "5.2.0"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    """Servers of its own: some subcommands change what others see."""
    with rocketmq.cluster(request.param, tmp_path / "rocketmq", settings={"traceTopicEnable": "true"}) as servers:
        yield servers


@pytest.fixture(params=["4.9.4", "5.2.0"])
def guarded_theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    """With access control."""
    acl_in(tmp_path / "rocketmq" / "broker-a" / "conf")
    with rocketmq.cluster(request.param, tmp_path / "rocketmq", settings={"aclEnable": "true"}) as servers:
        yield servers


async def test_what_works_on_rocketmq_works_on_ternmq(theirs: RocketMQ, tmp_path: Path) -> None:
    """D6: no subcommand fails on TernMQ, and those that do not fail on RocketMQ have the same headings."""
    version = theirs.version
    commands = COMMANDS + (COMMANDS_5 if version >= "5" else ())
    async with (
        EmbeddedCluster(settings={"traceTopicEnable": "true"}) as ours,
        ready(ours.name_servers, ours.brokers[0].address, version) as here,
        ready(theirs.address, theirs.broker.address, version) as there,
    ):
        found, expected = await asyncio.gather(
            run_all(version, here, tmp_path / "ours", commands), run_all(version, there, tmp_path / "theirs", commands)
        )
        compare(version, found, expected)
        assert await first_row(version, here, tmp_path / "rt") == await first_row(
            version, there, tmp_path / "rt-theirs"
        )
        if version >= "5":
            for command in FAILS_THERE_TOO:
                failed = [
                    await run(version, here, tmp_path / "fails", command),
                    await run(version, there, tmp_path / "fails-theirs", command),
                ]
                assert {True} == {shown.failed for shown in failed}
                assert 1 == len({tuple(_CAUSES.findall(shown.text)) for shown in failed}), failed


async def test_what_works_with_access_control_on_rocketmq_works_on_ternmq(
    guarded_theirs: RocketMQ, tmp_path: Path
) -> None:
    """D6, N1."""
    version = guarded_theirs.version
    conf = acl_in(tmp_path / "conf")
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    # Later tools have no such command.
    commands = ACL_COMMANDS + (() if version >= "5" else ACL_COMMANDS_4)
    async with (
        EmbeddedCluster(settings={"aclEnable": True, "aclPath": conf}) as ours,
        ready(ours.name_servers, ours.brokers[0].address, version, BOSS) as here,
        ready(guarded_theirs.address, guarded_theirs.broker.address, version, BOSS) as there,
    ):
        found = await run_all(version, here, tmp_path / "ours", commands)
        expected = await run_all(version, there, tmp_path / "theirs", commands)
    compare(version, found, expected)


def compare(version: str, found: dict[str, Shown], expected: dict[str, Shown]) -> None:
    # A mistake of this test.
    misused = ("usage: mqadmin", "The sub command", "Missing required option")
    assert {} == {name: shown.text for name, shown in found.items() if any(text in shown.text for text in misused)}
    assert {} == {name: shown.text for name, shown in found.items() if shown.failed}
    others = {
        name: (shown.headings, expected[name].headings)
        for name, shown in found.items()
        if not expected[name].failed
        and shown.headings != expected[name].headings
        and (version, name) not in OTHER_HEADINGS
    }
    assert {} == others


async def first_row(version: str, place: Place, directory: Path) -> tuple[str, ...]:
    """The headings of ``clusterRT``, which prints a row for each round until it is stopped, and who is in the first."""
    java = Java(version, directory)
    words = ["clusterRT", "-n", place.name_server, "-a", "3", "-s", "64", "-i", "1"]
    async with java.peer("admin", arguments=words) as peer:
        heading = await peer.line(lambda line: line.startswith("#"))
        row = await peer.line(lambda line: line.startswith(place.fields["cluster"]))
        await peer.kill()
    cluster, _broker, _time, sent, failed = row.split()
    return *heading.split(), cluster, sent, failed


async def test_what_is_not_offered_is_told_to_the_tool(tmp_path: Path) -> None:
    """D6: with the reason."""
    version = "5.2.0"
    async with EmbeddedCluster() as ours, ready(ours.name_servers, ours.brokers[0].address, version) as here:
        found = await run_all(version, here, tmp_path, NOT_OFFERED)

    assert {} == {name: shown.text for name, shown in found.items() if "is not supported: " not in shown.text}
