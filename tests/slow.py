"""The tests that ``script/check`` leaves out, because they take long: ``tests/slow.txt``.

A list and not marks: which tests take long is measured. To measure again, on a quiet machine::

    script/test --junitxml=times.xml && .venv/bin/python -m tests.slow times.xml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

LIST: Final = Path(__file__).with_suffix(".txt")
#: With these left out, the rest takes less than four minutes on two cores.
SECONDS: Final = 0.6


def listed() -> frozenset[str]:
    """``tests/cli/test_up.py::test_name``, for all parameters of a test."""
    return frozenset(LIST.read_text().split())


def write(times: Iterable[tuple[str, float]]) -> None:
    """Make the list anew of tests and the seconds that they took."""
    slow = sorted({test for test, seconds in times if seconds >= SECONDS})
    LIST.write_text("".join(f"{test}\n" for test in slow))


def times_of(report: Path) -> Iterable[tuple[str, float]]:
    """Tests and seconds of a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/")
        yield f"{path}.py::{case.attrib['name'].partition('[')[0]}", float(case.attrib["time"])


if __name__ == "__main__":
    write(times_of(Path(sys.argv[1])))
