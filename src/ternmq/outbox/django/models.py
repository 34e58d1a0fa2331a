"""The outbox table as a model, for the admin site (J3). ``ternmq.outbox.schema`` explains the columns."""

from __future__ import annotations

from typing import Any

from django.db import models

from ternmq.outbox.entry import ERROR_LENGTH, MESSAGE_ID_LENGTH, ORDER_KEY_LENGTH, OWNER_LENGTH, TOPIC_LENGTH
from ternmq.outbox.schema import TABLE


class OutboxMessage(models.Model):
    """A message that was saved and not sent yet. Rows are written by ``ternmq.outbox.django.outbox`` alone."""

    id: models.BigAutoField[Any, Any] = models.BigAutoField(primary_key=True)
    message_id: models.CharField[Any, Any] = models.CharField(max_length=MESSAGE_ID_LENGTH, null=True)
    topic: models.CharField[Any, Any] = models.CharField(max_length=TOPIC_LENGTH)
    body: models.BinaryField[Any, Any] = models.BinaryField()
    message: models.TextField[Any, Any] = models.TextField()
    order_key: models.CharField[Any, Any] = models.CharField(max_length=ORDER_KEY_LENGTH, null=True)
    state: models.SmallIntegerField[Any, Any] = models.SmallIntegerField(default=0)
    due_ms: models.BigIntegerField[Any, Any] = models.BigIntegerField(default=0)
    owner: models.CharField[Any, Any] = models.CharField(max_length=OWNER_LENGTH, null=True)
    attempts: models.IntegerField[Any, Any] = models.IntegerField(default=0)
    refusals: models.IntegerField[Any, Any] = models.IntegerField(default=0)
    error: models.CharField[Any, Any] = models.CharField(max_length=ERROR_LENGTH, null=True)
    created_ms: models.BigIntegerField[Any, Any] = models.BigIntegerField(default=0)

    class Meta:
        app_label = "ternmq_outbox"
        db_table = TABLE

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"
