"""Topics as tables: TernMQ and RocketMQ in Spark (U1, U2, V2). Needs ``pip install ternmq[spark]``.

``spark.read.format("ternmq")`` and ``spark.readStream.format("ternmq")`` work without registration, through
``pyspark_ternmq``. Start reading at ``source/source.py``, which explains the processes. ``batch`` and ``stream`` are
its two readers, ``reading`` their common part. They use ``options`` (the user's options), ``plan`` (cuts queues into
tasks; a core), ``runtime.cluster`` (the client of a Python process), ``pulls`` (reads one slice), ``records`` and
``columns`` (make Arrow batches; cores), and ``bodies`` (decompresses and checks bodies).

``df.write.format("ternmq")`` and ``df.writeStream`` begin at ``sink/sink.py``: ``rows`` packs rows into chunks (a
core), ``staging`` stores them on brokers, ``ledger`` records the decisions, ``publish`` sends the chunks to their
topic, each row once; all of them use ``logs``, queues that can be appended to and read.
"""
