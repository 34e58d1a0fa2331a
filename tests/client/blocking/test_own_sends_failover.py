"""Threads that send by themselves while brokers are killed, and while others take the lead (E4, P4)."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

from ternmq import Message, StartPosition, SyncAdmin, SyncProducer, SyncPushConsumer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import TernError
from ternmq.message import SendStatus
from tests.cli.conftest import Serving, Start, starter
from tests.cli.test_promote import broker
from tests.client.blocking.own_sends import LONG_MS, open_lines
from tests.hosts import hosts

LONG_S = 120.0


class Sender:
    """One thread that sends, one message after the other, until it is left."""

    def __init__(self, name_servers: str) -> None:
        self._names = name_servers
        self.acknowledged: list[bytes] = []
        self.failed: list[TernError] = []
        self._is_over = False
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._send)
        self.producer = SyncProducer("shop", name_servers=name_servers)

    def __enter__(self) -> Sender:
        self.producer.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(LONG_S)
        self.producer.__exit__(None, None, None)

    def _send(self) -> None:
        number = 0
        while not self._is_over:
            number += 1
            body = b"%d" % number
            try:
                receipt = self.producer.send(Message("orders", body), timeout_ms=LONG_MS)
            except TernError as error:
                self.failed.append(error)
                continue
            assert SendStatus.OK is receipt.status
            with self._grown:
                self.acknowledged.append(body)
                self._grown.notify_all()

    def send_on(self, lines: int) -> None:
        """Wait until some hundred more are acknowledged, and this has so many lines."""
        goal = len(self.acknowledged) + 200
        with self._grown:
            assert self._grown.wait_for(
                lambda: self.failed or (len(self.acknowledged) >= goal and len(open_lines(self.producer)) >= lines),
                LONG_S,
            )

    def missing(self) -> set[bytes]:
        """What was acknowledged and does not come."""
        missing = set(self.acknowledged)
        with SyncPushConsumer("audit", name_servers=self._names, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                with message:
                    missing.discard(message.body)
                if not missing:
                    break
        return missing


def wait_for_masters(names: str, count: int) -> None:
    with SyncAdmin(names) as admin:
        while True:
            # Without any there is an error.
            with suppress(TernError):
                if count == len(admin.brokers.masters()):
                    return
            threading.Event().wait(0.05)


def test_no_send_fails_and_none_is_lost_while_brokers_are_killed_in_turn(tmp_path: Path) -> None:
    """E4, C6: what a killed broker has not answered goes to the other one."""
    with starter(tmp_path) as start:
        names = start("namesrv", "-p", "0", "--set", "bindAddress=127.0.0.1").name_server
        brokers = {name: begin(start, tmp_path, names, name) for name in ("broker-a", "broker-b")}
        wait_for_masters(names, 2)
        with SyncAdmin(names) as admin:
            admin.topics.create("orders", queues=4)
            # Brokers register a new topic a moment later.
            while 2 != len(admin.topics.route("orders").broker_datas):
                threading.Event().wait(0.05)
        with Sender(names) as sender:
            for name in (*brokers, *brokers):
                sender.send_on(2)
                port = int(brokers[name].ready["address"].rpartition(":")[2])
                brokers[name].end(signal.SIGKILL)
                sender.send_on(1)
                brokers[name] = begin(start, tmp_path, names, name, port)
                wait_for_masters(names, 2)
            sender.send_on(2)
        assert [] == sender.failed
        assert set() == sender.missing()


def begin(start: Start, directory: Path, names: str, name: str, port: int = 0) -> Serving:
    return broker(start, directory / name, names, {"brokerName": name, "listenPort": port})


def test_no_send_fails_while_the_leadership_of_a_group_goes_around() -> None:
    """P4: a line to the last leader gets refusals, and the send waits for the next one on the loop."""
    with EmbeddedCluster(raft=3) as cluster, SyncAdmin(cluster.name_servers) as admin:
        wait_for_masters(cluster.name_servers, 1)
        admin.topics.create("orders", queues=4)
        with Sender(cluster.name_servers) as sender:
            for _ in range(4):
                sender.send_on(1)
                leader = cluster.leader()
                admin.raft.transfer()
                assert leader is not cluster.leader()
            sender.send_on(1)
        assert [] == sender.failed
        assert set() == sender.missing()


def test_no_send_fails_while_the_machine_of_a_broker_goes_without_a_word(tmp_path: Path) -> None:
    """B2, E4: network namespaces; the name server lists the broker for two minutes more."""
    with hosts("client", "dying", "other") as net:
        done = net.run("client", "tests.client.blocking.lost_network", net.prefix, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
