"""The figures of docs/performance.md: ``script/bench`` runs ``run.py``, which is where to start reading."""
