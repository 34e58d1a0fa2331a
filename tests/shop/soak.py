"""The shop of ``examples/shop``, opened and killed again and again: ``script/soak shop [--minutes M] [--seed N]``.

Each seed is one life of the shop. The first one whose books do not balance ends it; its logs are kept. With
``--broken`` a rule is broken on purpose (``broken``), and the books must notice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RUN = ROOT / "examples" / "shop" / "run.py"


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak shop")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each shop is killed (60)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--broken", choices=("guard", "outbox", "order"), help="a rule to break")
    given = parser.parse_args()
    program, environment = "shop", dict(os.environ)
    if given.broken:
        program = "tests.shop.broken"
        environment |= {"SHOP_BROKEN": given.broken, "PYTHONPATH": str(ROOT)}
    # A time limit from outside ends all processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end, seed = time.monotonic() + given.minutes * 60, given.seed
    while time.monotonic() < end:
        directory = Path(tempfile.mkdtemp(prefix="ternmq-shop-")) / "shop"
        command = [sys.executable, str(RUN), "--seconds", str(given.seconds), "--seed", str(seed), "--program", program]
        sys.stdout.write(f"seed {seed}\n")
        sys.stdout.flush()
        code = subprocess.run([*command, "--dir", str(directory)], check=False, env=environment).returncode
        if code and given.broken:
            return
        if code:
            sys.exit(f"seed {seed}: stores and logs are in {directory}")
        shutil.rmtree(directory.parent)
        seed += 1
    if given.broken:
        sys.exit("the books did not notice")


if __name__ == "__main__":
    main()
