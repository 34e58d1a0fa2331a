"""The name server: who the brokers are and where topics live. Start reading at ``registry.py``."""
