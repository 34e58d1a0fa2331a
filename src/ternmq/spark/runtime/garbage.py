"""What Spark's Python workers need not look through for garbage (U1, U3)."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_loaded() -> None:
    """Executor: tell the garbage collector, once a process, that what is loaded now stays.

    Spark's workers collect all garbage after each task, and would look at every module's objects for it each time. Call
    it when a batch was made: then all that makes batches is loaded.
    """
    gc.freeze()
