"""``python -m ternmq.cli`` is ``tern``; ``tern up`` starts its brokers in this way, wherever it is installed."""

from __future__ import annotations

from ternmq.cli.main import main

main()
