"""Consumers: push, lite pull, pull, pop. Start reading at ``push.py``."""
