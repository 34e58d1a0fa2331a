"""Spring's starter for RocketMQ, driven from a test (V1): one ``Peer`` is one application, ``tests/spring``, whose
``SpringPeer`` lists its listeners and orders. ``script/bootstrap spring`` compiles it."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from tests.interop import jvm
from tests.interop.java import Peer
from tests.interop.program import ProgramMissing, program

_TARGET: Final = Path(__file__).resolve().parents[1] / "spring" / "target"


def application(namesrv: str, home: Path, **options: object) -> AbstractAsyncContextManager[Peer]:
    """A started application. Its files go to ``home``."""
    java = shutil.which("java")
    if java is None or not (_TARGET / "classes" / "ternmq").is_dir():
        raise ProgramMissing(f"Java or {_TARGET / 'classes'} is missing; run script/bootstrap spring")
    arguments = [
        java,
        "-Xmx256m",
        *jvm.SMALL,
        f"-Duser.home={home}",
        "-Drocketmq.client.logUseSlf4j=true",
        "-Dfile.encoding=UTF-8",
        "-cp",
        f"{_TARGET / 'classes'}{os.pathsep}{_TARGET / 'lib'}/*",
        "ternmq.SpringPeer",
    ]
    return program("Spring", arguments, home=home, options={"namesrv": namesrv, **options})
