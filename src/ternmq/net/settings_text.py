"""Settings that are changed while a server runs (T2): what brokers and name servers have in common.

A request has lines of ``key=value``. ``Changes`` keeps what was changed in a file. At a start it wins over files,
environment and flags, and the log lists it. To undo a change, remove its line while the server is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from ternmq.config import Settings, nearest, to_line
from ternmq.errors import ConfigError, InvalidParameter, NoPermission, RestartNeeded
from ternmq.files import Encode, TableFile
from ternmq.types import Buffer

log = logging.getLogger(__name__)

#: Bytes of one request; all settings together have less than a quarter of it.
TEXT_BYTES_MAX: Final = 64 * 1024
#: At the top of the file. With the last setting removed it is not empty: an empty file is taken for a damaged one, and
#: its backup would bring the setting back.
_COMMENT: Final = "# Changed at run time. To undo a change, remove its line while the server is stopped.\n"


def settings_text(body: Buffer) -> str:
    """The lines of a request. Raises ``InvalidParameter``."""
    if len(body) > TEXT_BYTES_MAX:
        raise InvalidParameter(f"settings of {len(body)} bytes: expected at most {TEXT_BYTES_MAX}")
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError:
        raise InvalidParameter("the settings are not UTF-8 text") from None


def requested(text: str, server: str, *kinds: type) -> Settings:
    """The settings of a request to a ``server`` with these components.

    Raises ``ConfigError`` for one that none of them has. Files that settings name are not read: a caller must not make
    this program read any.
    """
    given = Settings.parse(text, "the request")
    if not given.given:
        raise ConfigError("the request has no settings; expected lines of key=value")
    for setting in given.of_others(*kinds):
        raise ConfigError(
            f"{setting.section}.{setting.key} is not a setting of a {server}; send it to a server that has a table "
            f"[{setting.section}]"
        )
    for stranger in given.strangers(*kinds):
        near = nearest(stranger, *kinds)
        hint = f"did you mean {near}?" if near else "`tern config show` lists all"
        raise ConfigError(f"a TernMQ {server} has no setting {stranger.key}; {hint}")
    return given


class Changes:
    """What was changed, by RocketMQ's names, and its file; without one, it is kept until the end of the program.

    Methods belong to the server's loop.
    """

    def __init__(self, file: TableFile | None) -> None:
        """Raises ``CorruptFile`` for a file that cannot be read."""
        self._file = file
        self._kept = (file.load(partial(_decode, file.path.name)) if file is not None else None) or {}
        #: How many requests have changed something since the start.
        self.count = 0

    @property
    def names(self) -> frozenset[str]:
        """The settings that were changed."""
        return frozenset(self._kept)

    def given(self, *kinds: type) -> Settings:
        """What was changed before the start, for a server with these components."""
        if not self._kept or self._file is None:
            return Settings(())
        text = self._text()
        log.info("settings that were changed at run time (%s): %s", self._file.path, ", ".join(text.splitlines()))
        given = Settings.parse(text, str(self._file.path))
        given.report_strangers(*kinds)
        return given

    async def keep(self, changed: dict[str, str]) -> None:
        """Add to what was changed; returns when it is on disk. Raises ``TableUnsaved``."""
        if changed:
            self._kept |= changed
            self.count += 1
        if self._file is not None:
            if changed:
                self._file.save(self._copy)
            await self._file.saved()

    def retry(self) -> None:
        """Retry a failed write."""
        if self._file is not None:
            self._file.retry()

    def _text(self) -> str:
        return "".join(to_line(name, text) for name, text in sorted(self._kept.items()))

    def _copy(self) -> Encode:
        data = (_COMMENT + self._text()).encode()
        return lambda: data


def _decode(place: str, data: bytes) -> dict[str, str]:
    return {setting.key: setting.value for setting in Settings.parse(data.decode(), place).given}


@contextmanager
def refusals() -> Iterator[None]:
    """Answer a change that cannot be made with the code that RocketMQ's tools expect."""
    try:
        yield
    except RestartNeeded as error:
        raise NoPermission(str(error)) from None
    except ConfigError as error:
        raise InvalidParameter(str(error)) from None
