"""Settings that tools change while a broker runs (T2, D6)."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.changes import FILE_NAME, STORE_CHANGEABLE
from ternmq.config import Settings
from ternmq.errors import ConfigError, CorruptFile
from ternmq.net.settings_text import TEXT_BYTES_MAX
from ternmq.store.config import StoreConfig
from ternmq.transaction.checker import TransactionChecker
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
        assert ["fileReservedTime=5", "regionId=Mars"] == (tmp_path / "config" / FILE_NAME).read_text().splitlines()[1:]
    start = settings(region_id="Venus")
    async with Broker(start, small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert "Mars" == (await caller.sent("orders", b"2")).region
        assert "5" == (await shown(caller))["fileReservedTime"]
    (tmp_path / "config" / FILE_NAME).unlink()
    (tmp_path / "config" / f"{FILE_NAME}.bak").unlink(missing_ok=True)
    async with Broker(start, small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert "Venus" == (await caller.sent("orders", b"3")).region


async def test_tools_find_the_settings_that_they_need(tmp_path: Path) -> None:
    """D6: ``mqadmin exportConfigs`` of 4.9.4 fails if one of these is missing."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        found = await shown(caller)

    assert {
        *("autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId", "brokerName"),
        *("brokerRole", "fileReservedTime", "filterServerNums", "flushDiskType", "maxMessageSize"),
        *("messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
    } <= found.keys()


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort cannot be changed at run time"),
        ("mappedFileSizeCommitLog=33554432", ResponseCode.NO_PERMISSION, "mappedFileSizeCommitLog cannot be changed"),
        ("brokerRole=SLAVE", ResponseCode.NO_PERMISSION, "brokerRole cannot be changed"),
        ("regionID2=x", ResponseCode.INVALID_PARAMETER, "did you mean regionId?"),
        ("warmMapedFileEnable=true", ResponseCode.INVALID_PARAMETER, "has no setting warmMapedFileEnable"),
        ("namesrv.orderMessageEnable=true", ResponseCode.INVALID_PARAMETER, "is not a setting of a broker"),
        ("broker.nothing=1", ResponseCode.INVALID_PARAMETER, "has no setting nothing"),
        ("fileReservedTime=soon", ResponseCode.INVALID_PARAMETER, "a whole number"),
        ("brokerPermission=9", ResponseCode.INVALID_PARAMETER, "brokerPermission"),
        ("waitTimeMillsInAdminBrokerQueue=-1", ResponseCode.INVALID_PARAMETER, "expected 0 to 3600000"),
        ("channelExpiredTimeout=" + "9" * 400, ResponseCode.INVALID_PARAMETER, "channelExpiredTimeout"),
        ("cleanResourceInterval=" + "9" * 400, ResponseCode.INVALID_PARAMETER, "too large"),
        ("sendThreadPoolQueueCapacity=0", ResponseCode.INVALID_PARAMETER, "sendThreadPoolQueueCapacity"),
        ("regionId=" + "x" * 256, ResponseCode.INVALID_PARAMETER, "at most 255 bytes"),
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


async def test_open_transactions_follow_the_retention_of_now(tmp_path: Path) -> None:
    """J2, C9: a half is copied before the log forgets it, also if the log forgets sooner than at the start."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        checkers = [part for part in gc.get_objects() if isinstance(part, TransactionChecker)]
        assert 0 == (await change(caller, "fileReservedTime=6"))[0]
        assert 3 * 3_600_000 in [checker._move_after_ms() for checker in checkers]


async def test_frames_have_room_for_messages_after_a_restart(tmp_path: Path) -> None:
    """A setting that was changed before must not undo what another one needs."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert 0 == (await change(caller, f"frameMaxLength={8 << 20}"))[0]
    # Files of another size need a directory of their own.
    (tmp_path / "large").mkdir()
    (tmp_path / "config").rename(tmp_path / "large" / "config")
    large = small_store(tmp_path / "large", max_message_size=16 << 20, mapped_file_size_commit_log=64 << 20)
    async with Broker(settings(), large) as broker:
        assert broker.config.frame_max_length > 16 << 20


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
