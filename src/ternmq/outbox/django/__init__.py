"""The outbox for Django 4.2 to 5 (J3): an app with one table, and ``outbox.send``.

``apps.py`` registers it, ``models.py`` and ``migrations`` have the table, ``outbox.py`` is what applications call::

    INSTALLED_APPS = [..., "ternmq.outbox.django"]
    TERNMQ_OUTBOX = {"name_servers": "127.0.0.1:9876"}
"""
