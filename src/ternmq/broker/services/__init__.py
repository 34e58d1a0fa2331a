"""What a broker does: rules that know no connection, request or reply; handlers call them. Start reading at
``sending.py`` and ``reading.py``."""
