"""Delayed messages (I). Start reading at ``levels.py``."""
