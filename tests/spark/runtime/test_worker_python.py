"""Workers on this machine load PySpark with its byte code (U5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from ternmq.spark.runtime.worker_python import worker_python

PACKAGE = Path(pyspark.__file__).parent


def test_only_the_zips_of_this_very_package_are_left_out() -> None:
    """U5"""
    lib = PACKAGE / "python" / "lib"
    others = ["/opt/other spark/python/lib/pyspark.zip", "/srv/*"]
    path = [str(lib / "pyspark.zip"), others[0], *map(str, lib.glob("py4j*.zip")), others[1], str(lib / "pyspark.zip")]
    program = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.executable, sys.argv[1:]]))"

    done = subprocess.run(
        [worker_python(), "-c", program, "two words", "*"],
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        check=True,
    )

    assert [":".join(others), sys.executable, ["two words", "*"]] == json.loads(done.stdout)


def test_workers_load_the_installed_package(spark: SparkSession) -> None:
    """U5"""

    def places(_: Iterable[int]) -> Iterator[str]:
        import pyspark as loaded

        yield loaded.__file__

    assert [str(PACKAGE / "__init__.py")] == spark.sparkContext.parallelize([1], 1).mapPartitions(places).collect()
