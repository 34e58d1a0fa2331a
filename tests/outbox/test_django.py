"""The outbox in Django's transactions, on real databases and a real cluster (J3)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import django
import pymysql
import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction

from ternmq import EmbeddedCluster, Message
from ternmq.errors import ConfigError, InvalidMessage, NotRunning, OutboxMissing
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.schema import TABLE
from ternmq.outbox.table import Execute
from tests.databases import Database
from tests.outbox.topics import bodies, wait_for

pymysql.install_as_MySQLdb()
if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["ternmq.outbox.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    django.setup()

from django.db import models  # noqa: E402 - Django must be set up first

from ternmq.outbox.django.database import DjangoDatabase  # noqa: E402
from ternmq.outbox.django.models import OutboxMessage  # noqa: E402
from ternmq.outbox.django.outbox import DjangoOutbox  # noqa: E402

NUMBERS = count(1)
#: A relay that looks into the table only when it is told to.
DIRECT = OutboxConfig(sweep_interval_ms=3_600_000)


class Boom(Exception):
    pass


@pytest.fixture
def alias(any_database: Database) -> Iterator[str]:
    """A database of Django's, with the outbox table by its migration."""
    name = f"test{next(NUMBERS)}"
    engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[any_database.dialect]
    given: dict[str, Any] = {"ENGINE": f"django.db.backends.{engine}", "NAME": any_database.name}
    if any_database.port:
        given |= {"HOST": "127.0.0.1", "PORT": any_database.port, "USER": any_database.user}
    known = {"default": settings.DATABASES["default"], name: given}
    connections.settings[name] = connections.configure_settings(known)[name]
    call_command("migrate", database=name, verbosity=0)
    yield name
    connections[name].close()


