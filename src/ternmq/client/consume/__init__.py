"""Consumers: push, lite pull, pull, pop. Start reading at ``consumer.py``, then ``push.py``."""
