"""``tern outbox``, as a user runs it (J3, T1)."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from ternmq import EmbeddedCluster, Message, ProducerConfig
from ternmq.outbox.spool import SyncSpoolingProducer
from ternmq.outbox.sqlalchemy import Outbox
from tests.cli.conftest import Start, starter, tern
from tests.databases import Database
from tests.outbox.topics import bodies, wait_for


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starter(tmp_path) as start:
        yield start


def save(url: str, *messages: Message) -> None:
    engine = create_engine(url)
    outbox = Outbox(engine)
    with Session(engine) as session, session.begin():
        outbox.send(session, *messages)
    engine.dispose()


def test_a_relay_sends_what_applications_saved(
    cluster: EmbeddedCluster, postgresql_database: Database, start: Start
) -> None:
    """J3: two at once; they end cleanly, and tell what they did."""
    url = postgresql_database.url()
    assert "the table ternmq_outbox exists\n" == tern("outbox", "create", "-d", url).stdout
    relays = [
        start("outbox", "relay", "-d", url, "-n", cluster.name_servers, "--metrics", "0", "--interval", "3600")
        for _ in range(2)
    ]
    assert url == relays[0].ready["databases"][0]
    save(url, *(Message("relayed", b"%d" % n, sharding_key=str(n % 3)) for n in range(30)))

    wait_for(lambda: len(bodies(cluster.name_servers, "relayed")) == 30)
    wait_for(lambda: "metrics on port" in relays[0].errors)
    port = relays[0].errors.partition("metrics on port ")[2].split()[0]
    served = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert "tern_outbox_sent_total{database=" in served
    status = json.loads(tern("outbox", "status", "-d", url, "--json").stdout)
    assert (0, 0, 0) == (status[0]["waiting"], status[0]["leased"], status[0]["dead"])
    for relay in relays:
        assert 0 == relay.end(signal.SIGTERM)


def test_an_operator_sees_and_settles_dead_messages(cluster: EmbeddedCluster, sqlite_database: Database) -> None:
    """J3: status, sweep, retry, discard; the database from the environment."""
    url, topic = sqlite_database.url(), "commanded"
    tern("outbox", "create", "-d", url)
    save(url, Message(topic, b"1"), Message(topic, b"2"), Message(topic, b"3"))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ternmq_outbox SET message = 'broken' WHERE id < 3")
    engine.dispose()

    swept = tern("outbox", "sweep", "-n", cluster.name_servers, TERNMQ_OUTBOX_DATABASE=url)
    assert (1, "1 messages sent, 2 attempts failed, 2 messages died\n") == (swept.returncode, swept.stdout)
    shown = tern("outbox", "status", "--dead", "5", TERNMQ_OUTBOX_DATABASE=url).stdout
    assert f"{url}\t0\t0\t2\t-" in shown
    assert "invalid column 'message'" in shown
    assert {"retried": 1} == json.loads(tern("outbox", "retry", "1", "77", "-d", url, "--json").stdout)
    assert "the dead messages 2 are deleted for ever" in tern("outbox", "discard", "2", "-d", url).stderr
    assert "1 messages are deleted\n" == tern("outbox", "discard", "2", "--yes", "-d", url).stdout
    assert "1 messages died" in tern("outbox", "sweep", "-d", url, "-n", cluster.name_servers).stdout
    assert "1 messages wait again\n" == tern("outbox", "retry", "--all", "-d", url).stdout
    assert 1 == tern("outbox", "discard", "1", "--yes", "-d", url).returncode
    assert [b"3"] == bodies(cluster.name_servers, topic)


def test_a_spool_is_relayed_when_its_producer_has_gone(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """J3"""
    spool = str(tmp_path / "spool.db")
    with SyncSpoolingProducer(
        "shop", spool, name_servers="127.0.0.1:1", producer=ProducerConfig(send_timeout_ms=300)
    ) as producer:
        producer.send(Message("spool-relayed", b"1", sharding_key="a"))
        producer.send(Message("spool-relayed", b"2", sharding_key="a"))

    def is_sent() -> bool:
        tern("outbox", "sweep", "--spool", spool, "-n", cluster.name_servers)
        return [b"1", b"2"] == bodies(cluster.name_servers, "spool-relayed")

    # It waits a second after the failed attempt of the producer's own relay.
    wait_for(is_sent)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status"], "no database is given; name one with --database URL"),
        (["status", "-d", "no url"], "invalid --database"),
        (["status", "-d", "oracle+nothing://a:secret@b/c"], "invalid --database"),
        (["relay", "-d", "sqlite:////nowhere/x.db"], "cannot use the database sqlite:////nowhere/x.db"),
        (["status", "--spool", "/nowhere/spool.db"], "there is no spool /nowhere/spool.db"),
        (["retry", "-d", "sqlite:///x.db"], "name the ids of dead messages, or --all"),
        (["status", "-d", "postgresql+psycopg://u:secret@127.0.0.1:1/x"], "u:***@127.0.0.1:1/x"),
        (["sweep", "-d", "mysql+pymysql://u:secret@127.0.0.1:1/x"], "u:***@127.0.0.1:1/x"),
        (["status", "-d", "sqlite:///x.db", "--table", "a b"], "invalid name 'a b'"),
    ],
)
def test_bad_input_is_a_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """T1: exit code 1, one line, no password."""
    done = tern("outbox", *arguments)

    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert 1 == len(done.stderr.splitlines())
    assert "secret" not in done.stderr


def test_a_missing_table_is_a_sentence(tmp_path: Path) -> None:
    """J3"""
    for command in ("status", "relay", "sweep"):
        done = tern("outbox", command, "-d", f"sqlite:///{tmp_path}/empty.db")
        assert done.returncode in (1, 2)
        assert "has no table 'ternmq_outbox'" in done.stderr
