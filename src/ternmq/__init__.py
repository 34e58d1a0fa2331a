"""TernMQ: a distributed message queue that speaks RocketMQ's protocol. This module has the names for applications.

::

    from ternmq import Message, Producer, PushConsumer

    async with Producer("shop", name_servers="127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"one book"))

Names are imported when first used: a producer does not load the servers, and ``import ternmq`` alone loads no module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ternmq import errors
    from ternmq.admin import Admin
    from ternmq.admin.blocking import SyncAdmin
    from ternmq.client.blocking.pop import SyncPopConsumer
    from ternmq.client.blocking.producer import SyncProducer
    from ternmq.client.blocking.pull import SyncLitePullConsumer, SyncPullConsumer
    from ternmq.client.blocking.push import SyncPushConsumer
    from ternmq.client.blocking.share import SyncShareConsumer
    from ternmq.client.config import ClientConfig, ProducerConfig
    from ternmq.client.consume.claimed import Claimed
    from ternmq.client.consume.config import FlowLimits, LitePullConfig, PopConfig, PushConfig, ShareConfig
    from ternmq.client.consume.listener import ConsumeContext, ConsumeHook, ConsumeResult
    from ternmq.client.consume.lite_pull import LitePullConsumer
    from ternmq.client.consume.offsets import OffsetStore, StartPosition
    from ternmq.client.consume.outage import breaker
    from ternmq.client.consume.pop import PopConsumer
    from ternmq.client.consume.pull import PullConsumer
    from ternmq.client.consume.push import PushConsumer
    from ternmq.client.consume.share import ShareConsumer
    from ternmq.client.send.batch import split_batch
    from ternmq.client.send.hooks import SendContext, SendHook
    from ternmq.client.send.producer import Producer
    from ternmq.client.send.queue_choice import by_hash
    from ternmq.client.send.transaction import Transaction
    from ternmq.client.transaction_table import TransactionTable
    from ternmq.embedded import EmbeddedCluster
    from ternmq.errors import Outage
    from ternmq.message import Message, MessageQueue, Outcome, ReceivedMessage, SendReceipt, SendStatus
    from ternmq.net.tls import TlsConfig
    from ternmq.wire.bodies.clients import MessageModel

__all__ = [
    "Admin",
    "Claimed",
    "ClientConfig",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeResult",
    "EmbeddedCluster",
    "FlowLimits",
    "LitePullConfig",
    "LitePullConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "OffsetStore",
    "Outage",
    "Outcome",
    "PopConfig",
    "PopConsumer",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConfig",
    "PushConsumer",
    "ReceivedMessage",
    "SendContext",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "ShareConfig",
    "ShareConsumer",
    "StartPosition",
    "SyncAdmin",
    "SyncLitePullConsumer",
    "SyncPopConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncShareConsumer",
    "TlsConfig",
    "Transaction",
    "TransactionTable",
    "breaker",
    "by_hash",
    "errors",
    "split_batch",
]

#: The module of each name. ``tests/test_exports.py`` compares it with the imports above.
_HOMES: Final = {
    "ternmq.admin": ("Admin",),
    "ternmq.admin.blocking": ("SyncAdmin",),
    "ternmq.client.send.batch": ("split_batch",),
    "ternmq.client.blocking.producer": ("SyncProducer",),
    "ternmq.client.blocking.push": ("SyncPushConsumer",),
    "ternmq.client.blocking.share": ("SyncShareConsumer",),
    "ternmq.client.blocking.pop": ("SyncPopConsumer",),
    "ternmq.client.blocking.pull": ("SyncLitePullConsumer", "SyncPullConsumer"),
    "ternmq.client.config": ("ClientConfig", "ProducerConfig"),
    "ternmq.client.consume.claimed": ("Claimed",),
    "ternmq.client.consume.push": ("PushConsumer",),
    "ternmq.client.consume.share": ("ShareConsumer",),
    "ternmq.client.consume.config": ("FlowLimits", "LitePullConfig", "PopConfig", "PushConfig", "ShareConfig"),
    "ternmq.client.send.hooks": ("SendContext", "SendHook"),
    "ternmq.client.consume.listener": ("ConsumeContext", "ConsumeHook", "ConsumeResult"),
    "ternmq.client.consume.lite_pull": ("LitePullConsumer",),
    "ternmq.client.consume.offsets": ("OffsetStore", "StartPosition"),
    "ternmq.client.consume.outage": ("breaker",),
    "ternmq.client.consume.pop": ("PopConsumer",),
    "ternmq.client.send.producer": ("Producer",),
    "ternmq.client.consume.pull": ("PullConsumer",),
    "ternmq.client.send.queue_choice": ("by_hash",),
    "ternmq.client.send.transaction": ("Transaction",),
    "ternmq.client.transaction_table": ("TransactionTable",),
    "ternmq.embedded": ("EmbeddedCluster",),
    "ternmq.errors": ("Outage",),
    "ternmq.message": ("Message", "MessageQueue", "Outcome", "ReceivedMessage", "SendReceipt", "SendStatus"),
    "ternmq.net.tls": ("TlsConfig",),
    "ternmq.wire.bodies.clients": ("MessageModel",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

# Hidden from type checkers: for them, a module with __getattr__ has every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("ternmq.errors")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'ternmq' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
