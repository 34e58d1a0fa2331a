"""The broker: stores messages, serves consumers. Start reading at ``broker.py``, which puts all parts together."""
