"""TernMQ with Apache's own programs (V1–V3): start reading at ``rocketmq.py`` (servers) and ``java.py`` (clients)."""
