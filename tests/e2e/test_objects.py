"""apply, get, describe, delete, logs: for people without kubectl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.cli.main import main
from makeway.client.resource import PODS
from tests.e2e.cli import EXAMPLES, Makeway, machine_of_its_own
from tests.e2e.queues import cpu_queue

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: main, image: busybox, command: [sh, -c, "echo hello; echo again"]}
"""


@pytest.fixture(scope="module")
def makeway() -> Iterator[Makeway]:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as found:
        yield found


def test_a_job_from_file_to_log(makeway: Makeway, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)

    assert makeway("apply", "-f", str(file)) == "job.batch/hello created\n"
    assert makeway("apply", "-f", str(file)) == "job.batch/hello unchanged\n"
    makeway.until("it is done", lambda: "Complete" in makeway("get", "job", "hello"))
    assert makeway("logs", "hello") == "hello\nagain\n"
    assert makeway("logs", "hello", "--tail", "1") == "again\n"
    assert "conditions:" in makeway("describe", "job/hello")
    assert makeway("get", "job", "hello", "-o", "name") == "job.batch/hello\n"
    assert "apiVersion: batch/v1" in makeway("get", "job", "hello", "-o", "yaml")
    assert 'job.batch "hello" deleted' in makeway("delete", "-f", str(file))
    makeway.until("its pods are gone", lambda: makeway.items(PODS) == [])


def test_a_folder_is_applied_in_the_order_of_what_needs_what(makeway: Makeway) -> None:
    queues = EXAMPLES / "kueue"

    said = makeway("apply", "--dry-run", "-f", str(queues / "namespaces.yaml"))
    assert "namespace/team-a created (dry run)" in said
    makeway("apply", "-f", str(queues))

    listed = makeway("get", "clusterqueues,localqueues", "-A")
    assert "team-a-cq" in listed
    assert "localqueue.kueue.x-k8s.io/local-queue" in listed
    makeway("delete", "-f", str(queues))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("get", "pdos"), 'Did you mean "pods"?'),
        (("get", "clusterqueue", "nobody"), 'no ClusterQueue called "nobody"'),
        (("get", "pods", "-o", "ymal"), 'Did you mean "yaml"?'),
        (("get", "namespace", "defualt"), 'Did you mean "default"?'),
        (("get", "configmap", "koord-scheduler-config"), "add -n koordinator-system"),
        (("logs", "nobody"), 'no pod or job called "nobody"'),
        (("delete", "pods"), "which ones?"),
        (("apply", "-f", str(EXAMPLES / "priorityclass" / "wrong-unindented.yaml")), "indentation"),
        (("apply", "-f", str(EXAMPLES / "priorityclass" / "wrong-preempt-higher.yaml")), "Never"),
        (("demo", "kuee"), 'Did you mean "kueue"?'),
        (("jobs", "logs", "9"), "there is no managed job"),
    ],
)
def test_mistakes_are_answered_with_what_was_meant(
    makeway: Makeway,
    arguments: tuple[str, ...],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAKEWAY_HOME", str(makeway.home))

    # In this process: a dozen starts of Python would take longer than all the rest.
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))

    assert ended.value.code == 1
    assert answer in capsys.readouterr().err


def test_status_names_a_job_that_cannot_even_get_in_line(makeway: Makeway, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    labels = "labels: {kueue.x-k8s.io/queue-name: door, kueue.x-k8s.io/priority-class: vip}"
    file.write_text(JOB.replace("{name: hello}", f"\n  name: stranded\n  {labels}"))
    makeway("apply", "-f", str(file))

    said = makeway.until(
        "the reason is told", lambda: next((t for t in _waits(makeway) if "vip" in t), "")
    )

    assert said == 'WorkloadPriorityClass "vip" not found.'
    makeway("delete", "-f", str(file))


def _waits(makeway: Makeway) -> list[str]:
    return [line["why"] for line in makeway.json("status")["waiting"]]


QUEUED = """
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, labels: {kueue.x-k8s.io/queue-name: desk}}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: main, image: busybox, command: [sleep, "300"], resources: {requests: {cpu: "2"}}}
"""
DESK = cpu_queue("desk", 3, flavor="plain")


def test_explain_says_who_has_it_what_keeps_them_safe_and_what_would_help(
    makeway: Makeway, tmp_path: Path
) -> None:
    for i, text in enumerate([DESK, QUEUED.replace("NAME", "first")]):
        file = tmp_path / f"{i}.yaml"
        file.write_text(text)
        makeway("apply", "-f", str(file))
    makeway.until("it runs", lambda: "runs on" in makeway("explain", "first"))
    (tmp_path / "second.yaml").write_text(QUEUED.replace("NAME", "second"))
    makeway("apply", "-f", str(tmp_path / "second.yaml"))
    makeway.until("it waits", lambda: "second waits" in makeway.run("explain", "second").stdout)

    assert makeway("explain", "second").splitlines()[1:] == [
        "  1 cpu missing: 2 asked for, 1 free in flavor plain of ClusterQueue desk (at most 3 there)",
        "Who has it:",
        "  Job/default/first (priority 0, ClusterQueue desk): safe: its priority 0 is not below 0",
        "What would let it run: a priority of 1 would let it preempt Job/default/first.",
    ]
    assert '"kind": "no-quota"' in makeway("explain", "second", "--json")
    assert 'Did you mean "second"?' in makeway("explain", "secnd", code=1)
