"""``tern version``."""

from __future__ import annotations

from ternmq.cli.options import Json
from ternmq.cli.output import Output


def version(as_json: Json = False) -> None:
    """Print the versions of TernMQ, Python and the event loop, and whether compiled kernels are used.

    Example:

        tern version --json
    """
    import platform
    from importlib import metadata

    from ternmq import kernels

    try:
        loop = f"uvloop {metadata.version('uvloop')}"
    except metadata.PackageNotFoundError:
        loop = "asyncio"
    ternmq, python = metadata.version("ternmq"), platform.python_version()
    used = kernels.describe()
    Output(as_json=as_json).item(
        {"ternmq": ternmq, "python": python, "loop": loop, "kernels": used},
        f"tern {ternmq} (Python {python}, {loop}, {used})",
    )
