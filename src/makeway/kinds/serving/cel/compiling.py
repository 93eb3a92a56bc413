"""From an expression's tree to a function of its variables.

Each node becomes a closure; what CEL calls macros (`has`, `all`, `map`, ...) are loops over their arguments, counted so that no rule runs
for ever. An error of one side of `||` or `&&` does not matter where the other side decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from makeway.kinds.serving.cel import functions
from makeway.kinds.serving.cel.parsing import CelSyntaxError, Node, UInt, parse
from makeway.kinds.serving.cel.values import (
    NOTHING,
    CelError,
    Kind,
    Optional,
    compared,
    contains,
    equal,
    index,
    is_number,
    kind_of,
    moved,
    no_overload,
    optional_select,
    select,
    span,
    whole,
)

Env = dict[str, Any]
Step = Callable[[Env], Any]
MOST_STEPS: Final = 100_000  # rounds of all loops of one evaluation
_STEPS: Final = ""  # their count, under a name that no variable has
_TYPES: Final = ("bool", "bytes", "double", "int", "list", "map", "string", "type", "uint")


class UnknownFunctionError(Exception):
    """An expression that may be right, and uses a function that is not known here."""


class Program(msgspec.Struct, frozen=True):
    text: str
    names: frozenset[str]  # variables that it asks for
    run: Step

    def evaluate(self, /, **variables: Any) -> Any:
        try:
            return self.run({**variables, _STEPS: [MOST_STEPS]})
        except RecursionError:
            raise CelError("the values are nested too deeply") from None


def compile_expression(text: str, variables: tuple[str, ...]) -> Program:
    return _Compiler(variables).program(text)


class _Compiler:
    def __init__(self, variables: tuple[str, ...]) -> None:
        self._known = set(variables)
        self._used: set[str] = set()

    def program(self, text: str) -> Program:
        tree = parse(text)
        try:
            run = self.step(tree)
        except RecursionError:
            raise CelSyntaxError("the expression is nested too deeply") from None
        return Program(text, frozenset(self._used), run)

    def step(self, node: Node) -> Step:
        make: Callable[..., Step] = getattr(self, f"_{node[0]}")
        return make(*node[1:])

    # Values and names

    def _value(self, value: Any) -> Step:
        return lambda env: value

    def _name(self, name: str) -> Step:
        if name in self._known:
            self._used.add(name)
            return lambda env: env[name]
        if name in _TYPES:
            return lambda env: Kind(name)
        if name == "null_type":
            return lambda env: Kind(name)
        raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")

    def _select(self, holder: Node, field: str, optional: bool) -> Step:
        qualified = _dotted(holder, field)
        if qualified in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            return lambda env: Kind(qualified)
        inner = self.step(holder)
        if optional:
            return lambda env: optional_select(inner(env), field)
        return lambda env: select(inner(env), field)

    def _index(self, holder: Node, at: Node, optional: bool) -> Step:
        inner, where = self.step(holder), self.step(at)
        if optional:
            return lambda env: optional_select(inner(env), where(env))
        return lambda env: index(inner(env), where(env))

    def _list(self, items: list[tuple[Node, bool]]) -> Step:
        steps = [(self.step(item), optional) for item, optional in items]

        def run(env: Env) -> list[Any]:
            return list(_present([(step(env), optional) for step, optional in steps]))

        return run

    def _map(self, entries: list[tuple[Node, Node, bool]]) -> Step:
        steps = [(self.step(key), self.step(value), optional) for key, value, optional in entries]

        def run(env: Env) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key, value, optional in steps:
                for present in _present([(value(env), optional)]):
                    found[_as_key(key(env))] = present
            return found

        return run

    # Operators

    def _choose(self, condition: Node, first: Node, second: Node) -> Step:
        asked, yes, no = self.step(condition), self.step(first), self.step(second)
        return lambda env: yes(env) if _truth(asked(env), "_?_:_") else no(env)

    def _or(self, one: Node, other: Node) -> Step:
        return _decided_by(self.step(one), self.step(other), True)

    def _and(self, one: Node, other: Node) -> Step:
        return _decided_by(self.step(one), self.step(other), False)

    def _not(self, node: Node) -> Step:
        inner = self.step(node)
        return lambda env: not _truth(inner(env), "!_")

    def _negative(self, node: Node) -> Step:
        inner = self.step(node)

        def run(env: Env) -> Any:
            value = inner(env)
            if isinstance(value, float | timedelta):
                return -value
            if not is_number(value) or isinstance(value, UInt):
                raise no_overload("-_")
            return whole(-value, value)

        return run

    def _apply(self, sign: str, one: Node, other: Node) -> Step:
        left, right, do = self.step(one), self.step(other), _OPERATORS[sign]
        return lambda env: do(left(env), right(env))

    # Calls

    def _call(self, target: Node | None, name: str, arguments: list[Node]) -> Step:
        if target is None and name == "has":
            return self._has(arguments)
        if target is not None:
            macro = self._macro(target, name, arguments)
            if macro is not None:
                return macro
            qualified = _dotted(target, name)
            if qualified in functions.GLOBAL:
                return self._plain(functions.GLOBAL[qualified], name, arguments)
            if name in functions.METHODS:
                return self._plain(functions.METHODS[name], name, [target, *arguments])
        elif name in functions.GLOBAL:
            return self._plain(functions.GLOBAL[name], name, arguments)
        raise UnknownFunctionError(f"{name}()")

    def _plain(self, do: Callable[..., Any], name: str, arguments: list[Node]) -> Step:
        steps = [self.step(argument) for argument in arguments]

        def run(env: Env) -> Any:
            given = [step(env) for step in steps]
            try:
                return do(*given)
            except (TypeError, AttributeError, KeyError):
                raise no_overload(name) from None
            except (ValueError, ArithmeticError) as error:
                raise CelError(str(error)) from None

        return run

    def _has(self, arguments: list[Node]) -> Step:
        if len(arguments) != 1 or arguments[0][0] != "select":
            raise CelSyntaxError("invalid argument to has() macro")
        _, holder, field, _ = arguments[0]
        inner = self.step(holder)
        return lambda env: optional_select(inner(env), field).there

    def _macro(self, target: Node, name: str, arguments: list[Node]) -> Step | None:
        if name in ("optMap", "optFlatMap") and len(arguments) == 2:
            return self._opt_map(target, arguments, flat=name == "optFlatMap")
        variables, bodies = _split(name, arguments)
        if not bodies:
            return None
        over = self.step(target)
        known = set(self._known)
        self._known |= set(variables)
        steps = [self.step(body) for body in bodies]
        self._known = known
        self._used -= set(variables) - known
        loop = _Loop(over, variables)
        return _LOOPS[name](loop, *steps)

    def _opt_map(self, target: Node, arguments: list[Node], *, flat: bool) -> Step:
        over, (variable, body) = self.step(target), arguments
        if variable[0] != "name":
            raise CelSyntaxError("the first argument must be a simple name")
        known = set(self._known)
        self._known.add(variable[1])
        step = self.step(body)
        self._known = known

        def run(env: Env) -> Any:
            held = over(env)
            if not isinstance(held, Optional):
                raise no_overload("optMap")
            if not held.there:
                return NOTHING
            value = step({**env, variable[1]: held.value})
            return value if flat else Optional(value)

        return run


# Loops


class _Loop:
    """Over the items of a list or the keys of a map, with one variable or with two."""

    def __init__(self, over: Step, variables: list[str]) -> None:
        self._over = over
        self._variables = variables

    def __call__(self, env: Env) -> Iterator[Env]:
        for values in self._values(self._over(env)):
            env[_STEPS][0] -= 1
            if env[_STEPS][0] < 0:
                raise CelError("operation cancelled: actual cost limit exceeded")
            yield {**env, **dict(zip(self._variables, values, strict=False))}

    def _values(self, over: Any) -> Iterator[tuple[Any, ...]]:
        if isinstance(over, Mapping):
            return iter(list(over.items()))
        if not isinstance(over, list):
            raise no_overload("comprehension")
        if len(self._variables) == 2:
            return iter(list(enumerate(over)))
        return ((item,) for item in over)

    @property
    def first(self) -> str:
        return self._variables[0]


def _split(name: str, arguments: list[Node]) -> tuple[list[str], list[Node]]:
    """Variables and bodies of a loop; no bodies if this is no loop."""
    shapes = _SHAPES.get(name, ())
    for variables, bodies in shapes:
        named = arguments[:variables]
        if len(arguments) == variables + bodies and all(n[0] == "name" for n in named):
            return [n[1] for n in named], arguments[variables:]
    return [], []


# How many variables and how many bodies each may have.
_SHAPES: Final = {
    "all": ((1, 1), (2, 1)),
    "exists": ((1, 1), (2, 1)),
    "exists_one": ((1, 1), (2, 1)),
    "existsOne": ((1, 1), (2, 1)),
    "map": ((1, 1), (1, 2)),
    "filter": ((1, 1),),
    "transformList": ((2, 1), (2, 2)),
    "transformMap": ((2, 1), (2, 2)),
}


def _any_true(loop: _Loop, step: Step, deciding: bool) -> Step:
    """`exists`, or `all` upside down: one item decides, whatever errors the others make."""

    def run(env: Env) -> bool:
        error: CelError | None = None
        for inner in loop(env):
            try:
                if _truth(step(inner), "_||_") is deciding:
                    return deciding
            except CelError as caught:
                error = caught
        if error is not None:
            raise error
        return not deciding

    return run


def _exists_one(loop: _Loop, step: Step) -> Step:
    return lambda env: sum(_truth(step(inner), "exists_one") for inner in loop(env)) == 1


def _mapped(loop: _Loop, *steps: Step) -> Step:
    """With two bodies the first says which items."""
    *conditions, result = steps

    def run(env: Env) -> list[Any]:
        return [
            result(inner)
            for inner in loop(env)
            if all(_truth(condition(inner), "map") for condition in conditions)
        ]

    return run


def _filtered(loop: _Loop, step: Step) -> Step:
    return lambda env: [i[loop.first] for i in loop(env) if _truth(step(i), "filter")]


def _mapped_values(loop: _Loop, *steps: Step) -> Step:
    *conditions, result = steps

    def run(env: Env) -> dict[Any, Any]:
        return {
            inner[loop.first]: result(inner)
            for inner in loop(env)
            if all(_truth(condition(inner), "map") for condition in conditions)
        }

    return run


_LOOPS: Final[dict[str, Callable[..., Step]]] = {
    "all": lambda loop, step: _any_true(loop, step, False),
    "exists": lambda loop, step: _any_true(loop, step, True),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "map": _mapped,
    "filter": _filtered,
    "transformList": _mapped,
    "transformMap": _mapped_values,
}


# Operators


def _truth(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise no_overload(name)
    return value


def _decided_by(one: Step, other: Step, deciding: bool) -> Step:
    def run(env: Env) -> bool:
        try:
            if _truth(one(env), "_||_") is deciding:
                return deciding
        except CelError:
            if _truth(other(env), "_||_") is deciding:
                return deciding
            raise
        return _truth(other(env), "_||_")

    return run


def _present(items: list[tuple[Any, bool]]) -> Iterator[Any]:
    for value, optional in items:
        if not optional:
            yield value
        elif not isinstance(value, Optional):
            raise no_overload("optional")
        elif value.there:
            yield value.value


def _as_key(value: Any) -> Any:
    if not isinstance(value, bool | int | str):
        raise CelError(f"unsupported key type: {kind_of(value)}")
    return value


def _dotted(holder: Node, field: str) -> str:
    """`a.b.c`, where it is nothing but names."""
    match holder:
        case ("name", name):
            return f"{name}.{field}"
        case ("select", inner, name, False):
            return f"{_dotted(inner, name)}.{field}"
    return ""


def _relation(do: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda one, other: do(*compared(one, other))


def _in(wanted: Any, holder: Any) -> bool:
    if isinstance(holder, Mapping):
        return not isinstance(wanted, list | dict) and wanted in holder
    if not isinstance(holder, list):
        raise no_overload("@in")
    return contains(holder, wanted)


def _added(one: Any, other: Any) -> Any:
    if type(one) is type(other) and isinstance(one, str | bytes):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if isinstance(one, timedelta) and isinstance(other, timedelta):
        return span(one + other)
    if isinstance(one, datetime) and isinstance(other, timedelta):
        return moved(one, other)
    if isinstance(one, timedelta) and isinstance(other, datetime):
        return moved(other, one)
    return _computed("_+_", one, other, operator.add)


def _subtracted(one: Any, other: Any) -> Any:
    if isinstance(one, datetime) and isinstance(other, datetime):
        return span(one - other)
    if isinstance(one, timedelta) and isinstance(other, timedelta):
        return span(one - other)
    if isinstance(one, datetime) and isinstance(other, timedelta):
        return moved(one, -other)
    return _computed("_-_", one, other, operator.sub)


def _multiplied(one: Any, other: Any) -> Any:
    return _computed("_*_", one, other, operator.mul)


def _divided(one: Any, other: Any) -> Any:
    if isinstance(one, float) and isinstance(other, float):
        return one / other if other else float("nan") if not one else one * float("inf")
    return _computed("_/_", one, other, _quotient)


def _remainder(one: Any, other: Any) -> Any:
    if isinstance(one, float):
        raise no_overload("_%_")
    return _computed("_%_", one, other, lambda a, b: a - b * _quotient(a, b, "modulus"))


def _quotient(one: int, other: int, what: str = "division") -> int:
    """Towards zero, as machines divide."""
    if other == 0:
        raise CelError(f"{what} by zero")
    found = abs(one) // abs(other)
    return found if (one < 0) == (other < 0) else -found


def _computed(name: str, one: Any, other: Any, do: Callable[[Any, Any], Any]) -> Any:
    same = isinstance(one, float) == isinstance(other, float)
    same = same and isinstance(one, UInt) == isinstance(other, UInt)
    if not (is_number(one) and is_number(other) and same):
        raise no_overload(name)
    return do(one, other) if isinstance(one, float) else whole(do(int(one), int(other)), one)


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": equal,
    "!=": lambda one, other: not equal(one, other),
    "<": _relation(operator.lt),
    "<=": _relation(operator.le),
    ">": _relation(operator.gt),
    ">=": _relation(operator.ge),
    "in": _in,
    "+": _added,
    "-": _subtracted,
    "*": _multiplied,
    "/": _divided,
    "%": _remainder,
}
