"""Traces of sends and consumption (Q1); start reading at ``outbox.py``."""
