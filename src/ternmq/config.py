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
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, Union

from ternmq.errors import ConfigError, RestartNeeded
from ternmq.rocketmq_settings import REFUSED, ROCKETMQ_SETTINGS, UNKEPT

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
#: Tables of a TOML file; a component reads the one with the name of its config class without "Config".
SECTIONS: Final = frozenset({"broker", "store", "replication", "raft", "namesrv"})

#: Names a file of more settings, as RocketMQ has it.
_TLS_FILE: Final = "tlsconfigfile"
#: The place of settings that were given as options.
_FLAG: Final = "--set"
#: In the names of settings with secrets, and of what these consist of.
_SECRET_WORDS: Final = ("password", "secret", "credentials", "authenticationuser", "token")
_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


@dataclasses.dataclass(slots=True, frozen=True)
class Setting:
    """One setting as it was written. ``place`` is the source for people: "broker.conf, line 3"."""

    key: str
    value: str
    place: str
    #: The table of a TOML file, or the part before a dot: for one component only.
    section: str = ""
    #: From the environment, which is used by all programs on the machine, not just this one.
    shared: bool = False
    #: None if it was not read from a file.
    file: Path | None = None

    @property
    def name(self) -> str:
        """The key in a form that is equal for all spellings."""
        # Some of RocketMQ's have dots (tls.server.mode), which the environment cannot have.
        return _normal(self.key).replace(".", "")


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
            given += _read_file(Path(file))
        for name, value in (env or {}).items():
            if name.startswith(ENV_PREFIX) and name not in ENV_CLIENTS:
                key = name.removeprefix(ENV_PREFIX).lower()
                given.append(Setting(key, value, f"environment variable {name}", shared=True))
        for flag in flags:
            key, equals, value = flag.partition("=")
            if not equals or not _KEY.match(key.strip()):
                raise ConfigError(f"invalid --set {_shown(flag)!r}: expected --set key=value")
            given.append(_sectioned(key.strip(), value.strip(), _FLAG))
        return cls(_with_tls_file(given) if includes else given)

    @classmethod
    def parse(cls, text: str, place: str) -> Settings:
        """``key=value`` lines that did not come from a file, such as the body of a request."""
        return cls(_read_properties(place, text))

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
        fields = {_normal(field.name): field for field in _fields(kind)}
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
        return [setting for setting in self.given if setting.place == _FLAG]

    def report_exposed(self, *kinds: type) -> None:
        """Log secrets that other users of this machine can read: in arguments, or in files."""
        secrets = {_normal(field.name) for kind in kinds for field in _fields(kind) if field.metadata.get("secret")}
        for setting in self.given:
            if setting.name not in secrets:
                continue
            if setting.place == _FLAG:
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
            yield from _read_file(Path(setting.value.strip()).expanduser())


def nearest(setting: Setting, *kinds: type) -> str | None:
    """The setting of these components that was probably meant by an unknown one."""
    known = {_normal(field.name): rocketmq_name(field.name) for kind in kinds for field in _fields(kind)}
    near = difflib.get_close_matches(setting.name, known, n=1, cutoff=0.75)
    return known[near[0]] if near else None


# --- RocketMQ's names ---------------------------------------------------------------------------------------------


def rocketmq_name(field: str) -> str:
    """The name of a setting as RocketMQ's files and tools have it: ``listen_port`` → ``listenPort``."""
    first, *rest = field.split("_")
    return _ROCKETMQ_NAMES.get(_normal(field)) or first + "".join(part.capitalize() for part in rest)


def _others(kinds: Iterable[type]) -> frozenset[str]:
    return SECTIONS - {_section_of(kind) for kind in kinds}


def to_properties(*configs: object) -> str:
    """Config objects as ``key=value`` lines in alphabetical order (the reply to GET_BROKER_CONFIG)."""
    return "".join(sorted(to_line(name, text) for config in configs for name, text in texts(config).items()))


def to_line(name: str, text: str) -> str:
    """A line of a ``.properties`` file; what Java and this module read as something else is escaped."""
    escaped = "".join(_ESCAPED.get(char, char) for char in text)
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
        rocketmq_name(field.name): _to_text(getattr(config, field.name))
        for field in _fields(type(config))
        if not field.metadata.get("secret")
    }


