"""The store's seam to the operating system. Start reading at ``base.py``."""
