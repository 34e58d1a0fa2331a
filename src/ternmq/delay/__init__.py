"""Messages for later (I). Start reading at ``levels.py``."""
