"""From the text of an expression to its tree: tuples whose first item says what they are."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

Node = tuple[Any, ...]
MAX_LENGTH: Final = 20_000
SMALLEST: Final = -(2**63)
LARGEST: Final = 2**63 - 1
LARGEST_UINT: Final = 2**64 - 1

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<text>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<raw>[rR](?:"[^"\n]*"|'[^'\n]*'))
  | (?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:\d+\.\d+|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?|\d+[uU]?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<quoted>`[A-Za-z0-9_.\-/ ]+`)
  | (?P<sign>\|\||&&|[<>=!]=|[-+*/%!<>?:.,(){}\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_SIMPLE: Final = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    **{char: char for char in "\\?\"'`"},
}
_RELATIONS: Final = ("<", "<=", ">=", ">", "==", "!=", "in")
_RESERVED: Final = frozenset(
    (
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    )
)


class CelSyntaxError(Exception):
    """The text is no expression; says what was not expected, and where."""


class UInt(int):
    """A number that is never below zero."""


def parse(text: str) -> Node:
    if len(text) > MAX_LENGTH:
        raise CelSyntaxError(f"an expression of {len(text)} characters is too long")
    try:
        return _Parser(text).whole()
    except RecursionError:
        raise CelSyntaxError("the expression is nested too deeply") from None


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelSyntaxError(f"token recognition error at: '{text[at]}' (column {at + 1})")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0], at))
        at = match.end()
    return [*found, ("end", "<EOF>", at)]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    # What stands here

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> str:
        text = self._text
        self._at += 1
        return text

    def _is(self, *signs: str) -> bool:
        return self._text in signs and self._kind in ("sign", "name")

    def _takes(self, sign: str) -> bool:
        found = self._is(sign)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._unexpected(f"expecting '{sign}'")

    def _unexpected(self, wanted: str) -> CelSyntaxError:
        _, text, at = self._tokens[self._at]
        return CelSyntaxError(f"mismatched input '{text}' (column {at + 1}) {wanted}")

    # From the loosest binding to the tightest

    def whole(self) -> Node:
        found = self._expression()
        if self._kind != "end":
            raise self._unexpected("expecting <EOF>")
        return found

    def _expression(self) -> Node:
        condition = self._either()
        if not self._takes("?"):
            return condition
        first = self._either()
        self._expect(":")
        return ("choose", condition, first, self._expression())

    def _either(self) -> Node:
        found = self._both()
        while self._takes("||"):
            found = ("or", found, self._both())
        return found

    def _both(self) -> Node:
        found = self._relation()
        while self._takes("&&"):
            found = ("and", found, self._relation())
        return found

    def _relation(self) -> Node:
        found = self._sum()
        while self._is(*_RELATIONS):
            found = ("apply", self._next(), found, self._sum())
        return found

    def _sum(self) -> Node:
        found = self._product()
        while self._is("+", "-"):
            found = ("apply", self._next(), found, self._product())
        return found

    def _product(self) -> Node:
        found = self._unary()
        while self._is("*", "/", "%"):
            found = ("apply", self._next(), found, self._unary())
        return found

    def _unary(self) -> Node:
        if self._takes("!"):
            return ("not", self._unary())
        if self._takes("-"):
            if self._kind == "number":
                return self._member(("value", _number("-" + self._next())))
            return ("negative", self._unary())
        return self._member(self._primary())

    def _member(self, found: Node) -> Node:
        while True:
            if self._takes("."):
                optional = self._takes("?")
                field = self._field()
                if not optional and self._takes("("):
                    found = ("call", found, field, self._list_until(")"))
                else:
                    found = ("select", found, field, optional)
            elif self._takes("["):
                optional = self._takes("?")
                found = ("index", found, self._expression(), optional)
                self._expect("]")
            else:
                return found

    def _field(self) -> str:
        if self._kind == "quoted":
            return self._next()[1:-1]
        if self._kind != "name":
            raise self._unexpected("expecting a name")
        return self._next()

    def _list_until(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self._takes(end):
            found.append(self._expression())
            if not self._takes(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> Node:
        match self._kind:
            case "number":
                return ("value", _number(self._next()))
            case "text" | "raw":
                return ("value", _literal(self._next()))
            case "name":
                return self._named()
        if self._takes("("):
            found = self._expression()
            self._expect(")")
            return found
        if self._takes("["):
            return ("list", self._items())
        if self._takes("{"):
            return ("map", self._entries())
        if self._takes("."):
            return self._named()
        raise self._unexpected("expecting an expression")

    def _named(self) -> Node:
        name = self._field()
        if name in ("true", "false", "null"):
            return ("value", {"true": True, "false": False, "null": None}[name])
        if name in _RESERVED or name == "in":
            raise CelSyntaxError(f"reserved identifier: {name}")
        if self._takes("("):
            return ("call", None, name, self._list_until(")"))
        return ("name", name)

    def _items(self) -> list[tuple[Node, bool]]:
        found: list[tuple[Node, bool]] = []
        while not self._takes("]"):
            optional = self._takes("?")
            found.append((self._expression(), optional))
            if not self._takes(","):
                self._expect("]")
                break
        return found

    def _entries(self) -> list[tuple[Node, Node, bool]]:
        found: list[tuple[Node, Node, bool]] = []
        while not self._takes("}"):
            optional = self._takes("?")
            key = self._expression()
            self._expect(":")
            found.append((key, self._expression(), optional))
            if not self._takes(","):
                self._expect("}")
                break
        return found


def _number(text: str) -> Any:
    if text[-1] in "uU":
        return UInt(_whole(text[:-1], 0, LARGEST_UINT, "uint"))
    if re.fullmatch(r"-?(?:\d+|0[xX].*)", text):
        return _whole(text, SMALLEST, LARGEST, "int")
    return float(text)


def _whole(text: str, least: int, most: int, kind: str) -> int:
    # More digits than any of them has: Python would not even read them.
    number = int(text, 16 if "x" in text.lower() else 10) if len(text) < 100 else most + 1
    if not least <= number <= most:
        raise CelSyntaxError(f"invalid {kind} literal")
    return number


def _literal(text: str) -> str | bytes:
    prefix = text[: re.search("['\"]", text).start()].lower()  # type: ignore[union-attr]  # it has quotes
    body = text[len(prefix) :]
    width = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    body = body[width:-width]
    if "r" not in prefix:
        body = _unescaped(body)
    if "b" not in prefix:
        return body
    try:
        return body.encode("latin-1" if "\\" in text else "utf-8")
    except UnicodeEncodeError:
        raise CelSyntaxError(f"no bytes: {text}") from None


def _unescaped(body: str) -> str:
    def replace(match: re.Match[str]) -> str:
        simple, *codes, octal = match.groups()
        if simple:
            return _SIMPLE[simple]
        return _character(int(octal, 8) if octal else int(next(c for c in codes if c), 16))

    found = _ESCAPE.sub(replace, body)
    if "\\" in _ESCAPE.sub("", body):
        raise CelSyntaxError(f"unknown escape sequence in {body!r}")
    return found


def _character(code: int) -> str:
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:
        raise CelSyntaxError("invalid unicode code point")
    return chr(code)
