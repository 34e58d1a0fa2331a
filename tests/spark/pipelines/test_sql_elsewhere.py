"""The pipeline *sql* as a command (U4, U5)."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ENVIRONMENT, TERN, tern
from tests.spark.pipelines.test_sql import bodies, order
from tests.spark.small import SMALL_FLAGS
from tests.spark.topics import Topics


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command_shows_rows_until_ctrl_c_and_goes_on_afterwards(topics: Topics, tmp_path: Path) -> None:
    """U4, U5: a script from a file, events on stdout, an exit code of 0, and no row twice."""
    script = tmp_path / "orders.sql"
    script.write_text("CREATE VIEW o (id INT NOT NULL) FROM TOPIC `sql-command`;\nSELECT id, _tags FROM o")
    topics.create("sql-command", queues=1)
    topics.send("sql-command", [*bodies(order(number) for number in range(3)), b"no order"], tags=["new"])
    command = [TERN, "pipeline", "sql", str(script), "-n", topics.name_servers, "--checkpoint", str(tmp_path / "state")]
    command += SMALL_FLAGS

    with (tmp_path / "stderr").open("wb") as stderr:
        running = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT)
        assert running.stdout is not None
        events: list[dict[str, Any]] = []
        # The batch is in the checkpoint when its progress is told.
        while not any(event["event"] == "progress" and event.get("rows") == 4 for event in events):
            line = running.stdout.readline()
            assert line, (tmp_path / "stderr").read_text()
            events.append(json.loads(line))
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=120)
    events += map(json.loads, rest.splitlines())
    assert 0 == running.returncode, (tmp_path / "stderr").read_text()
    rows = [event["row"] for event in events if event["event"] == "row"]
    assert [{"id": number, "_tags": "new"} for number in range(3)] == sorted(rows, key=lambda row: row["id"])
    assert {"event": "done", "statement": "console", "messages": 4, "left_out": 1} == events[-1]
    assert "tern: 1 of them did not match the columns and were skipped; " in (tmp_path / "stderr").read_text()

    topics.send("sql-command", bodies([order(3)]), tags=["paid"])
    again = subprocess.run(
        [*command, "--once"], capture_output=True, text=True, timeout=200, check=False, env=ENVIRONMENT
    )
    assert (0, "id\t_tags\n3\tpaid\n") == (again.returncode, again.stdout), again.stderr


def test_the_command_wants_one_script(tmp_path: Path) -> None:
    """U4: one sentence, and no Spark started for it."""
    (tmp_path / "bad.sql").write_bytes(b"SELECT '\xff'")
    for arguments, sentence in (
        ([], "no script given: expected a file, - for stdin, or -e 'SELECT …'"),
        (["x.sql", "-e", "SELECT 1"], "no script given: expected a file, - for stdin, or -e 'SELECT …'"),
        ([str(tmp_path / "bad.sql")], f"{tmp_path}/bad.sql is not UTF-8 text"),
        (["-e", "SELECT 1", "--bad-rows", "keep"], "invalid --bad-rows 'keep': expected drop or fail"),
    ):
        done = tern("pipeline", "sql", *arguments)
        assert (2, "", f"tern: {sentence}\n") == (done.returncode, done.stdout, done.stderr)
