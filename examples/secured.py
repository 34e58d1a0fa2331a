"""A cluster with accounts: the shop may send orders, billing may read them, and a client without a key may do nothing.

    python examples/secured.py

Needs `pip install ternmq[security]`. The cluster runs inside this program; any arguments are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from ternmq import (
    Admin,
    ClientConfig,
    EmbeddedCluster,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
    errors,
)

ACCOUNTS = """\
accounts:
  - {accessKey: admin-key, secretKey: a-long-random-text-1, admin: true}
  - {accessKey: shop-key, secretKey: a-long-random-text-2, topicPerms: [orders=PUB]}
  - {accessKey: billing-key, secretKey: a-long-random-text-3, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
"""
#: The account that the broker registers with.
TOOLS = "accessKey: admin-key\nsecretKey: a-long-random-text-1\n"


async def main(directory: Path) -> None:
    for name, text in (("plain_acl.yml", ACCOUNTS), ("tools.yml", TOOLS)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def bill(message: ReceivedMessage) -> None:
        await received.put(message.body)

    async with EmbeddedCluster(settings={"aclEnable": True, "aclPath": directory}) as cluster:

        def client(key: str, secret: str) -> ClientConfig:
            return ClientConfig(cluster.name_servers, access_key=key, secret_key=secret)

        async with Admin(config=client("admin-key", "a-long-random-text-1")) as admin:
            await admin.topics.create("orders", queues=1)
        billing = client("billing-key", "a-long-random-text-3")
        async with (
            Producer("shop", client=client("shop-key", "a-long-random-text-2")) as shop,
            PushConsumer("billing", bill, client=billing, start=StartPosition.FIRST) as consumer,
        ):
            consumer.subscribe("orders")
            await shop.send(Message("orders", b"one book"))
            print("billed", (await received.get()).decode())
            try:
                await shop.send(Message("invoices", b"not of the shop"))
            except errors.NoPermission:
                print("the shop may not send invoices")
        async with Producer("stranger", name_servers=cluster.name_servers) as stranger:
            try:
                await stranger.send(Message("orders", b"without a key"))
            except errors.NoPermission:
                print("a client without a key may do nothing")


# The servers are in this process, and their audit log would be printed.
logging.getLogger("ternmq.audit").setLevel(logging.ERROR)
with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
