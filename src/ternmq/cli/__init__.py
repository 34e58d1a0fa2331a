"""``tern``, the program for servers, administration and daily work (T1). Start reading at ``main.py``.

Commands import their modules when they run: ``tern broker`` does not load the client or rich.
"""
