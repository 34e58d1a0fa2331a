"""What tests of programs on TernMQ may use, and TernMQ's own simulations do: a cluster from one seed.

Start reading at ``cluster.py``. Below it lie ``loop.py`` (virtual time), ``net.py`` and ``stream.py`` (a network),
``disk.py`` and ``image.py`` (a disk) and ``clock.py``; above it ``swarm.py`` (faults) and ``checkers.py`` (what holds).
"""
