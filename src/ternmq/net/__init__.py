"""Sockets: the asyncio shell around ``wire``, without rules of its own. Start reading at ``peer.py``."""
