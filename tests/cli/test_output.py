"""What commands print: for terminals, pipes and programs (T1)."""

from __future__ import annotations

import io
import json

import pytest

from ternmq.cli.output import Output, sentence_of
from ternmq.errors import ConfigError

ROWS = [{"topic": "orders", "queues": 8, "brokers": ("a", "b")}, {"topic": "[bold]x", "queues": 16, "brokers": ()}]
COLUMNS = ("topic", "queues", "brokers")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_columns_separated_by_tabs() -> None:
    stream = io.StringIO()

    Output(as_json=False, stream=stream).rows(ROWS, columns=COLUMNS, empty="none")

    assert "topic\tqueues\tbrokers\norders\t8\ta, b\n[bold]x\t16\t\n" == stream.getvalue()


def test_a_single_column_has_no_heading_in_a_pipe() -> None:
    stream = io.StringIO()

    Output(as_json=False, stream=stream).rows(ROWS, columns=("topic",), empty="none")

    assert "orders\n[bold]x\n" == stream.getvalue()


def test_a_terminal_gets_a_table_with_texts_as_they_are() -> None:
    stream = Terminal()

    Output(as_json=False, stream=stream).rows(ROWS, columns=COLUMNS, empty="none")

    shown = stream.getvalue()
    assert "─" in shown
    assert "[bold]x" in shown


def test_programs_get_one_array() -> None:
    stream = io.StringIO()

    Output(as_json=True, stream=stream).rows(ROWS, columns=("topic",), empty="none")

    assert json.loads(json.dumps(ROWS)) == json.loads(stream.getvalue())


def test_nothing_is_an_empty_array_for_programs_and_a_remark_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    programs, people = io.StringIO(), io.StringIO()

    Output(as_json=True, stream=programs).rows([], columns=COLUMNS, empty="no topics yet")
    Output(as_json=False, stream=people).rows([], columns=COLUMNS, empty="no topics yet")

    assert ("[]\n", "") == (programs.getvalue(), people.getvalue())
    assert "no topics yet\n" == capsys.readouterr().err


def test_a_stream_is_a_line_an_item() -> None:
    programs, people = io.StringIO(), io.StringIO()

    for number in (1, 2):
        Output(as_json=True, stream=programs).item({"number": number, "none": None}, "text")
        Output(as_json=False, stream=people).item({"number": number}, f"number {number}")

    assert '{"number":1,"none":null}\n{"number":2,"none":null}\n' == programs.getvalue()
    assert "number 1\nnumber 2\n" == people.getvalue()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("no such key"), "no such key"),
        (ExceptionGroup("several", [ConfigError("first"), ValueError("second")]), "first"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (KeyError("k"), "internal error KeyError: 'k'; run the command again with --debug and report the traceback"),
    ],
)
def test_every_error_becomes_a_sentence(error: BaseException, expected: str) -> None:
    assert expected == sentence_of(error)
