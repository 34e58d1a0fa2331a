"""Topics as tables: TernMQ and RocketMQ in Spark (U1, V2). Needs ``pip install ternmq[spark]``.

``spark.read.format("ternmq")`` and ``spark.readStream.format("ternmq")`` work without registering anything, through
``pyspark_ternmq``. Start reading at ``source.py``; it shows which process calls what. ``batch`` and ``stream`` are its
two readers, ``reading`` what they share. Below them, ``options`` says what a user may set, ``plan`` cuts queues into
tasks (a core), ``cluster`` is the one client of a Python process, ``pulls`` reads one slice, ``records`` and
``columns`` make Arrow batches of what came (cores).
"""
