"""The first section of the guide to security, carried out as it stands there (N1, N2)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.cli.conftest import ENVIRONMENT, TERN
from tests.cli.conftest import tern as run_tern

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"
#: The address in the guide, which this machine does not have.
THERE = "10.0.0.1"


def blocks(kind: str) -> list[str]:
    """The blocks of code of one language in that section."""
    section = GUIDE.read_text().partition("## From zero to TLS")[2].partition("\n## ")[0]
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text).replace(THERE, "127.0.0.1") for _, text in found]


def test_the_ten_minutes_of_the_guide_lead_to_a_cluster_with_tls_and_keys(tmp_path: Path) -> None:
    certs, up_command = (shlex.split(block) for block in blocks("sh"))
    accounts, tools = blocks("yaml")
    [program] = blocks("py")
    [profile] = blocks("toml")

    assert ["tern", "certs"] == certs[:2]
    subprocess.run([TERN, *certs[1:]], check=True, capture_output=True, cwd=tmp_path, env=ENVIRONMENT)
    (tmp_path / "acl").mkdir()
    for name, text in (("plain_acl.yml", accounts), ("tools.yml", tools)):
        (tmp_path / "acl" / name).write_text(text)
        (tmp_path / "acl" / name).chmod(0o600)
    assert ["tern", "up"] == up_command[:2]
    up = subprocess.Popen(
        [TERN, *up_command[1:], "--dir", "data", "--port", "0", "--broker-port", "0", "--json"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert up.stdout is not None
    try:
        line = up.stdout.readline()
        assert line, up.communicate()[1].decode()
        names = f"127.0.0.1:{json.loads(line)['name_server'].rpartition(':')[2]}"
        profiles = tmp_path / "profiles.toml"
        ca_file = str(tmp_path / "certs" / "ca.pem")
        profiles.write_text(profile.replace("127.0.0.1:9876", names).replace("/etc/ternmq/ca.pem", ca_file))
        profiles.chmod(0o600)
        made = run_tern("--profile", "production", "topic", "create", "orders", TERNMQ_PROFILES=str(profiles))
        plain = run_tern("topic", "list", "-n", names)
        unsigned = run_tern("topic", "list", "-n", names, TERNMQ_TLS="true", TERNMQ_TLS_CA=ca_file)

        body = program.replace("127.0.0.1:9876", names).replace(
            "    ...", '    print(await producer.send(Message("orders", b"1")))'
        )
        script = (
            "import asyncio, os\nfrom ternmq import ClientConfig, Message, Producer, TlsConfig\n"
            f"async def main():\n{textwrap.indent(body, '    ')}\nasyncio.run(main())\n"
        )
        secret = re.search(r"accessKey: shop-service\n\s+secretKey: (\S+)", accounts)
        assert secret is not None
        sent = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=os.environ | {"SHOP_SECRET": secret[1]},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        up.terminate()
        up.communicate(timeout=40)

    assert 0 == made.returncode, made.stderr
    assert 0 == sent.returncode, sent.stderr
    assert "SendStatus.OK" in sent.stdout or "OK" in sent.stdout
    assert "needs TLS" in plain.stderr
    assert "is not signed" in unsigned.stderr
