"""``tern store`` with the real program: tables, JSON, exit codes, and one sentence for what cannot be (C11, T1)."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ternmq.store.store import MessageStore
from tests.cli.conftest import ENVIRONMENT, TERN, Start, tern
from tests.cli.test_bad_input import sentence
from tests.manual_clock import ManualClock
from tests.store.small import HOST, draft, files, quiet_store, small_config

MESSAGES = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of twelve messages in two queues."""
    path = tmp_path / "store"
    with quiet_store(small_config(path)) as store:
        for number in range(MESSAGES):
            store.put(draft("orders", number % 2, b"%d " % number * 200, KEYS=f"k{number}", TAGS="新"))
    return path


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert "" == done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def break_queue(root: Path) -> None:
    with (root / "consumequeue" / "orders" / "0" / f"{0:020d}").open("r+b") as file:
        file.write(b"\1" * 20)


def break_body(root: Path) -> None:
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(100)
        file.write(b"\1")


# --- Looking ------------------------------------------------------------------------------------------------------


def test_info_tells_what_is_there(root: Path) -> None:
    """C1, C2, C7: for people, and for programs."""
    text = tern("store", "info", str(root))
    assert 0 == text.returncode
    assert "state      closed\n" in text.stdout
    assert "topic\tqueues\tmessages\tlast_message\norders\t2\t12\t2023-11-14" in text.stdout
    assert "orders\t1\t0\t6\t6\t" in tern("store", "info", str(root), "--queues").stdout

    (fields,) = lines(tern("store", "info", str(root), "--json"))
    assert ("closed", None, MESSAGES) == (fields["state"], fields["holder_pid"], fields["messages"])
    assert {"segment": 4096, "queue_file": 100} == {key: fields["sizes"][key] for key in ("segment", "queue_file")}
    assert [(0, 6), (1, 6)] == [(queue["queue_id"], queue["max_offset"]) for queue in fields["queues"]]


def test_a_running_broker_is_seen_and_not_disturbed(start: Start, tmp_path: Path) -> None:
    """C7: all but rebuild work beside it."""
    serving = start("up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0")
    root = str(tmp_path / "data" / "broker-a")
    assert 0 == tern("send", "orders", "hello", "-n", serving.name_server).returncode

    (fields,) = lines(tern("store", "info", root, "--json"))
    assert fields["state"].startswith("in use by a broker (process ")
    assert 0 == tern("store", "verify", root).returncode
    (record,) = lines(tern("store", "dump", root, "--topic", "orders", "--body", "--json"))
    assert "hello" == record["body"]
    refused = tern("store", "rebuild", root, "--yes")
    assert (1, True) == (refused.returncode, "is in use by another process" in sentence(refused))


def test_records_are_dumped_as_lines_and_as_json(root: Path) -> None:
    """L1: with their bodies when asked for."""
    text = tern("store", "dump", str(root), "--topic", "orders", "--queue", "1", "--from-offset", "1", "--count", "2")
    header, first, second = text.stdout.splitlines()
    assert "log_offset\ttopic\tqueue\tqueue_offset\tstored\tsize\ttags\tkeys" == header
    assert ["orders\t1\t1", "orders\t1\t2"] == ["\t".join(line.split("\t")[1:4]) for line in (first, second)]
    assert second.endswith("\t新\tk5")

    (record,) = lines(tern("store", "dump", str(root), "--key", "k7", "--body", "--json"))
    assert ("orders", 3, "7 " * 200, "10.0.0.7:40000") == (
        record["topic"],
        record["queue_offset"],
        record["body"],
        record["born_host"],
    )
    assert MESSAGES == len(lines(tern("store", "dump", str(root), "--json")))


def test_a_dump_without_records_says_so(root: Path) -> None:
    done = tern("store", "dump", str(root), "--topic", "nowhere")
    assert (0, "", f"no matching records in {root}\n") == (done.returncode, done.stdout, done.stderr)
    assert [] == lines(tern("store", "dump", str(root), "--topic", "nowhere", "--json"))


# --- Checking and repairing ---------------------------------------------------------------------------------------


def test_verify_names_faults_and_their_cost_and_rebuild_cures(root: Path) -> None:
    """C2, C5: exit code 1 until it is cured."""
    whole = tern("store", "verify", str(root))
    assert (0, True) == (whole.returncode, whole.stdout.startswith("no faults in 12 records, 12 queue entries and 12 "))
    break_queue(root)

    broken = tern("store", "verify", str(root))
    assert 1 == broken.returncode
    fault, cost, cure, verdict = broken.stdout.splitlines()
    assert fault.startswith(f"FAULT  {root}/consumequeue/orders/0: 1 entry, the first at queue offset 0, ")
    assert cost.startswith("       effect: consumers get other messages")
    assert "       remedy: run `tern store rebuild`" == cure
    assert verdict.startswith("1 fault in 12 records")

    (made,) = lines(tern("store", "rebuild", str(root), "--yes", "--json"))
    assert (MESSAGES, 2, []) == (made["records"], made["queues"], made["damaged_places"])
    (verdict_fields,) = lines(tern("store", "verify", str(root), "--json"))
    assert ([], MESSAGES) == (verdict_fields["findings"], verdict_fields["records"])


