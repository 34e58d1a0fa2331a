"""Servers from the command line: start, stop, restart, break (T1, C7)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from ternmq.net import dial
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_admin import KvKey, KvReply
from tests.cli.conftest import Start, tern
from tests.net.address_servers import Listing, address_server


async def kv_of(name_server: str) -> str | None:
    async with Tasks() as tasks:
        peer = await dial.connect(name_server, routes={}, lanes=Lanes([LaneConfig("client")]), tasks=tasks)
        header = KvKey(namespace="ORDER_TOPIC_CONFIG", key="orders")
        response = await peer.call(RequestCode.GET_KV_CONFIG, header, timeout_ms=30_000)
        peer.close()
        return response.read(KvReply).value if response.code == ResponseCode.SUCCESS else None


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_stops_cleanly_and_finds_everything_again(tmp_path: Path, start: Start, number: int) -> None:
    """C7: no abort file stays, and a restart serves what was acknowledged."""
    arguments = ("up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0")
    first = start(*arguments)
    assert 0 == tern("send", "orders", "kept", "-n", first.name_server).returncode

    assert 0 == first.end(number)

    assert "" == first.errors
    assert not (tmp_path / "data" / "broker-a" / "abort").exists()
    second = start(*arguments)
    assert "kept\n" == tern("consume", "orders", "--no-follow", "-n", second.name_server).stdout


def test_up_with_slaves_keeps_two_copies(tmp_path: Path, start: Start) -> None:
    """O1, O2, T1: a synchronous master and its slave; the directories have the same log."""
    arguments = ("up", "--dir", str(tmp_path), "--port", "0", "--broker-port", "0", "--slaves", "1")
    up = start(*arguments, "--set", "brokerRole=SYNC_MASTER", "--set", "mappedFileSizeCommitLog=1048576")
    assert {"broker-a", "broker-a-slave-1"} == set(up.ready["brokers"])
    copy = tmp_path / "broker-a-slave-1" / "commitlog" / f"{0:020}"
    limit = time.monotonic() + 60
    while not (copy.exists() and b"a message with two copies" in copy.read_bytes()) and time.monotonic() < limit:
        assert 0 == tern("send", "orders", "a message with two copies", "-n", up.name_server).returncode
    assert 0 == up.end(signal.SIGTERM)
    assert copy.read_bytes() == (tmp_path / "broker-a" / "commitlog" / f"{0:020}").read_bytes()


def test_a_broker_that_dies_is_reported_and_ends_up(tmp_path: Path, start: Start) -> None:
    up = start("up", "--dir", str(tmp_path), "--port", "0", "--broker-port", "0", "--brokers", "2")

    os.kill(up.ready["pids"]["broker-b"], signal.SIGKILL)

    assert 1 == up.wait()
    assert "tern: broker-b was killed by SIGKILL; see its log lines above" == up.errors.splitlines()[-1]


def test_brokers_go_down_with_a_killed_supervisor(tmp_path: Path, start: Start) -> None:
    up = start("up", "--dir", str(tmp_path), "--port", "0", "--broker-port", "0")
    with connect(up.ready["brokers"]["broker-a"]) as broker:
        assert -signal.SIGKILL == up.end(signal.SIGKILL)
        assert b"" == broker.recv(1)  # returns when the broker closes the connection, which is when it stops


def test_a_second_up_on_the_same_port_or_directory_is_refused(tmp_path: Path, start: Start) -> None:
    """Bad input: the first one goes on undisturbed."""
    first = start("up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0")
    port = first.name_server.rpartition(":")[2]

    same_port = tern("up", "--dir", str(tmp_path / "other"), "--port", port, "--broker-port", "0")
    same_directory = tern("up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0")

    assert (5, "") == (same_port.returncode, same_port.stdout)
    assert (
        f"tern: port {port} on 127.0.0.1 is in use; stop the program that uses it, or choose another port\n"
        == same_port.stderr
    )
    assert (1, "") == (same_directory.returncode, same_directory.stdout)
    store = tmp_path / "data" / "broker-a"
    assert (
        f"tern: broker-a cannot start: the store directory {store} is in use by another process; stop that broker, "
        "or give this one another directory (storePathRootDir)\n" == same_directory.stderr
    )
    assert 0 == tern("send", "orders", "x", "-n", first.name_server).returncode


def test_a_broker_joins_a_name_server_with_rocketmq_s_own_file(tmp_path: Path, start: Start) -> None:
    """T2: ``tern namesrv`` and ``tern broker -c broker.conf -n host:port``; unknown keys warn with the nearest name."""
    name_server = start("namesrv", "-p", "0").name_server
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerClusterName = Shop\nbrokerName = shop-a\nbrokerIP1 = 127.0.0.1\nlistenPort = 0\n"
        f"storePathRootDir = {tmp_path / 'store'}\nflushDiskType = SYNC_FLUSH\n"
        "sendMessageThreadPoolNums = 16\ndefaultTopicQueueNum = 4\n"
    )

    broker = start("broker", "-c", str(config), "-n", name_server, "--set", "mappedFileSizeCommitLog=16777216")

    assert ("ready", "shop-a") == (broker.ready["event"], broker.ready["broker"])
    assert (
        f"unknown setting defaultTopicQueueNum ({config}, line 8); did you mean defaultTopicQueueNums?" in broker.errors
    )
    assert "this program does not use the RocketMQ setting sendMessageThreadPoolNums" in broker.errors
    assert 0 == tern("send", "orders", "x", "-n", name_server).returncode
    (route,) = json.loads(tern("topic", "route", "orders", "-n", name_server, "--json").stdout)
    assert ("Shop", "shop-a", broker.ready["address"]) == (route["cluster"], route["broker"], route["address"])
    assert 16777216 == next((tmp_path / "store" / "commitlog").iterdir()).stat().st_size
    assert 0 == broker.end(signal.SIGTERM)


def test_settings_of_up_reach_all_brokers(tmp_path: Path, start: Start) -> None:
    up = start(
        *("up", "--dir", str(tmp_path), "--port", "0", "--broker-port", "0"),
        *("--set", "autoCreateTopicEnable=false", "--set", "listenProt=1"),
    )

    refused = tern("send", "unknown", "x", "-n", up.name_server)

    assert (3, "") == (refused.returncode, refused.stdout)
    assert "tern topic create unknown" in refused.stderr
    assert 1 == up.errors.count("unknown setting")
    assert "did you mean listenPort?" in up.errors


def refuses(address: str) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        connect(address).close()
        return False
    return True


def test_up_is_for_this_machine_unless_it_is_asked(tmp_path: Path, start: Start) -> None:
    """Issue 13, 7: it printed 127.0.0.1 and listened on all interfaces."""
    up = start("up", "--dir", str(tmp_path / "a"), "--port", "0", "--broker-port", "0")
    ports = [address.rpartition(":")[2] for address in (up.ready["name_server"], up.ready["brokers"]["broker-a"])]
    assert "127.0.0.1" == up.ready["listens_on"]
    assert not any(refuses(f"127.0.0.1:{port}") for port in ports)
    # The whole of 127.0.0.0/8 is this machine; who listens on 0.0.0.0 is there as well.
    assert all(refuses(f"127.0.0.2:{port}") for port in ports)
    up.end(signal.SIGTERM)

    asked = start("up", "--dir", str(tmp_path / "b"), "--port", "0", "--broker-port", "0", "--host", "127.0.0.3")
    ports = [address.rpartition(":")[2] for address in (asked.ready["name_server"], asked.ready["brokers"]["broker-a"])]
    assert "0.0.0.0" == asked.ready["listens_on"]
    assert asked.ready["brokers"]["broker-a"].startswith("127.0.0.3:")
    assert not any(refuses(f"127.0.0.2:{port}") for port in ports)
    asked.end(signal.SIGTERM)

    nowhere = tern("up", "--dir", str(tmp_path / "c"), "--host", "0.0.0.0")
    assert (2, True) == (nowhere.returncode, "clients cannot connect to this address" in nowhere.stderr)


def test_servers_say_where_they_listen(tmp_path: Path, start: Start) -> None:
    """Issue 13, 7."""
    broker = start(
        "broker",
        *("--set", "listenPort=0", "--set", "brokerIP1=127.0.0.1", "--set", f"storePathRootDir={tmp_path}"),
        *("--set", "brokerName=room1@broker-a"),
    )
    port = broker.ready["address"].rpartition(":")[2]
    assert (f"127.0.0.1:{port}", f"0.0.0.0:{port}") == (broker.ready["address"], broker.ready["listens_on"])


def test_a_name_server_keeps_what_tools_give_it(tmp_path: Path, start: Start) -> None:
    """Issue 13, 14: in RocketMQ's own place, unless it is told another or none."""
    path = tmp_path / "namesrv" / "kvConfig.json"
    path.parent.mkdir()
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4"}}}')
    for settings, value in (((), "broker-a:4"), (("--set", "kvConfigPath="), None)):
        server = start("namesrv", "-p", "0", *settings, HOME=str(tmp_path))
        assert value == asyncio.run(kv_of(server.name_server))
        server.end(signal.SIGTERM)


