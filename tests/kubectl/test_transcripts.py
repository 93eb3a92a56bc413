"""kubectl says the same on the embedded API as on a real API server, command by command, or the difference is listed with its reason.

`recorded.txt` is what kubectl 1.36 said on a real server: every test run compares with it. `make long` compares with a server that runs
beside, for each kubectl that the machine has; `pytest --backend kube` checks the recording itself.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

import pytest
import yaml
from tools.kube_binaries import available
from tools.kubectl import KubectlMissingError, kubectl, others

from tests.kubectl.transcript import FOLDER, Step, read, record, text_of
from tests.kubectl.worlds import embedded_world, real_world

pytestmark = pytest.mark.kubectl
RECORDED = FOLDER / "recorded.txt"
DIFFERENCES = yaml.safe_load((FOLDER / "differences.yaml").read_text())
DOCUMENT = FOLDER.parents[1] / "docs/reference/differences.md"
OTHERS = others()


@pytest.fixture(scope="module")
def binary() -> Path:
    try:
        return kubectl()
    except KubectlMissingError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def listed() -> set[str]:
    return {command for group in DIFFERENCES for command in group["commands"]}


def differing(real: str, ours: str) -> dict[str, str]:
    """The commands that were answered differently, with the difference."""
    theirs, mine = read(real), read(ours)
    assert list(theirs) == list(mine), "recorded anew? python -m tests.kubectl kube"
    found = {}
    for command, said in theirs.items():
        if said != mine[command]:
            before, after = ("".join(each).splitlines() for each in (said, mine[command]))
            lines = unified_diff(before, after, "a real server", "makeway", lineterm="", n=1)
            found[command] = "\n".join(lines)
    return found


def compare(real: str, ours: str) -> set[str]:
    """The commands whose answers differ, all of which are listed."""
    found = differing(real, ours)
    unlisted = [text for command, text in found.items() if command not in listed()]
    assert not unlisted, "\n\n".join(unlisted)
    return set(found)


def on_embedded(binary: Path, scratch: Path) -> list[Step]:
    with embedded_world() as config:
        return record(binary, config, scratch)


def on_kube(binary: Path, scratch: Path) -> list[Step]:
    with real_world() as config:
        return record(binary, config, scratch)


def test_kubectl_says_what_it_says_on_a_real_server(binary: Path, tmp_path: Path) -> None:
    found = compare(RECORDED.read_text(), text_of(on_embedded(binary, tmp_path)))
    assert found == listed(), "listed as different, and the same"


def test_every_difference_is_documented() -> None:
    documented = " ".join(DOCUMENT.read_text().split())
    for group in DIFFERENCES:
        assert " ".join(group["reason"].split()) in documented, group["reason"]


def test_the_recording_is_what_a_real_server_says(
    request: pytest.FixtureRequest, binary: Path, tmp_path: Path
) -> None:
    if request.config.getoption("--backend") != "kube":
        pytest.skip("runs on a real server: pytest --backend kube")
    recorded = RECORDED.read_text()
    once = differing(recorded, text_of(on_kube(binary, tmp_path / "once")))
    if once:  # A controller may be a moment later than it was that day: what the server says, it says again.
        again = differing(recorded, text_of(on_kube(binary, tmp_path / "again")))
        lasting = [text for command, text in once.items() if command in again]
        assert not lasting, "\n\n".join(lasting)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    OTHERS
    or [pytest.param(None, marks=pytest.mark.skip("no other kubectl: see tools/kubectl.py"))],
    ids=lambda path: path.name if path else "none",
)
def test_every_kubectl_says_the_same_on_both(other: Path, tmp_path: Path) -> None:
    if not available():
        pytest.skip("no binaries of a real server here: make cluster builds them")
    real, ours = on_kube(other, tmp_path / "kube"), on_embedded(other, tmp_path / "embedded")
    compare(text_of(real), text_of(ours))
