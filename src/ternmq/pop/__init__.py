"""Consumption by invisible time (F9): a message handed out is hidden until it is acked, or its time is over.

Start reading at ``checkpoints.py`` (what is in flight, and how far a group is), then ``buffer.py`` (the same with a
clock and a log) and ``revive.py`` (what becomes of messages that were not acknowledged). ``orderly.py`` is the other
way to pop, ``assign.py`` tells which member pops which queues. The broker's rules are in ``broker.services.popping``.
"""
