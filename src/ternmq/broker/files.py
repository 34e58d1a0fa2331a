"""The broker's table files are ``ternmq.files``."""

from ternmq.files import Chores, TableFile

__all__ = ["Chores", "TableFile"]
