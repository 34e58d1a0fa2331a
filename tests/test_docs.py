"""The documentation tells the truth: its programs run, the tour goes as it says, its links lead somewhere (T1, T2, T5).

- Python blocks of README and the guides are whole programs. Each runs in a process of its own against an embedded
  cluster of its own; a ``text`` block right behind one is what it prints.
- The tour is one session: its programs are saved under the name behind ``python``, its ``console`` blocks are typed
  into a terminal, in order, against a real ``tern up``.
- A guide's table of settings lists all fields of a config class, with their defaults.

What differs from run to run is not compared: ids, times, addresses, and in tables with a line per queue, numbers.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.consume.config import FlowLimits, LitePullConfig, PopConfig, PushConfig, ShareConfig
from ternmq.config import rocketmq_name
from ternmq.embedded import EmbeddedCluster
from ternmq.namesrv.config import NamesrvConfig
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.no_delays import NO_DELAYS

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "docs" / "tour.md"
SETTINGS = ROOT / "docs" / "guides" / "configuration.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: What the documentation calls the name server.
NAME_SERVER = "127.0.0.1:9876"


class Block(NamedTuple):
    """A fenced block: ``python send.py`` has the kind ``python`` and the title ``send.py``."""

    page: Path
    line: int
    kind: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fence = re.compile(r"^```(\w+)[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2].strip(), match[3])
        for match in fence.finditer(text)
    ]


def program_blocks() -> Iterator[tuple[Block, Block | None]]:
    """Programs with what they print, if the page says so."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))):
        found = blocks(page)
        for block, following in zip(found, [*found[1:], None], strict=False):
            if block.kind == "python":
                yield block, following if following is not None and following.kind == "text" else None


