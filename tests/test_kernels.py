"""Compiled kernels do what the Python versions do, byte for byte, or nothing (C1, C2, C4, C5, E6, N1)."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.errors import ConfigError
from ternmq.kernels import HAS_NATIVE, load, native
from ternmq.store.derived import follower, index
from ternmq.store.derived.key_hash import MADE_ENTRY, KeyHashes
from ternmq.store.store import MessageStore, PlacedBatch
from ternmq.wire import auth
from ternmq.wire.auth import Credentials, Secret
from ternmq.wire.batch import pack_messages
from ternmq.wire.frame import encode_request
from ternmq.wire.header import NO_BODY, Request
from ternmq.wire.ids import java_hash, offset_id
from ternmq.wire.properties import closed
from ternmq.wire.record import MAGIC_V1
from ternmq.wire.shapes import SignedSend
from tests.broker.calls import v2
from tests.manual_clock import ManualClock
from tests.store.small import BORN, HOST, draft, log_queues_index, quiet_store, small_config

#: Without a Rust compiler there is nothing to compare; `script/test` has one, and asks for it (TERNMQ_NATIVE=require).
pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

#: Body and properties of each message.
Batch: TypeAlias = list[tuple[bytes, str]]

MORE = b"CLUSTER\x01c\x02"
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "UNIQ_KEYX", "MYTAGS", "K", "")
VALUES = ("", "a", "b", "a b", " a  b ", "x\x01y", "TAGS\x01a", "é", "𝄞", "0A" * 16, "0a" * 28, "\0", "k" * 1500)
texts = st.tuples(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6), st.booleans()).map(
    lambda made: "".join(f"{name}\x01{value}\x02" for name, value in made[0])[: -1 if made[1] else None]
)
keyed = st.tuples(texts, st.binary(max_size=3)).map(lambda made: f"UNIQ_KEY\x01{made[1].hex()}1\x02{made[0]}")


@contextmanager
def pure() -> Iterator[None]:
    """The store's parts as they are without compiled kernels."""
    with mock.patch.object(follower, "HAS_NATIVE", False), mock.patch.object(index, "HAS_NATIVE", False):
        yield


@given(st.lists(st.tuples(st.sampled_from(("orders", "é", "")), texts), max_size=20))
def test_index_entries_have_the_hashes_of_the_python_version(records: list[tuple[str, str]]) -> None:
    """C4."""
    waiting = [(topic, text, 1000 + number, 5_000 + number) for number, (topic, text) in enumerate(records)]
    made = native.index_entries(waiting)
    if made is not None:
        assert KeyHashes().entries(waiting) == list(MADE_ENTRY.iter_unpack(made))


def test_a_text_without_utf_8_is_left_to_python() -> None:
    assert native.index_entries([("orders", "KEYS\x01\ud800\x02", 0, 0)]) is None


def sent(store: MessageStore, data: bytes) -> PlacedBatch | None:
    return store.put_sent_batch("orders", 1, data, born_time_ms=3, born_host=BORN, sysflag=1, more_properties=MORE)


