"""Files for systemd, containers and Kubernetes: their commands and settings exist, and a linter takes them (T1)."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import typer
import yaml

from ternmq.broker.config import BrokerConfig
from ternmq.cli.main import app
from ternmq.config import Settings
from ternmq.namesrv.config import NamesrvConfig
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig

DEPLOY = Path(__file__).parent.parent / "deploy"
KUBERNETES = DEPLOY / "kubernetes" / "ternmq.yaml"
COMPOSE = DEPLOY / "container" / "compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def check_command(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Parse a command line of ``tern``, and build the settings that it gives."""
    tree: Any = typer.main.get_command(app)
    name, *rest = words
    context = tree.get_command(None, name).make_context(name, list(rest))
    settings = Settings.gather(env=environment, flags=context.params.get("settings") or [])
    kinds: tuple[type, ...] = (NamesrvConfig,)
    if name == "broker":
        kinds = BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig
    for kind in kinds:
        settings.build(kind)
    assert [] == settings.strangers(*kinds)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_systemd_unit_starts_a_command_that_exists(unit: Path) -> None:
    """T1: and leaves it time to stop."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    parser.read(unit)
    program, *words = shlex.split(parser["Service"]["ExecStart"].replace("%i", "broker-a"))
    assert program.endswith("/tern")
    check_command(words, {})
    assert int(parser["Service"]["TimeoutStopSec"]) >= 30
    assert "multi-user.target" == parser["Install"]["WantedBy"]


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


@pytest.mark.parametrize("document", documents(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
@pytest.mark.parametrize("version", ["1.28", "1.33"])
def test_a_manifest_is_valid(document: dict[str, Any], version: str) -> None:
    """T1: by the schemas of Kubernetes, which know all fields."""
    kubernetes_validate.validate(document, version, strict=True)


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for document in documents():
        if document["kind"] == "StatefulSet":
            pod = document["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield document["metadata"]["name"], pod, container


@pytest.mark.parametrize(
    ("name", "pod", "container"), list(containers()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_pod_starts_a_command_that_exists(name: str, pod: dict[str, Any], container: dict[str, Any]) -> None:
    """T1: with settings that exist, probes of ports that it has, and time to stop."""
    values: dict[str, str] = {}
    for each in container.get("env", []):
        # Kubernetes fills in the index of the pod and its address.
        text = each.get("value", "0" if each["name"] == "POD_INDEX" else "10.0.0.1")
        values[each["name"]] = text.replace("$(POD_INDEX)", values.get("POD_INDEX", ""))
    environment = {key: value for key, value in values.items() if key.startswith("TERNMQ_")}
    check_command(container["args"], environment)
    ports = {each["name"] for each in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        where = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert where["port"] in ports
    assert pod["terminationGracePeriodSeconds"] >= 30
    assert pod["securityContext"]["runAsNonRoot"]
    if name == "broker":
        members = environment["TERNMQ_D_LEGER_PEERS"].split(";")
        (replicas,) = (
            each["spec"]["replicas"]
            for each in documents()
            if each["metadata"]["name"] == name and "replicas" in each["spec"]
        )
        assert replicas == len(members)
        assert [f"n{number}-broker-{number}.broker:40911" for number in range(replicas)] == members


def test_the_compose_file_starts_commands_that_exist() -> None:
    """T1: three members of one Raft group, a name server, Prometheus."""
    compose = yaml.safe_load(COMPOSE.read_text())
    ids = []
    for name, service in compose["services"].items():
        if name == "prometheus":
            continue
        environment = service.get("environment", {})
        check_command(service["command"], environment)
        if "TERNMQ_D_LEGER_SELF_ID" in environment:
            ids.append(f"{environment['TERNMQ_D_LEGER_SELF_ID']}-{name}:40911")
    assert sorted(environment["TERNMQ_D_LEGER_PEERS"].split(";")) == sorted(ids)
    named = {
        volume.partition(":")[0] for service in compose["services"].values() for volume in service.get("volumes", [])
    }
    assert {each for each in named if not each.startswith(".")} == set(compose["volumes"])
    for path in (each for each in named if each.startswith(".")):
        assert (COMPOSE.parent / path).is_file()
