"""Settings that tools change while a broker runs (T2, D6)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.changes import FILE_NAME, STORE_CHANGEABLE, TEXT_BYTES_MAX
from ternmq.config import Settings
from ternmq.errors import ConfigError, CorruptFile
from ternmq.store.config import StoreConfig
from ternmq.wire.codes import RequestCode, ResponseCode
from tests.broker.calls import Caller, dialled, settings, small_store


async def shown(caller: Caller) -> dict[str, str]:
    body = (await caller.call(RequestCode.GET_BROKER_CONFIG)).body
    return {setting.key: setting.value for setting in Settings.parse(str(body, "utf-8"), "test").given}


async def change(caller: Caller, text: str | bytes) -> tuple[int, str]:
    body = text if isinstance(text, bytes) else text.encode()
    response = await caller.call(RequestCode.UPDATE_BROKER_CONFIG, None, body)
    return response.code, response.remark or ""


async def test_a_change_counts_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """It wins over what the start says, until its line is removed."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert ResponseCode.SUCCESS == (await change(caller, "regionId=Mars\nfileReservedTime=5\n"))[0]
        assert "Mars" == (await caller.sent("orders", b"1")).region
        assert {"regionId": "Mars", "fileReservedTime": "5"}.items() <= (await shown(caller)).items()
        assert "fileReservedTime=5\nregionId=Mars\n" == (tmp_path / "config" / FILE_NAME).read_text()
    start = settings(region_id="Venus")
    async with Broker(start, small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert "Mars" == (await caller.sent("orders", b"2")).region
        assert "5" == (await shown(caller))["fileReservedTime"]
    (tmp_path / "config" / FILE_NAME).unlink()
    (tmp_path / "config" / f"{FILE_NAME}.bak").unlink(missing_ok=True)
    async with Broker(start, small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert "Venus" == (await caller.sent("orders", b"3")).region


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort cannot be changed at run time"),
        ("mappedFileSizeCommitLog=33554432", ResponseCode.NO_PERMISSION, "mappedFileSizeCommitLog cannot be changed"),
        ("brokerRole=SLAVE", ResponseCode.NO_PERMISSION, "brokerRole cannot be changed"),
        ("regionID2=x", ResponseCode.INVALID_PARAMETER, "did you mean regionId?"),
        ("warmMapedFileEnable=true", ResponseCode.INVALID_PARAMETER, "has no setting warmMapedFileEnable"),
        ("fileReservedTime=soon", ResponseCode.INVALID_PARAMETER, "a whole number"),
        ("brokerPermission=9", ResponseCode.INVALID_PARAMETER, "brokerPermission"),
        ("nonsense", ResponseCode.INVALID_PARAMETER, "expected key=value"),
        (b"\xff\xfe=1", ResponseCode.INVALID_PARAMETER, "UTF-8"),
        ("regionId=" + "x" * TEXT_BYTES_MAX, ResponseCode.INVALID_PARAMETER, "at most"),
    ],
)
async def test_what_cannot_be_changed_is_refused_and_nothing_of_the_request_counts(
    tmp_path: Path, line: str | bytes, code: ResponseCode, complaint: str
) -> None:
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        body = b"regionId=Mars\n" + (line if isinstance(line, bytes) else line.encode())
        told = await change(caller, body)
        assert (code, True) == (told[0], complaint in told[1]), told
        assert "DefaultRegion" == (await caller.sent("orders", b"1")).region
        assert not (tmp_path / "config" / FILE_NAME).exists()
        assert ResponseCode.INVALID_PARAMETER == (await change(caller, ""))[0]


async def test_a_value_with_escapes_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert 0 == (await change(caller, "regionId=a\\\\n=b"))[0]
        assert "a\\n=b" == (await shown(caller))["regionId"]
        assert ResponseCode.INVALID_PARAMETER == (await change(caller, "regionId=a\\nlistenPort=1"))[0]
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert "a\\n=b" == (await shown(caller))["regionId"]


async def test_a_setting_of_retention_reaches_the_store(tmp_path: Path) -> None:
    """C9"""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert 0 == (await change(caller, "recallMessageEnable=false\ndeleteWhen=03"))[0]
        now = await shown(caller)
        assert ("false", "03") == (now["recallMessageEnable"], now["deleteWhen"])


async def test_a_file_that_is_wrong_stops_the_start_with_the_line(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.mkdir()
    (directory / FILE_NAME).write_text("fileReservedTime=x\n")
    with pytest.raises(ConfigError, match=r"settings\.properties, line 1: invalid fileReservedTime"):
        async with Broker(settings(), small_store(tmp_path)):
            pass
    (directory / FILE_NAME).write_text("no setting\n")
    with pytest.raises(CorruptFile, match="expected key=value"):
        async with Broker(settings(), small_store(tmp_path)):
            pass


def test_all_changeable_settings_of_the_store_exist() -> None:
    assert {field.name for field in dataclasses.fields(StoreConfig)} >= STORE_CHANGEABLE
