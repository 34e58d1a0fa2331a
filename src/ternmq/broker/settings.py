"""What a broker makes of its settings at the start: sizes that fit together, its own address, what cannot change."""

from __future__ import annotations

import dataclasses
import logging
import socket
from contextlib import suppress
from typing import Final

from ternmq.auth.config import SECURITY
from ternmq.broker.config import BrokerConfig
from ternmq.errors import ConfigError
from ternmq.net.address_server import host_of, is_url
from ternmq.net.endpoint import outward_ip, split_address
from ternmq.store.config import StoreConfig
from ternmq.wire.frame import FRAME_BYTES_LIMIT

log = logging.getLogger(__name__)

#: What a frame has besides the largest body: the rest of the record, and a header with its properties, escaped.
FRAME_EXTRA_BYTES: Final = 1024 * 1024
#: Settings that names, addresses and files are made of: they count from the next start.
FIXED: Final = (
    "broker_name",
    "broker_cluster_name",
    "broker_id",
    "broker_ip1",
    "bind_address",
    "listen_port",
    "http_port",
    "namesrv_addr",
    "fetch_namesrv_addr_interval",
    "consume_hooks",
    "revive_queue_num",
    "trace_topic_enable",
    "msg_trace_topic_name",
    "default_topic_queue_nums",
    "enable_property_filter",
    "enable_calc_filter_bit_map",
    "expect_consumer_num_use_filter",
    "max_error_rate_of_bloom_filter",
    "max_filter_bytes",
    # Who may call: files of accounts and certificates are reloaded, their settings are not.
    *SECURITY,
)


def with_room_for(config: BrokerConfig, store_config: StoreConfig) -> BrokerConfig:
    """The settings, with frames that hold every message and every answer that the store's settings allow.

    Raises ``ConfigError`` where no frame could.
    """
    for key, wanted_bytes in (
        ("maxMessageSize", store_config.max_message_size),
        ("maxTransferBytesOnMessageInMemory", store_config.max_transfer_bytes_on_message_in_memory),
        ("maxTransferBytesOnMessageInDisk", store_config.max_transfer_bytes_on_message_in_disk),
    ):
        frame_bytes = wanted_bytes + FRAME_EXTRA_BYTES
        if frame_bytes > FRAME_BYTES_LIMIT:
            raise ConfigError(
                f"invalid {key} {wanted_bytes}: expected at most {FRAME_BYTES_LIMIT - FRAME_EXTRA_BYTES}, the "
                "largest possible frame"
            )
        if frame_bytes > config.frame_max_length:
            log.warning(
                "%s = %d needs frames of %d bytes; frameMaxLength is raised to this value. Java clients need it, too "
                "(-Dcom.rocketmq.remoting.frameMaxLength=%d)",
                key,
                wanted_bytes,
                frame_bytes,
                frame_bytes,
            )
            config = dataclasses.replace(config, frame_max_length=frame_bytes)
    return config


def own_ip(config: BrokerConfig) -> str:
    """The numeric address under which clients reach this broker. Blocks while names are looked up.

    Raises ``ConfigError`` if ``brokerIP1`` or the address of a name server is invalid.
    """
    if config.broker_ip1:
        try:
            return str(socket.getaddrinfo(config.broker_ip1, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"invalid brokerIP1 {config.broker_ip1!r}: {reason}; give an address that clients can reach"
            ) from None
    for address in config.name_servers:
        host, port = host_of(address) if is_url(address) else split_address(address)
        with suppress(OSError):
            return outward_ip(host, port)
    return "127.0.0.1"
