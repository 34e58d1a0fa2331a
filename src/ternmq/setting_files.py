"""Settings as they are written, in files and options (T2): RocketMQ's ``key=value`` lines and TOML.

A ``.properties`` file of Java has comments, escapes, and lines that go on after a ``\\`` at their end. A TOML file is
flat or has tables, one for each component. Every setting knows its file and line, for messages. What settings mean is
in ``config``.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError

#: Tables of a TOML file; a component reads the one with the name of its config class without "Config".
SECTIONS: Final = frozenset({"broker", "store", "replication", "raft", "namesrv"})

#: The place of settings that were given as options.
FLAG: Final = "--set"
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
        return normal(self.key).replace(".", "")


def normal(name: str) -> str:
    """A name in a form that is equal for ``listenPort``, ``listen_port`` and ``LISTEN_PORT``."""
    return name.replace("_", "").replace("-", "").lower()


def to_text(value: object) -> str:
    """A value as files have it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case enum.Enum():
            return value.name
        case tuple():
            return ",".join(map(to_text, value))
        case _:
            return str(value)


# --- Files and options ------------------------------------------------------------------------------------------------


def read_file(path: Path) -> Iterator[Setting]:
    """The settings of a file: TOML if its name ends with ``.toml``. Raises ``ConfigError``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}; check the path after -c") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    settings = _read_toml(path, text) if path.suffix == ".toml" else read_properties(str(path), text)
    return (dataclasses.replace(setting, file=path) for setting in settings)


def read_flag(flag: str) -> Setting:
    """The setting of an option. Raises ``ConfigError``."""
    key, equals, value = flag.partition("=")
    if not equals or not _KEY.match(key.strip()):
        raise ConfigError(f"invalid --set {_shown(flag)!r}: expected --set key=value")
    return _sectioned(key.strip(), value.strip(), FLAG)


def read_properties(source: str, text: str) -> Iterator[Setting]:
    """The settings of lines ``key=value``; ``source`` names them for people. Raises ``ConfigError``."""
    for number, line in _logical_lines(text):
        key, value = _split(line)
        if value is None or not _KEY.match(key):
            raise ConfigError(
                f"{source}, line {number}: invalid line {_shown(line)!r}: expected key=value, or # for a comment"
            )
        yield _sectioned(key, value, f"{source}, line {number}")


def _shown(line: str) -> str:
    """A line that is no setting, for an error message; without what may be a secret."""
    if not any(word in normal(line) for word in _SECRET_WORDS):
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
ESCAPED: Final = {
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
            return to_text(value)


def _toml_line(text: str, table: str, key: str) -> int:
    """The line of a key, which ``tomllib`` does not report; 1 if it is written in a form that is not found."""
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            here = header[1].strip("\"'")
        elif here == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return 1
