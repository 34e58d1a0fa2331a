"""The statements of a script of the pipeline *sql*, before Spark sees them (U4). A core.

Spark parses Spark's SQL. Only three statements that Spark does not have are parsed here::

    CREATE VIEW name [(column TYPE [NOT NULL], …)] FROM TOPIC topic [, topic …]
        [FORMAT TEXT]
        [WATERMARK column | expression AS column  DELAY [OF INTERVAL] 10 SECONDS]
        [OPTIONS (name 'value', …)]
    INSERT INTO TOPIC topic  query
    INSERT INTO TABLE 'path' [PARTITIONED BY (column, …)]  query

A query alone is for the console; any other statement (``CREATE TEMPORARY VIEW … AS``, ``SET``, ``CREATE FUNCTION``) is
passed to Spark unchanged. Passed text keeps its position: it is preceded by as many blanks and line ends as the script
has characters there, so that positions in Spark's errors are those of the user's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ternmq.errors import ConfigError

TOPIC: Final = "topic"
TABLE: Final = "table"
CONSOLE: Final = "console"

_TOKEN: Final = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`]|``)*` )
    | (?P<word> (?: [\w%|.] | -(?!-) )+ )
    | (?P<mark> \S )
    """,
    re.VERBOSE | re.DOTALL,
)
#: The first words of queries; other statements are Spark commands.
_QUERY_WORDS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
_CLAUSES: Final = ("FORMAT", "WATERMARK", "OPTIONS")


