"""Topics as tables: TernMQ and RocketMQ in Spark (U1, U2, V2). Needs ``pip install ternmq[spark]``.

``spark.read.format("ternmq")`` and ``spark.readStream.format("ternmq")`` work without registering anything, through
``pyspark_ternmq``. Start reading at ``source.py``; it shows which process calls what. ``batch`` and ``stream`` are its
two readers, ``reading`` what they share. Below them, ``options`` says what a user may set, ``plan`` cuts queues into
tasks (a core), ``cluster`` is the one client of a Python process, ``pulls`` reads one slice, ``records`` and
``columns`` make Arrow batches of what came (cores), and ``bodies`` decompresses and checks what they are made of.

``df.write.format("ternmq")`` and ``df.writeStream`` begin at ``sink.py``: ``sink_rows`` makes chunks of rows (a core),
``staging`` brings them to brokers, ``ledger`` remembers what was decided, ``publish`` moves chunks to their topic, each
row once; all of it on ``logs``, queues that can be appended to and read.
"""
