"""Name servers and their settings (A5, T2). They know nothing of each other: a change goes to each of them."""

from __future__ import annotations

from collections.abc import Mapping

from ternmq.client.connect.instance import ClientInstance
from ternmq.config import Settings, parse_origins, to_line
from ternmq.wire.codes import RequestCode


class NameServerAdmin:
    """Name servers and their settings: ``admin.name_servers``."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def all(self) -> list[str]:
        """The addresses of all name servers that this admin was given, or that the address server lists."""
        return list(await self._instance.name_servers.known())

    async def settings(self, address: str) -> dict[str, str]:
        """All settings of the name server at ``address``, under RocketMQ's names; secrets are left out."""
        return await settings_at(self._instance, address, RequestCode.GET_NAMESRV_CONFIG)

    async def origins(self, address: str) -> dict[str, str]:
        """Where settings of the name server at ``address`` were given; those with their default are left out."""
        return await origins_at(self._instance, address, RequestCode.GET_NAMESRV_CONFIG)

    async def change_settings(self, address: str, changes: Mapping[str, object]) -> None:
        """Change settings of the name server at ``address`` while it runs: all of ``changes``, or none.

        They are kept over restarts if it has a file for them (``kvConfigPath``). Raises ``NoPermission`` for a setting
        that needs a restart, and ``InvalidParameter`` for an unknown setting or an invalid value.
        """
        await change_settings_at(self._instance, address, RequestCode.UPDATE_NAMESRV_CONFIG, changes)


async def settings_at(instance: ClientInstance, address: str, code: RequestCode) -> dict[str, str]:
    """The settings of a server, asked for with the code of its kind."""
    response = await instance.ask(address, code)
    given = Settings.parse(str(response.body, "utf-8"), f"the answer of {address}").given
    return {setting.key: setting.value for setting in given}


async def origins_at(instance: ClientInstance, address: str, code: RequestCode) -> dict[str, str]:
    """Where settings of a server come from; empty for servers of RocketMQ, which do not tell."""
    response = await instance.ask(address, code)
    return parse_origins(str(response.body, "utf-8"), f"the answer of {address}")


async def change_settings_at(
    instance: ClientInstance, address: str, code: RequestCode, changes: Mapping[str, object]
) -> None:
    """Change settings of a server, with the code of its kind."""
    text = "".join(to_line(name, str(value)) for name, value in changes.items())
    await instance.ask(address, code, body=text.encode())
