"""What a broker knows: one table per module, most with a file. Start reading at ``topics.py``."""
