"""The Python that Spark starts its workers with, on this machine (U5).

Spark puts a zip of PySpark's sources before all else that its workers load. A zip cannot keep byte code, so each worker
that is started, one for every stream, compiles what it loads: a second, where the same from the installed package takes
a third of one. The script that is made here takes that zip off the path again. It is only left out if it is that of the
very package which this process runs.
"""

from __future__ import annotations

import atexit
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import pyspark

_SCRIPT = """\
#!/bin/sh -f
zips={zips}
path=
IFS=:
for part in $PYTHONPATH; do
    case $zips in *":$part:"*) ;; *) path=$path${{path:+:}}$part ;; esac
done
PYTHONPATH=$path exec {python} "$@"
"""


@cache
def worker_python() -> str:
    """The path of a program that is this Python, and loads PySpark from where it is installed."""
    if sys.platform == "win32":
        return sys.executable
    zips = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    directory = Path(tempfile.mkdtemp(prefix="ternmq-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = directory / "python"
    listed = ":".join(["", *map(str, zips), ""])
    text = _SCRIPT.format(zips=shlex.quote(listed), python=shlex.quote(sys.executable))
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return str(script)
