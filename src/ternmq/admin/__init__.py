"""Administration of a cluster, ours or RocketMQ's (D6): the one door for command line, console and pipelines.

Start reading at ``admin.py``; each noun has a file: ``brokers``, ``topics``, ``groups``, ``clients``,
``messages``, ``offsets``, ``deadletters``, ``delays``. ``blocking.py`` has the same for programs without asyncio; it is
generated.
"""

from ternmq.admin.admin import Admin

__all__ = ["Admin"]
