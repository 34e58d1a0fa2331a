"""Sockets: the asyncio shell around ``wire``, with no business of its own. Start reading at ``peer.py``."""
