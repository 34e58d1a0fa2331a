"""Settings of Spark for a handful of rows: a JVM that starts quickly and needs little."""

from __future__ import annotations

from typing import Final

#: Most of a test is the JVM's first use of some class.
SMALL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

SMALL: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.sql.shuffle.partitions": "2",
    # To compile a plan takes longer than to interpret it for a handful of rows: half the time of a test.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
#: The same for the command line.
SMALL_FLAGS: Final = tuple(part for key, value in SMALL.items() for part in ("--conf", f"{key}={value}"))
