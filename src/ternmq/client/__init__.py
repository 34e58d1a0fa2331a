"""Clients for applications: producers and consumers, asyncio first, each with a synchronous version (E, F).

Start reading at ``send/producer.py`` and ``consume/consumer.py``; ``connect/instance.py`` is what they share. Public
names are exported by ``ternmq`` itself. Everything here runs on the application's loop, and nothing imports the store
or a server.
"""
