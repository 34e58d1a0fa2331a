"""Settings: files, environment and flags in, config objects out (T2).

Components declare *what* can be set: a frozen dataclass each, in snake_case. This module alone knows *how*::

    broker.conf   key=value, as RocketMQ has it (Java's ``.properties``: comments, escapes, ``\\`` at the end of a line)
    tern.toml     TOML, flat or in tables [broker], [store], [namesrv]
    environment   TERNMQ_LISTEN_PORT=10911; and RocketMQ's NAMESRV_ADDR, which everything else overrides
    flags         --set listenPort=10911

Later sources win over earlier ones, and within one source the last line does. ``listenPort``, ``listen_port`` and
``LISTEN_PORT`` are one name. One file may configure several components: each takes the settings it knows. A setting
that no component knows is reported with the nearest known name, because a setting without effect is hard to notice. A
RocketMQ setting that TernMQ does not support is reported with what happens instead; if it concerns security, the server
does not start (``rocketmq_settings``). An invalid value stops the start with file, line, key, the value and what is
expected.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import logging
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, Union

from ternmq.errors import ConfigError, RestartNeeded
from ternmq.rocketmq_settings import REFUSED, ROCKETMQ_SETTINGS, UNKEPT
from ternmq.setting_files import (
    ESCAPED,
    FLAG,
    SECTIONS,
    Setting,
    normal,
    read_file,
    read_flag,
    read_properties,
    to_text,
)

log = logging.getLogger(__name__)

#: Any config dataclass.
T = TypeVar("T")

ENV_PREFIX: Final = "TERNMQ_"
#: The environment variable with which RocketMQ's own programs get their name servers.
ENV_NAME_SERVERS: Final = "NAMESRV_ADDR"
#: Variables of clients and of ``tern``. They are no settings: those are shown by tools, and secrets must never be.
ENV_CLIENTS: Final = frozenset(
    {
        *("TERNMQ_ACCESS_KEY", "TERNMQ_SECRET_KEY", "TERNMQ_SECURITY_TOKEN", "TERNMQ_PROFILE", "TERNMQ_PROFILES"),
        *("TERNMQ_TLS", "TERNMQ_TLS_CA", "TERNMQ_TLS_CERT", "TERNMQ_TLS_KEY", "TERNMQ_TLS_KEY_PASSWORD"),
    }
)
#: Names a file of more settings, as RocketMQ has it.
_TLS_FILE: Final = "tlsconfigfile"


def load(
    kind: type[T],
    *,
    files: Sequence[Path | str] = (),
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    beside: Sequence[type] = (),
) -> T:
    """Build one component's config. ``beside``: other components that use the same sources.

    Logs a warning for each setting that no component knows. Raises ``ConfigError`` for an invalid value, and for a
    setting of security that is not supported.
    """
    settings = Settings.gather(files=files, env=env, flags=flags)
    settings.report_strangers(kind, *beside)
    return settings.build(kind)


class Settings:
    """All given settings, in the order of their sources: the last one of a name wins."""

    def __init__(self, given: Iterable[Setting]) -> None:
        self.given = tuple(given)

    @classmethod
    def gather(
        cls,
        *,
        files: Sequence[Path | str] = (),
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        includes: bool = True,
    ) -> Settings:
        """Read files, then the environment, then flags (``key=value``); values are not checked yet.

        ``includes``: whether to read the file that a setting names (``tls.config.file``); never for remote callers.
        """
        given: list[Setting] = []
        if env and env.get(ENV_NAME_SERVERS):
            place = f"environment variable {ENV_NAME_SERVERS}"
            given.append(Setting("namesrvAddr", env[ENV_NAME_SERVERS], place, shared=True))
        for file in files:
            given += read_file(Path(file))
        for name, value in (env or {}).items():
            if name.startswith(ENV_PREFIX) and name not in ENV_CLIENTS:
                key = name.removeprefix(ENV_PREFIX).lower()
                given.append(Setting(key, value, f"environment variable {name}", shared=True))
        given += [read_flag(flag) for flag in flags]
        return cls(_with_tls_file(given) if includes else given)

    @classmethod
    def parse(cls, text: str, place: str) -> Settings:
        """``key=value`` lines that did not come from a file, such as the body of a request."""
        return cls(read_properties(place, text))

    def build(self, kind: type[T]) -> T:
        """The config object of one component; settings that it does not know are ignored."""
        values, places = self._values(kind)
        for field in _fields(kind):
            if field.name not in values and _is_required(field):
                raise ConfigError(
                    f"the setting {rocketmq_name(field.name)} is missing; give it with --set or in a file (-c)"
                )
        try:
            return kind(**values)
        except ValueError as error:  # includes ConfigError of the component's own check
            raise ConfigError(_with_places(str(error), places)) from None

    def change(self, config: T, is_changeable: Callable[[str], bool]) -> T:
        """A config object of a running component with these settings; those that it does not know are ignored.

        Raises ``ConfigError`` for an invalid value, and ``RestartNeeded`` for a new value of a setting that is not
        changeable.
        """
        values, places = self._values(type(config))
        secrets = {field.name for field in _fields(type(config)) if field.metadata.get("secret")}
        for name, value in values.items():
            # A secret is refused in any case: callers must not learn whether they have guessed it.
            if not is_changeable(name) and (value != getattr(config, name) or name in secrets):
                raise RestartNeeded(
                    f"{rocketmq_name(name)} cannot be changed at run time; set it in the configuration file, and "
                    "restart the server"
                )
        try:
            return dataclasses.replace(config, **values)  # type: ignore[type-var]  # all configs are dataclasses
        except ValueError as error:
            raise ConfigError(_with_places(str(error), places)) from None

    def _values(self, kind: type) -> tuple[dict[str, Any], dict[str, Setting]]:
        """What is given for the fields of one component, and where."""
        hints = typing.get_type_hints(kind)
        values: dict[str, Any] = {}
        places: dict[str, Setting] = {}
        fields = {normal(field.name): field for field in _fields(kind)}
        for setting in self.given:
            field = fields.get(setting.name)
            if field is not None and setting.section in ("", _section_of(kind)):
                values[field.name] = _convert(setting, hints[field.name], field.default)
                places[field.name] = setting
        return values, places

    def origins(self, *kinds: type) -> dict[str, str]:
        """Where each setting of these components was given, by RocketMQ's names; those with their default are not."""
        return {rocketmq_name(name): setting.place for kind in kinds for name, setting in self._values(kind)[1].items()}

    def strangers(self, *kinds: type) -> list[Setting]:
        """Settings that none of the components knows."""
        known = {(section, name) for kind in kinds for name in _names(kind) for section in ("", _section_of(kind))}
        # A file for the whole cluster has tables for programs other than this one.
        others = _others(kinds)
        return [
            setting
            for setting in self.given
            if (setting.section, setting.name) not in known and setting.section not in others
        ]

    def of_others(self, *kinds: type) -> list[Setting]:
        """Settings in the tables of components other than these."""
        others = _others(kinds)
        return [setting for setting in self.given if setting.section in others]

    def flags(self) -> list[Setting]:
        """Those of flags alone. A program that starts another one hands these on, and nothing of files that they name:
        arguments are visible in the list of processes."""
        return [setting for setting in self.given if setting.place == FLAG]

    def report_exposed(self, *kinds: type) -> None:
        """Log secrets that other users of this machine can read: in arguments, or in files."""
        secrets = {normal(field.name) for kind in kinds for field in _fields(kind) if field.metadata.get("secret")}
        for setting in self.given:
            if setting.name not in secrets:
                continue
            if setting.place == FLAG:
                log.warning(
                    "other users of this machine can read %s in the list of processes; set it in a file that only its "
                    "owner can read",
                    setting.key,
                )
            elif setting.file is not None and _is_open_to_others(setting.file):
                log.warning(
                    "other users of this machine can read %s (%s); run `chmod 600` on the file",
                    setting.key,
                    setting.place,
                )

    def report_strangers(self, *kinds: type) -> None:
        """Log the settings that no component knows, with the nearest known name.

        Raises ``ConfigError`` for a setting of security that is not supported: the server would be unprotected.
        """
        strangers = self.strangers(*kinds)
        # The last one of a name wins, as everywhere.
        for name, setting in {_rocketmq_setting(setting): setting for setting in strangers}.items():
            if name in REFUSED and REFUSED[name].asks_for_more(setting.value):
                raise ConfigError(
                    f"{setting.place}: {name}={setting.value} is not supported: {REFUSED[name].sentence}. Remove "
                    "the setting, and protect the port by other means (a private network, a firewall, "
                    "bindAddress)"
                )
        for setting in strangers:
            near = nearest(setting, *kinds)
            name = _rocketmq_setting(setting)
            if name in UNKEPT and UNKEPT[name].asks_for_more(setting.value):
                log.warning(f"{name}={setting.value} has no effect: {UNKEPT[name].sentence} ({setting.place})")
            elif name:
                if not setting.shared:
                    log.info("this program does not use the RocketMQ setting %s (%s)", setting.key, setting.place)
            elif setting.section and setting.section not in SECTIONS:
                log.warning("unknown table [%s] of the setting %s (%s)", setting.section, setting.key, setting.place)
            elif near:
                log.warning("unknown setting %s (%s); did you mean %s?", setting.key, setting.place, near)
            elif not setting.shared:
                log.warning("unknown setting %s (%s)", setting.key, setting.place)


