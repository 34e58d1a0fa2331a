"""The outbox (J3): messages that are saved in an application's own database transaction, and sent after its commit.

``sqlalchemy.py`` is the outbox for SQLAlchemy, ``django`` that for Django, ``spool.py`` a safety net for producers
without a database. Start reading at ``table.py`` (what is done with the table) and ``relay.py`` (who sends).
"""
