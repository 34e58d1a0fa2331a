"""The examples on Spark run and print what they say (U1 to U4).

In the session of the other tests, as a JVM of its own takes half a minute; one of them is run as a user would.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ternmq.embedded import EmbeddedCluster
from tests.cli.conftest import ENVIRONMENT
from tests.no_delays import NO_DELAYS
from tests.test_examples import EXAMPLES

LAST_LINES = {
    "pipeline_archive.py": "sent again 1",
    "pipeline_reconcile.py": "given up: 1 of book-orders",
    "pipeline_sql.py": '{"customer":"ann","since":"2026-11-16T08:00:00.000Z","spent":120.0}',
    "spark_files.py": "lost: 0",
    "spark_sink.py": "wrote 100 parcels, 9 of them heavy, 1 of these by express",
    "spark_source.py": "streamed 10 of them",
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One for each: some use topics of the same name."""
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as running:
        yield running


def test_every_example_is_run() -> None:
    ours = (path.name for path in EXAMPLES.glob("*.py") if path.name.startswith(("spark_", "pipeline_")))
    assert sorted(LAST_LINES) == sorted(ours)


@pytest.mark.parametrize(("name", "last_line"), LAST_LINES.items())
def test_the_example_runs(
    cluster: EmbeddedCluster,
    spark: SparkSession,
    name: str,
    last_line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``session()`` takes the one that runs, which others need afterwards."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(sys, "argv", [name, cluster.name_servers])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert last_line == capsys.readouterr().out.splitlines()[-1]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_example_runs_as_a_user_would_run_it(cluster: EmbeddedCluster) -> None:
    """A JVM takes its time and says things about itself on the way."""
    name = "spark_source.py"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), cluster.name_servers],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=ENVIRONMENT,
    )
    assert 0 == done.returncode, done.stderr
    assert LAST_LINES[name] == done.stdout.splitlines()[-1]
