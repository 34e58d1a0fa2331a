"""Reading: by queue offset, by time, by key, by log offset. Start reading at ``query.py``."""
