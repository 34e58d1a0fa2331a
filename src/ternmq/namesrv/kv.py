"""Settings by namespace and key that brokers, clients and tools share through a name server (A5).

RocketMQ keeps the configuration of ordered topics here: namespace ``ORDER_TOPIC_CONFIG``, key topic, value
``broker:queues;broker:queues``. Settings are kept in memory and, if the name server has a file for them, in that file,
in RocketMQ's format: ``{"configTable":{"namespace":{"key":"value"}}}``. Name servers do not communicate with each
other: tools write to each of them.

The size of the table is limited. Each registration of a broker is answered with all settings of ordered topics: if
they were larger than a frame, no broker could register.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from ternmq.errors import InvalidParameter
from ternmq.files import Encode, TableFile
from ternmq.wire.bodies.codec import Body, always, decode, encode

#: Half of the usual frame.
BYTES_MAX: Final = 8 * 1024 * 1024
_MARKS_BYTES: Final = 4
#: Characters of a name in an error.
_SHOWN_MAX: Final = 127


class _SavedConfig(Body, frozen=True, kw_only=True):
    config_table: dict[str, dict[str, str]] = always(dict)


class KvConfig:
    """Not thread-safe. Call ``load`` once before any other method."""

    def __init__(self, file: TableFile | None = None, *, bytes_max: int = BYTES_MAX) -> None:
        self._file = file
        self._bytes_max = bytes_max
        #: Bytes of all settings, as JSON.
        self._bytes = 0
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, _SavedConfig)) if self._file is not None else None
        if saved is not None:
            self._table = {namespace: dict(table) for namespace, table in saved.config_table.items()}
            self._bytes = sum(
                _size(namespace, key, value) for namespace, table in self._table.items() for key, value in table.items()
            )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def of_namespace(self, namespace: str) -> dict[str, str] | None:
        """All settings of a namespace; None when it has none."""
        table = self._table.get(namespace)
        return dict(table) if table else None

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a setting. Raises ``InvalidParameter`` if all settings together would be too large."""
        before = self.get(namespace, key)
        more_bytes = _size(namespace, key, value) - (_size(namespace, key, before) if before is not None else 0)
        if more_bytes > 0 and self._bytes + more_bytes > self._bytes_max:
            raise InvalidParameter(
                f"the settings of this name server need {self._bytes} bytes, and with {key[:_SHOWN_MAX]!r} of "
                f"{namespace[:_SHOWN_MAX]!r} more than the {self._bytes_max} that maxKvConfigBytes allows; "
                "delete some settings, or raise the limit"
            )
        self._bytes += more_bytes
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Delete a setting; does nothing if it does not exist."""
        table = self._table.get(namespace)
        value = table.pop(key, None) if table is not None else None
        if table is not None and value is not None:
            self._bytes -= _size(namespace, key, value)
            if not table:
                del self._table[namespace]
            self._save()

    async def saved(self) -> None:
        """Wait until all changes are on disk, if there is a file; raises ``TableUnsaved``."""
        if self._file is not None:
            await self._file.saved()

    def retry(self) -> None:
        """Retry a failed write."""
        if self._file is not None:
            self._file.retry()

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._copy)

    def _copy(self) -> Encode:
        table = {namespace: dict(settings) for namespace, settings in self._table.items()}
        return partial(encode, _SavedConfig(config_table=table))


def _size(namespace: str, key: str, value: str) -> int:
    """Bytes of a setting in the file, with punctuation."""
    return len(msgspec.json.encode((namespace, key, value))) + _MARKS_BYTES
