"""The harness that starts Apache's servers: what it does if a port is taken meanwhile (V3)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interop import rocketmq


@pytest.mark.nightly
def test_a_server_whose_port_was_taken_is_started_again_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V3: another process may bind a free port before the JVM does. A port that the test asked for is kept."""
    find = rocketmq.free_port
    with socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        ports = [taken]

        def first_taken(*, neighbours: Sequence[int] = ()) -> int:
            return ports.pop() if ports else find(neighbours=neighbours)

        monkeypatch.setattr(rocketmq, "free_port", first_taken)
        with rocketmq.name_server("4.9.4", tmp_path) as server:
            assert not ports
            assert server.process.poll() is None
            assert f"127.0.0.1:{taken}" != server.address
        with (
            pytest.raises(rocketmq.OutsideFailure, match="in use"),
            rocketmq.name_server("4.9.4", tmp_path, port=taken),
        ):
            pass
