"""Connections, routes and heartbeats that the clients of one loop share. Start reading at ``instance.py``."""
