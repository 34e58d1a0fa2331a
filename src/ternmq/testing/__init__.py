"""What tests of programs on TernMQ may use, and TernMQ's own simulation does: start reading at ``disk.py``."""
