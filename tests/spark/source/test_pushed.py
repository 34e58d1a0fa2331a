"""What filters of a query tell brokers (U1)."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import In

from ternmq.filter.sql import DEFAULT_LIMITS
from ternmq.spark.source.pushed import Pushed


@pytest.mark.parametrize(("count", "pushed"), [(3, True), (5_000, False)])
def test_tags_are_pushed_as_long_as_brokers_take_the_expression(count: int, pushed: bool) -> None:
    """Issue 13, 4: Spark filters the rows itself, so a query with many tags reads more, and does not fail."""
    tags = tuple(f"tag-{number}" for number in range(count))
    known = Pushed()
    known.take(In(("tags",), tags))
    assert sorted(tags if pushed else ()) == known.tags
    assert len(known.tags_expression()) <= DEFAULT_LIMITS.length
