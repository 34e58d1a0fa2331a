"""Settings of clients and producers: forms accepted, defaults, and sentences for what is wrong."""

from __future__ import annotations

import pytest

from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.errors import ConfigError
from ternmq.wire.codes import BINARY, JSON, ResponseCode


@pytest.mark.parametrize(
    "name_servers",
    ["a:9876;b:9876", "a:9876,b:9876", " a:9876 ; b:9876;", ["a:9876", "b:9876"], ("a:9876;b:9876",)],
)
def test_name_servers_are_read_in_every_form(name_servers: str | list[str]) -> None:
    """A6."""
    assert ClientConfig(name_servers).addresses == ("a:9876", "b:9876")


def test_without_name_servers_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    assert ClientConfig().addresses == ("10.0.0.1:9876",)


def test_no_name_server_at_all_is_an_error_that_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="give name_servers='host:9876', or set the variable NAMESRV_ADDR"):
        ClientConfig()


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        ClientConfig("localhost")


def test_equal_configs_are_one_key() -> None:
    """Clients share an instance by it."""
    assert {ClientConfig("a:1;b:2"), ClientConfig(["a:1", "b:2"])} == {ClientConfig("a:1,b:2")}


def test_the_header_form_is_chosen_by_name() -> None:
    """B1."""
    assert (JSON, BINARY) == (ClientConfig("a:1").form, ClientConfig("a:1", serialization="ROCKETMQ").form)
    with pytest.raises(ConfigError, match="expected 'JSON' or 'ROCKETMQ'"):
        ClientConfig("a:1", serialization="XML")


def test_a_host_name_is_no_client_ip() -> None:
    """It becomes part of message ids."""
    with pytest.raises(ConfigError, match="expected an IP address"):
        ClientConfig("a:1", client_ip="my-host")


def test_times_and_sizes_are_above_zero() -> None:
    with pytest.raises(ConfigError, match="invalid heartbeat_interval_ms 0"):
        ClientConfig("a:1", heartbeat_interval_ms=0)
    with pytest.raises(ConfigError, match="invalid body_bytes_max -1"):
        ProducerConfig(body_bytes_max=-1)


def test_a_producer_has_rocketmqs_defaults() -> None:
    """E1, E4, E6."""
    config = ProducerConfig()
    assert (3_000, 2, 2, False) == (config.send_timeout_ms, config.retries, config.async_retries, config.auto_batch)
    assert (4 * 1024 * 1024, 4_096) == (config.body_bytes_max, config.compress_from_bytes)
    # RocketMQ 5 waits for 10 ms; here what gathered goes with the next answer.
    assert (32 * 1024, 0, 32 * 1024 * 1024) == (
        config.auto_batch_bytes,
        config.auto_batch_wait_ms,
        config.auto_batch_total_bytes,
    )


def test_a_busy_broker_is_not_sent_to_again() -> None:
    """E4: flow control asks for fewer sends, not for more."""
    assert ResponseCode.SYSTEM_BUSY not in ProducerConfig().retry_codes


def test_an_unknown_compression_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="expected one of ZLIB, LZ4, ZSTD"):
        ProducerConfig(compression="GZIP")


def test_retries_are_not_below_zero() -> None:
    with pytest.raises(ConfigError, match="invalid retries -1"):
        ProducerConfig(retries=-1)
