"""Every mainstream case of Kueue's own tables comes out as in Kueue; the exotic ones that do are not lost again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.__main__ import main
from tests.conformance.run import run_case

CASES = Path(__file__).parent / "cases"
# Outside a quota engine: elastic workload slices, LimitRange validation of templates.
KNOWN_TO_DIFFER = {
    "workload slice preemption fits in the original workload resource flavor",
}


def _cases() -> list[object]:
    found: list[object] = []
    for path in sorted(CASES.glob("*.json")):
        content = json.loads(path.read_text())
        for case in content.get("cases", ()):
            marks = [pytest.mark.xfail(strict=True)] if case["name"] in KNOWN_TO_DIFFER else []
            found.append(
                pytest.param(content["kind"], case, id=f"{path.stem}:{case['name']}", marks=marks)
            )
    return found


@pytest.mark.parametrize(("kind", "case"), _cases())
def test_comes_out_as_in_kueue(kind: str, case: dict[str, object]) -> None:
    assert run_case(kind, case).problems == []


def test_the_command_counts_and_exits_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CASES)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "conformance: 130 of 130 mainstream, 15 of 16 exotic"


def test_a_directory_without_cases_is_an_error(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2


def test_a_failing_mainstream_case_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((CASES / "candidates_ordering.json").read_text())
    case = next(case for case in content["cases"] if not case["exotic"])
    case["want"]["order"].reverse()
    (tmp_path / "wrong.json").write_text(json.dumps({**content, "cases": [case]}))
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"FAIL {case['name']}" in out
    assert out.splitlines()[-1] == "conformance: 0 of 1 mainstream, 0 of 0 exotic"
