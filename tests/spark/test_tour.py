"""The tour of the pipelines goes as it says: its cells run in order, in one session (U4)."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq.embedded import EmbeddedCluster
from tests.test_docs import NAME_SERVER, ROOT, blocks

#: Where the tour keeps its checkpoint and its lake.
HOME = "/tmp/tern-tour"


# Half a dozen streams, one after the other.
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_tour_of_the_pipelines_goes_as_it_says(spark: SparkSession, tmp_path: Path) -> None:
    """U4: orders, stream SQL, alerts, lake, replay."""
    cells = blocks(ROOT / "docs" / "guides" / "spark-tour.md")
    notebook: dict[str, object] = {}
    with EmbeddedCluster() as cluster:
        for cell, following in pairwise(cells):
            if cell.kind == "py":
                printed = io.StringIO()
                text = cell.text.replace(NAME_SERVER, cluster.name_servers).replace(HOME, str(tmp_path / "tour"))
                code = compile(text, str(cell), "exec")
                with contextlib.redirect_stdout(printed):
                    exec(code, notebook)
                expected = following.text if following.kind == "text" else ""
                assert expected == printed.getvalue(), cell
    assert notebook["spark"] is spark
