"""Servers from the command line: start, stop, restart, break (T1, C7)."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Start, tern


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


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


def test_a_broker_that_dies_is_reported_and_ends_up(tmp_path: Path, start: Start) -> None:
    up = start("up", "--dir", str(tmp_path), "--port", "0", "--broker-port", "0", "--brokers", "2")

    os.kill(up.ready["pids"]["broker-b"], signal.SIGKILL)

    assert 1 == up.wait()
    assert "tern: broker-b was killed by SIGKILL; its log above says more" == up.errors.splitlines()[-1]


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

    assert (1, "") == (same_port.returncode, same_port.stdout)
    assert (
        f"tern: port {port} on 0.0.0.0 is in use; stop the program that holds it, or choose another port\n"
        == same_port.stderr
    )
    assert (1, "") == (same_directory.returncode, same_directory.stdout)
    store = tmp_path / "data" / "broker-a"
    assert (
        f"tern: broker-a cannot start: another process holds the store directory {store}; stop that broker, or give "
        "this one a directory of its own (storePathRootDir)\n" == same_directory.stderr
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
    assert f"unknown setting place='{config}, line 8' key=defaultTopicQueueNum did_you_mean=defaultTopicQueueNums" in (
        broker.errors
    )
    assert "does not use place=" in broker.errors
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

    assert (1, "") == (refused.returncode, refused.stdout)
    assert "tern topic create unknown" in refused.stderr
    assert 1 == up.errors.count("unknown setting")
    assert "did_you_mean=listenPort" in up.errors