def put_each(store: MessageStore, batches: list[Batch], *, taken: list[bool] | None) -> list[bool]:
    """Put batches as they were sent, as far as the kernel takes them; or those in ``taken`` by the Python version."""
    takes: list[bool] = []
    store.put(draft())  # gives the log a window
    for number, batch in enumerate(batches):
        if taken is None:
            takes.append(sent(store, pack_messages([(7, body, text) for body, text in batch])) is not None)
        elif taken[number]:
            # What `Sending` makes of them: the last pair is ended.
            parcels = [(7, body, closed(text).encode()) for body, text in batch]
            store.put_batch("orders", 1, parcels, born_time_ms=3, born_host=BORN, sysflag=1, more_properties=MORE)
        store.put(draft())
    return takes


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(st.binary(max_size=20), st.one_of(keyed, texts)), max_size=5), max_size=8))
@example([[(b"1", "UNIQ_KEY\x01a")], [(b"2", "UNIQ_KEY\x01b\x02TAGS\x01")]])
def test_a_batch_leaves_the_same_files(batches: list[Batch]) -> None:
    """E6, C1, C2, C4: in small files, so that many batches meet the end of a segment."""
    with tempfile.TemporaryDirectory() as directory:
        by_kernel, by_python = Path(directory) / "kernel", Path(directory) / "python"
        arrived: list[object] = []
        expected: list[object] = []
        with quiet_store(small_config(by_kernel), on_arrival=lambda *what: arrived.append(what)) as store:
            taken = put_each(store, batches, taken=None)
        with pure(), quiet_store(small_config(by_python), on_arrival=lambda *what: expected.append(what)) as store:
            put_each(store, batches, taken=taken)
        assert log_queues_index(by_python) == log_queues_index(by_kernel)
        assert expected == arrived


