"""JSON bodies of requests and replies, as typed values; start reading at ``codec.py``.

``routes`` is for name servers, ``topics`` and ``groups`` for the tables of a broker, ``clients`` for what clients send
and receive, ``stats`` for tools. Headers are in ``wire.requests`` and ``wire.requests_admin``.
"""
