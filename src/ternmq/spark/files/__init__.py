"""Store directories as tables, without a broker: the format ``ternmq_files`` (U3).

Start reading at ``source.py``. It uses ``layout`` (finds segments and cuts them into tasks), ``borders`` (finds the
first record of a task; a core), ``reading`` (reads one task's records), ``columns`` (makes Arrow batches), ``queues``
and ``index`` (read the derived files). ``missing`` finds records that a broker does not serve.
"""

from ternmq.spark.files.missing import lost

__all__ = ["lost"]
