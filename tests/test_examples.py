"""The examples run, as a user would run them, and print what they say (E1, F1, F3, T5)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmq.embedded import EmbeddedCluster
from tests.no_delays import NO_DELAYS

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as running:
        yield running


LAST_LINES = {
    "consumer.py": "loop got paid one book",
    "consumer_batches.py": "saved 100 messages",
    "consumer_blocking.py": "loop got 20",
    "consumer_orderly.py": "in order: True",
    "consumer_pull.py": "read 50 messages",
    "consumer_sql.py": "found 40 in eu, 7 in eu",
    "lite_pull.py": "read the first queue again: True",
    "dead_letters.py": "left: 0",
    "once_sqlalchemy.py": "balance: 30, from 4 deliveries",
    "outage.py": "dead: ['poison']",
    "outbox_django.py": "received: ['one book', 'two books']",
    "outbox_sqlalchemy.py": "received: ['one book', 'two books']",
    "pop.py": "painted 30 pictures",
    "producer.py": "shipped in steps@broker-a:",
    "producer_blocking.py": "sent SEND_OK",
    "producer_delayed.py": "both came",
    "producer_deliver_at.py": "came the door opens",
    "producer_settings.py": "refused: the topic name 'no blanks, please' has characters",
    "trace.py": "trace-billing consumed: success",
    "share.py": "read 30 pages with 8 workers",
    "transactions.py": "payments: [20, 35]",
    "secured.py": "a client without a key may do nothing",
    "request_reply.py": "no answer: no reply to the request to topic 'prices' within 100 ms",
}


def test_every_example_is_run() -> None:
    """Those on Spark are in ``tests/spark``."""
    ours = (path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith(("spark_", "pipeline_")))
    assert sorted(LAST_LINES) == sorted(ours)


@pytest.mark.parametrize(("name", "last_line"), LAST_LINES.items())
def test_the_example_runs(cluster: EmbeddedCluster, name: str, last_line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), cluster.name_servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.splitlines()[-1].startswith(last_line)
