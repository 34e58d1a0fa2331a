"""Byte layouts of files, one module for each. (The layout of a record is in ``wire.record``.)"""
