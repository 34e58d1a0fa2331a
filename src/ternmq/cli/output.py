"""Output of commands (T1): tables and colours in a terminal, plain text in a pipe, JSON with ``--json``.

One method for each kind of result, so that commands do not deal with the three forms:

=========  =====================  ==================================  ==========================
           terminal               pipe                                ``--json``
=========  =====================  ==================================  ==========================
``rows``   a table                columns separated by tabs           one array of objects
``item``   a line                 the same line                       one object per line (stream)
=========  =====================  ==================================  ==========================

Only results go to stdout; remarks for people (``note``) and errors go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from ternmq.errors import TernError

OutputRow = Mapping[str, object]


class ReaderGone(TernError):
    """The reader of our output has closed it, as in `tern consume t | head -1`: most commands then end normally."""


class Output:
    """Writes the results of a command."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self._stream = stream if stream is not None else sys.stdout

    @property
    def is_terminal(self) -> bool:
        return self._stream.isatty()

    def rows(self, rows: Sequence[OutputRow], *, columns: Sequence[str], empty: str) -> None:
        """A list of similar things. ``columns`` are keys of the rows and headings; ``empty`` is printed for no rows."""
        if self.as_json:
            self._line(_to_json(rows))
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
        self._line(_to_json(fields) if self.as_json else text)

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
            numeric = all(isinstance(row[column], int) for row in rows)
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


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
