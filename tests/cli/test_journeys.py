"""What a user does in a day with the real program: send, consume, look, administrate (T1)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable

from tests.cli.conftest import ENVIRONMENT, TERN, Serving
from tests.cli.test_bad_input import sentence

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_a_topic_lives_from_create_to_delete(on_cluster: Tern) -> None:
    """D1, A4: create, list, route, status, delete."""
    created = on_cluster("topic", "create", "life", "--queues", "3")
    assert (0, "topic life has 3 queues on broker-a, broker-b\n", "") == (
        created.returncode,
        created.stdout,
        created.stderr,
    )
    listed = on_cluster("topic", "list").stdout.splitlines()
    assert "topic\tperm\tread_queues\twrite_queues\tbrokers" == listed[0]
    assert "life\trw\t6\t6\tbroker-a, broker-b" in listed
    routes = json.loads(on_cluster("topic", "route", "life", "--json").stdout)
    assert [("broker-a", 0, "rw", 3), ("broker-b", 0, "rw", 3)] == [
        (route["broker"], route["id"], route["perm"], route["write_queues"]) for route in routes
    ]
    assert 7 == len(on_cluster("topic", "status", "life").stdout.splitlines())

    entries = on_cluster("topic", "entries", "life", "--broker", "broker-a", "--offset", "7")
    assert "queue 0 of life on broker-a has no entry 7; see `tern topic status life`" in entries.stdout + entries.stderr

    assert "topic life was deleted on broker-a, broker-b\n" == on_cluster("topic", "delete", "life", "--yes").stdout
    assert "life" not in on_cluster("topic", "list").stdout


def test_what_is_sent_is_consumed_and_the_progress_shows(on_cluster: Tern) -> None:
    """E1, F1, D4: the whole journey with a group."""
    sent = on_cluster(
        "send", "journey", "one", "two", "三", "--tag", "new", "--key", "k1", "-P", "shop=north", "--json"
    )
    receipts = [json.loads(line) for line in sent.stdout.splitlines()]
    assert ["SEND_OK"] * 3 == [receipt["status"] for receipt in receipts]

    consumed = on_cluster("consume", "journey", "--group", "billing", "--count", "3", "--json")
    messages = {message["body"]: message for message in map(json.loads, consumed.stdout.splitlines())}
    assert {"one", "two", "三"} == messages.keys()
    assert ("new", ["k1"], "north") == (
        messages["三"]["tags"],
        messages["三"]["keys"],
        messages["三"]["properties"]["shop"],
    )
    assert {receipt["message_id"] for receipt in receipts} == {m["message_id"] for m in messages.values()}

    progress = json.loads(on_cluster("group", "progress", "billing", "--topic", "journey", "--json").stdout)
    columns = ("broker_offset", "consumer_offset", "lag", "in_flight")
    assert (3, 3, 0, 0) == tuple(sum(queue[column] for queue in progress) for column in columns)
    groups = json.loads(on_cluster("group", "list", "--json").stdout)
    assert {"group": "billing", "members": 0, "model": None, "lag": 0} in groups


def test_a_group_can_be_made_beforehand(on_cluster: Tern) -> None:
    """T1, D2: for brokers that do not make groups by themselves."""
    made = json.loads(on_cluster("group", "create", "beforehand", "--retry-max", "5", "--json").stdout)

    assert ("beforehand", 5) == (made["group"], made["retry_max"])
    assert "beforehand" in on_cluster("group", "list").stdout


def test_a_group_is_switched_to_pop_and_back(on_cluster: Tern) -> None:
    """F9"""
    on_cluster("topic", "create", "popped", "--queues", "1")

    popping = json.loads(on_cluster("group", "mode", "billing", "popped", "pop", "--share", "2", "--json").stdout)
    pulling = on_cluster("group", "mode", "billing", "popped", "pull").stdout

    assert ("pop", 2) == (popping["mode"], popping["share"])
    assert "group billing now uses pull for topic popped on " in pulling


def test_looking_without_a_group_changes_nothing(on_cluster: Tern) -> None:
    """F3: read twice, by tag, from a time, and no group appears."""
    on_cluster("topic", "create", "look", "--queues", "1")
    for body, tag in (("a", "x"), ("b", "y"), ("c", "x")):
        on_cluster("send", "look", body, "--tag", tag)

    for _ in range(2):
        assert "a\nb\nc\n" == on_cluster("consume", "look", "--no-follow").stdout
    assert "a\nc\n" == on_cluster("consume", "look", "--no-follow", "--tag", "x").stdout
    assert "a\nb\n" == on_cluster("consume", "look", "--from", "1h", "--count", "2").stdout
    assert "" == on_cluster("consume", "look", "--no-follow", "--from", "last").stdout
    assert "TOOLS_CONSUMER" not in on_cluster("group", "list").stdout


def test_messages_are_chosen_by_their_properties(on_cluster: Tern) -> None:
    """K2: `tern up` filters by SQL; what cannot be read is shown with its place, before anything is asked."""
    for amount in ("5", "7", "9"):
        on_cluster("send", "priced", amount, "-P", f"amount={amount}")

    assert "7\n9\n" == on_cluster("consume", "priced", "--no-follow", "--sql", "amount > 5").stdout
    assert "9\n" == on_cluster("consume", "priced", "-g", "rich", "--sql", "amount > 7", "--count", "1").stdout
    wrong = sentence(on_cluster("consume", "priced", "--sql", "amount != 5"))
    assert "tern: invalid SQL filter 'amount != 5' at character 8: != is not supported; use <>" == wrong


def test_a_group_can_be_worked_off_without_joining_it(on_cluster: Tern) -> None:
    """D4: ``--group --no-follow`` ends at the end, and the next one goes on from there."""
    on_cluster("topic", "create", "work", "--queues", "1")
    on_cluster("send", "work", "1", "2", "3")

    two = on_cluster("consume", "work", "-g", "off", "--no-follow", "--count", "2").stdout.split()
    rest = on_cluster("consume", "work", "-g", "off", "--no-follow").stdout.split()
    assert (2, ["1", "2", "3"]) == (len(two), sorted(two + rest))
    assert "" == on_cluster("consume", "work", "-g", "off", "--no-follow").stdout


def test_lines_of_stdin_are_sent_as_they_arrive(cluster: Serving) -> None:
    """E1: the receipt of the first line comes before the second line is written."""
    command = [TERN, "send", "lines", "--file", "-", "-n", cluster.name_server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as sending:
        assert sending.stdin is not None
        assert sending.stdout is not None
        for line in (b"first\n", b"\nsecond\n"):
            sending.stdin.write(line)
            sending.stdin.flush()
            assert sending.stdout.readline().startswith(b"SEND_OK\t")
        sending.stdin.close()
        assert b"" == sending.stdout.read()

    assert 0 == sending.returncode


def test_what_is_stored_comes_in_the_order_in_which_it_was_stored(on_cluster: Tern) -> None:
    """F3: over the queues of a broker exactly, as many messages share a millisecond."""
    numbers = [str(number) for number in range(200)]
    on_cluster("send", "row", *numbers)
    messages = [json.loads(line) for line in on_cluster("consume", "row", "--no-follow", "--json").stdout.splitlines()]

    assert len(numbers) == len(messages)
    for broker in ("broker-a", "broker-b"):
        bodies = [int(message["body"]) for message in messages if message["broker"] == broker]
        assert sorted(bodies) == bodies


def test_fewer_queues_hide_messages_and_that_is_said(on_cluster: Tern) -> None:
    """D1."""
    on_cluster("topic", "create", "narrow", "--queues", "4")
    done = on_cluster("topic", "create", "narrow", "--queues", "2")

    assert (0, "topic narrow has 2 queues on broker-a, broker-b\n") == (done.returncode, done.stdout)
    assert [
        f"{broker} had 4 queues of narrow; messages in queues 2 and above are kept, but consumers "
        "cannot read them until the topic has 4 queues again"
        for broker in ("broker-a", "broker-b")
    ] == done.stderr.splitlines()
    assert "" == on_cluster("topic", "create", "narrow", "--queues", "4").stderr


def test_a_reader_that_leaves_ends_consume_without_an_error(cluster: Serving, on_cluster: Tern) -> None:
    """T1: `tern consume orders | head -1` under `set -o pipefail`."""
    on_cluster("send", "leaving", "one")
    command = [TERN, "consume", "leaving", "-n", cluster.name_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert b"one\n" == reading.stdout.readline()
        reading.stdout.close()
        on_cluster("send", "leaving", "two")
        assert b"" == reading.stderr.read()

    assert 0 == reading.returncode


def test_a_reader_that_leaves_a_send_is_told_of_what_is_left(cluster: Serving) -> None:
    """T1: nothing is left unsent in silence."""
    command = [TERN, "send", "receipts", "--file", "-", "-n", cluster.name_server]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT) as sending:
        assert sending.stdin is not None
        assert sending.stdout is not None
        assert sending.stderr is not None
        sending.stdin.write(b"one\n")
        sending.stdin.flush()
        assert sending.stdout.readline().startswith(b"SEND_OK\t")
        sending.stdout.close()
        sending.stdin.write(b"two\n")
        sending.stdin.flush()
        told = sending.stderr.read().decode()

    assert 1 == sending.returncode
    assert told.startswith(
        "tern: stopped after 1 messages or a few more, because the program that read the receipts has ended"
    )


def test_a_follower_sees_what_is_sent_later(cluster: Serving, on_cluster: Tern) -> None:
    """F8: the follower is there first, as its first message proves."""
    on_cluster("send", "later", "early")
    command = [TERN, "consume", "later", "--count", "2", "-n", cluster.name_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as following:
        assert following.stdout is not None
        assert b"early\n" == following.stdout.readline()
        on_cluster("send", "later", "late")
        assert b"late\n" == following.stdout.readline()

    assert 0 == following.returncode


def test_a_terminal_gets_tables(cluster: Serving, on_cluster: Tern) -> None:
    on_cluster("topic", "create", "pretty")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [TERN, "topic", "list", "-n", cluster.name_server], stdout=theirs, env=ENVIRONMENT
    ) as listing:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end of a terminal is closed
                break
            if not data:
                break
            shown += data
    os.close(ours)

    assert 0 == listing.returncode
    assert "─" in shown.decode()
    assert "pretty" in shown.decode()


def test_empty_answers_are_empty_for_programs_and_a_remark_for_people(on_cluster: Tern) -> None:
    on_cluster("topic", "create", "quiet")
    on_cluster("consume", "quiet", "-g", "idle", "--no-follow")

    people = on_cluster("group", "progress", "idle", "-t", "nothing")
    assert (0, "", "group idle has consumed nothing of nothing yet\n") == (
        people.returncode,
        people.stdout,
        people.stderr,
    )
    assert "[]\n" == on_cluster("group", "progress", "idle", "-t", "nothing", "--json").stdout