def test_an_ordinary_batch_is_taken(tmp_path: Path) -> None:
    """E6: with an open last pair, too, as clients of 4.9 send it."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())  # gives the log a window
        data = pack_messages([(0, b"1", "UNIQ_KEY\x01a\x02TAGS\x01t\x02"), (0, b"2", "TAGS\x01t\x02UNIQ_KEY\x01b")])
        placed = sent(store, data)
        assert placed is not None
        assert 0 == placed.queue_offset
        assert 2 == store.max_offset("orders", 1)


def test_a_batch_for_which_room_must_be_made_is_taken(tmp_path: Path) -> None:
    """E6, C1: behind the window, and behind the end of a segment."""
    data = pack_messages([(0, bytes(300), f"UNIQ_KEY\x01{number}\x02") for number in range(3)])
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())  # gives the log a window
        ends = [placed.end_offset for _ in range(40) if (placed := sent(store, data)) is not None]
        assert 40 == len(ends)
        assert {ends[1] - ends[0]} < {later - earlier for earlier, later in pairwise(ends)}, "a segment has ended"
        assert 120 == store.max_offset("orders", 1)


def expanded(data: bytes, page: bytearray, **limits: int) -> Any:
    given = {"body_bytes_max": 1 << 22, "record_bytes_max": 1 << 22} | limits
    return native.expand_batch(
        page,
        0,
        len(page),
        data,
        log_offset=0,
        lead=0,
        queue_id=0,
        queue_offset=0,
        store_time_ms=1,
        magic=MAGIC_V1,
        shared=bytes(48),
        topic_field=b"\x01t",
        topic=b"t",
        more_properties=b"",
        **given,
    )


def test_limits_are_hit_exactly() -> None:
    """E6: the window, the record, the body, and the two signed bytes for the length of the properties."""
    # The second one lacks its last separator, which is added: both have 32,767 bytes then.
    for properties in ("UNIQ_KEY\x01" + "k" * 32_757 + "\x02", "UNIQ_KEY\x01" + "k" * 32_757):
        data = pack_messages([(0, b"body", properties)])
        made = expanded(data, bytearray(1 << 16))
        assert made is not None
        size = made[1][1]
        assert expanded(data, bytearray(size), body_bytes_max=4, record_bytes_max=size) is not None
        for room_bytes, limits, said in (
            (size - 1, {}, size),
            (size, {"record_bytes_max": size - 1}, None),
            (size, {"body_bytes_max": 3}, None),
        ):
            room = bytearray(room_bytes)
            assert said == expanded(data, room, **limits)
            assert not any(room)
    # One byte more, with the separator.
    assert expanded(pack_messages([(0, b"body", "UNIQ_KEY\x01" + "k" * 32_758)]), bytearray(1 << 16)) is None


@given(st.binary(), st.lists(st.binary(), max_size=4), st.integers(0, 50))
def test_a_text_is_found_wherever_it_stands(data: bytes, found: list[bytes], cut: int) -> None:
    """E6: as Python finds it; the empty text, and none at all, too."""
    for texts in (found, [*found, data[cut : cut + 3]]):
        assert any(text in data for text in texts) is native.contains_any(data, texts)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 21, 2**31 - 1])
def test_lengths_that_cannot_be_are_refused(length: int) -> None:
    """B5, E6: of a message and of its body, at the ends of what four bytes hold."""
    good = pack_messages([(0, b"1", "UNIQ_KEY\x01a\x02")])
    for at in (0, 16):
        page = bytearray(1 << 16)
        data = good[:at] + length.to_bytes(4, "big", signed=True) + good[at + 4 :]
        assert expanded(data, page) is None
        assert not any(page)


def test_a_batch_with_as_many_tags_as_messages_names_each_once() -> None:
    """E6, K1: in their order; what was a search in a list stopped the broker for a third of a second."""
    tags = [f"{number:x}" for number in range(20_000)]
    data = pack_messages([(0, b"1", f"UNIQ_KEY\x01a\x02TAGS\x01{tag}\x02") for tag in [*tags, *tags[:100]]])
    made = expanded(data, bytearray(1 << 22))
    assert made is not None
    assert [(java_hash(tag), 20_100) for tag in tags] == made[1][3]


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_refused_or_taken_whole(garbage: bytes, cut: int) -> None:
    """B5, E6: a damaged batch writes nothing."""
    good = pack_messages([(0, b"1", "UNIQ_KEY\x01a\x02"), (0, b"2", "UNIQ_KEY\x01b")])
    with tempfile.TemporaryDirectory() as directory, quiet_store(small_config(Path(directory))) as store:
        store.put(draft())
        for data in (garbage, good[:cut] + garbage + good[cut + 1 :]):
            before, queued = store.written, store.max_offset("orders", 1)
            if sent(store, data) is None:
                assert before == store.written
                assert queued == store.max_offset("orders", 1)


@given(st.lists(st.integers(0, (1 << 62)), max_size=5))
def test_ids_of_a_batch(log_offsets: list[int]) -> None:
    """C10."""
    expected = ",".join(offset_id(HOST, log_offset) for log_offset in log_offsets)
    assert expected == native.offset_ids(HOST.hex().upper(), log_offsets)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("orders", "é", "t" * 130)), st.integers(0, 2), texts), min_size=1, max_size=30),
    st.integers(0, 1 << 14),
    st.booleans(),
)
def test_a_recovery_leaves_the_same_files(sent_texts: list[tuple[str, int, str]], flipped: int, keeps: bool) -> None:
    """C5, C8: with queues and index, without them, and with a damaged byte."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        first = Path(directory) / "first"
        changes = {
            "mapped_file_size_commit_log": 1 << 14,
            "max_index_num": 1000,
            "auto_message_version_on_topic_len": True,
        }
        clock = ManualClock()
        with quiet_store(small_config(first, **changes), clock=clock) as store:
            for topic, queue_id, text in sent_texts:
                each = draft(topic, queue_id, b"body")
                each.properties = text
                store.put(each)
                clock.advance(400)
            end = store.written
        (first / "abort").touch()
        if not keeps:
            shutil.rmtree(first / "consumequeue", ignore_errors=True)
            shutil.rmtree(first / "index", ignore_errors=True)
        log = next((first / "commitlog").iterdir())
        if flipped < end:
            data = bytearray(log.read_bytes())
            data[flipped] ^= 0x40
            log.write_bytes(data)
        for is_native in (True, False):
            root = Path(directory) / f"copy-{is_native}"
            shutil.copytree(first, root)
            config = small_config(root, **changes)
            if is_native:
                quiet_store(config, clock=clock).close()
            else:
                with pure():
                    quiet_store(config, clock=clock).close()
            found.append(log_queues_index(root))
    assert found[0] == found[1]


def test_the_setting() -> None:
    """T2."""
    assert load("0") is None
    with pytest.raises(ConfigError, match="expected 0, 1 or require"):
        load("yes")


