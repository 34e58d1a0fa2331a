"""``manage.py outbox_relay``: send the messages that the application saved, until Ctrl-C (J3)."""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from ternmq.client.config import ClientConfig
from ternmq.errors import TernError
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.django.database import DjangoDatabase
from ternmq.outbox.service import GROUP, Service


class Command(BaseCommand):
    help = "Send messages of the outbox, until Ctrl-C. Any number of relays can run at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--database", action="append", metavar="ALIAS", help="A database of settings.DATABASES; can be repeated."
        )
        parser.add_argument("--once", action="store_true", help="Send what is due now, and end.")

    def handle(self, *_: Any, **options: Any) -> None:
        aliases = options["database"] or [DEFAULT_DB_ALIAS]
        try:
            # Not on the loop: Django asks databases for their versions.
            databases = [DjangoDatabase(alias) for alias in aliases]
            asyncio.run(self._relay(databases, once=options["once"]))
        except TernError as error:
            raise CommandError(str(error)) from error

    async def _relay(self, databases: list[DjangoDatabase], *, once: bool) -> None:
        given: dict[str, Any] = dict(getattr(settings, "TERNMQ_OUTBOX", None) or {})
        service = Service(
            databases,
            group=given.get("group") or GROUP,
            client=given.get("client") or ClientConfig(given.get("name_servers") or ""),
            producer=given.get("producer"),
            config=given.get("config") or OutboxConfig(),
            sweeps=not once,
        )
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        try:
            async with service:
                if once:
                    sent = sum([await relay.sweep() for relay in service.relays])
                    self.stdout.write(f"{sent} messages sent")
                else:
                    self.stdout.write(f"relaying from {', '.join(database.name for database in databases)}")
                    self.stdout.flush()
                    await stopped.wait()
        finally:
            for database in databases:
                await database.close()
