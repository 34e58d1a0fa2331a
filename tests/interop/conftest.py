"""Fixtures for the tests with Apache's programs: each server starts once a directory of tests, since an idle
one of RocketMQ's takes a fifth of a core; each Java version once a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import jvm, rocketmq
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ


@pytest.fixture(scope="package")
def rocketmq_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Name server and broker of RocketMQ 4.9.4."""
    with rocketmq.cluster("4.9.4", tmp_path_factory.mktemp("rocketmq-4")) as servers:
        yield servers


@pytest.fixture(scope="package")
def rocketmq_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Name server and broker of RocketMQ 5.2.0."""
    with rocketmq.cluster("5.2.0", tmp_path_factory.mktemp("rocketmq-5")) as servers:
        yield servers


@pytest.fixture(params=["rocketmq_4", "rocketmq_5"])
def any_rocketmq(request: pytest.FixtureRequest) -> RocketMQ:
    """Each RocketMQ version in turn."""
    servers = request.getfixturevalue(request.param)
    assert isinstance(servers, RocketMQ)
    return servers


@pytest.fixture(params=jvm.mostly("5.2.0"), ids=lambda version: f"java-{version}")
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Java:
    """Java clients of 5.2.0, and of 4.9.4 at night."""
    return Java(request.param, tmp_path)


@pytest.fixture(params=jvm.HEADER_FORMS, ids="{0[0]}-{0[1]}".format)
def java_any_header(request: pytest.FixtureRequest, tmp_path: Path) -> Java:
    """Java clients of each version, with another form of the header each."""
    version, form = request.param
    return Java(version, tmp_path, binary=form == "ROCKETMQ")
