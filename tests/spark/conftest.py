"""One Spark session for all tests here, in a small JVM; and clusters to read from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq.embedded import EmbeddedCluster
from ternmq.spark.runtime.cluster import close_all
from ternmq.spark.session import session
from tests.interop.conftest import rocketmq_4, rocketmq_5
from tests.interop.rocketmq import RocketMQ
from tests.spark.small import SMALL
from tests.spark.topics import Topics

# A fixture of a package ends with it only in a conftest of its own; in a module it would live as long as all tests.
__all__ = ["rocketmq_4", "rocketmq_5"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first query compiles a lot of Java: give it time on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(params=[pytest.param("rocketmq_4", marks=pytest.mark.nightly), "rocketmq_5"])
def any_rocketmq(request: pytest.FixtureRequest) -> RocketMQ:
    """RocketMQ 5.2.0, and 4.9.4 at night."""
    servers = request.getfixturevalue(request.param)
    assert isinstance(servers, RocketMQ)
    return servers


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores of this machine."""
    with warnings.catch_warnings():
        # Where pandas is installed, Spark has something to say about its version.
        warnings.simplefilter("ignore", FutureWarning)
        running = session(
            master="local[2]",
            settings={
                **SMALL,
                "spark.driver.memory": "768m",
                "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
    yield running
    running.stop()


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """Or it would look for the clusters of these tests for as long as others run."""
    yield
    close_all()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers that the tests of a file share; each test has topics of its own."""
    with EmbeddedCluster(brokers=2) as running:
        yield running


@pytest.fixture
def topics(cluster: EmbeddedCluster, spark: SparkSession) -> Topics:
    return Topics(spark, cluster.name_servers)
