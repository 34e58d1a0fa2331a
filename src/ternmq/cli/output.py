"""Output of commands (T1): tables and colours in a terminal, plain text in a pipe, JSON or CSV if asked for.

One method for each kind of result, so that commands do not deal with the four forms:

=========  ===========  ============================  ============================  ========================
           terminal     pipe                          ``--json``                    ``--output csv``
=========  ===========  ============================  ============================  ========================
``rows``   a table      columns separated by tabs     one array of objects          a heading, a line per row
``item``   a line       the same line                 one object per line (stream)  the same, of a stream
=========  ===========  ============================  ============================  ========================

CSV has the columns and values of the table; lists are joined with ", ", and what has parts of its own is JSON.

Only results go to stdout; remarks for people (``note``) and errors go to stderr.
"""

from __future__ import annotations

import csv
import enum
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

import msgspec

from ternmq.errors import TernError

OutputRow = Mapping[str, object]


class Form(enum.StrEnum):
    """The form of results, chosen with ``--output``."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


#: Set by ``command.Command`` around the function of a command. JSON reaches functions as ``as_json``, because many of
#: them collect more for it; CSV concerns this module only.
_form: Final = ContextVar("form", default=Form.TABLE)


@contextmanager
def shown_as(form: Form) -> Iterator[None]:
    """The form of all outputs that are made in the block."""
    token = _form.set(form)
    try:
        yield
    finally:
        _form.reset(token)


class ReaderGone(TernError):
    """The reader of our output has closed it, as in `tern consume t | head -1`: most commands then end normally."""


class Output:
    """Writes the results of a command."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self.as_csv = not as_json and _form.get() is Form.CSV
        self._stream = stream if stream is not None else sys.stdout
        #: Columns of the last heading: the next one of a stream does not repeat it.
        self._heading: tuple[str, ...] = ()

    @property
    def is_terminal(self) -> bool:
        """Whether results are for people who look at them now."""
        return self._stream.isatty() and not self.as_csv

    def rows(self, rows: Sequence[OutputRow], *, columns: Sequence[str], empty: str) -> None:
        """A list of similar things. ``columns`` are keys of the rows and headings; ``empty`` is printed for no rows."""
        if self.as_json:
            self._line(_to_json(rows))
        elif self.as_csv:
            self._heading = ()
            self._csv(rows, columns)
        elif not rows:
            note(empty)
        elif self.is_terminal:
            self._table(rows, columns)
        else:
            if len(columns) > 1:
                self._line("\t".join(columns))
            for row in rows:
                self._line("\t".join(_cell(row[column]) for column in columns))

    def item(self, fields: OutputRow, text: str) -> None:
        """One thing, or the next of a stream, printed at once."""
        if not self.as_csv:
            self._line(_to_json(fields) if self.as_json else text)
        elif fields:
            self._csv([fields], self._heading or tuple(fields))

    def _csv(self, rows: Sequence[OutputRow], columns: Sequence[str]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self._heading != tuple(columns):
            self._heading = tuple(columns)
            writer.writerow(columns)
        writer.writerows([_value(row.get(column)) for column in columns] for row in rows)
        self._line(text.getvalue().removesuffix("\n"))

    def _line(self, text: str) -> None:
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except BrokenPipeError:
            # A class of its own: typer treats this OSError as its own and exits with code 1.
            raise ReaderGone("the reader of the output has closed it") from None

    def _table(self, rows: Sequence[OutputRow], columns: Sequence[str]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            numeric = all(isinstance(row[column], int | float) for row in rows)
            table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row[column]) for column in columns))
        Console(file=self._stream).print(table, markup=False)


def note(text: str) -> None:
    """Print a remark for people, apart from the results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def sentence_of(error: BaseException) -> str:
    """The message of an error for people."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case TernError():
            return str(error)
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case ModuleNotFoundError(name="fcntl"):
            return (
                "servers, and tools for their files, need Linux or macOS: run them there, in WSL or in a container; "
                "clients, Spark and the other commands work with such a cluster from here (-n HOST:PORT)"
            )
        case _:
            return (
                f"internal error {type(error).__name__}: {error}; run the command again with --debug and report the "
                "traceback"
            )


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(_cell, value))
        case _:
            return str(value)


def _value(value: object) -> str:
    """A field of CSV: empty for nothing, and JSON for what has parts."""
    match value:
        case None:
            return ""
        case dict():
            return _to_json(value)
        case list() | tuple() if any(isinstance(one, dict | list | tuple) for one in value):
            return _to_json(value)
        case _:
            return _cell(value)


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
