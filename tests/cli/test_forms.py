"""Forms of the output, and ``--watch`` (T1)."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
from collections.abc import Callable

from ternmq.cli.output import Form, Output, shown_as
from tests.cli.conftest import ENVIRONMENT, TERN, Serving
from tests.cli.terminal import terminal

Tern = Callable[..., subprocess.CompletedProcess[str]]


def written(*calls: Callable[[Output], None]) -> list[list[str]]:
    stream = io.StringIO()
    with shown_as(Form.CSV):
        output = Output(as_json=False, stream=stream)
    for call in calls:
        call(output)
    return list(csv.reader(io.StringIO(stream.getvalue())))


def test_csv_keeps_commas_quotes_and_lines_apart() -> None:
    """T1: any program reads back what was written."""
    row = {"text": 'a, "b"\nc', "none": None, "yes": True, "list": ["x", "y"], "parts": {"k": [1]}}

    read = written(lambda output: output.rows([row], columns=tuple(row), empty=""))

    assert [list(row), ['a, "b"\nc', "", "yes", "x, y", '{"k":[1]}']] == read


def test_a_stream_has_one_heading() -> None:
    """T1: and lines that are only for people are left out."""
    read = written(
        lambda output: output.item({"id": 1, "at": "x"}, "one"),
        lambda output: output.item({}, "for people"),
        lambda output: output.item({"id": 2, "at": "y", "more": 3}, "two"),
    )

    assert [["id", "at"], ["1", "x"], ["2", "y"]] == read


def test_an_empty_list_has_a_heading() -> None:
    """T1: a program knows the columns."""
    assert [["a", "b"]] == written(lambda output: output.rows([], columns=("a", "b"), empty="nothing"))


def test_all_forms_tell_the_same(on_cluster: Tern) -> None:
    """T1: ``--json`` is ``--output json``; two of them at once are refused."""
    on_cluster("topic", "create", "formed", "--queues", "2")

    short = on_cluster("topic", "route", "formed", "--json").stdout
    long = on_cluster("topic", "route", "formed", "--output", "json").stdout
    plain = on_cluster("topic", "route", "formed", "-o", "table").stdout
    comma = on_cluster("topic", "route", "formed", "-o", "csv").stdout
    both = on_cluster("topic", "route", "formed", "-o", "csv", "--json")

    assert short == long
    assert ["broker-a", "broker-b"] == [row["broker"] for row in json.loads(short)]
    assert [line.split("\t") for line in plain.splitlines()] == list(csv.reader(io.StringIO(comma)))
    assert (2, "") == (both.returncode, both.stdout)


def test_a_pipe_gets_a_watched_state_again_and_again(cluster: Serving) -> None:
    """T1: one line of JSON for each look; Ctrl-C ends it normally."""
    process = subprocess.Popen(
        [TERN, "broker", "status", "--watch", "0.1", "--json"],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT | {"NAMESRV_ADDR": cluster.name_server},
    )
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)

    assert 0 == process.wait(timeout=60)
    process.stdout.close()
    assert [["broker-a", "broker-b"]] * 3 == [[row["broker"] for row in look] for look in looks]


def test_a_terminal_is_redrawn(cluster: Serving) -> None:
    """T1: on the alternate screen, which is left at the end."""
    with terminal("broker", "status", "--watch", "0.1", name_server=cluster.name_server) as watching:
        watching.until("broker-b", times=3)
        os.kill(watching.process.pid, signal.SIGINT)
        code = watching.end()

    assert (0, True, True) == (code, "\x1b[?1049h" in watching.raw, watching.raw.rstrip().endswith("\x1b[?1049l"))
    assert "tern broker status  every 0.1 s, Ctrl-C ends" in watching.text


def test_an_error_in_the_first_look_ends_a_watch(on_cluster: Tern) -> None:
    """T1: a typing error is not watched for ever."""
    done = on_cluster("topic", "status", "no-such-topic", "--watch")

    assert (3, "") == (done.returncode, done.stdout)