@pytest.fixture
def outbox(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[DjangoOutbox]:
    given = {"name_servers": cluster.name_servers, "config": DIRECT}
    monkeypatch.setattr(settings, "TERNMQ_OUTBOX", given, raising=False)
    outbox = DjangoOutbox()
    yield outbox
    outbox.close()


def rows(alias: str) -> int:
    return OutboxMessage.objects.using(alias).count()


def test_a_committed_message_is_sent_and_a_rolled_back_one_is_not(
    cluster: EmbeddedCluster, outbox: DjangoOutbox, alias: str
) -> None:
    """J3: also of inner blocks."""
    topic = f"django-{connections[alias].vendor}"
    with transaction.atomic(using=alias):
        outbox.send(Message(topic, b"committed"), Message(topic, b"in order", sharding_key="1"), using=alias)
        with pytest.raises(Boom), transaction.atomic(using=alias):
            outbox.send(Message(topic, b"never: inner"), using=alias)
            raise Boom
        with transaction.atomic(using=alias):
            outbox.send(Message(topic, b"inner", delay_level=1), using=alias)
        assert [] == bodies(cluster.name_servers, topic)
    with pytest.raises(Boom), transaction.atomic(using=alias):
        outbox.send(Message(topic, b"never"), using=alias)
        raise Boom
    outbox.send(Message(topic, b"by itself"), using=alias)
    assert outbox.publish(Message(topic, b"published"), using=alias)

    wait_for(lambda: rows(alias) == 0)
    assert 3 == outbox.counters[alias].sent_directly - 1
    wait_for(lambda: len(bodies(cluster.name_servers, topic)) == 5)
    assert [b"by itself", b"committed", b"in order", b"inner", b"published"] == bodies(cluster.name_servers, topic)


def test_a_large_transaction_keeps_a_part_of_its_messages_in_memory(
    cluster: EmbeddedCluster, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: the bound is one of bytes, before the commit; what is rolled back does not count."""
    topic = f"django-large-{connections[alias].vendor}"
    config = OutboxConfig(sweep_interval_ms=3_600_000, direct_bytes_max=2_000)
    given = {"name_servers": cluster.name_servers, "config": config}
    monkeypatch.setattr(settings, "TERNMQ_OUTBOX", given, raising=False)
    outbox = DjangoOutbox()
    large = [Message(topic, b"%d" % number * 1_000) for number in range(5)]
    with transaction.atomic(using=alias):
        with pytest.raises(Boom), transaction.atomic(using=alias):
            outbox.send(*large, using=alias)
            raise Boom
        for message in large:
            outbox.send(message, using=alias)
    wait_for(lambda: rows(alias) == 0)
    counters = outbox.counters[alias]
    outbox.close()
    assert (2, 3) == (counters.sent_directly, counters.sent_later)
    assert [message.body for message in large] == bodies(cluster.name_servers, topic)


def test_the_migration_and_the_model_agree(alias: str) -> None:
    """J3: Django sees nothing to change, and can read and write the table."""
    call_command("makemigrations", "ternmq_outbox", check=True, dry_run=True, verbosity=0)
    row = OutboxMessage.objects.using(alias).create(topic="t", body=b"x", message="{}")
    assert ("t", 0) == (OutboxMessage.objects.using(alias).get(pk=row.pk).topic, row.state)
    assert isinstance(OutboxMessage._meta.get_field("id"), models.BigAutoField)
    assert "t None" == str(row)
    row.delete()
    call_command("migrate", "ternmq_outbox", "zero", database=alias, verbosity=0)
    assert "ternmq_outbox" not in connections[alias].introspection.table_names()
    call_command("migrate", database=alias, verbosity=0)


def test_the_relay_of_manage_py_sends_what_was_only_saved(
    cluster: EmbeddedCluster, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3"""
    topic = f"django-saved-{connections[alias].vendor}"
    given = {"name_servers": cluster.name_servers, "relay": False}
    monkeypatch.setattr(settings, "TERNMQ_OUTBOX", given, raising=False)
    outbox = DjangoOutbox()
    with transaction.atomic(using=alias):
        outbox.send(Message(topic, b"1"), Message(topic, b"2", sharding_key="a"), using=alias)
    with pytest.raises(NotRunning, match="relay=False"):
        outbox.publish(Message(topic, b"3"), using=alias)
    told = io.StringIO()

    call_command("outbox_relay", database=[alias], once=True, stdout=told)

    assert "2 messages sent\n" == told.getvalue()
    assert [b"1", b"2"] == bodies(cluster.name_servers, topic)


def test_what_is_wrong_is_told_and_the_transaction_lives(outbox: DjangoOutbox, alias: str) -> None:
    """Issue 20: bad input is a sentence, and the application's transaction is neither committed nor lost."""
    call_command("migrate", "ternmq_outbox", "zero", database=alias, verbosity=0)
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE numbers (n INTEGER)")
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(OutboxMissing, match=r"run `manage\.py migrate ternmq_outbox"):
            outbox.send(Message("orders", b"x"), using=alias)
        with pytest.raises(InvalidMessage):
            outbox.send(Message("orders", b""), using=alias)
        cursor.execute("INSERT INTO numbers VALUES (2)")
        cursor.execute("SELECT COUNT(*) FROM numbers")
        assert (2,) == cursor.fetchone()
    with pytest.raises(CommandError, match="has no table"):
        call_command("outbox_relay", database=[alias], once=True)


def test_unknown_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """J3"""
    monkeypatch.setattr(settings, "TERNMQ_OUTBOX", {"name_server": "x"}, raising=False)
    with pytest.raises(ConfigError, match="'name_server' is unknown; expected name_servers"):
        DjangoOutbox().send(Message("orders", b"x"))


def test_the_relay_waits_for_another_writer_of_a_sqlite_file(outbox: DjangoOutbox, tmp_path: Path) -> None:
    """J3: a transaction that had read was refused at once, again and again, while an application wrote."""
    name = f"test{next(NUMBERS)}"
    given = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")}
    connections.settings[name] = connections.configure_settings({"default": given, name: given})[name]
    call_command("migrate", database=name, verbosity=0)
    calls = 0

    async def relay(refused: threading.Event) -> None:
        database = DjangoDatabase(name)

        def work(execute: Execute) -> None:
            nonlocal calls
            calls += 1
            if calls == 8:
                refused.set()
            execute(f"SELECT count(*) FROM {TABLE}")
            execute(f"DELETE FROM {TABLE} WHERE id = 0")

        await database.run(work)
        await database.close()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        refused = threading.Event()
        with transaction.atomic(using=name):
            outbox.send(Message("django-file", b"saved"), using=name)
            relaying = thread.submit(asyncio.run, relay(refused))
            assert refused.wait(60)
        relaying.result(60)
    assert calls >= 8
    connections[name].close()