def _with_tls_file(given: Sequence[Setting]) -> Iterator[Setting]:
    """Settings, and after a ``tls.config.file`` those of the file."""
    for setting in given:
        yield setting
        if setting.name == _TLS_FILE and setting.value.strip():
            yield from read_file(Path(setting.value.strip()).expanduser())


def nearest(setting: Setting, *kinds: type) -> str | None:
    """The setting of these components that was probably meant by an unknown one."""
    known = {normal(field.name): rocketmq_name(field.name) for kind in kinds for field in _fields(kind)}
    near = difflib.get_close_matches(setting.name, known, n=1, cutoff=0.75)
    return known[near[0]] if near else None


# --- RocketMQ's names ---------------------------------------------------------------------------------------------


def rocketmq_name(field: str) -> str:
    """The name of a setting as RocketMQ's files and tools have it: ``listen_port`` → ``listenPort``."""
    first, *rest = field.split("_")
    return _ROCKETMQ_NAMES.get(normal(field)) or first + "".join(part.capitalize() for part in rest)


def _others(kinds: Iterable[type]) -> frozenset[str]:
    return SECTIONS - {_section_of(kind) for kind in kinds}


def to_properties(*configs: object) -> str:
    """Config objects as ``key=value`` lines in alphabetical order (the reply to GET_BROKER_CONFIG)."""
    return "".join(sorted(to_line(name, text) for config in configs for name, text in texts(config).items()))


