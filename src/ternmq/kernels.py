"""Compiled versions of the hottest loops, where there are any.

``native`` is the compiled module; without it (``HAS_NATIVE``) the pure Python versions do all the work. They are
complete, and the reference: a kernel does what they would do, byte for byte, or nothing. ``TERNMQ_NATIVE`` chooses:
``0`` uses Python only, ``1`` (the default) the compiled module if it is installed, ``require`` fails without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from ternmq import _native as native

__all__ = ["HAS_NATIVE", "NATIVE_SETTING", "describe", "load", "native"]

NATIVE_SETTING: Final = "TERNMQ_NATIVE"
#: Of the compiled module that belongs to these sources (``native/Cargo.toml``). One that was built from others is not
#: used: it may lack functions, or mean something else by them.
VERSION: Final = "0.4.0"


def load(choice: str) -> ModuleType | None:
    """The compiled module, as the setting says. Raises ``ConfigError``."""
    if choice not in ("0", "1", "require"):
        raise ConfigError(f"invalid {NATIVE_SETTING}={choice!r}: expected 0, 1 or require")
    if choice == "0":
        return None
    try:
        from ternmq import _native

        if _native.__version__ != VERSION:
            raise ImportError(f"they have version {_native.__version__}, and these sources need {VERSION}")
    except ImportError as error:
        if choice == "require":
            raise ConfigError(
                f"{NATIVE_SETTING}=require, but the compiled kernels are not installed ({error}); install the package "
                "where a Rust compiler is found, or set it to 1"
            ) from None
        return None
    return _native


_loaded: Final = load(os.environ.get(NATIVE_SETTING) or "1")
HAS_NATIVE: Final = _loaded is not None
if not TYPE_CHECKING:
    native = _loaded


def describe() -> str:
    """Which versions run, for logs and `tern version`."""
    return f"compiled kernels {native.__version__}" if HAS_NATIVE else "pure Python"
