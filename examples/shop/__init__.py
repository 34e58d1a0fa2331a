"""A shop that survives ``kill -9`` of every process, with books that balance to the cent. The tutorial is
docs/guides/shop.md; start reading at ``schema``.
"""
