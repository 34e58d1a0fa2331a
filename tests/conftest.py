"""What all tests share: Hypothesis without deadlines, as a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ternmq", deadline=None, print_blob=True)
settings.load_profile("ternmq")
