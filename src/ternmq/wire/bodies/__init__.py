"""JSON bodies of requests and replies, as typed values; start reading at ``codec.py``.

``routes`` is what a name server knows, ``topics`` and ``groups`` what a broker is told to keep, ``clients`` what
clients say and are asked, ``stats`` what tools read. Headers are in ``wire.requests`` and ``wire.requests_admin``.
"""
