"""Settings from files, environment and flags (T2)."""

from __future__ import annotations

import contextlib
import enum
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.config import (
    Settings,
    load,
    origin_lines,
    parse_origins,
    rocketmq_name,
    to_line,
    to_properties,
)
from ternmq.errors import ConfigError
from ternmq.setting_files import read_properties


class Role(enum.Enum):
    ASYNC_MASTER = 1
    SLAVE = 2


@dataclass(frozen=True)
class BrokerConfig:
    kind: ClassVar[str] = "not a setting"

    broker_name: str = "here"
    broker_ip1: str = ""
    namesrv_addr: str = ""
    listen_port: int = 10911
    broker_role: Role = Role.ASYNC_MASTER
    trace_on: bool = True
    share: float = 0.5
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port < 65536:
            raise ConfigError(f"listenPort is {self.listen_port}; choose one from 0 to 65535")


@dataclass(frozen=True)
class StoreConfig:
    store_path_root_dir: Path = Path("store")
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"


@dataclass(frozen=True)
class RequiredConfig:
    broker_name: str


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def properties(text: str, tmp_path: Path) -> dict[str, str]:
    return {
        setting.key: setting.value
        for setting in Settings.gather(files=[write(tmp_path, "some.properties", text)]).given
    }


class TestPropertiesFiles:
    def test_a_rocketmq_broker_conf_feeds_broker_and_store(self, tmp_path: Path) -> None:
        """T2: one file, several components, each takes what it knows."""
        path = write(
            tmp_path,
            "broker.conf",
            "# a comment\n! another\n\nbrokerName = broker-a\nlistenPort=11911\nbrokerRole=SLAVE\ntraceOn=false\n"
            "storePathRootDir=/data/store\nflushDiskType = SYNC_FLUSH  \nnamesrvAddr=10.0.0.1:9876;10.0.0.2:9876\n",
        )
        settings = Settings.gather(files=[path])

        assert settings.build(BrokerConfig) == BrokerConfig(
            broker_name="broker-a",
            listen_port=11911,
            broker_role=Role.SLAVE,
            trace_on=False,
            namesrv_addr="10.0.0.1:9876;10.0.0.2:9876",
        )
        assert settings.build(StoreConfig) == StoreConfig(Path("/data/store"), "SYNC_FLUSH")
        assert [] == settings.strangers(BrokerConfig, StoreConfig)

    def test_a_backslash_continues_a_line(self, tmp_path: Path) -> None:
        text = "namesrvAddr=10.0.0.1:9876;\\\n    10.0.0.2:9876\nbrokerName=a"

        assert properties(text, tmp_path) == {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876", "brokerName": "a"}

    def test_a_comment_sign_inside_a_continued_line_is_text(self, tmp_path: Path) -> None:
        assert properties("brokerName=a\\\n#b", tmp_path) == {"brokerName": "a#b"}

    def test_a_file_may_end_in_a_backslash(self, tmp_path: Path) -> None:
        assert properties("brokerName=a\\", tmp_path) == {"brokerName": "a"}

    def test_two_backslashes_do_not_continue_a_line(self, tmp_path: Path) -> None:
        assert properties("store=C:\\\\data\\\\\nbrokerName=a", tmp_path) == {"store": "C:\\data\\", "brokerName": "a"}

    def test_escapes_are_java_s(self, tmp_path: Path) -> None:
        assert properties(r"a=\u4e2d\u6587\t\n\=\q", tmp_path) == {"a": "中文\t\n=q"}

    def test_a_colon_separates_as_well(self, tmp_path: Path) -> None:
        assert properties("listenPort: 10911\nnamesrvAddr=a:1", tmp_path) == {
            "listenPort": "10911",
            "namesrvAddr": "a:1",
        }

    def test_a_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        assert properties("\ufeffbrokerName=a", tmp_path) == {"brokerName": "a"}

    @given(st.text(alphabet="ab=:\\#! \n.\t\u4e2d", max_size=60))
    def test_any_text_is_settings_or_a_config_error(self, text: str) -> None:
        """B5's spirit: no input makes the reader fail in a way of its own."""
        with contextlib.suppress(ConfigError):
            assert all(setting.key for setting in read_properties("any.conf", text))

    @pytest.mark.parametrize("line", ["listenPort 10911", "<<<<<<< HEAD", "not a key = 1", "= 5"])
    def test_a_broken_line_is_named(self, tmp_path: Path, line: str) -> None:
        path = write(tmp_path, "broker.conf", f"brokerName=a\n{line}\n")

        with pytest.raises(ConfigError) as caught:
            load(BrokerConfig, files=[path])

        assert f"{path}, line 2: invalid line {line!r}: expected key=value, or # for a comment" == str(caught.value)


class TestToml:
    def test_tables_and_flat_settings_both_count(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "tern.toml",
            'listenPort = 12000\nnamesrv_addr = ["a:1", "b:2"]\n[broker]\nbroker_name = "x"\ntraceOn = false\n'
            '[store]\nflushDiskType = "SYNC_FLUSH"\n[namesrv]\nlistenPort = 9\n',
        )
        settings = Settings.gather(files=[path])

        expected = BrokerConfig(listen_port=12000, namesrv_addr="a:1;b:2", broker_name="x", trace_on=False)
        assert settings.build(BrokerConfig) == expected
        assert settings.build(StoreConfig) == StoreConfig(flush_disk_type="SYNC_FLUSH")
        assert [] == settings.strangers(BrokerConfig, StoreConfig)

    def test_a_wrong_value_names_its_line(self, tmp_path: Path) -> None:
        path = write(tmp_path, "tern.toml", "# ports\n[broker]\nbrokerName = 'a'\nlistenPort = 'high'\n")

        with pytest.raises(ConfigError, match=r"tern.toml, line 4: invalid listenPort 'high': expected a whole number"):
            load(BrokerConfig, files=[path])

    def test_text_that_is_not_toml_names_line_and_column(self, tmp_path: Path) -> None:
        path = write(tmp_path, "tern.toml", "brokerName = a\n")

        with pytest.raises(ConfigError, match=r"tern.toml is not valid TOML: .*line 1.*quotes"):
            load(BrokerConfig, files=[path])

    def test_a_table_in_a_table_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path, "tern.toml", "[broker.listenPort]\na = 1\n")

        with pytest.raises(ConfigError, match="listenPort is a table"):
            load(BrokerConfig, files=[path])


