"""How the files survive: flush, checkpoint, recovery, retention. Start reading at ``flush.py``."""
