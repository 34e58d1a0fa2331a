"""Live members, asked by the real program (F10, T1)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable

from ternmq.client.blocking.push import SyncPushConsumer
from ternmq.client.blocking.share import SyncShareConsumer
from ternmq.client.config import ClientConfig
from ternmq.client.consume.listener import ConsumeResult
from ternmq.client.consume.offsets import StartPosition
from ternmq.message import ReceivedMessage
from tests.cli.conftest import Serving
from tests.cli.test_bad_input import sentence
from tests.cli.test_messages import array, lines, send

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_members_tell_how_they_are_and_consume_what_they_are_told(on_cluster: Tern, cluster: Serving) -> None:
    """F10."""

    def the_listener(message: ReceivedMessage) -> ConsumeResult:
        return ConsumeResult.RETRY if message.reconsume_times == 0 else ConsumeResult.SUCCESS

    (receipt,) = send(on_cluster, "asked", "hello")
    consumer = SyncPushConsumer(
        "asking", the_listener, name_servers=cluster.name_server, start=StartPosition.FIRST, orderly=True
    )
    consumer.subscribe("asked")
    with consumer:
        (member,) = array(on_cluster("group", "members", "asking", "--json"))
        client = member["client"]
        assert ("PYTHON", "CLUSTERING") == (member["language"], member["model"])

        (info,) = lines(on_cluster("group", "info", "asking", "--client", client, "--json"))
        assert (client, True, "") == (info["client_id"], info["orderly"], info["stack"])
        assert {"asked", "%RETRY%asking"} == {one["topic"] for one in info["queues"]}
        table = on_cluster("group", "info", "asking", "--stack").stdout.splitlines()
        assert table[0].startswith("client\ttopic\tbroker\tqueue\tprogress\tin_flight\tlocked")
        assert any(line.startswith(f"{client}\tasked\t{receipt['broker']}\t0\t") for line in table)
        assert f"--- {client}" in table
        assert "task rebalance" in table

        (told,) = lines(on_cluster("message", "consume", receipt["offset_id"], "asking", "--json"))
        assert (client, "CR_LATER", True) == (told["client_id"], told["result"], told["orderly"])
        by_id = on_cluster(
            "message", "consume", receipt["message_id"], "asking", "--topic", "asked", "--client", client
        )
        assert by_id.stdout.startswith(f"{client} returned CR_LATER after ")


def test_members_that_subscribe_differently_are_pointed_out(on_cluster: Tern, cluster: Serving) -> None:
    """Issue 13, 14: each member with its own subscription, and a note."""

    def listener(_message: ReceivedMessage) -> None: ...

    send(on_cluster, "differing", "hello")
    with contextlib.ExitStack() as stack:
        for tags in ("paid", "open"):
            consumer = SyncPushConsumer(
                "differing",
                listener,
                client=ClientConfig(name_servers=cluster.name_server, instance_name=tags),
            )
            consumer.subscribe("differing", tags)
            stack.enter_context(consumer)
        members = array(on_cluster("group", "members", "differing", "--json"))
        assert {"paid", "open"} == {member["subscribes"]["differing"] for member in members}
        assert [True, True] == [member["differs"] for member in members]
        shown = on_cluster("group", "members", "differing")
        assert "differing: paid" in shown.stdout
        assert "have different subscriptions" in shown.stderr


def test_consumers_that_share_messages_are_shown_with_what_they_hold(on_cluster: Tern, cluster: Serving) -> None:
    """R3: online, then offline when it has left; ``tern consume --share`` is another one."""
    send(on_cluster, "shared", "hello")
    came, go_on = threading.Event(), threading.Event()

    def listener(_message: ReceivedMessage) -> None:
        came.set()
        go_on.wait(60)

    consumer = SyncShareConsumer(
        "sharing", listener, name_servers=cluster.name_server, start=StartPosition.FIRST, consumer="worker-1"
    )
    consumer.subscribe("shared")
    with consumer:
        assert came.wait(60)
        rows = {row["client"]: row for row in array(on_cluster("group", "members", "sharing", "--json"))}
        assert ("online", 1) == (rows["worker-1"]["state"], rows["worker-1"]["held"])
        table = on_cluster("group", "members", "sharing").stdout.splitlines()
        assert table[0].endswith("subscribes\tstate\theld\tidle_s")
        go_on.set()
    rows = {row["client"]: row for row in array(on_cluster("group", "members", "sharing", "--json"))}
    assert ("offline", 0) == (rows["worker-1"]["state"], rows["worker-1"]["held"])

    send(on_cluster, "shared", "again")
    got = on_cluster("consume", "shared", "--group", "sharing", "--share", "--count", "1")
    assert "again" == got.stdout.strip()
    assert "add --group NAME" in sentence(on_cluster("consume", "shared", "--share"))
    assert "leave out --no-follow" in sentence(
        on_cluster("consume", "shared", "--group", "sharing", "--share", "--no-follow")
    )


def test_a_share_consumer_with_a_count_takes_no_more_than_it_shows(on_cluster: Tern) -> None:
    """R2: what it held beyond that was delivered again later, and counted; after a few such calls messages that no
    consumer had seen were dead letters."""
    for number in range(20):
        send(on_cluster, "counted", f"{number}")
    shared = ("consume", "counted", "--group", "counting", "--share", "--json", "--count")
    assert 1 == len(on_cluster(*shared, "1").stdout.splitlines())
    rest = [json.loads(line) for line in on_cluster(*shared, "19").stdout.splitlines()]
    # A pull may be on its way when the first one is done.
    assert len([one for one in rest if one["reconsume_times"]]) <= 4


def test_what_is_not_there_is_said(on_cluster: Tern) -> None:
    """F10, T1."""
    (receipt,) = send(on_cluster, "lonely", "hello")
    assert [] == array(on_cluster("group", "members", "nobodys", "--json"))
    assert "no active consumer of group nobodys reads a queue now\n" == on_cluster("group", "info", "nobodys").stderr
    assert "group 'nobodys' has no active consumers" in sentence(
        on_cluster("message", "consume", receipt["offset_id"], "nobodys")
    )
    assert "group 'nobodys' has no active member 'it'" in sentence(
        on_cluster("group", "info", "nobodys", "--client", "it")
    )
    assert "has no message with the id 'it'" in sentence(
        on_cluster("message", "consume", "it", "nobodys", "--topic", "lonely")
    )