class TestPrecedence:
    def test_flags_win_over_environment_over_files(self, tmp_path: Path) -> None:
        first = write(tmp_path, "1.conf", "listenPort=1\nbrokerName=file\nbrokerIP1=file\n")
        second = write(tmp_path, "2.toml", "listenPort = 2\n")

        config = load(
            BrokerConfig,
            files=[first, second],
            env={"TERNMQ_LISTEN_PORT": "3", "TERNMQ_BROKER_NAME": "env", "PATH": "/bin"},
            flags=["listen_port=4"],
        )

        assert config == BrokerConfig(listen_port=4, broker_name="env", broker_ip1="file")

    def test_rocketmq_s_own_variable_gives_way_to_all_else(self, tmp_path: Path) -> None:
        env = {"NAMESRV_ADDR": "env:9876"}

        assert "env:9876" == load(BrokerConfig, env=env).namesrv_addr
        path = write(tmp_path, "broker.conf", "namesrvAddr=file:9876")
        assert "file:9876" == load(BrokerConfig, env=env, files=[path]).namesrv_addr

    def test_the_last_line_of_a_file_wins(self, tmp_path: Path) -> None:
        path = write(tmp_path, "broker.conf", "listenPort=1\nlisten_port=2\n")

        assert 2 == load(BrokerConfig, files=[path]).listen_port

    def test_a_section_before_the_key_addresses_one_component(self) -> None:
        settings = Settings.gather(flags=["store.flushDiskType=SYNC_FLUSH", "store.listenPort=1"])

        assert BrokerConfig() == settings.build(BrokerConfig)
        assert "SYNC_FLUSH" == settings.build(StoreConfig).flush_disk_type
        assert ["listenPort"] == [setting.key for setting in settings.strangers(BrokerConfig, StoreConfig)]


