"""``tern trace`` with the real program (Q2, T1)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable

from ternmq.admin.traces import TraceStep
from ternmq.cli.trace_lines import after_text, timeline
from ternmq.client.send.producer import Producer
from ternmq.message import Message
from tests.cli.conftest import Serving
from tests.cli.terminal import terminal
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
    missing = on_cluster("trace", "NOBODY", "--topic", "no-traces")
    assert "no broker has the topic 'no-traces'. Clients that trace (trace=True) create it" in sentence(missing)


def test_a_terminal_gets_a_drawing(cluster: Serving) -> None:
    """Q2, T1"""
    message_id = asyncio.run(_traced(cluster.name_server))
    with terminal("trace", message_id, "--topic", "traces", name_server=cluster.name_server) as screen:
        code = screen.end()

    lines = screen.text.replace("\r", "").splitlines()
    assert (0, 3) == (code, len(lines)), lines
    assert "0 ms  ● sent by shop" in lines[1]
    assert lines[1].endswith("success")
    assert "topic orders, keys order-1" in lines[2]


STEPS = [
    TraceStep("sent", 1_769_860_800_250, "shop", "10.0.0.7:51234", "10.0.0.1:10911", 2, "success", topic="orders"),
    TraceStep("consumed", 1_769_860_800_262, "billing", "10.0.0.9:40112", None, 5, "failed", attempt=1),
    TraceStep("consumed", None, "b" * 100, "10.0.0.9:40112", None, None, "no end", attempt=2),
    TraceStep("consumed", 1_770_000_000_000, "billing", "10.0.0.9:40112", None, 12_345, "success", attempt=3),
]


def test_a_timeline_fits_and_marks_what_failed() -> None:
    """Q2: a new day has a line of its own, and a step without a time is shown, too."""
    for width in (70, 80, 200):
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in timeline(STEPS, width=width)]
        assert max(map(len, lines)) <= width
        assert ["●", "○", "○", "●"] == [line[25] for line in lines if line[25:26] in ("●", "○")]
        assert 2 == sum(line.startswith("2026-") for line in lines)
    assert any("consumed (attempt 3) by billing" in line for line in lines)


def test_distances_have_the_unit_that_fits() -> None:
    spans = (0, 999, -5, 1_000, 119_949, 600_000, 7_200_000)
    assert ["0 ms", "+999 ms", "-5 ms", "+1.0 s", "+119.9 s", "+10.0 min", "+2.0 h"] == [*map(after_text, spans)]
