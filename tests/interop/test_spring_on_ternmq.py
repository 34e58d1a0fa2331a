"""Spring's ``rocketmq-spring-boot-starter`` (2.3.1, on RocketMQ's client 5.3.0) on TernMQ's servers (V1). One
application does everything: its start takes most of the time."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import pytest

from ternmq import Admin, EmbeddedCluster
from tests.client.send.test_transaction import QUICK, is_settled, until
from tests.interop.conftest import PEER, TOPICS
from tests.interop.java import Event, Peer
from tests.interop.spring import application
from tests.interop.test_go_on_ternmq import bodies, exists, numbered
from tests.interop.test_transactions import reading

pytestmark = pytest.mark.interop


async def test_a_spring_application_sends_consumes_answers_and_is_checked(tmp_path: Path) -> None:
    """V1, E1, E5 to E7, F1, F2, H1, I1, I2, J1, J2, K1."""
    async with EmbeddedCluster(settings={**QUICK, "messageDelayLevel": "1s 5s 1s"}) as cluster:
        async with Admin(cluster.name_servers) as admin:
            for topic in TOPICS:
                await admin.topics.create(topic)
            # The first member of a group makes its retry topic. The application would learn of that 30 s later.
            async with reading(cluster.name_servers, "orders", group="shop"):
                await until(lambda: exists(admin, "%RETRY%shop"))
        async with application(cluster.name_servers, tmp_path / "spring") as spring:
            await _sends_and_consumes(spring)
            await _gets_what_failed_again(spring)
            await _keeps_order(spring)
            await _waits(spring)
            await _asks(spring)
            await _settles(spring, cluster)
        async with Admin(cluster.name_servers) as admin:
            [found] = await admin.messages.by_key("orders", "键-3")
        assert b"keyed-3" == found.body


async def test_a_spring_application_signs_and_is_let_in(signed_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """V1, N1: sends, all listeners, a transaction, a request and its reply. What is refused, ``test_acl.py`` says."""
    names = signed_cluster.name_servers
    async with application(names, tmp_path / "spring", accessKey=PEER.access_key, secretKey=PEER.secret_key) as spring:
        await spring.send(to="orders:paid", body="signed", count=3)
        await spring.send(to="orders:paid", body="transacted", mode="transaction", local="COMMIT")
        assert sorted([*numbered(3, "signed"), b"transacted-0"]) == bodies(await spring.messages(4))
        await _asks(spring)


async def _sends_and_consumes(spring: Peer) -> None:
    await spring.send(to="orders:other", body="other")
    for mode in ("sync", "async", "oneway", "batch"):
        results = await spring.send(to="orders:paid", mode=mode, body=mode, count=5)
        assert {"SEND_OK"} >= {result["status"] for result in results}
    await spring.send(to="orders:sent", body="keyed", count=5, key="键", properties={"城市": "杭州"})
    messages = await spring.messages(25)
    expected = [body for prefix in ("sync", "async", "oneway", "batch", "keyed") for body in numbered(5, prefix)]
    assert sorted(expected) == bodies(messages)
    assert {"杭州"} == {one["properties"]["城市"] for one in messages if one["tags"] == "sent"}


async def _gets_what_failed_again(spring: Peer) -> None:
    await spring.send(to="orders:paid", body="failing")
    attempts = await spring.messages(2)
    assert [(b"failing-0", 0), (b"failing-0", 1)] == [(one["body"], one["reconsumeTimes"]) for one in attempts]
    assert 1 == len({one["msgId"] for one in attempts})


async def _keeps_order(spring: Peer) -> None:
    results = await spring.send(to="steps", mode="ordered", body="step", count=24)
    assert len({result["queueId"] for result in results}) <= 3
    by_queue: defaultdict[int, list[Event]] = defaultdict(list)
    for message in await spring.messages(24):
        by_queue[message["queueId"]].append(message)
    assert all(
        [one["queueOffset"] for one in came] == sorted(one["queueOffset"] for one in came) for came in by_queue.values()
    )


async def _waits(spring: Peer) -> None:
    sent_at_ms = int(time.time() * 1000)
    await spring.send(to="orders:paid", mode="level", level=2, body="level")
    await spring.send(to="orders:paid", mode="deliver", atMs=sent_at_ms + 3_000, body="time")
    await spring.send(to="orders:paid", body="now")
    came_at_ms = {message["body"]: message["at"] for message in await spring.messages(3)}
    assert {b"now-0", b"level-0", b"time-0"} == came_at_ms.keys()
    assert came_at_ms[b"level-0"] >= sent_at_ms + 5_000
    assert came_at_ms[b"time-0"] >= sent_at_ms + 3_000


async def _asks(spring: Peer) -> None:
    await spring.send(to="questions", mode="request", body="what")
    assert "answer to what-0" == (await spring.event("answer"))["text"]


async def _settles(spring: Peer, cluster: EmbeddedCluster) -> None:
    for body, local in (("paid", "COMMIT"), ("undone", "ROLLBACK"), ("checked", "UNKNOWN"), ("lost", "UNKNOWN")):
        await spring.send(to="orders:paid", mode="transaction", body=body, local=local)
    await spring.event("check", where=lambda check: check["body"] == "checked-0")
    await spring.event("check", where=lambda check: check["body"] == "lost-0")
    await until(lambda: is_settled(cluster))
    assert [b"checked-0", b"paid-0"] == bodies(await spring.messages(2))
    # Had another one been committed, it would come before this.
    await spring.send(to="orders:paid", body="end")
    assert [b"end-0"] == bodies(await spring.messages(1))