class TestBadValues:
    @pytest.mark.parametrize(
        ("flag", "expected"),
        [
            ("listenPort=ten", "--set: invalid listenPort 'ten': expected a whole number, as in listenPort=10911"),
            ("listenPort=", "--set: invalid listenPort '': expected a whole number, as in listenPort=10911"),
            ("traceOn=perhaps", "--set: invalid traceOn 'perhaps': expected true or false, as in traceOn=true"),
            ("share=half", "--set: invalid share 'half': expected a number, as in share=0.5"),
            ("limit=x", "--set: invalid limit 'x': expected a whole number"),
            (
                "brokerRole=KING",
                "--set: invalid brokerRole 'KING': expected one of ASYNC_MASTER, SLAVE, as in brokerRole=ASYNC_MASTER",
            ),
            ("novalue", "invalid --set 'novalue': expected --set key=value"),
            ("listenPort=70000", "listenPort is 70000; choose one from 0 to 65535 (listenPort by --set)"),
        ],
    )
    def test_a_bad_value_says_what_is_expected(self, flag: str, expected: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load(BrokerConfig, flags=[flag])

        assert expected == str(caught.value)

    def test_a_bad_choice_lists_the_good_ones(self) -> None:
        with pytest.raises(ConfigError, match="expected one of ASYNC_FLUSH, SYNC_FLUSH"):
            load(StoreConfig, flags=["flushDiskType=MAYBE"])

    def test_a_bad_variable_is_named(self) -> None:
        with pytest.raises(ConfigError, match="environment variable TERNMQ_LISTEN_PORT: invalid listen_port 'x'"):
            load(BrokerConfig, env={"TERNMQ_LISTEN_PORT": "x"})

    def test_a_component_s_own_check_is_shown_with_its_place(self, tmp_path: Path) -> None:
        path = write(tmp_path, "broker.conf", "\nlistenPort=-1")

        with pytest.raises(ConfigError, match=r"listenPort is -1; .* \(listenPort in .*broker.conf, line 2\)"):
            load(BrokerConfig, files=[path])

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"cannot read the config file .*no.conf: No such file or directory"):
            load(BrokerConfig, files=[tmp_path / "no.conf"])

    def test_a_file_that_is_not_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "bin.conf").write_bytes(b"a=\xff")

        with pytest.raises(ConfigError, match=r"bin.conf is not UTF-8 text \(byte 2\)"):
            load(BrokerConfig, files=[tmp_path / "bin.conf"])

    def test_a_setting_that_must_be_given_is_named(self) -> None:
        with pytest.raises(ConfigError, match="the setting brokerName is missing"):
            load(RequiredConfig)