@dataclass(slots=True, frozen=True)
class TopicView:
    """Messages of topics as rows. Without ``columns``, they are detected from messages."""

    name: str
    topics: tuple[str, ...]
    #: As in a ``CREATE TABLE``, without the parentheses.
    columns: str = ""
    #: The body is one text, not JSON.
    is_text: bool = False
    #: An expression and its column name, which are equal for a column of the body; and how late rows may be.
    watermark: str = ""
    watermark_column: str = ""
    delay: str = ""
    #: Of the format ``ternmq``.
    options: dict[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(slots=True, frozen=True)
class Target:
    """The target of a query: a topic, a table in a directory, or the console."""

    kind: str
    name: str = ""
    partition_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass(slots=True, frozen=True)
class ScriptQuery:
    """A query, and its target."""

    target: Target
    sql: str
    line: int


@dataclass(slots=True, frozen=True)
class SparkStatement:
    """A statement that is passed to Spark."""

    sql: str
    line: int


Statement: TypeAlias = TopicView | ScriptQuery | SparkStatement


class ScriptError(ConfigError):
    """An error in a script; the sentence contains the line."""

    def __init__(self, line: int, sentence: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {sentence}")


def statements_of(script: str) -> list[Statement]:
    """The statements in order; raises ``ScriptError``."""
    statements = [_statement(_StatementReader(script, tokens)) for tokens in _split(script)]
    if not statements:
        raise ConfigError("the script is empty; write a SELECT, or INSERT INTO TOPIC … SELECT")
    return statements


def _split(script: str) -> Iterator[list[re.Match[str]]]:
    tokens: list[re.Match[str]] = []
    for token in _TOKEN.finditer(script):
        if token.group() in ("'", '"', "`"):
            raise ScriptError(_line(script, token.start()), f"the quote {token.group()} is not closed")
        if token.group() == ";":
            if tokens:
                yield tokens
            tokens = []
        elif token["comment"] is None:
            tokens.append(token)
    if tokens:
        yield tokens


def _statement(reader: _StatementReader) -> Statement:
    if reader.take("INSERT"):
        return _insert(reader)
    view = _topic_view(reader)
    if view is not None:
        return view
    reader.rewind()
    if reader.next_is(*_QUERY_WORDS):
        return ScriptQuery(Target(CONSOLE), reader.rest(), reader.line)
    return SparkStatement(reader.rest(), reader.line)


def _insert(reader: _StatementReader) -> ScriptQuery:
    reader.need("INTO")
    if reader.take("TOPIC"):
        target = Target(TOPIC, reader.name("a topic"))
    else:
        reader.take("TABLE")
        if not reader.is_quoted():
            raise reader.wrong("write INSERT INTO TOPIC name, or INSERT INTO TABLE 'directory'")
        path = reader.name("a directory")
        is_partitioned = reader.take("PARTITIONED", "BY")
        target = Target(TABLE, path, reader.names() if is_partitioned else ())
    if not reader.next_is(*_QUERY_WORDS):
        raise reader.wrong(f"expected a query after INSERT INTO {str(target).upper()}")
    return ScriptQuery(target, reader.rest(), reader.line)


def _topic_view(reader: _StatementReader) -> TopicView | None:
    """None if it is a statement of Spark."""
    if not reader.take("CREATE"):
        return None
    reader.take("OR", "REPLACE")
    _ = reader.take("TEMPORARY") or reader.take("TEMP")
    if not reader.take("VIEW"):
        return None
    name = reader.name("the view")
    columns = reader.parenthesis()
    if not reader.take("FROM", "TOPIC"):
        return None
    topics = [reader.name("a topic")]
    while reader.take(","):
        topics.append(reader.name("a topic"))
    is_text, watermark, delay, options = False, ("", ""), "", {}
    while not reader.at_end:
        if reader.take("FORMAT", "TEXT"):
            is_text = True
        elif reader.take("WATERMARK"):
            watermark, delay = _watermark(reader)
        elif reader.take("OPTIONS"):
            options = reader.pairs()
        else:
            raise reader.wrong(
                "expected FORMAT TEXT, WATERMARK column DELAY 10 SECONDS, or OPTIONS (name 'value') after the topic"
            )
    if is_text and columns:
        raise reader.wrong("with FORMAT TEXT the only column is body; remove the others")
    return TopicView(name, tuple(topics), columns, is_text, *watermark, delay, options, reader.line)


def _watermark(reader: _StatementReader) -> tuple[tuple[str, str], str]:
    expression = reader.text_until("DELAY")
    if not reader.take("DELAY"):
        raise reader.wrong("expected DELAY after WATERMARK column, such as DELAY 10 SECONDS")
    reader.take("OF")
    reader.take("INTERVAL")
    delay = reader.text_until(*_CLAUSES).replace("'", "").lower()
    named = re.fullmatch(r"(.+)\sAS\s+`?(\w+)`?", expression, re.IGNORECASE | re.DOTALL)
    if named:
        return (named[1].strip(), named[2]), delay
    if not re.fullmatch(r"\w+", expression):
        raise reader.wrong("the WATERMARK of an expression needs a name; write WATERMARK expression AS name DELAY …")
    return (expression, expression), delay


def _line(script: str, at: int) -> int:
    return script.count("\n", 0, at) + 1


class _StatementReader:
    """Walks over the tokens of one statement."""

    def __init__(self, script: str, tokens: list[re.Match[str]]) -> None:
        self._script = script
        self._tokens = tokens
        self._at = 0
        self.line = _line(script, tokens[0].start())

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    def rewind(self) -> None:
        self._at = 0

    def next_is(self, *words: str) -> bool:
        return not self.at_end and self._tokens[self._at].group().upper() in words

    def is_quoted(self) -> bool:
        return not self.at_end and self._tokens[self._at]["quoted"] is not None

    def take(self, *words: str) -> bool:
        """Skip these words if they come next."""
        found = [token.group().upper() for token in self._tokens[self._at : self._at + len(words)]]
        if found != list(words):
            return False
        self._at += len(words)
        return True

    def need(self, word: str) -> None:
        if not self.take(word):
            raise self.wrong(f"expected {word}")

    def name(self, of: str) -> str:
        """A name, with or without quotes of any kind."""
        if self.at_end or self._tokens[self._at]["mark"]:
            raise self.wrong(f"expected the name of {of}")
        token = self._tokens[self._at]
        self._at += 1
        return token.group()[1:-1] if token["quoted"] else token.group()

    def names(self) -> tuple[str, ...]:
        self.need("(")
        names = [self.name("a column")]
        while self.take(","):
            names.append(self.name("a column"))
        self.need(")")
        return tuple(names)

    def pairs(self) -> dict[str, str]:
        self.need("(")
        pairs = {}
        while not self.take(")"):
            key = self.name("an option")
            self.take("=")
            pairs[key] = self.name("a value")
            self.take(",")
        return pairs

    def parenthesis(self) -> str:
        """The text in parentheses, if they come next."""
        if not self.take("("):
            return ""
        begin, depth = self._at, 1
        while not self.at_end and depth:
            depth += {"(": 1, ")": -1}.get(self._tokens[self._at].group(), 0)
            self._at += 1
        if depth:
            raise self.wrong("a parenthesis is not closed")
        return self._between(begin, self._at - 1)

    def text_until(self, *words: str) -> str:
        begin = self._at
        while not self.at_end and not self.next_is(*words):
            self._at += 1
        return self._between(begin, self._at)

    def rest(self) -> str:
        """The rest of the statement, at its position in the script."""
        begin, end = self._tokens[self._at].start(), self._tokens[-1].end()
        return re.sub(r"[^\n]", " ", self._script[:begin]) + self._script[begin:end]

    def wrong(self, sentence: str) -> ScriptError:
        token = self._tokens[min(self._at, len(self._tokens) - 1)]
        where = "at the end" if self.at_end else f"at {token.group()!r}"
        return ScriptError(_line(self._script, token.start()), f"{sentence} ({where})")

    def _between(self, begin: int, end: int) -> str:
        if begin == end:
            return ""
        return self._script[self._tokens[begin].start() : self._tokens[end - 1].end()]
