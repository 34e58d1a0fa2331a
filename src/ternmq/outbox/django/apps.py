"""The app ``ternmq.outbox.django`` (J3)."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxAppConfig(AppConfig):
    name = "ternmq.outbox.django"
    label = "ternmq_outbox"
    verbose_name = "TernMQ outbox"
    default_auto_field = "django.db.models.BigAutoField"
