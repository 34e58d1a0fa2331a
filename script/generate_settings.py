"""Writes docs/guides/settings.md: every setting of the servers, from their config classes.

::

    .venv/bin/python script/generate_settings.py            # write the page
    .venv/bin/python script/generate_settings.py --check    # change nothing; exit with 1 if it is out of date

Names, defaults, units, and whether a setting can be changed while the server runs come from the classes. The effect is
the sentence of docs/guides/configuration.md, whose tables ``tests/test_docs.py`` compares with the classes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ternmq.broker.changes import changeable
from ternmq.broker.config import BrokerConfig
from ternmq.config import ENV_PREFIX, rocketmq_name
from ternmq.namesrv.config import CHANGEABLE, NamesrvConfig
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.rocketmq_settings import REFUSED, ROCKETMQ_SETTINGS, UNKEPT
from ternmq.store.config import StoreConfig

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "guides" / "settings.md"
GUIDE: Final = ROOT / "docs" / "guides" / "configuration.md"
COMMAND: Final = ".venv/bin/python script/generate_settings.py"

KINDS: Final = {
    "Brokers": BrokerConfig,
    "Stores": StoreConfig,
    "Master and slaves": ReplicationConfig,
    "Raft groups": RaftConfig,
    "Name servers": NamesrvConfig,
}

#: The unit of a number, by the first pattern that is in its name. RocketMQ's times are in milliseconds unless the name
#: says otherwise.
UNITS: Final = (
    ("file_reserved_time", "hours"),
    ("timer_max_delay_sec", "s"),
    ("filter_data_clean_time_span", "ms"),
    ("max_filter_time_per_pull", "ms"),
    (r"_ratio$|probability|max_error_rate", "%"),
    (r"bytes_per_second", "bytes/s"),
    (r"_port$", "port"),
    ("broker_permission", "bits"),
    ("broker_id", "number"),
    ("least_pages", "pages of 4 KiB"),
    ("bit_map_length", "bits"),
    (r"interval|time|period|wait_max|_ms$|mills", "ms"),
    (r"pop_ck_max_buffer_size|polling_size|_capacity$", "count"),
    (r"bytes|size|frame_max_length|max_gap", "bytes"),
    (r"length", "characters"),
)


HEAD: Final = f"""\
# All settings of servers

<!-- Written by `{COMMAND}`; do not edit. The effects are those of configuration.md. -->

Where settings are given, and which source wins, is in [configuration](configuration.md). `tern config show --origin`
shows the values of a running server, and where each was given. *Live* settings can be changed while it runs, with
`tern config set` or `mqadmin updateBrokerConfig`; the others need a restart. *Of* says whether RocketMQ has the same
setting. In the environment, a setting is its name in the second column in capitals, after `{ENV_PREFIX}`:
`listen_port` is `{ENV_PREFIX}LISTEN_PORT`.
"""
FOREIGN: Final = """\
## Settings of RocketMQ that TernMQ does not have

A server that is given one of these says so in its log when it starts, with its value and its place, unless the value
asks for what happens anyway. *Refused*: the server does not start, because it would be less protected than the file
says. All other settings of RocketMQ that are not on this page concern its threads, buffers and caches; they are
accepted, and named in the log at level info.

| Setting | What happens instead | Without a message |
|---|---|---|"""


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is out of date; run `{COMMAND}`")
        return 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def page() -> str:
    return "\n".join([HEAD, *(line for title, kind in KINDS.items() for line in _table(title, kind)), *_foreign()])


def _table(title: str, kind: type) -> Iterator[str]:
    live = changeable() if kind in (BrokerConfig, StoreConfig) else set()
    if kind is NamesrvConfig:
        live = {rocketmq_name(name) for name in CHANGEABLE}
    told = _told(kind.__name__)
    hints = typing.get_type_hints(kind)
    yield f"## {title}: `{kind.__name__}`"
    yield ""
    yield "| Setting | Name here | Of | Default | Unit | Live | Effect |"
    yield "|---|---|---|---|---|---|---|"
    for field in dataclasses.fields(kind):
        name = rocketmq_name(field.name)
        default, effect = told[name]
        of = "RocketMQ" if name in ROCKETMQ_SETTINGS else "TernMQ"
        unit = unit_of(field.name, hints[field.name])
        is_live = "yes" if name in live else "no"
        yield f"| `{name}` | `{field.name}` | {of} | {default} | {unit} | {is_live} | {effect} |"
    yield ""


def _told(class_name: str) -> dict[str, tuple[str, str]]:
    """Default and effect of each setting, as the guide tells them."""
    for section in re.split(r"^#{2,} ", GUIDE.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if f"`{class_name}`" in heading:
            rows = re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \| ?(.*?) ?\|$", text, re.MULTILINE)
            return {name: (default, effect) for name, default, effect in rows}
    raise LookupError(f"{GUIDE.name} has no section of `{class_name}`")


def unit_of(name: str, hint: object) -> str:
    """The unit of a setting, or what its values are."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(one for one in kinds if one is not types.NoneType)
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "list"
    assert isinstance(kind, type)
    if kind is bool:
        return "true, false"
    if issubclass(kind, enum.Enum):
        return ", ".join(one.name for one in kind)
    if issubclass(kind, Path):
        return "path"
    if kind in (int, float):
        return next((unit for pattern, unit in UNITS if re.search(pattern, name)), "count")
    return "text"


def _foreign() -> Iterator[str]:
    yield FOREIGN
    for name, instead in sorted({**UNKEPT, **REFUSED}.items(), key=lambda item: item[0].lower()):
        harmless = ", ".join(f"`{value}`" for value in sorted(instead.harmless) if value and "." not in value)
        refused = "**Refused**: " if name in REFUSED else ""
        yield f"| `{name}` | {refused}{instead.sentence} | {harmless or '-'} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
