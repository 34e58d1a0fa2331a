"""``tern raft add|remove``, and a lost disk, with real processes under load (P1, P4, T1)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from ternmq.admin import Admin
from ternmq.embedded import free_ports
from tests.cli.conftest import Serving, tern
from tests.raft.processes import LONG_S, Load, Processes, check, leader, level, running


async def test_a_machine_is_replaced_and_a_disk_is_lost_while_messages_come(tmp_path: Path) -> None:
    """Four processes: n3 joins, the leader leaves and is stopped, another member loses its disk; nothing is lost."""
    async with running(tmp_path) as processes, Admin(processes.name_servers) as admin:
        names, load = ("-n", processes.name_servers), Load(processes.name_servers)
        old = await leader(admin)
        [port] = free_ports(1)
        async with load.running():
            await load.goes_on(200)
            processes.members["n3"] = await asyncio.to_thread(_join, processes, port)
            joined = await asyncio.to_thread(tern, "raft", "add", f"n3-127.0.0.1:{port}", *names)
            assert "n3 is a member that votes\n" == joined.stdout, joined.stderr
            asked = await asyncio.to_thread(tern, "raft", "remove", old, *names)
            assert (2, True) == (asked.returncode, "3 members that vote are left" in asked.stderr), asked.stderr
            left = await asyncio.to_thread(tern, "raft", "remove", old, "--yes", *names)
            assert f"{old} is not a member any more; stop its broker\n" == left.stdout, left.stderr
            await asyncio.to_thread(processes.kill, old)
            await load.goes_on(50)
            new = await leader(admin, but=old)
            lost = next(name for name in processes.members if name not in (old, new, "n3"))
            await asyncio.to_thread(processes.kill, lost)
            await asyncio.to_thread(shutil.rmtree, processes.directory / lost)
            await load.goes_on(50)
            await asyncio.to_thread(processes.restart, lost)
            await load.goes_on(50)
        members = await level(admin)
        assert {"n0", "n1", "n2", "n3"} - {old} == {member.member for member in members if member.votes}
        async with asyncio.timeout(LONG_S):
            while any(member.filling for member in await admin.raft.status("broker-a")):
                await asyncio.sleep(0.05)
        refused = await asyncio.to_thread(tern, "raft", "remove", "n9", "--yes", *names)
        assert (4, True) == (refused.returncode, "'n9' is not a member of the group" in refused.stderr)
        again = await asyncio.to_thread(tern, "raft", "add", f"n3-127.0.0.1:{port}", *names)
        assert (4, True) == (again.returncode, "is a member already" in again.stderr)
        status = json.loads((await asyncio.to_thread(tern, "raft", "status", "--json", *names)).stdout)
        assert {True} == {each["votes"] for each in status}
        await asyncio.to_thread(processes.stop)
        check(processes, load, but=old)


def _join(processes: Processes, port: int) -> Serving:
    """Start a fourth member."""
    processes._ports.append(port)
    processes._homes["n3"] = processes._homes["n0"].with_name("n3")
    processes._settings = (*processes._settings, "raftJoin=true")
    return processes._start(3)
