"""Makes ``.format("ternmq")`` work unregistered: Spark looks for a ``DefaultSource`` in modules ``pyspark_*``."""

from ternmq.spark.source.source import TernSource as DefaultSource

__all__ = ["DefaultSource"]
