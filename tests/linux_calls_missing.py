"""A plugin for pytest, and a module for programs: the calls that macOS lacks are missing
(``test_other_systems.py``)."""

from __future__ import annotations

import os

for _name in ("fdatasync", "posix_fallocate"):
    delattr(os, _name)
