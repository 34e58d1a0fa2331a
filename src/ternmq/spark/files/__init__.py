"""Store directories as tables, with no broker: the format ``ternmq_files`` (U3).

Start reading at ``source.py``. Below it, ``layout`` finds segments and cuts them into tasks, ``borders`` finds where
the first record of a task begins (a core), ``reading`` reads one task's records, ``columns`` makes Arrow batches of
them, ``queues`` and ``index`` read what is derived from the log. ``lost`` finds records that a broker does not serve.
"""

from ternmq.spark.files.missing import lost

__all__ = ["lost"]
