"""Finding messages again, and moving groups, with the real program (L1, L2, D4, T1)."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.test_bad_input import sentence

Tern = Callable[..., subprocess.CompletedProcess[str]]


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """The JSON lines of a command that went well."""
    assert (0, "") == (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def array(done: subprocess.CompletedProcess[str]) -> list[Any]:
    (rows,) = lines(done)
    assert isinstance(rows, list)
    return rows


def send(tern: Tern, topic: str, *bodies: str, key: str = "k") -> list[Any]:
    return lines(tern("send", topic, *bodies, "--tag", "new", "--key", key, "-P", "city=杭州", "--json"))


def test_a_message_is_shown_by_each_of_its_names(on_cluster: Tern) -> None:
    """L1: offset id, message id with its topic, place."""
    (receipt,) = send(on_cluster, "named", "hello")
    place = (receipt["broker"], str(receipt["queue"]), str(receipt["queue_offset"]))

    (by_id,) = lines(on_cluster("message", "show", receipt["offset_id"], "--json"))
    (by_unique_key,) = lines(on_cluster("message", "show", receipt["message_id"], "--topic", "named", "--json"))
    (by_place,) = lines(on_cluster("message", "at", "named", *place, "--json"))

    assert by_id == by_unique_key == by_place
    assert ("hello", "new", ["k"], "杭州") == (
        by_id["body"],
        by_id["tags"],
        by_id["keys"],
        by_id["properties"]["city"],
    )
    assert (receipt["message_id"], receipt["offset_id"]) == (by_id["message_id"], by_id["offset_id"])


def test_people_get_a_line_for_each_thing(on_cluster: Tern) -> None:
    """L1, T1."""
    (receipt,) = send(on_cluster, "readable", "hello")

    shown = on_cluster("message", "show", receipt["offset_id"]).stdout.splitlines()

    for line in ("field\tvalue", "topic\treadable", "keys\tk", "property city\t杭州", "body\thello"):
        assert line in shown
    assert f"message id\t{receipt['message_id']}" in shown


def test_messages_are_found_by_key_and_by_time(on_cluster: Tern) -> None:
    """L1."""
    sent = send(on_cluster, "found", "first\nline", "second", key="order-7")
    send(on_cluster, "found", "third", key="order-8")

    by_key = array(on_cluster("message", "find", "found", "--key", "order-7", "--json"))
    (newest,) = array(on_cluster("message", "find", "found", "--key", "order-7", "--count", "1", "--json"))
    since = array(on_cluster("message", "find", "found", "--time", str(newest["store_time_ms"]), "--json"))
    span = ("--from", str(newest["store_time_ms"] + 1), "--to", "2099-01-01")

    assert {receipt["message_id"] for receipt in sent} == {message["message_id"] for message in by_key}
    assert newest == by_key[-1]
    assert newest["message_id"] in [message["message_id"] for message in since]
    assert all(message["store_time_ms"] >= newest["store_time_ms"] for message in since)
    assert newest["message_id"] not in on_cluster("message", "find", "found", "--key", "order-7", *span).stdout
    table = on_cluster("message", "find", "found", "--key", "order-7").stdout.splitlines()
    assert "stored\tbroker\tqueue\tqueue_offset\tkeys\tbody" == table[0]
    assert ["first…", "second"] == sorted(row.split("\t")[-1] for row in table[1:])


def test_a_body_that_is_no_text_is_shown_all_the_same(on_cluster: Tern) -> None:
    """T1."""
    sent = on_cluster("send", "binary", "--file", "-", "--key", "k", "--json", stdin=b"\xff\x00\n")
    (receipt,) = lines(sent)

    (message,) = lines(on_cluster("message", "show", receipt["offset_id"], "--json"))

    assert b"\xff\x00" == base64.b64decode(message["body_base64"])
    assert "body\t\\xff\x00\n" in on_cluster("message", "show", receipt["offset_id"]).stdout


def test_nothing_found_is_empty_for_programs_and_a_remark_for_people(on_cluster: Tern) -> None:
    """T1."""
    send(on_cluster, "lonely", "x")

    none = on_cluster("message", "find", "lonely", "--key", "other")
    late = on_cluster("message", "find", "lonely", "--time", "2099-01-01")

    assert (0, "", "topic lonely has no message with the key other\n") == (
        none.returncode,
        none.stdout,
        none.stderr,
    )
    assert "topic lonely has no message since 2099-01-01 00:00:00.000\n" == late.stderr
    assert [] == array(on_cluster("message", "find", "lonely", "--key", "other", "--json"))


def test_a_group_is_sent_back_and_cloned(on_cluster: Tern) -> None:
    """D4, L2: the plan says what will be; then messages come again."""
    on_cluster("topic", "create", "again", "--queues", "1")
    send(on_cluster, "again", "1", "2")
    work_off = ("consume", "again", "-g", "rewound", "--no-follow")
    assert ["1", "2"] == sorted(on_cluster(*work_off).stdout.split())
    reset = ("group", "reset", "rewound", "again", "--to", "first", "--yes")

    planned = on_cluster(*reset, "--dry-run")
    assert "" == on_cluster(*work_off).stdout
    done = on_cluster(*reset)
    assert ["1", "2"] == sorted(on_cluster(*work_off).stdout.split())
    cloned = array(on_cluster("group", "clone", "rewound", "copied", "--topic", "again", "--json"))

    assert "dry run: nothing was changed; omit --dry-run to reset the offsets\n" == planned.stderr
    assert (planned.stdout, "") == (done.stdout, done.stderr)
    assert ["topic\tbroker\tqueue\tbefore\tafter", "again\tbroker-a\t0\t1\t0"] == done.stdout.splitlines()[:2]
    assert [("broker-a", None, 1), ("broker-b", None, 1)] == [
        (move["broker"], move["before"], move["after"]) for move in cloned
    ]
    assert "" == on_cluster("consume", "again", "-g", "copied", "--no-follow").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("message", "show", "order-7"), "tern: 'order-7' is not a valid offset id; a send returns it as"),
        (("message", "show", "x", "-t", "nothing"), "tern: no name server knows the topic 'nothing'; create it with"),
        (("message", "show", "7F000001000000010000000000000000"), "tern: cannot connect to 127.0.0.1:1"),
        (
            ("message", "at", "TBW102", "broker-z", "0", "0"),
            "tern: TBW102@broker-z:0 does not exist or is not readable; see",
        ),
        (("message", "find", "t", "--key", "two words"), "tern: invalid key 'two words': expected one word"),
        (("group", "reset", "nobody", "t", "--to", "first", "--yes"), "tern: group 'nobody' does not exist; see `tern"),
        (
            ("group", "reset", "nobody", "t", "--to", "soon"),
            "tern: 'soon' is not a valid time; expected 2026-01-31T12:00",
        ),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_found_is_answered_with_the_cure(
    on_cluster: Tern, arguments: tuple[str, ...], expected: str
) -> None:
    assert sentence(on_cluster(*arguments)).startswith(expected)


@pytest.mark.parametrize(
    "arguments",
    [
        ("message", "find", "t"),
        ("message", "find", "t", "--key", "k", "--time", "1h"),
        ("message", "find", "t", "--time", "1h", "--from", "2h"),
        ("group", "reset", "g", "t"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(on_cluster: Tern, arguments: tuple[str, ...]) -> None:
    done = on_cluster(*arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr
