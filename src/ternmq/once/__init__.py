"""Idempotent consumption (S1): the work for a message is done once, though the message may come several times.

``guard.py`` has ``once`` and ``Guard``, for any store; ``sqlalchemy.py`` also ``once_in_transaction``. Start reading at
``keystore.py``: states and decisions, of which the stores are thin shells.
"""
