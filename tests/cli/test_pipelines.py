"""``tern pipeline``: real processes, as a terminal runs and stops them (U4, U5)."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ternmq import Message, SyncProducer
from ternmq.cli.pipelines.job import line_of, new_log_file, spark_job
from ternmq.cli.pipelines.metrics import serving_metrics
from ternmq.errors import ConfigError
from ternmq.spark.runtime.jobs import JobProgress
from tests.cli.conftest import ENVIRONMENT, TERN, Serving
from tests.spark.small import SMALL_FLAGS


def pipeline(cluster: Serving, *arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell would start it."""
    return subprocess.Popen(
        [TERN, "pipeline", *arguments, *SMALL_FLAGS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=ENVIRONMENT | {"NAMESRV_ADDR": cluster.name_server},
    )


def send(cluster: Serving, topic: str, count: int) -> None:
    with SyncProducer("tests", name_servers=cluster.name_server) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number, tags="A"))


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_an_archive_is_stopped_by_ctrl_c_and_goes_on(cluster: Serving, tmp_path: Path) -> None:
    """U4, U5: events while it runs, metrics, a clean end for the whole process group; then the rest, and a replay."""
    lake = str(tmp_path / "lake")
    send(cluster, "pipelined", 30)
    running = pipeline(cluster, "archive", "pipelined", "--lake", lake, "--interval", "0", "--json", "--metrics", "0")
    assert running.stdout is not None
    assert running.stderr is not None
    port = re.fullmatch(r"metrics on port (\d+)\n", running.stderr.readline())
    assert port is not None
    events: list[dict[str, Any]] = []
    while not events or events[-1]["rows"] < 30:
        events.append(json.loads(running.stdout.readline()))
    assert {"archive": 30} == metrics_at(int(port[1]))["tern_pipeline_rows_total", "counter"]
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=100)
    assert (0, "") == (running.returncode, errors)
    assert {"event": "archived", "lake": lake, "rows": 30, "rows_in_lake": 30, "rows_skipped": 0} == json.loads(
        out.splitlines()[-1]
    )
    assert {"progress"} == {event["event"] for event in events}
    assert {"archive"} == {event["job"] for event in events}

    send(cluster, "pipelined", 10)
    rest = pipeline(cluster, "archive", "pipelined", "--lake", lake, "--once")
    out, errors = rest.communicate(timeout=200)
    assert (0, f"archived 10 messages; {lake} has 40\n") == (rest.returncode, out)
    assert re.fullmatch(r"(archive: batch .*\n)+", errors)

    shown = pipeline(cluster, "replay", lake, "anywhere", "--tag", "A", "--dry-run")
    out, errors = shown.communicate(timeout=200)
    assert 0 == shown.returncode
    heading, *lines = out.splitlines()
    assert "topic\tdate\thour\tmessages" == heading
    assert 40 == sum(int(line.split("\t")[3]) for line in lines if line.startswith("pipelined\t"))
    assert "40 messages would be sent; the first ones are:" in errors


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_job_that_cannot_be_ends_in_one_sentence(cluster: Serving, tmp_path: Path) -> None:
    """U5: with an exit code, and nothing left behind."""
    failed = pipeline(cluster, "archive", "nowhere", "--lake", str(tmp_path / "lake"), "--once")
    out, errors = failed.communicate(timeout=200)
    assert (2, "") == (failed.returncode, out)
    assert re.fullmatch(r"tern: there is no topic 'nowhere' at \S+; see `tern topic list`\n", errors)
    assert [] == list(tmp_path.iterdir())


def test_a_line_tells_what_is_known() -> None:
    """U5"""
    stream = JobProgress(job="archive", rows=1200, rows_per_s=99.6, lag=5, batch=3, batch_ms=1500)
    assert "batch 3 in 1.5 s, 1,200 messages, 100/s, lag 5" == line_of(stream)
    assert "2 of 8 tasks" == line_of(JobProgress(job="compact", done=2, total=8))


def metrics_at(port: int) -> dict[tuple[str, str], dict[str, float]]:
    """What Prometheus itself reads there: a metric's name and kind, and its value for each job."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert "text/plain" in answer.headers["Content-Type"]
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (family.samples[0].name, family.type): {sample.labels["job"]: sample.value for sample in family.samples}
        for family in families
    }


def test_metrics_tell_what_is_known_as_long_as_a_job_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """U5"""
    with serving_metrics(0) as metrics:
        port = int(capsys.readouterr().err.removeprefix("metrics on port "))
        assert {} == metrics_at(port)
        metrics.take(JobProgress(job="archive", rows=1200, batch_ms=1500))
        metrics.take(JobProgress(job="compact", done=2, total=8))
        assert {
            ("tern_pipeline_rows_total", "counter"): {"archive": 1200},
            ("tern_pipeline_batch_seconds", "gauge"): {"archive": 1.5},
            ("tern_pipeline_parts_done", "gauge"): {"compact": 2},
            ("tern_pipeline_parts", "gauge"): {"compact": 8},
        } == metrics_at(port)
        metrics.take(JobProgress(job="compact", rows=9, rows_per_s=2.5, lag=0, batch=3, batch_ms=40, done=9, total=9))
        assert {
            ("tern_pipeline_rows_total", "counter"): {"archive": 1200, "compact": 9},
            ("tern_pipeline_rows_per_second", "gauge"): {"compact": 2.5},
            ("tern_pipeline_lag", "gauge"): {"compact": 0},
            ("tern_pipeline_batch", "gauge"): {"compact": 3},
            ("tern_pipeline_batch_seconds", "gauge"): {"archive": 1.5, "compact": 0.04},
            ("tern_pipeline_parts_done", "gauge"): {"compact": 9},
            ("tern_pipeline_parts", "gauge"): {"compact": 9},
        } == metrics_at(port)
        with pytest.raises(ConfigError, match=f"--metrics cannot use port {port}: .*; choose another port"):
            serving_metrics(port).__enter__()
    with pytest.raises(urllib.error.URLError, match="refused"):
        metrics_at(port)


def test_without_their_package_metrics_name_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """U5: before Spark is started."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "ternmq.cli.pipelines.metrics")
    cure = r"the package prometheus_client is not installed; run `pip install 'ternmq\[spark\]'`"
    with pytest.raises(ConfigError, match=cure), spark_job("archive", metrics_port=0):
        pytest.fail("it has begun")


def test_commands_load_prometheus_only_for_metrics() -> None:
    """U5: it would make every `tern --help` and the start of a broker slower."""
    program = "import sys, ternmq.cli.main, ternmq.cli.pipelines.job; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_the_log_file_of_a_pipeline_is_new_secret_and_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 13, 7: others write in the temporary directory, too, and could have a link wait under a name they know."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    first, second = new_log_file("archive"), new_log_file("archive")

    assert first != second
    for path in (first, second):
        assert re.fullmatch(r"tern-pipeline-archive-.{8}\.log", path.name)
        assert str(os.getpid()) != path.stem.rpartition("-")[2]
        assert 0o600 == stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)
