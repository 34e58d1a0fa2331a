"""Clients for applications: producers and consumers, asyncio first, each with a synchronous version (E, F).

Start reading at ``producer.py`` and ``consumer.py``; ``instance.py`` is what they share. Public names are exported by
``ternmq`` itself. Everything here runs on the application's loop, and nothing imports the store or a server.
"""
