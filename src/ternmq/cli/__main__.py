"""``python -m ternmq.cli`` is ``tern``; this is how ``tern up`` starts its brokers, wherever it is installed."""

from __future__ import annotations

from ternmq.cli.main import main

main()
