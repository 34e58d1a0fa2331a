"""Every byte that leaves the process, and nothing else: no sockets, no files, no clock (B1).

Start reading at ``frame.py`` (what stands on a connection), then ``header.py`` and ``requests.py`` (what it asks),
``bodies`` (what it carries as JSON) and ``record.py`` (what it carries as messages, and what the store keeps).
"""
