"""``tern user``: list, create, update, delete, policies, allow, deny, revoke (N1)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.admin import Admin

app = Commands(
    no_args_is_help=True,
    help="Users of a cluster with authenticationEnabled=true, and what they may do. Changes are made on all brokers.",
)

Name = Annotated[str, typer.Argument(help="Name of the user.", metavar="USER")]
Resource = Annotated[
    str,
    typer.Argument(
        help="Topic:NAME, Group:NAME or Cluster:NAME, with * at the end for a prefix; * for everything.",
        metavar="RESOURCE",
    ),
]
Actions = Annotated[
    list[str], typer.Argument(help="Pub, Sub, Create, Update, Delete, Get, List or All.", metavar="ACTION…")
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="ADDRESS", help="Only from this address or network. Can be repeated."),
]
Default = Annotated[bool, typer.Option("--default", help="Only where no other entry of the user matches.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="The password is the first line of FILE; - is standard input."
    ),
]


@app.command("list", cls=Watched)
def list_(
    text: Annotated[str, typer.Argument(help="Only names that contain this.", metavar="[TEXT]")] = "",
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List users.

    Example:

        tern user list
    """
    from ternmq.admin import Admin

    async def work() -> list[dict[str, object]]:
        async with Admin(name_servers) as admin:
            return [
                {
                    "user": user.name,
                    "type": "super" if user.is_super else "normal",
                    "status": "enabled" if user.is_enabled else "disabled",
                    "broker": user.broker,
                }
                for user in await admin.users.all(text)
            ]

    Output(as_json=as_json).rows(run(work()), columns=("user", "type", "status", "broker"), empty="no users")


@app.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    is_super: Annotated[bool, typer.Option("--super", help="It may do everything.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a user. The password is asked for, or read from a file: options are visible in the list of processes.

    Examples:

        tern user create shop

        tern user create boss --super --password-file secret.txt
    """
    password = _password(name, password_file)
    _change(name_servers, lambda admin: admin.users.create(name, password, is_super=is_super))
    Output(as_json=as_json).item({"created": name}, f"created user {name}")


@app.command()
def update(
    name: Name,
    new_password: Annotated[bool, typer.Option("--new-password", help="Ask for a new password.")] = False,
    password_file: PasswordFile = None,
    is_super: Annotated[bool | None, typer.Option("--super/--normal", help="It may do everything, or not.")] = None,
    is_enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether its requests are accepted.")
    ] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change the password, type or status of a user.

    Examples:

        tern user update shop --disable

        tern user update shop --new-password
    """
    password = _password(name, password_file) if new_password or password_file is not None else ""
    if not password and is_super is None and is_enabled is None:
        raise ConfigError(
            "nothing to change; use --new-password, --password-file, --super, --normal, --enable or --disable"
        )
    _change(
        name_servers,
        lambda admin: admin.users.update(name, password=password, is_super=is_super, is_enabled=is_enabled),
    )
    Output(as_json=as_json).item({"updated": name}, f"updated user {name}")


@app.command(cls=Destructive)
def delete(
    name: Name, yes: Yes = False, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False
) -> None:
    """Delete a user and its policies.

    Example:

        tern user delete shop
    """
    if not yes:
        plan = [
            f"user {name} is deleted on all brokers; its programs cannot connect afterwards",
            *_entries(name_servers, name),
        ]
        confirm(plan, f"delete user {name}?", yes=yes)
    _change(name_servers, lambda admin: admin.users.delete(name))
    Output(as_json=as_json).item({"deleted": name}, f"deleted user {name}")


@app.command(cls=Watched)
def policies(
    name: Annotated[str, typer.Argument(help="Only users whose name contains this.", metavar="[USER]")] = "",
    resource: Annotated[str, typer.Option("--resource", help="Only resources that contain this.")] = "",
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List what users may do.

    Example:

        tern user policies shop
    """
    from ternmq.admin import Admin

    async def work() -> list[dict[str, object]]:
        async with Admin(name_servers) as admin:
            return [
                {
                    "user": one.user,
                    "resource": one.resource,
                    "actions": list(one.actions) if as_json else ", ".join(one.actions),
                    "decision": one.decision,
                    "from": list(one.sources) if as_json else ", ".join(one.sources) or "everywhere",
                    "kind": "default" if one.is_default else "custom",
                    "broker": one.broker,
                }
                for one in await admin.users.policies(name, resource)
            ]

    columns = ("user", "resource", "actions", "decision", "from", "kind", "broker")
    Output(as_json=as_json).rows(run(work()), columns=columns, empty="no policies")


@app.command()
def allow(
    name: Name,
    resource: Resource,
    actions: Actions,
    sources: Sources = None,
    is_default: Default = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Allow a user actions on a resource; replaces its entry for that resource.

    Examples:

        tern user allow shop Topic:orders Pub

        tern user allow billing 'Group:billing*' Sub --from 10.0.0.0/24
    """
    _decide(name_servers, name, resource, actions, "Allow", sources, is_default=is_default)
    Output(as_json=as_json).item(
        {"user": name, "resource": resource, "allowed": actions}, f"{name} may {', '.join(actions)} on {resource}"
    )


@app.command()
def deny(
    name: Name,
    resource: Resource,
    actions: Actions,
    sources: Sources = None,
    is_default: Default = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Deny a user actions on a resource; replaces its entry for that resource.

    Example:

        tern user deny shop Topic:orders-internal All
    """
    _decide(name_servers, name, resource, actions, "Deny", sources, is_default=is_default)
    Output(as_json=as_json).item(
        {"user": name, "resource": resource, "denied": actions}, f"{name} may not {', '.join(actions)} on {resource}"
    )


@app.command(cls=Destructive)
def revoke(
    name: Name,
    resource: Annotated[str, typer.Argument(help="The resource of the entry; none: all.", metavar="[RESOURCE]")] = "",
    is_default: Default = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete the entry of a user for a resource, or all its entries.

    Example:

        tern user revoke shop Topic:orders
    """
    if not yes:
        confirm(_entries(name_servers, name, resource), f"revoke {resource or 'all entries'} of user {name}?", yes=yes)
    _change(name_servers, lambda admin: admin.users.revoke(name, resource, is_default=is_default))
    Output(as_json=as_json).item(
        {"user": name, "revoked": resource or "*"}, f"revoked {resource or 'all entries'} of {name}"
    )


def _entries(name_servers: str, name: str, resource: str = "") -> list[str]:
    """What is lost with the entries of a user."""
    from ternmq.admin import Admin

    async def work() -> list[str]:
        async with Admin(name_servers) as admin:
            return sorted(
                {
                    f"{one.decision} {', '.join(one.actions)} on {one.resource}"
                    for one in await admin.users.policies(name, resource)
                    if one.user == name
                }
            )

    return run(work())


def _decide(
    name_servers: str,
    name: str,
    resource: str,
    actions: list[str],
    decision: str,
    sources: list[str] | None,
    *,
    is_default: bool,
) -> None:
    _change(
        name_servers,
        lambda admin: admin.users.decide(
            name, resource, actions, decision=decision, sources=sources or (), is_default=is_default
        ),
    )


def _change(name_servers: str, change: Callable[[Admin], Awaitable[None]]) -> None:
    from ternmq.admin import Admin

    async def work() -> None:
        async with Admin(name_servers) as admin:
            await change(admin)

    run(work())


def _password(name: str, file: Path | None) -> str:
    if file is None:
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True))
    try:
        text = sys.stdin.readline() if str(file) == "-" else file.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    return text.partition("\n")[0].rstrip("\r")
