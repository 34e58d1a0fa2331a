"""How a Java program of ``tests/java`` is started: class path, flags, and where its files go.

``script/bootstrap java`` leaves, for each RocketMQ version, our compiled programs and all jars they need below
``tests/java/target/<version>``. Every JVM gets a *home* directory of its own: logs, local offsets and RocketMQ's
configuration live there and nowhere else (``user.home`` and ``ROCKETMQ_HOME`` both point at it).

Log lines of level WARN and above go to standard error, for both versions: 4.9.4 logs through plain logback, 5.2.0
through a copy of it in another package.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet

VERSIONS: Final = ("4.9.4", "5.2.0")
#: A form of the header for each version: both forms are used by clients and servers, in half of the time of all pairs.
HEADER_FORMS: Final = (("4.9.4", "JSON"), ("5.2.0", "ROCKETMQ"))
#: The first that has users and policies, and is complete in Maven's repository.
USERS_VERSION: Final = "5.3.3"

_TARGET: Final = Path(__file__).resolve().parents[1] / "java" / "target"

#: Start fast and stay small: two cores run the JVMs, the broker under test and pytest.
SMALL: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")

# RocketMQ unmaps files and reads buffers by reflection, which Java 17 refuses unless told.
_OPENED: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.net",
        "java.nio",
        "java.util",
        "jdk.internal.misc",
        "jdk.internal.ref",
        "sun.nio.ch",
    )
)

_LOGBACK: Final = """\
<configuration>
  <appender name="stderr" class="{package}ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %p %logger{{0}} - %m%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="stderr"/></root>
</configuration>
"""


class JavaMissing(RuntimeError):
    """Java or the compiled programs are not there."""


def installed(version: str) -> tuple[str, Path]:
    """The program ``java``, and the directory of our compiled programs. Raises ``JavaMissing``."""
    java = shutil.which("java")
    classes = _TARGET / version / "classes"
    if java is None or not (classes / "ternmq").is_dir():
        raise JavaMissing(f"Java or {classes} is missing; run script/bootstrap java")
    return java, classes


def command(
    version: str,
    main: str,
    *arguments: str,
    home: Path,
    heap_mb: int = 256,
    flags: Sequence[str] = SMALL,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command line that runs the class ``main`` with RocketMQ ``version``; prepares ``home``.

    Raises ``JavaMissing`` when ``script/bootstrap java`` has not run.
    """
    java, classes = installed(version)
    _write_log_settings(home, version)
    log_settings = home / "conf" / "logback.xml"
    all_properties = {
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        "rocketmq.home.dir": str(home),
        "rocketmq.client.logRoot": str(home / "logs"),
        "rocketmq.client.logUseSlf4j": "true",
        "rocketmq.client.localOffsetStoreDir": str(home / "offsets"),
        "logback.configurationFile": str(log_settings),
        "rmq.logback.configurationFile": str(log_settings),
        "file.encoding": "UTF-8",
        **(properties or {}),
    }
    return [
        java,
        f"-Xmx{heap_mb}m",
        *flags,
        *_OPENED,
        *(f"-D{name}={value}" for name, value in all_properties.items()),
        "-cp",
        f"{classes}{os.pathsep}{_TARGET / version / 'lib'}/*",
        main,
        *arguments,
    ]


def environment(home: Path) -> dict[str, str]:
    """The variables a JVM sees: ours, with RocketMQ's own pointing into ``home``."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAVA_TOOL_OPTIONS", "NAMESRV_ADDR")}
    return {**inherited, "ROCKETMQ_HOME": str(home)}


def tail(path: Path, *, lines: int = 30) -> str:
    """The last lines of a log, for error messages."""
    if not path.exists():
        return "(no output)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _write_log_settings(home: Path, version: str) -> None:
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    package = "" if version.startswith("4.") else "org.apache.rocketmq.logging."
    settings = _LOGBACK.format(package=package, level="WARN")
    # 4.9.4 insists on a file per program, under these names, in its home.
    for name in ("logback", "logback_broker", "logback_namesrv", "logback_tools"):
        (conf / f"{name}.xml").write_text(settings)


def form_for(version: str) -> str:
    """The form of the header that tests use with a version."""
    return dict(HEADER_FORMS)[version]


def mostly(version: str) -> list[ParameterSet]:
    """Both versions; the other one runs at night only (``script/soak tests``), as servers take seconds to start."""
    return [pytest.param(each, marks=() if each == version else pytest.mark.nightly) for each in VERSIONS]