class TestUnknownSettings:
    def test_a_misspelt_key_gets_the_nearest_known_name(self, caplog: pytest.LogCaptureFixture) -> None:
        config = load(BrokerConfig, flags=["listenProt=1"], env={"TERNMQ_BROKER_NAEM": "x"}, beside=[StoreConfig])

        assert BrokerConfig() == config
        assert [
            (
                logging.WARNING,
                "unknown setting broker_naem (environment variable TERNMQ_BROKER_NAEM); did you mean brokerName?",
            ),
            (logging.WARNING, "unknown setting listenProt (--set); did you mean listenPort?"),
        ] == [(record.levelno, record.message) for record in caplog.records]

    def test_a_key_near_to_nothing_still_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        load(BrokerConfig, flags=["colour=blue"])

        assert ["unknown setting colour (--set)"] == [record.message for record in caplog.records]

    def test_a_key_that_only_rocketmq_knows_is_noted_softly(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)

        load(BrokerConfig, flags=["sendMessageThreadPoolNums=16", "transient_store_pool_enable=false"])

        assert [logging.INFO, logging.INFO] == [record.levelno for record in caplog.records]

    def test_a_promise_of_rocketmq_that_nobody_keeps_here_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        """Issue 13, 14: each with what happens instead. Who brings a file with replication over must not learn later
        that there is none."""
        asked = {
            "duplicationEnable=True": "one master, and slaves",
            "storePathConsumeQueue=/disk2/queues": "below storePathRootDir",
            "storePathIndex=/disk3/index": "below storePathRootDir",
            "transientStorePoolEnable=true": "to the mapped log directly",
            "lockInStrictMode=true": "queue locks are kept on the master only",
            "disableConsumeIfConsumerReadSlowly=true": "can always read",
        }
        load(BrokerConfig, flags=[*asked, "enableControllerMode=false", "brokerRole=ASYNC_MASTER"])

        assert len(asked) == len(caplog.records)
        for (setting, instead), record in zip(asked.items(), caplog.records, strict=True):
            assert logging.WARNING == record.levelno
            assert f"{setting} has no effect: " in record.message
            assert instead in record.message
            assert "(--set)" in record.message

    @pytest.mark.parametrize(
        "setting",
        [
            "authenticationWhitelist=105",
            "authorizationProvider=com.company.Own",
            "useTLS=yes",
        ],
    )
    def test_a_server_that_would_stand_open_does_not_start(self, setting: str, tmp_path: Path) -> None:
        """Issue 13, 14: by file, environment, flag and table alike."""
        key, _, value = setting.partition("=")
        variable = "TERNMQ_" + "".join("_" if char == "." else char for char in key).upper()
        file = write(tmp_path, "broker.conf", f"listenPort=1\n{setting}\n")
        toml = write(tmp_path, "tern.toml", f'"{key}" = "{value}"\n')
        cases: list[dict[str, Any]] = [
            {"flags": [setting]},
            {"env": {variable: value}},
            {"files": [file]},
            {"files": [toml]},
        ]
        for sources in cases:
            for kind in (BrokerConfig, StoreConfig):
                with pytest.raises(ConfigError, match=rf"{key}={value} is not supported: .* not supported"):
                    load(kind, **sources)

    def test_security_that_is_switched_off_is_no_reason_to_refuse(self, caplog: pytest.LogCaptureFixture) -> None:
        """Issue 13, 14: nor is one that a later source switches off."""
        load(BrokerConfig, flags=["aclEnable=true", "aclEnable=false", "tls.server.mode=disabled", "useTLS=no"])

        assert [] == caplog.records

    def test_the_environment_is_not_all_for_us(self, caplog: pytest.LogCaptureFixture) -> None:
        """TERNMQ_DEBUG and others belong to programs beside this one."""
        load(StoreConfig, env={"TERNMQ_DEBUG": "1", "NAMESRV_ADDR": "a:1", "TERNMQ_LISTEN_PORT": "1"})

        assert [] == caplog.records

    def test_an_unknown_table_warns(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        load(BrokerConfig, files=[write(tmp_path, "tern.toml", "[brokr]\nlistenPort = 1\n")])

        (record,) = caplog.records
        assert record.message.startswith("unknown table [brokr] of the setting listenPort (")


class TestWritingSettings:
    def test_names_are_rocketmq_s(self) -> None:
        assert ["listenPort", "brokerIP1", "checkCRCOnRecover", "dLegerGroup"] == [
            rocketmq_name(name) for name in ("listen_port", "broker_ip1", "check_crc_on_recover", "d_leger_group")
        ]

    def test_what_is_written_can_be_read(self, tmp_path: Path) -> None:
        config = BrokerConfig(broker_name="a", broker_role=Role.SLAVE, trace_on=False, limit=None, share=0.25)

        text = to_properties(config, StoreConfig())

        assert "brokerRole=SLAVE\n" in text
        settings = Settings.gather(files=[write(tmp_path, "out.conf", text)])
        assert (config, StoreConfig()) == (settings.build(BrokerConfig), settings.build(StoreConfig))


@pytest.mark.parametrize(
    "text", ["", "plain", "a b", "C:\\store\\n", "one\ntwo=3", "tab\tend\\", "\u2028x", "\x85", "=:#!"]
)
def test_a_line_that_is_written_is_read_as_one_setting(text: str) -> None:
    """T2: whatever the value has."""
    (setting,) = Settings.parse(to_line("key", text), "test").given
    assert ("key", text) == (setting.key, setting.value)


# --- Origins ----------------------------------------------------------------------------------------------------------


def test_the_last_source_of_a_setting_is_its_origin(tmp_path: Path) -> None:
    """T2: defaults have none; a section counts for its component only."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nlistenPort=1\nstore.storePathRootDir=s\nnamesrv.bindAddress=127.0.0.1\n")
    given = Settings.gather(files=[file], env={"TERNMQ_FLUSH_DISK_TYPE": "SYNC_FLUSH"}, flags=["listenPort=2"])

    assert {
        "brokerName": f"{file}, line 1",
        "listenPort": "--set",
        "storePathRootDir": f"{file}, line 3",
        "flushDiskType": "environment variable TERNMQ_FLUSH_DISK_TYPE",
    } == given.origins(BrokerConfig, StoreConfig)


@given(st.dictionaries(st.from_regex(r"[a-z][A-Za-z]{0,8}", fullmatch=True), st.text(max_size=20).map(str.strip)))
def test_origins_travel_as_comments_that_readers_of_settings_skip(origins: dict[str, str]) -> None:
    """T2: whatever a path is made of; tools that do not know them see the settings only."""
    text = to_line("listenPort", "1") + origin_lines(origins) + to_line("brokerName", "a")

    assert origins == parse_origins(text, "the reply")
    assert {"listenPort": "1", "brokerName": "a"} == {
        setting.key: setting.value for setting in Settings.parse(text, "the reply").given
    }
