"""``tern pipeline …`` on a Spark cluster, as a user types it (U4, U5)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ternmq import Message, SyncProducer
from ternmq.embedded import EmbeddedCluster
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.spark.conftest import SMALL_JVM
from tests.spark.givingup import give_up
from tests.spark.test_standalone import master
from tests.spark.traces import call, pub, send_traces

__all__ = ["master"]

SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.executor.extraJavaOptions": SMALL_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # As in ``conftest``: quicker for a handful of rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def tern(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the results (without progress) and the remarks of a pipeline."""
    settings = [part for key, value in SMALL.items() for part in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [TERN, "pipeline", *arguments, *settings, "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=ENVIRONMENT,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [event for event in events if event["event"] != "progress"], done.stderr


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_pipelines_run_on_a_cluster(master: str, tmp_path: Path) -> None:
    """U4, U5: trace with its page, dead letters sent again, and what is missing, each by one command."""
    orders = [Message("orders", b"body", keys=str(number), tags="even" if number % 2 else "odd") for number in range(4)]
    with EmbeddedCluster() as cluster:
        names = cluster.name_servers
        where = ("--name-server", names, "--master", master)
        send_traces(
            names, "traces", [pub(f"M{n}", at=n) + (call(f"M{n}", at=2 * n) if n != 3 else b"") for n in range(9)]
        )
        give_up(names, "billing", "orders", orders)
        with SyncProducer("shop", name_servers=names) as producer:
            producer.send(Message("orders", b"body", keys="0"))
        (tmp_path / "sent.csv").write_text("id\n0\n1\n2\n3\n4\n")

        traced = tern(
            "trace", "--trace-topic", "traces", "--grace-ms", "0", "--html", str(tmp_path / "page.html"), *where
        )
        resent = tern("deadletters", "billing", "--where", "tags = 'even'", "--redrive", "--for-real", *where)
        sent = ("--sent", str(tmp_path / "sent.csv"), "--by", "keys", "--late-ms", "0")
        reconciled = tern("reconcile", "orders", *sent, "--strict", *where)

    code, [report], remarks = traced
    assert (0, 1) == (code, report["consuming"][0]["lost"]), remarks
    assert ["M3"] == [finding["message_id"] for finding in report["findings"]]
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert ["%RETRY%billing"] * 2 == [one["topic"] for one in resent[1] if one["offset_id"]], resent[2]
    code, [report], remarks = reconciled
    assert (1, {"missing stored": 1, "double stored": 1}) == (code, report["problems"]), remarks
