"""Bad input: one sentence that names the thing and the cure, an exit code of its kind, no traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.cli.exits import ExitCode
from tests.cli.conftest import tern

FAILURES = {code.value for code in ExitCode} - {ExitCode.DONE, ExitCode.INTERRUPTED}
Tern = Callable[..., subprocess.CompletedProcess[str]]


def sentence(done: subprocess.CompletedProcess[str], *, code: int | None = None) -> str:
    """The one line on stderr of a command that failed as it should; ``test_exits`` has the codes."""
    assert ({code} if code is not None else FAILURES) >= {done.returncode}
    assert "" == done.stdout
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("topic", "route", "nothing"), "tern: there is no topic 'nothing'; see `tern topic list`, or create it with"),
        (("topic", "delete", "nothing", "--yes"), "tern: there is no topic 'nothing'"),
        (("topic", "create", "bad name"), "tern: the topic name 'bad name' has characters that are not allowed; use"),
        (("topic", "create", "x" * 200), "tern: the topic name 'xxxxx"),
        (
            ("topic", "create", "fine", "--cluster", "Other"),
            "tern: there is no cluster 'Other'; the clusters are DefaultC",
        ),
        (("group", "progress", "nobody"), "tern: group 'nobody' does not exist; see `tern group list`"),
        (("send", "bad name", "x"), "tern: the topic name 'bad name' has characters that are not allowed"),
        (("send", "fine", ""), "tern: the message to 'fine' has an empty body; send at least one byte"),
        (("send", "fine", "--file", "/no/such"), "tern: cannot read /no/such: No such file or directory; check"),
        (("send", "fine", "--file", "/"), "tern: cannot read the input: Is a directory; check the path after --file"),
        (("consume", "nothing"), "tern: no name server knows the topic 'nothing'; create it with `tern topic create"),
        (("consume", "nothing", "-g", "g"), "tern: no name server knows the topic 'nothing'"),
        (
            ("consume", "fine", "-g", "bad group"),
            "tern: the group name 'bad group' has characters that are not allowed",
        ),
        (("consume", "fine", "--from", "soon"), "tern: 'soon' is not a valid time; expected 2026-01-31T12:00, 15m"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_wrong_name_is_answered_with_the_cure(on_cluster: Tern, arguments: tuple[str, ...], expected: str) -> None:
    assert sentence(on_cluster(*arguments)).startswith(expected)


def test_a_body_too_large_is_refused_before_the_network(on_cluster: Tern) -> None:
    """E1, E2."""
    done = on_cluster("send", "fine", "--file", "-", stdin=b"x" * (4 * 1024 * 1024 + 1))

    assert "4194305 bytes" in sentence(done)
    assert "larger than the 4194304 allowed" in done.stderr


def test_what_was_sent_before_an_error_is_told(on_cluster: Tern) -> None:
    """Nothing lost: the receipts of the good lines are printed, in order."""
    done = on_cluster("send", "partly", "--file", "-", stdin=b"good\nalso good\n" + b"x" * 5_000_000)

    assert (2, ["SEND_OK", "SEND_OK"]) == (done.returncode, [line.split("\t")[0] for line in done.stdout.splitlines()])
    told, why = done.stderr.splitlines()
    assert "2 messages were sent before this error:" == told
    assert "5000000 bytes" in why


def test_no_name_server_says_how_to_start_one() -> None:
    """A6."""
    said = sentence(tern("topic", "list", "-n", "127.0.0.1:1"))

    assert said.startswith("tern: no name server answers at 127.0.0.1:1 (")
    assert "start one with `tern up`" in said


def test_an_address_that_is_none_is_refused() -> None:
    assert "tern: invalid address 'nonsense': expected host:port, as in 127.0.0.1:9876" == sentence(
        tern("send", "fine", "x", "-n", "nonsense")
    )


def test_a_broken_config_line_is_named(tmp_path: Path) -> None:
    """T2."""
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=a\nthis is no setting\n")

    assert f"tern: {config}, line 2: invalid line 'this is no setting': expected key=value, or # for a comment" == (
        sentence(tern("broker", "-c", str(config)))
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("broker", "--set", "listenPort=high"), "tern: --set: invalid listenPort 'high': expected a whole number"),
        (
            ("broker", "--set", "listenPort=70000"),
            "tern: invalid listenPort 70000: expected 0 to 65535 (listen",
        ),
        (
            ("broker", "-c", "/no/such.conf"),
            "tern: cannot read the config file /no/such.conf: No such file or directory",
        ),
        (("namesrv", "--log-level", "loud"), "tern: invalid log level 'loud': expected one of debug, info, warning"),
        (("up", "--set", "listenPort=1"), "tern: listenPort cannot be set with `tern up --set`: use --broker-port"),
        (
            ("up", "--set", "flushDiskType=NEVER"),
            "tern: --set: invalid flushDiskType 'NEVER': expected one of ASYNC_F",
        ),
        (
            ("up", "--port", "70000"),
            "tern: invalid --port 70000: expected a port from 1 to 65535, or 0 for any free port",
        ),
        (
            ("up", "--broker-port", "-1"),
            "tern: invalid --broker-port -1: expected a port from 1 to 65535, or 0 for any free port",
        ),
        (("up", "--dir", "/dev/null/x"), "tern: cannot use the directory /dev/null/x: Not a directory; choose another"),
        (("up", "--brokers", "0", "--port", "0"), "tern: invalid --brokers 0: expected 1 to 26"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_wrong_setting_stops_a_server_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where ``tern up`` makes its directory

    assert sentence(tern(*arguments)).startswith(expected)


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("topic", "create"), ("send", "t"), ("send", "t", "x", "-P", "novalue"), ("up", "--x")]
)
def test_wrong_usage_is_exit_code_two(arguments: tuple[str, ...]) -> None:
    done = tern(*arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("Usage: tern")
    assert "Traceback" not in done.stderr


def test_debug_anywhere_on_the_line_shows_the_traceback() -> None:
    done = tern("topic", "list", "-n", "nonsense", "--debug")

    assert 1 == done.returncode
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_help_teaches_by_example() -> None:
    done = tern("--help")

    assert 0 == done.returncode
    for command in ("tern up", "tern send orders 'hello'", "tern consume orders", "topic", "group"):
        assert command in done.stdout
