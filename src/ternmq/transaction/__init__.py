"""Transactions on the broker's side (J1, J2); start reading at ``transactions.py``."""
