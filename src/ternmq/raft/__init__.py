"""Raft: brokers that agree on one log, a majority at a time (P1–P4). Start reading at ``core.py``, then ``node.py``."""