def test_the_stubs_say_what_the_compiled_module_has(tmp_path: Path) -> None:
    """T2: names, parameters and defaults; mypy believes ``_native.pyi``. PyO3 makes an ``__all__`` of its own."""
    allowed = tmp_path / "allowed"
    allowed.write_text("ternmq._native.__all__")
    command = [sys.executable, "-m", "mypy.stubtest", "ternmq._native", "--allowlist", str(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout.replace("Success: no issues found in 1 module\n", ""))


def test_kernels_of_other_sources_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old library that is still installed beside new sources."""
    monkeypatch.setattr("ternmq._native.__version__", "0.0.1")
    assert load("1") is None
    with pytest.raises(ConfigError, match=r"version 0\.0\.1, and these sources need"):
        load("require")


def test_a_process_without_kernels(tmp_path: Path) -> None:
    """T2: TERNMQ_NATIVE=0."""
    code = "from ternmq.kernels import describe; print(describe())"
    environment = {**os.environ, "TERNMQ_NATIVE": "0"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "pure Python\n" == told.stdout


@given(st.text(max_size=100), st.text(max_size=300), st.binary(max_size=300))
@example("Jefe", "what do ya want ", b"for nothing?")
@example("k" * 65, "", b"")
def test_signatures_are_those_of_the_python_version(secret_key: str, text: str, body: bytes) -> None:
    """N1: of bytes and of views."""
    with mock.patch.object(auth, "HAS_NATIVE", False):
        by_python = Secret(secret_key)
    by_kernel = Secret(secret_key)
    assert (None, True) == (by_python.native, by_kernel.native is not None)
    expected = by_python.signature({"a": text}, body)
    for given_body in (body, memoryview(body), bytearray(body), memoryview(b"x" + body)[1:]):
        assert expected == by_kernel.signature({"a": text}, given_body)


def test_a_signing_key_does_not_show_its_secret() -> None:
    """N1: nor can it be copied to another process."""
    key = native.SigningKey(b"secret-of-the-shop")
    sends = signed_sends(key)
    for shown in (repr(key), str(key), repr(sends), str(sends), repr(dir(key))):
        assert "secret-of" not in shown
    for copied in (key, sends):
        with pytest.raises(TypeError):
            pickle.dumps(copied)


def signed_sends(key: native.SigningKey, codes: tuple[int, ...] = (310,)) -> native.SignedSends:
    return native.SignedSends(
        "shop-key",
        key,
        None,
        codes=codes,
        body_bytes_max=100,
        request_type=Request,
        header_type=SignedSend,
        no_body=NO_BODY,
    )


def test_sends_are_read_only_within_what_has_arrived() -> None:
    """N1: any cut, and any position."""
    fields = {**v2("orders", queue_id=0).to_fields()}
    Credentials("shop-key", "secret-of-the-shop").sign(fields, b"hi")
    frame = b"".join(encode_request(310, None, b"hi", opaque=1, more_fields=fields))
    sends = signed_sends(native.SigningKey(b"secret-of-the-shop"))
    for cut in range(len(frame)):
        found: list[object] = []
        data = frame + frame[:cut]
        assert len(frame) == sends.read(data, memoryview(data), 0, 1000, 9, found)
        assert 1 == len(found)
    for at in (1, len(frame) - 8, len(frame), len(frame) + 1, 2**63):
        assert at == sends.read(frame, memoryview(frame), at, 1000, 9, [])
    assert 0 == sends.read(frame, memoryview(frame), 0, len(frame) - 1, 9, [])
    two: list[object] = []
    assert 2 * len(frame) == sends.read(frame * 3, memoryview(frame * 3), 0, 1000, 2, two)
    assert 2 == len(two)
    with pytest.raises(ValueError, match="not codes of sends"):
        signed_sends(native.SigningKey(b"x"), codes=(11,))
