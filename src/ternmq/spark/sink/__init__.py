"""Rows into topics. Start reading at ``sink.py``."""
