"""Producers. Start reading at ``producer.py``."""
