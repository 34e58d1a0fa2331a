"""The parts of a running broker that keep values of its settings, and get new ones (T2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ternmq.broker import flow
from ternmq.broker.config import BrokerConfig
from ternmq.broker.registration import Registration
from ternmq.net.lanes import Lanes
from ternmq.net.limits import Usage


class LivePart(Protocol):
    """What keeps values of a broker's settings."""

    def apply(self, config: BrokerConfig, /) -> None: ...


class LiveParts:
    """``parts`` know a broker's settings; the others are told in their own terms."""

    def __init__(
        self,
        parts: Iterable[LivePart] = (),
        *,
        lanes: Lanes | None = None,
        usage: Usage | None = None,
        registration: Registration | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._lanes = lanes
        self._usage = usage
        self._registration = registration

    def apply(self, config: BrokerConfig) -> None:
        """Hand new settings over to all; none keeps a value of the old ones."""
        for part in self._parts:
            part.apply(config)
        if self._lanes is not None:
            self._lanes.apply(flow.lanes(config))
        if self._usage is not None:
            self._usage.apply(config)
        if self._registration is not None:
            self._registration.apply(
                period_ms=config.register_name_server_period, timeout_ms=config.register_broker_timeout_mills
            )
            self._registration.identity_changed()
