"""kill -9, SIGSTOP and full disks of real leaders under load: nothing acknowledged is lost, clients go on (P4).

Fifty rounds are in ``script/soak raft-kill``.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.errors import TernError
from tests.raft.processes import LONG_S, Load, check, filled, leader, level, lose_leaders, running
from tests.tmpfs import Tmpfs, small_disk

__all__ = ["small_disk"]


async def test_a_killed_leader_takes_nothing_along(tmp_path: Path) -> None:
    await lose_leaders(tmp_path, 2)


async def test_a_leader_that_was_stopped_comes_back_as_a_follower(tmp_path: Path) -> None:
    """It holds messages that were sent to it meanwhile, and must not acknowledge them by itself."""
    async with running(tmp_path) as processes, Admin(processes.name_servers) as admin:
        load = Load(processes.name_servers)
        old = await filled(admin)
        async with load.running():
            await load.goes_on()
            processes.signal(old, signal.SIGSTOP)
            await load.goes_on()
            processes.signal(old, signal.SIGCONT)
            await _follows(admin, old)
            await load.goes_on()
        await level(admin)
        await asyncio.to_thread(processes.stop)
        check(processes, load)


async def test_a_group_that_lost_two_disks_is_cured_as_the_guide_says(tmp_path: Path) -> None:
    """P1: none of the empty members votes. The operator copies the directory that is left."""
    async with running(tmp_path) as processes, Admin(processes.name_servers) as admin:
        load = Load(processes.name_servers)
        kept = await filled(admin)
        lost = [name for name in processes.members if name != kept]
        async with load.running():
            await load.goes_on()
        await level(admin)
        for name in processes.members:
            await asyncio.to_thread(processes.kill, name)
        for name in lost:
            shutil.rmtree(tmp_path / name)
        for name in processes.members:
            await asyncio.to_thread(processes.restart, name)
        async with asyncio.timeout(LONG_S):
            while not all("gives no vote" in processes.members[name].errors for name in lost):
                await asyncio.sleep(0.05)

        for name in processes.members:
            await asyncio.to_thread(processes.kill, name)
        for name in lost:
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / kept, tmp_path / name)
            (tmp_path / name / f"dledger-{kept}").rename(tmp_path / name / f"dledger-{name}")
        for name in processes.members:
            await asyncio.to_thread(processes.restart, name)
        async with load.running():
            await load.goes_on()
        await level(admin)
        await asyncio.to_thread(processes.stop)
        check(processes, load)


@pytest.mark.nightly
async def test_a_leader_whose_disk_is_full_hands_over_and_comes_back(tmp_path: Path, small_disk: Tmpfs) -> None:
    """The others go on without it. When it has room again it gets all that it lacks."""
    async with (
        running(tmp_path, homes={"n2": small_disk.path}) as processes,
        Admin(processes.name_servers) as admin,
    ):
        load = Load(processes.name_servers, senders=2, pause_s=0.01)
        await filled(admin)
        async with load.running():
            await load.goes_on()
            await _hand_to(admin, "n2")
            await load.goes_on()
            small_disk.fill(leave_bytes=32 * 1024)
            assert await leader(admin, but="n2") != "n2"
            await load.goes_on(200)
            small_disk.free(12 << 20)
            await load.goes_on()
        await level(admin)
        await asyncio.to_thread(processes.stop)
        check(processes, load)


async def _follows(admin: Admin, old: str) -> None:
    """Wait until a member says itself that another one leads. It may be elected again later: that is no fault."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(TernError):
                for member in await admin.raft.status("broker-a"):
                    if member.member == old and member.role == "follower" and member.leader not in ("", old):
                        return
            await asyncio.sleep(0.02)


async def _hand_to(admin: Admin, member: str) -> None:
    async with asyncio.timeout(LONG_S):
        while await leader(admin) != member:
            with contextlib.suppress(TernError):
                await admin.raft.transfer(to=member)