def to_line(name: str, text: str) -> str:
    """A line of a ``.properties`` file; what Java and this module read as something else is escaped."""
    escaped = "".join(ESCAPED.get(char, char) for char in text)
    return f"{name}={escaped}\n"


#: Begins a comment that says where a setting comes from; tools of RocketMQ skip it.
_ORIGIN: Final = "# origin "
#: Of a setting that was changed while the server runs, or in an earlier run.
RUN_TIME: Final = "changed at run time"


def origin_lines(origins: Mapping[str, str]) -> str:
    """Where settings come from, as comments of a ``.properties`` text."""
    return "".join(_ORIGIN + to_line(name, place) for name, place in sorted(origins.items()))


def parse_origins(text: str, place: str) -> dict[str, str]:
    """What ``origin_lines`` has written into a text; empty for those of others."""
    lines = "".join(line.removeprefix(_ORIGIN) + "\n" for line in text.splitlines() if line.startswith(_ORIGIN))
    return {setting.key: setting.value for setting in Settings.parse(lines, place).given}


def texts(config: object) -> dict[str, str]:
    """The settings of a config object as they are written in files, by RocketMQ's names; without secrets."""
    return {
        rocketmq_name(field.name): to_text(getattr(config, field.name))
        for field in _fields(type(config))
        if not field.metadata.get("secret")
    }


