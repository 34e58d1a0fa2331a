"""``tern dlq``, and what it rests on, with the real program (H2, I1, T1)."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ternmq import ReceivedMessage, StartPosition, SyncPushConsumer
from ternmq.client.consume.config import PushConfig
from tests.cli.conftest import Serving
from tests.cli.test_messages import array, lines

Tern = Callable[..., subprocess.CompletedProcess[str]]


def give_up(cluster: Serving, tern: Tern, group: str, *bodies: str) -> list[Any]:
    """Send messages to a topic named as the group, and have them given up at the first attempt."""
    receipts = lines(tern("send", group, *bodies, "--tag", "new", "--key", "k", "--json"))
    seen: list[bytes] = []
    enough = threading.Event()

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == len(bodies):
            enough.set()
        raise ValueError("no")

    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=0)
    consumer = SyncPushConsumer(group, listener, name_servers=cluster.name_server, config=config)
    consumer.subscribe(group)
    with consumer:
        assert enough.wait(30)
    return receipts


def test_dead_letters_are_listed_and_shown(cluster: Serving, on_cluster: Tern) -> None:
    """H2"""
    receipts = give_up(cluster, on_cluster, "dlq-listed", "first", "second\nline")

    [count] = [row for row in array(on_cluster("dlq", "list", "--json")) if row["group"] == "dlq-listed"]
    letters = array(on_cluster("dlq", "list", "dlq-listed", "--json"))
    [shown] = lines(on_cluster("dlq", "show", "dlq-listed", receipts[0]["message_id"], "--json"))
    rows = on_cluster("dlq", "list", "dlq-listed", "--count", "1").stdout.splitlines()
    people = on_cluster("dlq", "show", "dlq-listed", receipts[0]["message_id"]).stdout.splitlines()

    assert (2, 2) == (count["waiting"], count["total"])
    assert {receipt["message_id"] for receipt in receipts} == {letter["message_id"] for letter in letters}
    assert ("dlq-listed", receipts[0]["offset_id"], 1, "first", None) == (
        shown["origin_topic"],
        shown["origin_id"],
        shown["attempts"],
        shown["body"],
        shown["sent_again_ms"],
    )
    assert "given_up\torigin\tattempts\tmessage_id\tkeys\tbody" == rows[0]
    assert 2 == len(rows)
    assert {"origin\tdlq-listed", "attempts\t1", "resent\t-", "body\tfirst"} <= set(people)


def test_dead_letters_are_sent_again(cluster: Serving, on_cluster: Tern) -> None:
    """H2: some, then all; none of them twice."""
    first, second = give_up(cluster, on_cluster, "dlq-again", "first", "second")

    planned = lines(on_cluster("dlq", "resend", "dlq-again", "--from", "1h", "--dry-run", "--json"))
    [one] = lines(on_cluster("dlq", "resend", "dlq-again", first["message_id"], "--json"))
    rest = on_cluster("dlq", "resend", "dlq-again", "--all")
    nothing = on_cluster("dlq", "resend", "dlq-again", "--all")
    repeated = on_cluster("dlq", "resend", "dlq-again", second["message_id"])

    assert [None, None] == [row["offset_id"] for row in planned]
    assert (first["message_id"], "%RETRY%dlq-again") == (one["message_id"], one["topic"])
    assert f"{second['message_id']} to %RETRY%dlq-again as " in rest.stdout
    assert rest.stderr.startswith("1 resent")
    assert (0, "", "0 resent\n") == (nothing.returncode, nothing.stdout, nothing.stderr)
    assert f"{second['message_id']} was already resent" in repeated.stdout
    assert "0 resent, 1 skipped because they were already resent (use --again to include them)\n" == repeated.stderr
    [shown] = lines(on_cluster("dlq", "show", "dlq-again", first["message_id"], "--json"))
    assert shown["sent_again_ms"] > 0


def test_dead_letters_are_put_away(cluster: Serving, on_cluster: Tern) -> None:
    """H2"""
    give_up(cluster, on_cluster, "dlq-purged", "first")

    old = on_cluster("dlq", "purge", "dlq-purged", "--yes", "--before", "1h").stdout
    asked = on_cluster("dlq", "purge", "dlq-purged")
    done = on_cluster("dlq", "purge", "dlq-purged", "--yes").stdout
    left = on_cluster("dlq", "list", "dlq-purged")
    with_all = array(on_cluster("dlq", "list", "dlq-purged", "--all", "--json"))
    [deleted] = lines(on_cluster("dlq", "purge", "dlq-purged", "--yes", "--for-good", "--json"))

    assert "0 dead letters of group dlq-purged are marked as handled\n" == old
    assert (2, True) == (asked.returncode, "1 dead letters of group dlq-purged are marked as handled; " in asked.stderr)
    assert "1 dead letters of group dlq-purged are marked as handled\n" == done
    assert (0, "") == (left.returncode, left.stdout)
    assert "group dlq-purged has no dead letters left; --all shows" in left.stderr
    assert 1 == len(with_all)
    assert {"group": "dlq-purged", "count": 1, "for_good": True} == deleted
    assert [] == array(on_cluster("dlq", "list", "dlq-purged", "--all", "--json"))


def test_a_message_is_sent_for_later(on_cluster: Tern) -> None:
    """I1: the answer comes at once, the message after its delay."""
    [receipt] = lines(on_cluster("send", "sent-for-later", "pay", "--delay", "1", "--json"))
    [message] = lines(on_cluster("consume", "sent-for-later", "--count", "1", "--json"))

    assert (receipt["message_id"], "pay") == (message["message_id"], message["body"])
    assert message["store_time_ms"] - message["born_time_ms"] >= 1_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("resend", "nobody", "x"),
            "group 'nobody' has no dead letter 'x'; it may have expired, see `tern dlq list nobody --all`",
        ),
        (("show", "nobody", "x"), "group 'nobody' has no dead letter 'x'"),
        (("list", "nobody", "--from", "soon"), "'soon' is not a valid time"),
        (("purge", "nobody", "--before", "1h", "--for-good"), "cannot be combined with a time"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_cure(on_cluster: Tern, arguments: tuple[str, ...], said: str) -> None:
    """T1"""
    done = on_cluster("dlq", *arguments)

    assert done.returncode in (2, 3)
    assert said in done.stderr


@pytest.mark.parametrize("which", [(), ("--all", "--from", "1h"), ("x", "--all")])
def test_one_must_say_which_letters_to_send_again(on_cluster: Tern, which: tuple[str, ...]) -> None:
    """T1"""
    done = on_cluster("dlq", "resend", "nobody", *which)

    assert 2 == done.returncode
    assert "in one of three ways" in " ".join(done.stderr.split())