def test_a_rebuild_tells_of_damage_in_the_log(root: Path, tmp_path: Path) -> None:
    """C8: and leaves the store alone when it is to write elsewhere."""
    break_body(root)
    before = files(root)
    done = tern("store", "rebuild", str(root), "--out", str(tmp_path / "fresh"))

    assert (0, before) == (done.returncode, files(root))
    assert "rebuilt 2 queues and the index from 11 records" in done.stdout
    assert "skipped log offsets 0 to" in done.stderr
    assert (tmp_path / "fresh" / "consumequeue" / "orders" / "1").is_dir()


def test_a_rebuild_asks_first(root: Path) -> None:
    """T1: in a pipe there is no answer; in a terminal «n» changes nothing."""
    before = files(root)
    refused = tern("store", "rebuild", str(root))
    assert (2, True) == (refused.returncode, "There is no terminal for the answer; add --yes" in refused.stderr)
    assert "Aborted" in in_terminal("store", "rebuild", str(root), typed=b"n\n")
    assert before == files(root)
    assert "rebuilt 2 queues and the index from 12 records" in in_terminal("store", "rebuild", str(root), typed=b"y\n")


def test_stores_are_compared(root: Path, tmp_path: Path) -> None:
    """C11: exit code 1 if they differ, as with diff."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    same = tern("store", "diff", str(root), str(copy))
    assert (0, "", f"{root} and {copy} are equal\n") == (same.returncode, same.stdout, same.stderr)
    break_queue(copy)

    other = tern("store", "diff", str(root), str(copy))
    assert (1, "part\tname\twhat\nqueue\torders 0\t1 entry differ, the first at queue offset 0\n") == (
        other.returncode,
        other.stdout,
    )
    (rows,) = lines(tern("store", "diff", str(root), str(copy), "--json"))
    assert ["queue"] == [row["part"] for row in rows]


def in_terminal(*arguments: str, typed: bytes = b"") -> str:
    """What the program shows in a terminal in which that is typed."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen([TERN, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    os.write(mine, typed)
    shown = b""
    try:
        while data := os.read(mine, 65536):
            shown += data
    except OSError:
        pass  # how a terminal tells that the other side is closed
    finally:
        os.close(mine)
        process.wait(timeout=120)
    return shown.decode()


def test_a_terminal_gets_tables_and_a_bar(root: Path) -> None:
    """T1."""
    assert "log offset" in in_terminal("store", "dump", str(root), "--count", "3")
    assert "verify" in in_terminal("store", "verify", str(root))


# --- Bad input ----------------------------------------------------------------------------------------------------


def remove(root: Path) -> None:
    shutil.rmtree(root)


def make_empty(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def make_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("")


def truncate_segment(root: Path) -> None:
    os.truncate(root / "commitlog" / f"{4096:020d}", 100)


def put_stranger(root: Path) -> None:
    (root / "commitlog" / "notes.txt").write_text("mine")


@pytest.mark.parametrize("command", ["info", "verify", "dump", "rebuild"])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (remove, "store does not exist; give the directory that storePathRootDir names"),
        (make_empty, "store is no store, it has no commitlog; give the directory that storePathRootDir names"),
        (make_file, "Not a directory; storePathRootDir must be a directory of the broker's own"),
        (truncate_segment, "commitlog/00000000000000004096 has 100 bytes, but mappedFileSizeCommitLog is 4096; "),
        (put_stranger, "commitlog/notes.txt is no segment: its name should be 20 digits; move it out of the store"),
    ],
    ids=["missing", "empty", "file", "length", "stranger"],
)
def test_what_is_no_store_gets_a_sentence(command: str, spoil: Callable[[Path], None], told: str, root: Path) -> None:
    """T1: with the file and the cure, and nothing is touched."""
    spoil(root)
    before = files(root) if root.is_dir() else {}

    done = tern("store", command, str(root), *(["--yes"] if command == "rebuild" else []))

    assert done.returncode in (1, 2)
    assert told in sentence(done)
    assert before == (files(root) if root.is_dir() else {})


def test_settings_that_no_store_has(root: Path) -> None:
    """T2."""
    done = tern("store", "info", str(root), "--set", "mappedFileSizeCommitlogs=4096")
    assert "unknown setting 'mappedFileSizeCommitlogs' of a store; did you mean mappedFileSizeCommitLog?" in sentence(
        done
    )
    done = tern("store", "info", str(root), "--set", "mappedFileSizeCommitLog=8192")
    assert "has 4096 bytes, but mappedFileSizeCommitLog is 8192" in sentence(done)


def test_settings_come_from_the_broker_s_file_too(root: Path, tmp_path: Path) -> None:
    """T2: the log may lie elsewhere."""
    (root / "commitlog").rename(tmp_path / "log")
    (tmp_path / "broker.conf").write_text(f"storePathCommitLog={tmp_path / 'log'}\nlistenPort=10911\n")

    (fields,) = lines(tern("store", "info", str(root), "-c", str(tmp_path / "broker.conf"), "--json"))

    assert MESSAGES == fields["messages"]
    assert 0 < fields["log"]["end_offset"]


def test_a_store_that_may_only_be_read_is_looked_at(tmp_path: Path) -> None:
    """C11: on a read-only file system, or as another user."""
    config = small_config(tmp_path / "store")
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), threads=False) as store:
        store.put(draft())
    for path in (tmp_path / "store").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = tern("store", "verify", str(tmp_path / "store"))
    assert (0, "") == (done.returncode, done.stderr)
