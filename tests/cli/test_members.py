"""Live members, asked by the real program (F10, T1)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from ternmq.client.blocking_consumer import SyncPushConsumer
from ternmq.client.listener import ConsumeResult
from ternmq.client.offsets import StartPosition
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
        assert by_id.stdout.startswith(f"{client} says CR_LATER after ")


def test_what_is_not_there_is_said(on_cluster: Tern) -> None:
    """F10, T1."""
    (receipt,) = send(on_cluster, "lonely", "hello")
    assert [] == array(on_cluster("group", "members", "nobodys", "--json"))
    assert "nobody reads a queue for group nobodys now\n" == on_cluster("group", "info", "nobodys").stderr
    assert "nobody consumes for group 'nobodys'" in sentence(
        on_cluster("message", "consume", receipt["offset_id"], "nobodys")
    )
    assert "no broker has a member 'it'" in sentence(on_cluster("group", "info", "nobodys", "--client", "it"))
    assert "has no message with the id 'it'" in sentence(
        on_cluster("message", "consume", "it", "nobodys", "--topic", "lonely")
    )