def _normal(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _rocketmq_setting(setting: Setting) -> str:
    """The RocketMQ setting that this is, in its own spelling; empty for others."""
    # Some have dots (tls.server.mode), which the environment does not allow, and which are tables in TOML.
    table = setting.section if setting.section not in SECTIONS else ""
    return _ROCKETMQ_NAMES.get(_normal(table + setting.key).replace(".", ""), "")


_ROCKETMQ_NAMES: Final = {_normal(name).replace(".", ""): name for name in ROCKETMQ_SETTINGS}


def _to_text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case enum.Enum():
            return value.name
        case tuple():
            return ",".join(map(_to_text, value))
        case _:
            return str(value)


# --- Config classes -------------------------------------------------------------------------------------------------


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    return tuple(field for field in dataclasses.fields(kind) if field.init)


def _names(kind: type) -> set[str]:
    return {_normal(field.name) for field in _fields(kind)}


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
            return {_normal(member.name): member for member in kind}[_normal(text)]
        if typing.get_origin(kind) is typing.Literal:
            choices = typing.get_args(kind)
            expected = "one of " + ", ".join(choices)
            return {_normal(choice): choice for choice in choices}[_normal(text)]
    except (ValueError, KeyError):
        example = "" if default in (dataclasses.MISSING, None, "") else f", as in {setting.key}={_to_text(default)}"
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


# --- Files ----------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Iterator[Setting]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}; check the path after -c") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    settings = _read_toml(path, text) if path.suffix == ".toml" else _read_properties(str(path), text)
    return (dataclasses.replace(setting, file=path) for setting in settings)


def _read_properties(source: str, text: str) -> Iterator[Setting]:
    for number, line in _logical_lines(text):
        key, value = _split(line)
        if value is None or not _KEY.match(key):
            raise ConfigError(
                f"{source}, line {number}: invalid line {_shown(line)!r}: expected key=value, or # for a comment"
            )
        yield _sectioned(key, value, f"{source}, line {number}")


def _is_open_to_others(path: Path) -> bool:
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:
        return False  # it was there a moment ago


def _shown(line: str) -> str:
    """A line that is no setting, for an error message; without what may be a secret."""
    if not any(word in _normal(line) for word in _SECRET_WORDS):
        return line
    key = re.match(r"[A-Za-z][A-Za-z0-9_.-]*", line)
    return f"{key.group() if key else ''} …"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank lines; a line that ends with an odd number of ``\\`` is joined with the next."""
    joined, started = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        started = started if joined else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
        else:
            yield started, (joined + line).rstrip()
            joined = ""
    if joined:
        yield started, joined.rstrip()


def _split(line: str) -> tuple[str, str | None]:
    """Key and value of a line, split at the first ``=`` or ``:``; the value is None if it has neither.

    Java would also accept a blank between the two; this is not used in practice, and would hide invalid lines.
    """
    at = min((found for found in (line.find("="), line.find(":")) if found >= 0), default=-1)
    if at < 0:
        return line, None
    return line[:at].strip(), _unescape(line[at + 1 :].strip())


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {
    "\\": "\\\\",
    **{char: f"\\{name}" for name, char in _ESCAPES.items()},
    # More ends of lines for ``str.splitlines``.
    **{char: f"\\u{ord(char):04x}" for char in "\v\x1c\x1d\x1e\x85\u2028\u2029"},
}


def _unescape(text: str) -> str:
    """Java's escapes: ``\\t \\n \\r \\f``, ``\\uXXXX``; a backslash before any other character is removed."""

    def replace(match: re.Match[str]) -> str:
        code, char = match.groups()
        return chr(int(code, 16)) if code else _ESCAPES.get(char, char)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.?))", replace, text) if "\\" in text else text


def _sectioned(key: str, value: str, place: str) -> Setting:
    section, _, name = key.rpartition(".")
    return Setting(name, value, place, section=section) if section in SECTIONS else Setting(key, value, place)


def _read_toml(path: Path, text: str) -> Iterator[Setting]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; put text in quotes, as in brokerName = 'a'") from None
    for key, value in document.items():
        if isinstance(value, dict):
            for inner, inner_value in value.items():
                place = f"{path}, line {_toml_line(text, key, inner)}"
                if key in SECTIONS or not key.startswith("tls"):
                    yield Setting(inner, _toml_text(inner_value, inner, place), place, section=key)
                else:
                    # ["tls.server"] mode = …: the dots of the name are no table of ours.
                    yield Setting(f"{key}.{inner}", _toml_text(inner_value, inner, place), place)
        else:
            place = f"{path}, line {_toml_line(text, '', key)}"
            yield Setting(key, _toml_text(value, key, place), place)


def _toml_text(value: object, key: str, place: str) -> str:
    match value:
        case dict():
            raise ConfigError(f"{place}: {key} is a table: expected a single value")
        case list():
            return ";".join(_toml_text(item, key, place) for item in value)  # as RocketMQ writes lists of addresses
        case _:
            return _to_text(value)


def _toml_line(text: str, table: str, key: str) -> int:
    """The line of a key, which ``tomllib`` does not report; 1 if it is written in a form that is not found."""
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            here = header[1].strip("\"'")
        elif here == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return 1


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
