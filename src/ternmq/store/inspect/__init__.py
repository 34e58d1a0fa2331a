"""Looking into a store directory without a broker, for tools (C11). Start reading at ``view.py``; nothing is changed
but by ``rebuild.py``."""
