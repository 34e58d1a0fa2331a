"""One directory of files: the log, what is derived from it, and how it survives. Start reading at ``store.py``."""
