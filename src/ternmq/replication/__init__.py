"""Copies of a log on other machines: a master and its slaves. Start reading at ``stream.py``, then ``master.py``."""
