"""Simulations: a cluster from one seed, for tests of programs on TernMQ and for TernMQ's own tests.

Start reading at ``cluster.py``. It is built on ``loop.py`` (virtual time), ``net.py`` and ``stream.py`` (a network),
``disk.py`` and ``image.py`` (a disk) and ``clock.py``; on top are ``swarm.py`` (faults), ``checkers.py`` and
``deliveries.py`` (invariants).
"""
