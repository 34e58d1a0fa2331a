"""Parser of SQL filters: text in, a tree out, or ``InvalidExpression`` with the position and the cure (K2).

The language is RocketMQ's "SQL92": the selectors of JMS without arithmetic, but with ``CONTAINS`` and the like (from
5.1.3). In order of precedence, the lowest first; all binary operators are left-associative::

    OR                                                  conditions on both sides
    AND
    =  <>  IS NULL  IS NOT NULL                         anything; NULL itself only with IS
    >  >=  <  <=  [NOT] BETWEEN x AND y                 numbers and properties
    [NOT] IN ('a', 'b')                                 a property
    [NOT] CONTAINS|STARTSWITH|ENDSWITH 'text'           anything
    +  -  NOT
    5  5L  .5  5E10  'text'  TRUE  FALSE  NULL  property  ( … )

RocketMQ's known pitfalls are kept, since a filter must select the same messages on either broker:

- ``NOT`` binds tighter than a comparison: ``NOT a = 1`` is ``(NOT a) = 1``, and ``NOT a > 1`` is refused.
- Parsing ends when the expression is complete. The rest is ignored, except that the next token must be valid:
  ``a = 007`` is ``a = 0``.
- ``0.0`` is refused: a decimal is at least the smallest positive double.
- Types of constants are checked, values are not: ``1 > 2`` is a valid filter.

Expressions come from any client, so three limits (``ExpressionLimits``) are checked before the work that they limit:
characters before the first token is read, terms with each token, and nesting with each level, because trees are walked
recursively. The patterns of tokens do not backtrack: parsing needs memory only for the current token, and a token is
read once.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from ternmq.errors import ExpressionTooLarge, InvalidExpression
from ternmq.filter.tree import (
    CONTAINS_TERMS,
    LONG_MAX,
    AsCondition,
    Compare,
    Constant,
    FilterNode,
    In,
    IsNull,
    Logic,
    Negate,
    Not,
    Operator,
    PropertyValue,
    TextMatch,
    children,
    is_condition,
)


@dataclass(slots=True, frozen=True)
class ExpressionLimits:
    """How large an expression may be; the names of a broker's settings are in ``SETTINGS``."""

    #: Characters.
    length: int = 16_384
    #: Properties, numbers, texts (those of IN lists, too), TRUE, FALSE and NULL. Each takes about 0.2 µs per message.
    terms: int = 1_024
    #: Nodes from the root down to a leaf; a chain of AND or OR counts as one. A level takes six calls of Python's
    #: stack, which has 1,000. Java fails at some thousands.
    depth: int = 64

    def too_long(self, expression: str) -> str:
        """The error for an expression with too many characters, of SQL or tags; else empty."""
        if len(expression) <= self.length:
            return ""
        return f"it has {len(expression)} characters, more than the {self.length} that {SETTINGS['length']} allows"


#: The broker's settings, by the limit that they set.
SETTINGS: Final = {
    "length": "maxFilterExpressionLength",
    "terms": "maxFilterExpressionTerms",
    "depth": "maxFilterExpressionDepth",
}
DEFAULT_LIMITS: Final = ExpressionLimits()

_DOUBLE_MAX: Final = 1.7976931348623157e308
#: Characters of a token that an error shows.
_SHOWN_MAX: Final = 64

#: Names that are operators since RocketMQ 5.1.3; older brokers read them as properties.
RECENT_WORDS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_CONSTANTS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
_WORDS: Final = RECENT_WORDS | _CONSTANTS.keys() | {"NOT", "AND", "OR", "BETWEEN", "IN", "IS"}
_WORD_LENGTH_MAX: Final = max(map(len, _WORDS))


# --- Tokens ---------------------------------------------------------------------------------------------------


class TokenKind(enum.Enum):
    WORD = enum.auto()
    NAME = enum.auto()
    WHOLE = enum.auto()
    DECIMAL = enum.auto()
    TEXT = enum.auto()
    SIGN = enum.auto()
    END = enum.auto()


_TERMS: Final = (TokenKind.NAME, TokenKind.WHOLE, TokenKind.DECIMAL, TokenKind.TEXT)


class Token(NamedTuple):
    kind: TokenKind
    #: Keywords in capitals; other tokens as written.
    text: str
    at: int


