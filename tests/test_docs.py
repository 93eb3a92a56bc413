"""The docs say what the program does: commands, annotations, reasons and links are checked against the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from makeway.cli.demo import DEMOS
from makeway.control.config import Makeway as Settings
from makeway.control.metrics import COUNTERS, GAUGES, HISTOGRAMS
from makeway.model.reason import Kind
from tests.control.kueue_metrics import FAMILIES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
# The beginnings of names, not names.
PREFIXES = {"makeway.dev/", "makeway.dev/pretend-", "makeway.dev/v"}


def reference(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


def test_the_commands_page_is_what_the_program_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.reference", "--check"], cwd=ROOT, check=False
    )

    assert done.returncode == 0, "run: python -m tools.reference"


def test_every_annotation_is_documented() -> None:
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text()
        found |= set(re.findall(r"makeway\.dev/[a-z][a-z-]*", text))
        found |= {f"makeway.dev/{name}" for name in re.findall(r'PREFIX \+ "([a-z-]+)"', text)}

    page = reference("annotations.md")

    assert sorted(name for name in found - PREFIXES if name not in page) == []


def test_every_kind_of_reason_is_documented() -> None:
    page = reference("reasons.md")

    assert [kind for kind in get_args(Kind) if f"`{kind}`" not in page] == []


def test_every_metric_is_in_the_reference() -> None:
    page = reference("metrics.md")
    for name, help_ in (
        *COUNTERS.items(),
        *GAUGES.items(),
        *((n, h) for n, (h, _) in HISTOGRAMS.items()),
    ):
        assert f"| `{name}` |" in page, name
        assert help_ in page, help_


def test_every_family_of_kueues_is_given_or_said_to_be_missing() -> None:
    given = {*COUNTERS, *GAUGES, *HISTOGRAMS}
    missing = reference("metrics.md").partition("## Not given")[2]
    assert {name for name in FAMILIES if name not in given} == set(
        re.findall(r"`((?:multi)?kueue_\w+)`", missing)
    )


def test_every_setting_of_ours_is_documented() -> None:
    page = reference("configuration.md")
    names = [field.encode_name for field in msgspec.structs.fields(Settings)]

    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_every_demo_is_in_the_help_and_in_the_examples() -> None:
    examples = (ROOT / "examples/README.md").read_text()
    page = reference("cli.md")

    assert [name for name in DEMOS if f"`makeway demo {name}`" not in examples] == []
    assert [name for name in DEMOS if name not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    local = [target for target in targets if not target.startswith(("http:", "https:"))]

    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    known = set(re.findall(r"^## makeway ([a-z ]+)$", reference("cli.md"), re.MULTILINE))
    said = set(re.findall(r"^(?:\.venv/bin/)?makeway ((?:jobs )?[a-z]+)", text, re.MULTILINE))
    files = re.findall(r"\b(examples/[a-z]+/[a-z0-9-]+\.yaml)", text)

    sources = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    places = (ROOT, ROOT / "src/makeway")

    assert sorted(said - known) == []
    assert [f for f in sources if not any((place / f).exists() for place in places)] == []
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_files_that_an_example_applies_exist() -> None:
    for page in (ROOT / "examples").glob("*/README.md"):
        for name in re.findall(r"-f ([a-z0-9-]+\.yaml)", page.read_text()):
            assert (page.parent / name).exists(), f"{page}: {name}"


def test_the_readme_shows_what_the_demo_prints() -> None:
    """The sentences of the timeline are those of the program, not of an older one."""
    story = (ROOT / "src/makeway/cli/demo/kueue.py").read_text()
    shown = (ROOT / "README.md").read_text()

    for sentence in (
        "submitted: 5 CPUs; its queue owns none and borrows from cohort team-ab",
        "submitted: 7 CPUs and 2 GPUs, priority 1000 over team B's 100",
    ):
        assert sentence in story
        assert sentence in shown
