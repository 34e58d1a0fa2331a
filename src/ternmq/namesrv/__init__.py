"""The name server: the registry of brokers and topics. Start reading at ``registry.py``."""
