"""``tern``, the one program for servers, administration and daily work (T1). Start reading at ``main.py``.

Commands import what they run when they run: ``tern broker`` does not wait for the client to load, nor for rich.
"""
