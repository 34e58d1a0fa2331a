"""Objects that the garbage collector of Spark's Python workers can ignore (U1, U3)."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_loaded() -> None:
    """Executor: tell the garbage collector, once per process, that the loaded objects stay in memory.

    Spark's workers collect garbage after each task, and would visit the objects of all modules each time. Call it when
    a batch has been built: then all needed modules are loaded.
    """
    gc.freeze()
