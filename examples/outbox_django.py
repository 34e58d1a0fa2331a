"""Django's transactions with messages in them, in one file. A real project has these settings in settings.py.

python examples/outbox_django.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from ternmq import Message, StartPosition, SyncLitePullConsumer


def main(name_servers: str, directory: str) -> None:
    settings.configure(
        INSTALLED_APPS=["ternmq.outbox.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{directory}/shop.db"}},
        TERNMQ_OUTBOX={"name_servers": name_servers},
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)
    from ternmq.outbox.django.outbox import outbox

    with transaction.atomic():
        outbox.send(Message("django-orders", b"one book", sharding_key="1"))
        print("saved, and not sent yet")

    try:
        with transaction.atomic():
            outbox.send(Message("django-orders", b"never sent"))
            raise ValueError("the payment failed")
    except ValueError as error:
        print(f"rolled back: {error}")

    outbox.send(Message("django-orders", b"two books"))
    outbox.close()  # at the end of a program this happens by itself

    consumer = SyncLitePullConsumer("django-readers", name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe("django-orders")
    with consumer:
        received: list[str] = []
        while len(received) < 2:
            received += [message.body.decode() for message in consumer.poll(timeout_ms=1000)]
        print("received:", sorted(received))
    connection.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", directory)
