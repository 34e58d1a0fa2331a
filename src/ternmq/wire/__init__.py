"""All bytes that leave the process: pure functions, without sockets, files or a clock (B1).

Start reading at ``frame.py`` (the units of a connection), then ``header.py`` and ``requests.py`` (parameters),
``bodies`` (JSON bodies) and ``record.py`` (messages, on the wire and in the store).
"""
