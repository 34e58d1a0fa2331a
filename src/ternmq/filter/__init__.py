"""Filters: pure predicates that decide which messages a subscription gets, for broker and client (K). Start reading at
``tags.py``; SQL goes from ``sql.py`` by ``tree.py`` to ``evaluate.py``."""
