"""The Python with which Spark starts its workers on this machine (U5).

Spark puts a zip of PySpark's sources first on the path of its workers. A zip cannot keep byte code, so each started
worker, one per stream, compiles what it loads: this takes a second, and a third of a second with the installed package.
The script that is written here removes that zip from the path. It does so only if the zip belongs to the package that
this process runs.
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
    """The path of a program that runs this Python, and loads PySpark from its installed package."""
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
