"""Administration of a cluster of TernMQ or RocketMQ (D6), for the command line, the console and pipelines.

Start reading at ``admin.py``; each noun has a file: ``brokers``, ``topics``, ``groups``, ``clients``,
``messages``, ``offsets``, ``deadletters``, ``delays``. ``blocking.py`` has the synchronous versions; it is
generated.
"""

from ternmq.admin.admin import Admin

__all__ = ["Admin"]
