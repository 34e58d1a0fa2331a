"""Makes ``.format("ternmq_files")`` work unregistered: Spark looks for a ``DefaultSource`` in modules ``pyspark_*``."""

from ternmq.spark.files.source import FilesSource as DefaultSource

__all__ = ["DefaultSource"]
