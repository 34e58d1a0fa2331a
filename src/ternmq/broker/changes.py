"""Settings that are changed while a broker runs (T2): UPDATE_BROKER_CONFIG 25, ``tern config set``.

Changes are kept in ``config/settings.properties``, beside the tables. At a start they win over files, environment and
flags, and the log lists them. To undo one, remove its line while the broker is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.settings import FIXED
from ternmq.config import Settings, nearest, rocketmq_name, texts, to_line, to_properties
from ternmq.errors import ConfigError
from ternmq.files import Encode, TableFile
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig

log = logging.getLogger(__name__)

FILE_NAME: Final = "settings.properties"
#: Settings of the store that count from the next look at ages and disks on. The others are what files are made of.
STORE_CHANGEABLE: Final = frozenset(
    {
        "file_reserved_time",
        "delete_when",
        "clean_resource_interval",
        "delete_file_batch_max",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "clean_file_forcibly_enable",
        "disk_space_warning_level_ratio",
    }
)

_KINDS: Final = (BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig)


class Changes:
    """What was changed, by RocketMQ's names, and its file. Methods belong to the broker's loop."""

    def __init__(self, file: TableFile) -> None:
        """Raises ``CorruptFile`` for a file that cannot be read."""
        self._file = file
        self._kept = file.load(_decode) or {}
        #: How many requests have changed something since the start.
        self.count = 0

    def onto(self, config: BrokerConfig, store_config: StoreConfig) -> tuple[BrokerConfig, StoreConfig]:
        """The settings of the start, with what was changed before it.

        Raises ``ConfigError`` for a line that is invalid, or that cannot be changed.
        """
        if not self._kept:
            return config, store_config
        text = self._text()
        log.info("settings that were changed at run time (%s): %s", self._file.path, ", ".join(text.splitlines()))
        given = Settings.parse(text, str(self._file.path))
        given.report_strangers(*_KINDS)
        return _changed(given, config, store_config)

    async def keep(self, texts: dict[str, str]) -> None:
        """Add to what was changed; returns when it is on disk. Raises ``TableUnsaved``."""
        if texts:
            self._kept |= texts
            self.count += 1
            self._file.save(self._copy)
        await self._file.saved()

    def _text(self) -> str:
        return "".join(to_line(name, text) for name, text in sorted(self._kept.items()))

    def _copy(self) -> Encode:
        data = self._text().encode()
        return lambda: data


class LiveSettings:
    """The settings of a running broker, as tools see and change them.

    ``get`` returns its config objects, those of broker and store first. ``apply`` hands these two over, and raises
    ``ConfigError`` before it has changed anything.
    """

    def __init__(
        self,
        changes: Changes,
        *,
        get: Callable[[], tuple[BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig]],
        apply: Callable[[BrokerConfig, StoreConfig], None],
    ) -> None:
        self._changes = changes
        self._get = get
        self._apply = apply

    @property
    def changes(self) -> int:
        """How often they were changed since the start."""
        return self._changes.count

    def text(self) -> str:
        """All of them in lines of ``key=value``, but for secrets."""
        return to_properties(*self._get())

    async def change(self, text: str) -> dict[str, tuple[str, str]]:
        """Change those in lines of ``key=value``: all, or none. Returns when they are on disk: old and new by name.

        Raises ``ConfigError``, and nothing has changed then; ``TableUnsaved`` if they count, but could not be written.
        """
        before = self._get()
        given = Settings.parse(text, "the request")
        if not given.given:
            raise ConfigError("the request has no settings; expected lines of key=value")
        for stranger in given.strangers(*_KINDS):
            near = nearest(stranger, *_KINDS)
            hint = f"did you mean {near}?" if near else "`tern config show` lists all"
            raise ConfigError(f"a TernMQ broker has no setting {stranger.key}; {hint}")
        for config in before[2:]:
            given.change(config, lambda _: False)
        self._apply(*_changed(given, before[0], before[1]))
        differing: dict[str, tuple[str, str]] = {}
        for old, new in zip(before, self._get(), strict=True):
            was = texts(old)
            differing |= {name: (was[name], now) for name, now in texts(new).items() if now != was[name]}
        await self._changes.keep({name: now for name, (_, now) in differing.items()})
        return differing


def changeable() -> set[str]:
    """The settings of a broker that can be changed while it runs, by RocketMQ's names."""
    fixed = {rocketmq_name(name) for name in FIXED}
    return (texts(BrokerConfig()).keys() - fixed) | {rocketmq_name(name) for name in STORE_CHANGEABLE}


def _changed(given: Settings, config: BrokerConfig, store_config: StoreConfig) -> tuple[BrokerConfig, StoreConfig]:
    return (
        given.change(config, lambda name: name not in FIXED),
        given.change(store_config, lambda name: name in STORE_CHANGEABLE),
    )


def _decode(data: bytes) -> dict[str, str]:
    return {setting.key: setting.value for setting in Settings.parse(data.decode(), FILE_NAME).given}
