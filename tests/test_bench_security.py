"""``script/bench --security`` says at once what it lacks, and shows what it has measured (N1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import security

ROOT = Path(__file__).resolve().parents[1]


def test_without_java_nothing_is_measured_in_vain() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.security", "--system", "ternmq"],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (1, "") == (ended.returncode, ended.stdout)
    assert "run script/bootstrap java; without Java: --gate" in ended.stderr


def test_the_gate_is_compared_round_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine is slower in the second round, which says nothing about the gate; the third one was interrupted."""
    rounds = {("ternmq", "signed"): [1000.0, 500.0, 900.0], ("ternmq", "acl"): [980.0, 490.0], ("ternmq", "tls"): []}

    security._print("Sends", "messages/s", rounds)

    shown = capsys.readouterr().out
    assert "acl beside signed, round by round: median 0.980x, half of the rounds 0.980x to 0.980x, 2 rounds" in shown
    assert "tls" not in shown
