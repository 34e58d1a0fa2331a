"""Settings by namespace and key that brokers, clients and tools share through a name server (A5).

RocketMQ keeps the configuration of ordered topics here: namespace ``ORDER_TOPIC_CONFIG``, key topic, value
``broker:queues;broker:queues``. Kept in memory and, if the name server has a file for it, in that file, which has
RocketMQ's form: ``{"configTable":{"namespace":{"key":"value"}}}``. Name servers share nothing: tools write to each.
"""

from __future__ import annotations

from typing import Final

from ternmq.files import TableFile
from ternmq.wire.bodies.codec import Body, always, decode, encode

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


class _Saved(Body, frozen=True, kw_only=True):
    config_table: dict[str, dict[str, str]] = always(dict)


class KvConfig:
    """Not for several threads. Call ``load`` once before anything else."""

    def __init__(self, file: TableFile | None = None) -> None:
        self._file = file
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, _Saved)) if self._file is not None else None
        if saved is not None:
            self._table = {namespace: dict(table) for namespace, table in saved.config_table.items()}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def of_namespace(self, namespace: str) -> dict[str, str] | None:
        """All settings of a namespace; None when it has none."""
        table = self._table.get(namespace)
        return dict(table) if table else None

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Forget a setting; an unknown one is forgotten already."""
        table = self._table.get(namespace)
        if table is not None and table.pop(key, None) is not None:
            if not table:
                del self._table[namespace]
            self._save()

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(encode(_Saved(config_table=self._table)))
