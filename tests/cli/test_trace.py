"""``tern trace`` with the real program (Q2, T1)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable

from ternmq.client.send.producer import Producer
from ternmq.message import Message
from tests.cli.conftest import Serving
from tests.cli.test_bad_input import sentence

Tern = Callable[..., subprocess.CompletedProcess[str]]


async def _traced(names: str) -> str:
    async with Producer("shop", name_servers=names, trace="traces") as producer:
        receipt = await producer.send(Message("orders", b"book", keys="order-1"))
    return receipt.message_id


def test_the_path_of_a_message_is_a_timeline(cluster: Serving, on_cluster: Tern) -> None:
    """Q2: for people and for programs."""
    message_id = asyncio.run(_traced(cluster.name_server))

    shown = on_cluster("trace", message_id, "--topic", "traces")
    (told,) = json.loads(on_cluster("trace", message_id, "--topic", "traces", "--json").stdout)

    assert (0, "") == (shown.returncode, shown.stderr)
    heading, row = (line.split("\t") for line in shown.stdout.splitlines())
    assert ["time", "after", "group", "client", "what", "where", "took", "result"] == heading
    assert ("+0 ms", "shop", "sent", "success") == (row[1], row[2], row[4], row[7])
    assert ("orders", "order-1", "sent", 4) == (told["topic"], told["keys"], told["what"], told["body_bytes"])


def test_a_message_without_traces_is_a_sentence(cluster: Serving, on_cluster: Tern) -> None:
    """Q2, T1."""
    asyncio.run(_traced(cluster.name_server))
    assert "has no trace of message 'NOBODY'; its clients do not trace" in sentence(
        on_cluster("trace", "NOBODY", "--topic", "traces")
    )
