"""The broker's other ports: the one without calls that may wait («VIP»), and HTTP (B2, R5, T4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ternmq.auth.access import AccessControl
from ternmq.broker.config import BrokerConfig
from ternmq.broker.raft_group import RaftGroup
from ternmq.broker.replicating import Replicating
from ternmq.broker.roles import Roles
from ternmq.broker.services.services import Services
from ternmq.broker.tables.tables import Tables
from ternmq.env import Clock
from ternmq.errors import ConfigError, NetworkError
from ternmq.net.endpoint import bind
from ternmq.net.server import Server
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode

if TYPE_CHECKING:
    from ternmq.net.http import HttpServer

log = logging.getLogger(__name__)

#: The «VIP» port, for clients that do not want to wait behind pulls, is that many below the main one.
VIP_PORT_STEP: Final = 2
#: What it does not serve: calls that may wait long.
NOT_ON_VIP: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.SHARE_PULL,
    }
)


async def listen_vip(server: Server, config: BrokerConfig) -> None:
    """Serve the requests of a broker on its VIP port, too, if that is free."""
    port = config.listen_port - VIP_PORT_STEP
    if port <= 0:
        return
    try:
        await server.listen(config.bind_address, port, without=NOT_ON_VIP)
    except (NetworkError, ConfigError) as error:
        log.warning(
            "cannot open the VIP port %d: %s; only clients with vipChannelEnabled (off since 4.9) need it", port, error
        )


async def listen_http(
    tasks: Tasks,
    *,
    config: Callable[[], BrokerConfig],
    store: MessageStore,
    tables: Tables,
    services: Services,
    server: Server,
    roles: Roles,
    replicating: Replicating,
    group: RaftGroup | None,
    control: AccessControl,
    clock: Clock,
) -> HttpServer:
    """Serve messages, probes and metrics over HTTP, until the result is closed. Raises ``ConfigError`` and
    ``NetworkError``."""
    try:
        # Only here: h11 and prometheus-client are an extra.
        from ternmq.broker.metrics import BrokerMetrics
        from ternmq.broker.web import Web
        from ternmq.net.http import HttpServer
    except ImportError:
        raise ConfigError("httpPort needs more packages: `pip install ternmq[http]`, or set it to 0") from None
    web = Web(
        store=store,
        reading=services.reading,
        positions=services.positions,
        topics=services.access,
        roles=roles,
        replicating=replicating,
        gate=control.gate,
        metrics=BrokerMetrics(
            config=config,
            store=store,
            tables=tables,
            quotas=services.quotas,
            server=server,
            roles=roles,
            sharing=services.sharing,
            ha_status=group.ha_status if group is not None else replicating.ha_status,
            clock=clock,
            tasks=tasks,
        ),
        group_trouble=group.why_absent if group is not None else None,
    )
    http = HttpServer(web.answer, tasks)
    port = config().http_port
    await http.listen(bind(config().bind_address, port), control.tls)
    log.info("messages are served over HTTP on port %d", port)
    return http