def test_a_server_that_would_stand_open_does_not_start(tmp_path: Path) -> None:
    """Issue 13, 14: settings that ask for less, or other, security than is built."""
    (tmp_path / "broker.conf").write_text("brokerName=a\nauthenticationWhitelist=105\n")
    for command in (
        ("broker", "-c", str(tmp_path / "broker.conf")),
        ("namesrv", "--set", "useTLS=true"),
        ("up", "--dir", str(tmp_path), "--set", "authorizationWhitelist=105"),
    ):
        refused = tern(*command)
        assert (2, "") == (refused.returncode, refused.stdout)
        assert "not supported" in refused.stderr
    unset = tern("namesrv", "-p", "0", TERNMQ_TLS_SERVER_MODE="permissive")
    assert 2 == unset.returncode
    assert "tls.server.mode=permissive needs tls.server.certPath" in unset.stderr


def test_servers_and_tools_find_name_servers_through_an_address_server(tmp_path: Path, start: Start) -> None:
    """A6, T1: a URL in place of the list, for -n, the environment and namesrvAddr."""
    names = start("namesrv", "-p", "0").name_server
    with address_server(Listing(names)) as listing:
        store = ("--set", "listenPort=0", "--set", "brokerIP1=127.0.0.1", "--set", f"storePathRootDir={tmp_path / 'a'}")
        start("broker", "--set", f"namesrvAddr={listing.url}", "--set", "brokerName=broker-a", *store)
        assert 0 == tern("send", "orders", "x", "-n", listing.url).returncode
        assert "x\n" == tern("consume", "orders", "--no-follow", NAMESRV_ADDR=listing.url).stdout
    away = tern("topic", "list", "-n", listing.url)
    assert (5, True) == (away.returncode, f"the address server {listing.url} does not tell" in away.stderr)


def test_a_setting_for_rocketmqs_address_server_is_named_with_the_cure(tmp_path: Path, start: Start) -> None:
    """A6, T2: and serverLoadBalancerEnable, which brokers cannot switch off."""
    flags = (
        *(f"storePathRootDir={tmp_path / 'a'}", "listenPort=0", "fetchNamesrvAddrByAddressServer=true"),
        "serverLoadBalancerEnable=false",
    )
    broker = start("broker", *(part for flag in flags for part in ("--set", flag)))
    assert "namesrvAddr=http://HOST:8080/rocketmq/nsaddr" in broker.errors
    assert "serverLoadBalancerEnable=false has no effect: brokers always assign queues" in broker.errors