#: White space and comments. A comment without its end is not a comment.
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*.*?\*/)*+", re.DOTALL)
#: At each position the longest token counts, so decimals come before whole numbers and ``<=`` before ``<``.
_TOKEN: Final = re.compile(
    r"""
    (?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*+)
    |(?P<DECIMAL>(?:[0-9]++\.[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)
    |(?P<WHOLE>0|[1-9][0-9]*+[lL]?)
    |(?P<TEXT>'(?:[^']++|'')*+')
    |(?P<SIGN><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE,
)


class _Tokens:
    """The tokens of an expression, with a lookahead of one."""

    def __init__(self, expression: str, limits: ExpressionLimits) -> None:
        too_long = limits.too_long(expression)
        if too_long:
            raise ExpressionTooLarge(too_long, expression=expression, position=limits.length)
        self.expression = expression
        self._at = 0
        self._limits = limits
        self._terms = 0
        self.next = self._read()

    def take(self) -> Token:
        token = self.next
        self.next = self._read()
        return token

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self.expression, self._at)
        assert skipped is not None, "the pattern also matches an empty text"
        at = skipped.end()
        if at == len(self.expression):
            self._at = at
            return Token(TokenKind.END, "", at)
        found = _TOKEN.match(self.expression, at)
        if found is None:
            raise InvalidExpression(_no_token(self.expression[at:]), expression=self.expression, position=at)
        self._at = found.end()
        assert found.lastgroup is not None
        kind, text = TokenKind[found.lastgroup], found[0]
        if kind is TokenKind.NAME and len(text) <= _WORD_LENGTH_MAX and text.upper() in _WORDS:
            kind, text = TokenKind.WORD, text.upper()
        weight = int(kind in _TERMS or text in _CONSTANTS)
        if kind is TokenKind.WORD and text == "CONTAINS":
            weight = CONTAINS_TERMS - 1  # and one for the text behind it
        if weight:
            self._terms += weight
            if self._terms > self._limits.terms:
                raise ExpressionTooLarge(
                    f"it has more than {self._limits.terms} terms (properties, numbers and texts; CONTAINS counts as "
                    f"{CONTAINS_TERMS}), which {SETTINGS['terms']} allows",
                    expression=self.expression,
                    position=at,
                )
        return Token(kind, text, at)


def _no_token(rest: str) -> str:
    """What to do about characters that are not a token."""
    if rest[0] == "'":
        return "the text is not closed; end it with ', and write '' for a ' inside"
    if rest.startswith("/*"):
        return "the comment is not closed; end it with */"
    if rest.startswith("!="):
        return "!= is not supported; use <>"
    if rest[0] == '"':
        return "put text in single quotes: 'text'"
    return f"unexpected {rest[0]!r}; property names have letters, digits, _ and $, and texts are in 'single quotes'"


# --- The parser -----------------------------------------------------------------------------------------------


def parse(expression: str, limits: ExpressionLimits = DEFAULT_LIMITS) -> FilterNode:
    """The tree of a filter; its root is a condition.

    Raises ``InvalidExpression``, or its subclass ``ExpressionTooLarge`` if it exceeds ``limits``.
    """
    return _Parser(expression, limits).filter()


def check(expression: str) -> None:
    """The check of a client before its brokers check the expression: raises ``InvalidExpression`` if no broker could
    read it.

    RocketMQ's language was extended once, and only a broker knows which words it supports. Limits are not checked here,
    either: those of a broker may be higher than the defaults, and RocketMQ has none.
    """
    try:
        parse(expression)
    except ExpressionTooLarge:
        pass
    except InvalidExpression:
        if not has_recent_words(expression):
            raise


class _Parser:
    """Recursive descent, with a method for each line of the grammar."""

    def __init__(self, expression: str, limits: ExpressionLimits) -> None:
        self._tokens = _Tokens(expression, limits)
        self._limits = limits
        self._nested = 0

    def filter(self) -> FilterNode:
        at = self._tokens.next.at
        root = self._condition(self._chain(is_and=False), at)
        deep = [(root, 1)]
        while deep:
            node, depth = deep.pop()
            if depth > self._limits.depth:
                raise self._too_deep(0)
            deep.extend((child, depth + 1) for child in children(node))
        return root

    def _chain(self, *, is_and: bool) -> FilterNode:
        """Conditions joined by OR, or (``is_and``) its operands, joined by AND."""
        word = "AND" if is_and else "OR"
        operands: list[FilterNode] = []
        while True:
            at = self._tokens.next.at
            node = self._equality() if is_and else self._chain(is_and=True)
            more = self._take(word)
            if not more and not operands:
                return node
            operands.append(self._condition(node, at))
            if not more:
                return Logic(is_and, tuple(operands))

    def _equality(self) -> FilterNode:
        left_at = self._tokens.next.at
        left = self._comparison()
        while True:
            if self._comes("=") or self._comes("<>"):
                sign = self._tokens.take()
                right_at = self._tokens.next.at
                right = self._comparison()
                self._check_equal(left, left_at)
                self._check_equal(right, right_at)
                if _is_flag(left) and isinstance(right, Constant) and not is_condition(right):
                    raise self._error(
                        right_at, "TRUE and FALSE cannot be compared with a number or text; compare with TRUE or FALSE"
                    )
                equal = Compare(Operator.EQUAL, left, right)
                left = equal if sign.text == "=" else Not(equal)
            elif self._take("IS"):
                negated = self._take("NOT")
                self._need("NULL", "expected NULL or NOT NULL after IS")
                left = Not(IsNull(left)) if negated else IsNull(left)
            else:
                return left

    def _comparison(self) -> FilterNode:
        left_at = self._tokens.next.at
        left = self._unary()
        while True:
            token = self._tokens.next
            if token.kind is TokenKind.SIGN and token.text in _ORDERS:
                self._tokens.take()
                right_at = self._tokens.next.at
                right = self._unary()
                left = self._ordered(_ORDERS[token.text], left, left_at, right, right_at)
                continue
            negated = self._take("NOT")
            word = self._tokens.next
            if self._take("BETWEEN"):
                left = self._between(left, left_at, negated=negated)
            elif self._take("IN"):
                left = self._in(left, left_at, negated=negated)
            elif word.kind is TokenKind.WORD and word.text in RECENT_WORDS:
                self._tokens.take()
                left = TextMatch(word.text, left, self._text(f"expected a text in quotes after {word.text}"), negated)
            elif negated:
                raise self._error(word.at, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, value: FilterNode, at: int, *, negated: bool) -> FilterNode:
        low_at = self._tokens.next.at
        low = self._unary()
        self._need("AND", "BETWEEN needs two bounds: BETWEEN 1 AND 5")
        high_at = self._tokens.next.at
        high = self._unary()
        if negated:
            return Logic(
                False,
                (
                    self._ordered(Operator.LESS, value, at, low, low_at),
                    self._ordered(Operator.GREATER, value, at, high, high_at),
                ),
            )
        between = Logic(
            True,
            (
                self._ordered(Operator.GREATER_EQUAL, value, at, low, low_at),
                self._ordered(Operator.LESS_EQUAL, value, at, high, high_at),
            ),
        )
        if isinstance(low, Constant) and isinstance(high, Constant):
            least, most = low.value, high.value
            assert isinstance(least, int | float), "bounds are numbers here"
            assert isinstance(most, int | float)
            # RocketMQ compares whole numbers exactly, others as doubles.
            if isinstance(least, float) or isinstance(most, float):
                least, most = float(least), float(most)
            if most < least:
                raise self._error(high_at, "the upper bound is below the lower one; swap them")
        return between

    def _in(self, left: FilterNode, at: int, *, negated: bool) -> FilterNode:
        if not isinstance(left, PropertyValue):
            raise self._error(
                at, "IN needs a property on its left side; write a NOT IN ('x') instead of (NOT a) IN ('x')"
            )
        self._need("(", "expected a list after IN: IN ('a', 'b')")
        texts = [self._text("the list of IN must contain texts in quotes")]
        while self._take(","):
            texts.append(self._text("the list of IN must contain texts in quotes"))
        self._need(")", "the list of IN must end with )")
        return In(left, tuple(texts), negated)

    def _unary(self) -> FilterNode:
        self._nested += 1
        if self._nested > self._limits.depth:
            raise self._too_deep(self._tokens.next.at)
        if self._take("+"):
            node = self._unary()
        elif self._take("-"):
            node = Negate(self._unary())
        elif self._take("NOT"):
            at = self._tokens.next.at
            node = Not(self._condition(self._unary(), at))
        else:
            node = self._primary()
        self._nested -= 1
        return node

    def _primary(self) -> FilterNode:
        token = self._tokens.next
        match token.kind, token.text:
            case TokenKind.SIGN, "(":
                self._tokens.take()
                node = self._chain(is_and=False)
                self._need(")", "the parenthesis is not closed")
                return node
            case TokenKind.TEXT, _:
                return Constant(self._text(""))
            case TokenKind.NAME, name:
                self._tokens.take()
                return PropertyValue(name)
            case TokenKind.WORD, "TRUE" | "FALSE" | "NULL":
                self._tokens.take()
                return Constant(_CONSTANTS[token.text])
            case TokenKind.WHOLE | TokenKind.DECIMAL, _:
                self._tokens.take()
                return self._number(token)
            case _:
                raise self._found("expected a property, a number, a text or (")

    def _number(self, token: Token) -> Constant:
        text = token.text.rstrip("lL")
        if token.kind is TokenKind.WHOLE:
            # int() does not read texts of any length, and no number of more than 19 digits fits.
            if len(text) > 19 or int(text) > LONG_MAX:
                raise self._error(
                    token.at, f"the number is too large (maximum {LONG_MAX}); write it as a decimal: 1.0E19"
                )
            return Constant(int(text))
        value = float(text)
        if value > _DOUBLE_MAX:
            raise self._error(token.at, f"the number is too large (maximum {_DOUBLE_MAX})")
        if value == 0:
            raise self._error(token.at, "a decimal number must be greater than 0 (RocketMQ refuses 0.0); write 0")
        return Constant(value)

    def _ordered(self, order: Operator, left: FilterNode, left_at: int, right: FilterNode, right_at: int) -> Compare:
        for node, at in ((left, left_at), (right, right_at)):
            if is_condition(node) or (isinstance(node, Constant) and isinstance(node.value, str)):
                raise self._error(
                    at,
                    f"{order.value} and BETWEEN compare numbers and properties; for texts use =, <> or IN, and put "
                    "parentheses after NOT: NOT (a > 1)",
                )
        return Compare(order, left, right)

    def _check_equal(self, node: FilterNode, at: int) -> None:
        if isinstance(node, Constant) and node.value is None:
            raise self._error(at, "NULL cannot be compared by = or <>; use IS NULL or IS NOT NULL")

    def _condition(self, node: FilterNode, at: int) -> FilterNode:
        """An operand of AND, OR or NOT, or the whole filter: it must be a condition."""
        if is_condition(node):
            return node
        if isinstance(node, PropertyValue):
            return AsCondition(node)
        raise self._error(at, "expected a condition such as a = 1, not only a number or a text")

    # --- Tokens -----------------------------------------------------------------------------------------------

    def _comes(self, text: str) -> bool:
        token = self._tokens.next
        return token.text == text and token.kind in (TokenKind.WORD, TokenKind.SIGN)

    def _take(self, text: str) -> bool:
        if not self._comes(text):
            return False
        self._tokens.take()
        return True

    def _need(self, text: str, cure: str) -> None:
        if not self._take(text):
            raise self._found(cure)

    def _text(self, cure: str) -> str:
        if self._tokens.next.kind is not TokenKind.TEXT:
            raise self._found(cure)
        return self._tokens.take().text[1:-1].replace("''", "'")

    def _found(self, cure: str) -> InvalidExpression:
        token = self._tokens.next
        found = "the end" if token.kind is TokenKind.END else repr(token.text[:_SHOWN_MAX])
        return self._error(token.at, f"{cure}, not {found}")

    def _too_deep(self, at: int) -> ExpressionTooLarge:
        reason = f"it is nested more than {self._limits.depth} deep, which {SETTINGS['depth']} allows; write it flatter"
        return ExpressionTooLarge(reason, expression=self._tokens.expression, position=at)

    def _error(self, at: int, reason: str) -> InvalidExpression:
        return InvalidExpression(reason, expression=self._tokens.expression, position=at)


_ORDERS: Final = {order.value: order for order in Operator if order is not Operator.EQUAL}


def _is_flag(node: FilterNode) -> bool:
    return isinstance(node, Constant) and isinstance(node.value, bool)


def has_recent_words(expression: str) -> bool:
    """Whether brokers before RocketMQ 5.1.3 may read it differently, as far as it can be read."""
    try:
        tokens = _Tokens(expression, DEFAULT_LIMITS)
        while tokens.next.kind is not TokenKind.END:
            if tokens.take().text in RECENT_WORDS:
                return True
    except InvalidExpression:
        pass
    return False
