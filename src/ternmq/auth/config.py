"""Settings of access control, which brokers and name servers share (N1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError
from ternmq.net.limits import Limits

_FACTORY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(slots=True, frozen=True, kw_only=True)
class AccessConfig(Limits):
    """Who may call a server, and the bounds of its connections. Raises ``ConfigError`` that names the setting."""

    #: Whether requests must be signed, and may do only what their account may. RocketMQ has it on brokers only.
    acl_enable: bool = False
    #: The directory with ``plain_acl.yml`` and ``acl/``. None: ``conf`` below the variable ROCKETMQ_HOME.
    acl_path: Path | None = None
    #: How often the files are looked at for changes, in ms.
    acl_reload_interval: int = 5_000
    #: More validators, which all have to agree: ``module:factory``, separated by commas. Each factory is called without
    #: arguments and returns a ``net.gate.Validator``. They are asked after the ACL, or alone if that is off.
    auth_validators: str = ""

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        if not 100 <= self.acl_reload_interval <= 3_600_000:
            raise ConfigError(f"invalid aclReloadInterval {self.acl_reload_interval}: expected 100 to 3600000")
        for name in self.validator_names:
            if not _FACTORY.match(name):
                raise ConfigError(f"invalid authValidators {name!r}: expected module:factory")

    @property
    def validator_names(self) -> list[str]:
        return [name.strip() for name in self.auth_validators.split(",") if name.strip()]
