"""Byte layouts of files: one module for each, and nothing else in it. (A record is ``wire.record``.)"""
