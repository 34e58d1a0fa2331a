"""Filters: pure predicates that say which messages a subscription wants, for broker and client (K). Start reading at
``tags.py``; SQL goes from ``sql.py`` by ``tree.py`` to ``evaluate.py``."""
