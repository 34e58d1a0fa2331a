"""Traces as Java's clients write them, made by hand: for known answers."""

from __future__ import annotations

from collections.abc import Iterable

from ternmq import Message, SyncProducer

#: When the made traces begin.
NOON_MS = 1_794_830_400_000


def pub(
    message_id: str,
    topic: str = "orders",
    *,
    at: int = 0,
    cost: int = 2,
    group: str = "shop",
    tags: str = "null",
    keys: str = "null",
    kind: int = 0,
    success: bool = True,
) -> bytes:
    """A send, ``at`` ms after noon."""
    return _record(
        "Pub",
        NOON_MS + at,
        "DefaultRegion",
        group,
        topic,
        message_id,
        tags,
        keys,
        "127.0.0.1:10911",
        200,
        cost,
        kind,
        f"7F{message_id}",
        success,
    )


def call(
    message_id: str,
    *,
    at: int = 10,
    cost: int = 5,
    group: str = "billing",
    keys: str = "null",
    success: bool = True,
    retries: int = 0,
) -> bytes:
    """A listener's call that begins ``at`` ms after noon on the consumer's clock."""
    request = f"R{group}{message_id}{retries}{at}"
    code = 0 if success else 4
    before = _record("SubBefore", NOON_MS + at, "DefaultRegion", group, request, message_id, retries, keys)
    return before + _record("SubAfter", request, message_id, cost, success, keys, code, NOON_MS + at + cost, group)


def end_transaction(message_id: str, topic: str = "orders", *, state: str = "COMMIT_MESSAGE") -> bytes:
    fields = ("EndTransaction", NOON_MS, "DefaultRegion", "shop", topic, message_id, "null", "null")
    return _record(*fields, "127.0.0.1:10911", 2, "tx", state, False)


def send_traces(name_servers: str, topic: str, bodies: Iterable[bytes]) -> None:
    """One trace message a body."""
    with SyncProducer("tracers", name_servers=name_servers) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def _record(*fields: object) -> bytes:
    texts = (str(field).lower() if isinstance(field, bool) else str(field) for field in fields)
    return ("\x01".join(texts) + "\x02").encode()
