"""A real training loop: evicted by a higher priority, it gets SIGTERM, saves within its notice, waits, resumes and finishes.

The loss on record is compared with what the program itself counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from makeway.client.resource import PODS, Object
from tests.e2e.cli import EXAMPLES, PREEMPTIONS, Makeway, machine_of_its_own

TRAINING = EXAMPLES / "training"
GPUS = 4 / 16  # four cores, at 16 a GPU
RESTART_S = 1.0
SAVES_EVERY_S = 2.0
STEPS = 500  # at least ten seconds: longer than a busy machine takes to bring the urgent job


@pytest.fixture
def makeway() -> Iterator[Makeway]:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as found:
        found("apply", "-f", str(TRAINING / "queue.yaml"), "-f", str(TRAINING / "script.yaml"))
        yield found


def job(folder: Path, *, saves_on_term: bool) -> str:
    """The example's job with its checkpoints in a folder of the test."""
    text = yaml.safe_load((TRAINING / "train.yaml").read_text())
    template = text["spec"]["template"]
    (container,) = template["spec"]["containers"]
    template["spec"]["volumes"][1]["hostPath"]["path"] = str(folder / "checkpoints")
    container["env"][0]["value"] = str(STEPS)
    if not saves_on_term:
        del template["metadata"]["annotations"]["makeway.dev/checkpoint-on-term"]
        container["env"].append({"name": "SAVE_ON_TERM", "value": "no"})
    file = folder / "train.yaml"
    file.write_text(yaml.safe_dump(text))
    return str(file)


def urgent_work(folder: Path) -> str:
    """The example's urgent job, done sooner."""
    text = yaml.safe_load((TRAINING / "urgent.yaml").read_text())
    text["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep", "3"]
    file = folder / "urgent.yaml"
    file.write_text(yaml.safe_dump(text))
    return str(file)


def evict(makeway: Makeway, urgent: str) -> tuple[Object, str]:
    """Let it run until it has saved, bring urgent work, and return the record and the log of its second life."""
    first = makeway.until("train runs", lambda: makeway.running("job-name=train"))
    makeway.until("it saves", lambda: "saved at step" in makeway.log_of(first))
    makeway("apply", "-f", urgent)
    makeway.until("urgent runs", lambda: makeway.running("job-name=urgent"))
    (record,) = makeway.items(PREEMPTIONS)

    def finished() -> Object | None:
        pods = [
            p for p in makeway.items(PODS) if p["metadata"]["labels"].get("job-name") == "train"
        ]
        done = [p for p in pods if p["status"]["phase"] == "Succeeded"]
        return done[0] if done else None

    second = makeway.until("train finishes", finished, within_s=60)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    return record, makeway.log_of(second)


def counted(log: str) -> tuple[int, float]:
    """Steps and seconds that the program says it lost."""
    found = re.search(r"resumed at step \d+; (\d+) steps \(([\d.]+) s\) were lost", log)
    assert found, log
    return int(found[1]), float(found[2])


def test_who_saves_on_sigterm_loses_nothing_but_the_restart(
    makeway: Makeway, tmp_path: Path
) -> None:
    makeway("apply", "-f", job(tmp_path, saves_on_term=True))

    record, log = evict(makeway, urgent_work(tmp_path))

    steps, seconds = counted(log)
    assert steps == 0
    assert seconds == pytest.approx(0, abs=0.2)
    assert record["spec"]["lossGPUSeconds"] == pytest.approx(GPUS * (seconds + RESTART_S), abs=0.05)
    assert f"finished at step {STEPS}" in log


def test_who_saves_by_the_clock_loses_what_came_since(makeway: Makeway, tmp_path: Path) -> None:
    makeway("apply", "-f", job(tmp_path, saves_on_term=False))

    record, log = evict(makeway, urgent_work(tmp_path))

    steps, seconds = counted(log)
    assert steps > 0
    # The save is told in whole seconds and seen within half a second of it; and the program may save once more between the
    # decision and its SIGTERM.
    assert record["spec"]["lossGPUSeconds"] / GPUS - RESTART_S == pytest.approx(
        seconds, abs=SAVES_EVERY_S + 1.6
    )
    assert f"finished at step {STEPS}" in log
