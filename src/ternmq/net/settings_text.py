"""Requests that change settings of a running server (T2): what brokers and name servers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ternmq.errors import ConfigError, InvalidParameter, NoPermission, RestartNeeded
from ternmq.types import Buffer

#: Bytes of one request; all settings together have less than a quarter of it.
TEXT_BYTES_MAX: Final = 64 * 1024


def settings_text(body: Buffer) -> str:
    """The lines of a request. Raises ``InvalidParameter``."""
    if len(body) > TEXT_BYTES_MAX:
        raise InvalidParameter(f"settings of {len(body)} bytes: expected at most {TEXT_BYTES_MAX}")
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError:
        raise InvalidParameter("the settings are not UTF-8 text") from None


@contextmanager
def refusals() -> Iterator[None]:
    """Answer a change that cannot be made with the code that RocketMQ's tools expect."""
    try:
        yield
    except RestartNeeded as error:
        raise NoPermission(str(error)) from None
    except ConfigError as error:
        raise InvalidParameter(str(error)) from None
