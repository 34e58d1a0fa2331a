"""Topics as tables and streams. Start reading at ``source.py``."""
