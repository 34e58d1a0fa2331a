"""Settings that are changed while a broker runs (T2): UPDATE_BROKER_CONFIG 25, ``tern config set``.

Changes are kept in ``config/settings.properties``, beside the tables (``net.settings_text``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.settings import FIXED
from ternmq.config import RUN_TIME, Settings, origin_lines, rocketmq_name, texts, to_line, to_properties
from ternmq.net.settings_text import Changes, requested
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig

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


def with_changes(changes: Changes, config: BrokerConfig, store_config: StoreConfig) -> tuple[BrokerConfig, StoreConfig]:
    """The settings of the start, with what was changed before it.

    Raises ``ConfigError`` for a line that is invalid, or that cannot be changed.
    """
    return _changed(changes.given(*_KINDS), config, store_config)


class LiveSettings:
    """The settings of a running broker, as tools see and change them.

    ``get`` returns its config objects, those of broker and store first. ``apply`` hands these two over, and raises
    ``ConfigError`` before it has changed anything. ``origins`` says where the settings of the start were given.
    """

    def __init__(
        self,
        changes: Changes,
        *,
        get: Callable[[], tuple[BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig]],
        apply: Callable[[BrokerConfig, StoreConfig], None],
        origins: Mapping[str, str],
    ) -> None:
        self._changes = changes
        self._origins = origins
        self._get = get
        self._apply = apply

    @property
    def changes(self) -> int:
        """How often they were changed since the start."""
        return self._changes.count

    def text(self) -> str:
        """All of them in lines of ``key=value``, but for secrets; and those without which tools of RocketMQ fail."""
        configs = self._get()
        uses_tls = "true" if configs[0].tls_enable else "false"
        known = to_properties(*configs) + to_line("filterServerNums", "0") + to_line("useTLS", uses_tls)
        return known + origin_lines({**self._origins, **dict.fromkeys(self._changes.names, RUN_TIME)})

    async def change(self, text: str) -> dict[str, tuple[str, str]]:
        """Change those in lines of ``key=value``: all, or none. Returns when they are on disk: old and new by name.

        Raises ``ConfigError``, and nothing has changed then; ``TableUnsaved`` if they count, but could not be written.
        """
        before = self._get()
        given = requested(text, "broker", *_KINDS)
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
