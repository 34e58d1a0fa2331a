"""Shared consumption, as QMQ has it: any number of consumers take messages of one topic, and no queue is owned (R1–R3).

Start reading at ``state.py``.
"""
