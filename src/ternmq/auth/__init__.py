"""Access control of servers: accounts, white lists, permissions, and the validator that applies them (N1).

Start reading at ``plain.py``.
"""
