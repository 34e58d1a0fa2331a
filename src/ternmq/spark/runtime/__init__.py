"""Jobs, and the clients of Spark's Python processes. Start reading at ``cluster.py``."""