def _rocketmq_setting(setting: Setting) -> str:
    """The RocketMQ setting that this is, in its own spelling; empty for others."""
    # Some have dots (tls.server.mode), which the environment does not allow, and which are tables in TOML.
    table = setting.section if setting.section not in SECTIONS else ""
    return _ROCKETMQ_NAMES.get(normal(table + setting.key).replace(".", ""), "")


_ROCKETMQ_NAMES: Final = {normal(name).replace(".", ""): name for name in ROCKETMQ_SETTINGS}


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    return tuple(field for field in dataclasses.fields(kind) if field.init)


def _names(kind: type) -> set[str]:
    return {normal(field.name) for field in _fields(kind)}


def _section_of(kind: type) -> str:
    return kind.__name__.removesuffix("Config").lower()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _with_places(sentence: str, places: Mapping[str, Setting]) -> str:
    """The component's error message, with the source of each setting that it names."""
    found = [
        f"{setting.key} in {setting.place}" if setting.place != "--set" else f"{setting.key} by --set"
        for name, setting in places.items()
        if re.search(rf"\b({name}|{rocketmq_name(name)})\b", sentence)
    ]
    return f"{sentence} ({', '.join(found)})" if found else sentence


# --- Values ---------------------------------------------------------------------------------------------------------

_YES_NO: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _convert(setting: Setting, hint: Any, default: object) -> Any:
    text = setting.value.strip()
    kinds = _alternatives(hint)
    if not text and type(None) in kinds:
        return None
    (kind,) = [kind for kind in kinds if kind is not type(None)]
    expected: str
    try:
        if kind is bool:
            expected = "true or false"
            return _YES_NO[text.lower()]
        if kind is int:
            expected = "a whole number"
            return int(text)
        if kind is float:
            expected = "a number"
            return float(text)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            expected = "one of " + ", ".join(member.name for member in kind)
            return {normal(member.name): member for member in kind}[normal(text)]
        if typing.get_origin(kind) is typing.Literal:
            choices = typing.get_args(kind)
            expected = "one of " + ", ".join(choices)
            return {normal(choice): choice for choice in choices}[normal(text)]
    except (ValueError, KeyError):
        example = "" if default in (dataclasses.MISSING, None, "") else f", as in {setting.key}={to_text(default)}"
        raise ConfigError(
            f"{setting.place}: invalid {setting.key} {setting.value!r}: expected {expected}{example}"
        ) from None
    if kind is Path:
        return Path(text).expanduser()
    if kind == tuple[Path, ...]:
        # Commas in RocketMQ's files; a list of TOML arrives with semicolons.
        return tuple(Path(part.strip()).expanduser() for part in re.split("[,;]", text) if part.strip())
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in re.split("[,;]", text) if part.strip())
    if kind is str:
        return text
    raise TypeError(f"settings of type {kind} are not supported; add the type to {__name__}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types in ``X | None``."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_open_to_others(path: Path) -> bool:
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:
        return False  # it was there a moment ago


# --- Objects that a setting names ---------------------------------------------------------------------------------

_FACTORY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*\Z")


def check_factories(key: str, text: str) -> list[str]:
    """The factories that a setting names as ``module:factory``, separated by commas. Raises ``ConfigError``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not _FACTORY.match(name):
            raise ConfigError(f"invalid {key} {name!r}: expected module:factory")
    return names


def made_by(key: str, name: str) -> object:
    """What the factory ``name`` of a setting returns, called without arguments. Raises ``ConfigError``."""
    module_name, _, factory_name = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
        made: object = factory()
    except Exception as error:
        raise ConfigError(f"cannot make {name} of {key}: {type(error).__name__}: {error}") from error
    return made
