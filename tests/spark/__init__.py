"""Tests of ``ternmq.spark``."""
