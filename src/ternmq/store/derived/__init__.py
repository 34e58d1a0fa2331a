"""What is derived from the log: queues and the index. Start reading at ``dispatch.py``."""
