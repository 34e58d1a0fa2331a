"""``tern config`` on a running broker (T2)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Start, tern


def test_settings_are_shown_and_changed(start: Start, tmp_path: Path) -> None:
    names = start("namesrv", "-p", "0", "--set", f"kvConfigPath={tmp_path / 'kv.json'}").name_server
    flags = ("bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", "brokerName=broker-a", "listenPort=0")
    given = [part for flag in (*flags, f"storePathRootDir={tmp_path / 'a'}") for part in ("--set", flag)]
    start("broker", "-n", names, *given)

    changed = tern("config", "set", "fileReservedTime=48", "brokerPermission=4", "-b", "broker-a", "-n", names)
    shown = tern("config", "show", "fileReserved*", "listenPort", "brokerPERMISSION", "-n", names, "--json")
    refused = tern("config", "set", "listenPort=1", "-n", names)
    unknown = tern("config", "set", "fileReservedTime=1", "-b", "broker-x", "-n", names)
    malformed = tern("config", "set", "fileReservedTime", "-n", names)

    assert 0 == changed.returncode, changed.stderr
    assert [("brokerPermission", "4", True), ("fileReservedTime", "48", True), ("listenPort", "0", False)] == [
        (row["setting"], row["value"], row["live"]) for row in json.loads(shown.stdout)
    ]
    assert (4, True) == (refused.returncode, "listenPort cannot be changed at run time" in refused.stderr)
    assert (3, True) == (unknown.returncode, "the registered brokers are broker-a" in unknown.stderr)
    assert (2, True) == (malformed.returncode, "expected KEY=VALUE" in malformed.stderr)


def test_settings_of_name_servers_are_kept(start: Start, tmp_path: Path) -> None:
    """T2: of all that -n names."""
    servers = [start("namesrv", "-p", "0", "--set", f"kvConfigPath={tmp_path / name}") for name in ("a.json", "b.json")]
    names = ";".join(server.name_server for server in servers)

    changed = tern("config", "set", "orderMessageEnable=true", "--of-name-servers", "-n", names)
    shown = tern("config", "show", "orderMessage*", "--of-name-servers", "-n", names, "--json")
    refused = tern("config", "set", "brokerPermission=4", "--of-name-servers", "-n", names)

    assert 0 == changed.returncode, changed.stderr
    assert [("true", True)] * 2 == [(row["value"], row["live"]) for row in json.loads(shown.stdout)]
    assert (4, True) == (refused.returncode, "a TernMQ name server has no setting brokerPermission" in refused.stderr)
    for name in ("a", "b"):
        assert "orderMessageEnable=true" in (tmp_path / f"{name}.settings.properties").read_text().splitlines()


def test_the_origin_of_each_setting_is_shown(start: Start, tmp_path: Path) -> None:
    """T2: default, file and line, environment, flag, run time; of brokers and of name servers."""
    kv = tmp_path / "kv.json"
    names = start("namesrv", "-p", "0", "--set", f"kvConfigPath={kv}", TERNMQ_MAX_BROKERS="7").name_server
    file = tmp_path / "broker.conf"
    file.write_text("# a comment\nbrokerName=broker-a\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nlistenPort=0\n")
    flags = ("--set", f"storePathRootDir={tmp_path / 'a'}", "--set", "timerMaxDelaySec=1000")
    start("broker", "-c", str(file), "-n", names, *flags, TERNMQ_DELETE_WHEN="05")
    tern("config", "set", "fileReservedTime=48", "-n", names)

    wanted = ("brokerName", "deleteWhen", "timerMaxDelaySec", "fileReservedTime", "brokerPermission")
    shown = json.loads(tern("config", "show", *wanted, "--origin", "-n", names, "--json").stdout)
    plain = json.loads(tern("config", "show", *wanted, "-n", names, "--json").stdout)
    of_names = json.loads(
        tern("config", "show", "maxBrokers", "--origin", "--of-name-servers", "-n", names, "--json").stdout
    )

    assert {
        "brokerName": f"{file}, line 2",
        "deleteWhen": "environment variable TERNMQ_DELETE_WHEN",
        "timerMaxDelaySec": "--set",
        "fileReservedTime": "changed at run time",
        "brokerPermission": "default",
    } == {row["setting"]: row["origin"] for row in shown}
    assert all("origin" not in row for row in plain)
    assert ["environment variable TERNMQ_MAX_BROKERS"] == [row["origin"] for row in of_names]
