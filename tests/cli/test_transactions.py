"""``tern transaction``, with the real program (J2, T1)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from ternmq import Message, Outcome, SyncProducer
from tests.cli.conftest import Serving
from tests.cli.test_messages import array

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_open_transactions_are_listed_with_age_group_and_checks(cluster: Serving, on_cluster: Tern) -> None:
    """J2"""
    with (
        SyncProducer("tx-shop", name_servers=cluster.name_server, checker=lambda _: Outcome.UNKNOWN) as producer,
        producer.transaction(Message("tx-orders", b"secret"), check_after_s=3600) as tx,
    ):
        [row] = array(on_cluster("transaction", "list", "--group", "tx-shop", "--json"))
        people = on_cluster("transaction", "list", "--group", "tx-shop").stdout.splitlines()
        other = on_cluster("transaction", "list", "--group", "nobody")

        assert (tx.id, "tx-shop", "tx-orders", 0) == (
            row["transaction_id"],
            row["group"],
            row["topic"],
            row["checks"],
        )
        assert row["age_ms"] >= 0
        assert "age\tgroup\ttopic\tchecks\tbroker\ttransaction_id" == people[0]
        assert tx.id in people[1]
        assert "secret" not in "".join(people)
        assert "group nobody has no open transactions" in other.stdout + other.stderr
    assert [] == array(on_cluster("transaction", "list", "--group", "tx-shop", "--json"))


def test_a_transaction_that_was_not_discarded_cannot_be_resumed(on_cluster: Tern) -> None:
    """J2, bad input"""
    for offset_id, words in (("x", "is not a valid offset id"), ("7F00000100000001" + "0" * 16, "")):
        failed = on_cluster("transaction", "resume", offset_id)
        assert failed.returncode in (2, 5)
        assert words in failed.stderr
        assert 1 == len(failed.stderr.splitlines())
