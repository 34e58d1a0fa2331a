"""Parquet files of topics, each message once. Start reading at ``lake.py``."""
