"""The log: what was written, record after record. Start reading at ``protocol.py``."""