def plain(output: str) -> list[str]:
    """Lines without what differs from run to run, without blank ones, without the terminal's colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", output).replace("\r\n", "\n")
    for pattern, name in (
        (r"\b[0-9A-F]{32}\b", "ID"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME"),
        (r"\b1\d{12}\b", "MS"),
        (r"\b\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
        (r"(@?broker-[a-z]:)\d+(:\d+|\t\d+)?", r"\1QUEUE"),
        (r"(\"queue\"|\"queue_offset\"):\d+", r"\1:N"),
    ):
        text = re.sub(pattern, name, text)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")]
    if any(re.search(r"\bqueue\b.*\boffset\b", line) for line in lines):
        lines = [re.sub(r"(?<= )(\d+|-|TIME)(?= |$)", "N", line) for line in lines]
    return lines


# --- Programs of README and the guides ------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "printed"), [pytest.param(*pair, id=str(pair[0])) for pair in program_blocks()])
def test_a_program_of_the_docs_runs(block: Block, printed: Block | None, tmp_path: Path) -> None:
    """T5."""
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as cluster:
        program = tmp_path / "program.py"
        program.write_text(block.text.replace(NAME_SERVER, cluster.name_servers))
        how = ["-m", "pytest", "-q"] if "def test_" in block.text else []
        done = subprocess.run(
            [sys.executable, *how, str(program)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env=ENVIRONMENT
            | {
                "HOME": str(tmp_path),  # where members of a broadcast keep their progress
                "PYTHONWARNINGS": "error",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
        )

    assert (0, "") == (done.returncode, done.stderr)
    if printed is not None:
        assert plain(printed.text) == plain(done.stdout)


# --- The tour ---------------------------------------------------------------------------------------------------------


class Session:
    """What a reader of the tour does: one terminal with ``tern up``, one for everything else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._up: subprocess.Popen[str] | None = None
        self._name_server = "127.0.0.1:0"

    def up(self) -> str:
        """``tern up``, on a free port where the tour has 9876; stopped first if it runs. Returns what it prints."""
        self.stop()
        port = self._name_server.rpartition(":")[2]
        with (self._directory / "up.log").open("w") as log:
            self._up = subprocess.Popen(
                [TERN, "up", "--port", port, "--broker-port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory,
                env=ENVIRONMENT,
            )
        assert self._up.stdout is not None
        line = self._up.stdout.readline()
        self._name_server = line.split()[3].rstrip(",")
        return line

    def stop(self) -> None:
        """Ctrl-C in the first terminal: a clean end, with nothing to say."""
        if self._up is not None:
            self._up.send_signal(signal.SIGINT)
            rest, _ = self._up.communicate(timeout=40)
            assert (0, "", "") == (self._up.returncode, rest, (self._directory / "up.log").read_text())
            self._up = None

    def save(self, name: str, program: str) -> None:
        (self._directory / name).write_text(program.replace(NAME_SERVER, self._name_server))

    def type(self, command: str) -> tuple[int, str]:
        """Exit code and output of a command in a terminal."""
        ours, theirs = pty.openpty()
        environment = {
            "PATH": f"{Path(TERN).parent}:{os.environ['PATH']}",
            "NAMESRV_ADDR": self._name_server,
            "COLUMNS": "120",
            "PYTHONWARNINGS": "error",
        }
        with subprocess.Popen(
            ["sh", "-c", command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self._directory,
            env=ENVIRONMENT | environment,
        ) as running:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    data = os.read(ours, 4096)
                except OSError:  # how Linux says that the other end of a terminal is closed
                    break
                if not data:
                    break
                shown += data
        os.close(ours)
        return running.returncode, shown.decode()


def typed(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a ``console`` block, each with the lines shown below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def test_the_tour_goes_as_it_says(tmp_path: Path) -> None:
    """T1: every command and program of the tour, in order, with its exit code and output."""
    session = Session(tmp_path)
    try:
        for block in blocks(TOUR):
            if block.kind == "python":
                assert block.title, f"{block}: say which file this is, as in ```python send.py"
                session.save(block.title, block.text)
            elif block.kind == "console":
                for command, shown in typed(block):
                    code, output = (0, session.up()) if command == "tern up" else session.type(command)
                    assert (plain(shown), shown.startswith("tern: ")) == (plain(output), code != 0), command
    finally:
        session.stop()


# --- Settings and links -----------------------------------------------------------------------------------------------


def settings_tables() -> Iterator[tuple[str, dict[str, str]]]:
    """By the class named in the heading: the first two columns of its table, setting and default."""
    for section in re.split(r"^#{2,} ", SETTINGS.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if named := re.search(r"`(\w+)`", heading):
            yield named[1], dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \|", text, re.MULTILINE))


def shown_default(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None | "" | ():
            return "none"
        case enum.Enum():
            return value.name
        case _:
            return str(value).replace(str(Path.home()), "~")


CONFIGS: dict[str, Any] = {
    "BrokerConfig": BrokerConfig(broker_name="host"),
    "StoreConfig": StoreConfig(),
    "ReplicationConfig": ReplicationConfig(),
    "RaftConfig": RaftConfig(),
    "NamesrvConfig": NamesrvConfig(),
    "ClientConfig": ClientConfig(NAME_SERVER),
    "ProducerConfig": ProducerConfig(),
    "PushConfig": PushConfig(),
    "LitePullConfig": LitePullConfig(),
    "PopConfig": PopConfig(),
    "ShareConfig": ShareConfig(),
    "FlowLimits": FlowLimits(),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_is_documented_and_every_documented_one_exists(name: str) -> None:
    """T2: a default that stands in backticks is the real one; others are told in words."""
    config = CONFIGS[name]
    spelled = (
        rocketmq_name
        if name in ("BrokerConfig", "StoreConfig", "ReplicationConfig", "RaftConfig", "NamesrvConfig")
        else str
    )
    documented = dict(settings_tables())[name]

    assert {spelled(field.name) for field in dataclasses.fields(config)} == documented.keys()
    for field in dataclasses.fields(config):
        told = documented[spelled(field.name)]
        if told.startswith("`"):
            assert shown_default(getattr(config, field.name)) == told.strip("`").replace(",", ""), field.name


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(linked), f"{target} has no such heading"
