"""Synchronous versions of the clients. Start reading at ``base.py``."""
