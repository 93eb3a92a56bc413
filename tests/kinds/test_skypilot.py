"""SkyPilot task files: what is asked for, what is refused, and the objects that come out."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.errors import UserError
from makeway.kinds.skypilot import Launch, Task, cluster_objects, managed_job, parse_task
from makeway.kinds.skypilot.accelerators import (
    Accelerators,
    canonical,
    place,
    read_accelerators,
)

LOW = """
resources:
    accelerators: T4:4
    labels:
        kueue.x-k8s.io/queue-name: user-queue
        kueue.x-k8s.io/priority-class: low-priority
run: |
    echo hi
"""


def task(text: str, **envs: str) -> Task:
    return parse_task(text, "task.yaml", envs)


def with_resources(text: str) -> Task:
    return task(f"resources: {text}\nrun: echo hi\n")


def requests(of: Task) -> dict[str, str]:
    pod = cluster_objects(of, Launch(name="x"))[0]
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["requests"]
    return found


# -- amounts --


def test_four_t4_alone_are_16_cpus_64_gigabytes_and_4_gpus() -> None:
    assert requests(task(LOW)) == {"cpu": "16", "memory": "64G", "nvidia.com/gpu": "4"}


def test_a_task_without_gpu_gets_two_cpus_and_two_gigabytes() -> None:
    assert requests(task("run: echo hi")) == {"cpu": "2", "memory": "2G"}


@pytest.mark.parametrize(
    ("said", "cpu", "memory"),
    [
        ("{cpus: 4}", "4", "4G"),
        ("{cpus: 4+}", "4", "4G"),
        ("{cpus: 0.5, memory: 1}", "500m", "1G"),
        ("{cpus: 4, memory: 16+}", "4", "16G"),
        ("{cpus: 4, memory: 64GB}", "4", "64G"),
        ("{cpus: 4, memory: 4x}", "4", "16G"),
        ("{cpus: 2, memory: 512MB}", "2", "512M"),
        ("{instance_type: 4CPU--16GB}", "4", "16G"),
    ],
)
def test_cpus_and_memory_are_exact(said: str, cpu: str, memory: str) -> None:
    assert requests(with_resources(said)) == {"cpu": cpu, "memory": memory}


def test_an_instance_type_brings_its_accelerators() -> None:
    found = requests(with_resources("{instance_type: 16CPU--64GB--T4:4}"))

    assert found == {"cpu": "16", "memory": "64G", "nvidia.com/gpu": "4"}


def test_gpus_are_limits_too_and_cpus_are_not() -> None:
    pod = cluster_objects(task(LOW), Launch(name="x"))[0]

    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}


# -- accelerators --


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("T4", [("T4", 1)]),
        ("T4:4", [("T4", 4)]),
        ({"T4": 4}, [("T4", 4)]),
        (["L4:1", "H100:2"], [("L4", 1), ("H100", 2)]),
        ({"L4:1": None, "H100:1": None}, [("L4", 1), ("H100", 1)]),
    ],
)
def test_every_form_of_accelerators(said: Any, expected: list[tuple[str, int]]) -> None:
    found = read_accelerators(said, "x")

    assert [(one.name, one.count) for one in found] == expected


def test_accelerators_by_memory() -> None:
    (found,) = read_accelerators("nvidia:80GB+:4", "x")

    assert (found.count, found.memory_gb, found.or_more) == (4, 80, True)
    assert found.resource == "nvidia.com/gpu"


def test_of_alternatives_the_first_is_taken_and_that_is_said() -> None:
    found = with_resources("{accelerators: [L4:1, H100:1]}")

    assert found.accelerators is not None
    assert found.accelerators.name == "L4"
    assert found.notes == ("of the accelerators L4:1 is taken, not H100:1.",)


@pytest.mark.parametrize("said", ["T4:", "T4:x", ":4", "T4:4:4"])
def test_a_bad_accelerator_is_told_in_skypilots_words(said: str) -> None:
    with pytest.raises(UserError, match="should be <name> or <name>:<cnt>"):
        read_accelerators(said, "x")


@pytest.mark.parametrize(("said", "words"), [("T4:0", "above 0"), ("T4:0.5", "parts of a GPU")])
def test_a_count_is_a_whole_number_above_zero(said: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_accelerators(said, "x")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Tesla-T4", "T4"),
        ("nvidia-tesla-t4", "T4"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("NVIDIA-L40S", "L40S"),
        ("a100", "A100"),
        ("NVIDIA-GeForce-RTX-4090", "RTX4090"),
    ],
)
def test_names_of_accelerators_as_nodes_write_them(value: str, name: str) -> None:
    assert canonical(value) == name


def test_the_named_accelerator_becomes_a_place() -> None:
    nodes = [{"skypilot.co/accelerator": "t4"}, {"skypilot.co/accelerator": "h100"}]

    found = place(Accelerators(name="T4", count=1), nodes)

    assert terms(found.affinity) == [[("skypilot.co/accelerator", "In", ["t4"])]]
    assert found.warnings == ()


def test_a_node_that_does_not_say_satisfies_every_name_with_a_warning() -> None:
    found = place(Accelerators(name="T4", count=1), [{"skypilot.co/accelerator": "h100"}, {}])

    named, unlabelled = terms(found.affinity)
    assert named == [("skypilot.co/accelerator", "In", ["t4"])]
    assert {operator for _, operator, _ in unlabelled} == {"DoesNotExist"}
    assert "do not say which accelerator" in found.warnings[0]


def test_without_any_label_there_is_no_affinity() -> None:
    found = place(Accelerators(name="T4", count=1), [{}])

    assert found.affinity is None
    assert len(found.warnings) == 1


def test_more_memory_may_be_given_and_less_may_not() -> None:
    nodes = [
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        {"nvidia.com/gpu.product": "A100"},
    ]

    larger = place(Accelerators(name="A100-80GB", count=1), nodes)

    assert "A100" not in [value for term in terms(larger.affinity) for *_, v in term for value in v]


def terms(affinity: dict[str, Any] | None) -> list[list[tuple[str, str, list[str]]]]:
    assert affinity is not None
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        [(one["key"], one["operator"], one.get("values", [])) for one in term["matchExpressions"]]
        for term in required["nodeSelectorTerms"]
    ]


# -- what is refused --


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("runn: echo hi", "task.yaml: runn"),
        ("run: x\nresources: {acelerators: T4}", "task.yaml: resources.acelerators"),
        ("run: x\nresources: {any_of: [{cpu: 1}]}", "task.yaml: resources.any_of[0].cpu"),
        ("run: x\nnum_nodes: 0", "task.yaml: num_nodes"),
        ("run: x\nenvs: {1A: x}", "task.yaml: envs.1A"),
        ("run: x\nfile_mounts: {/a: b}", "task.yaml: file_mounts"),
        ("run: x\nconfig: {hooks: [{run: y}]}", "task.yaml: config.hooks"),
        ("run: x\nresources: {cpus: many}", "task.yaml: resources.cpus"),
        ("run: x\nresources: {memory: much}", "task.yaml: resources.memory"),
        ("resources: {cpus: 1}", "task.yaml: run"),
    ],
)
def test_a_mistake_is_told_with_its_path(text: str, where: str) -> None:
    with pytest.raises(UserError) as caught:
        task(text)

    assert caught.value.where == where


def test_a_mistyped_key_gets_the_near_one() -> None:
    with pytest.raises(UserError, match='Did you mean "accelerators"'):
        with_resources("{acelerators: T4}")


def test_a_required_variable_is_asked_for() -> None:
    with pytest.raises(UserError, match="--env TOKEN=VALUE"):
        task("run: x\nenvs: {TOKEN: null}")

    assert task("run: x\nenvs: {TOKEN: null}", TOKEN="t").envs == {"TOKEN": "t"}


def test_several_tasks_in_one_file_are_refused() -> None:
    with pytest.raises(UserError, match="several tasks"):
        task("run: x\n---\nrun: y")


def test_a_kubernetes_object_is_sent_to_apply() -> None:
    with pytest.raises(UserError, match="makeway apply"):
        task("apiVersion: batch/v1\nkind: Job\n")


# -- objects --


def test_a_launch_is_a_pod_group_that_is_not_requeued() -> None:
    two = task(LOW + "num_nodes: 2\n")

    head, worker = cluster_objects(two, Launch(name="My_Cluster.1", user="ann"))

    assert head["metadata"]["name"].startswith("my-cluster-1-")
    assert head["metadata"]["name"].endswith("-head")
    assert worker["metadata"]["name"].endswith("-worker1")
    for pod in (head, worker):
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["makeway.dev/cluster"] == "My_Cluster.1"
        assert labels["kueue.x-k8s.io/queue-name"] == "user-queue"
        assert labels["kueue.x-k8s.io/pod-group-name"].startswith("my-cluster-1")
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert annotations["kueue.x-k8s.io/retriable-in-group"] == "false"
        assert pod["spec"]["restartPolicy"] == "Never"
    assert env(head)["SKYPILOT_NODE_RANK"] == "0"
    assert env(worker)["SKYPILOT_NODE_RANK"] == "1"
    assert env(head)["SKYPILOT_NODE_IPS"] == "127.0.0.1\n127.0.0.1"
    assert env(head)["SKYPILOT_NUM_GPUS_PER_NODE"] == "4"


def test_without_a_queue_several_nodes_are_still_all_or_nothing() -> None:
    pods = cluster_objects(task("run: x\nnum_nodes: 3"), Launch(name="c"))

    labels = pods[0]["metadata"]["labels"]
    assert labels["pod-group.scheduling.sigs.k8s.io/min-available"] == "3"
    assert "kueue.x-k8s.io/pod-group-name" not in labels


def test_a_managed_job_is_indexed_and_asks_the_queue_once() -> None:
    job = managed_job(task(LOW + "num_nodes: 2\n"), Launch(name="low", job_id=7, at="T"))

    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    template = job["spec"]["template"]
    assert not [k for k in template["metadata"]["labels"] if k.startswith("kueue.x-k8s.io/")]
    assert template["metadata"]["labels"]["makeway.dev/cluster"] == "low"
    assert env(template)["SKYPILOT_TASK_ID"] == "sky-managed-T_low_7-0"


def test_evictions_are_not_failures_and_some_exit_codes_are_not_either() -> None:
    text = "run: x\nresources: {job_recovery: {max_restarts_on_errors: 3, recover_on_exit_codes: [33]}}"

    spec = managed_job(task(text), Launch(name="j"))["spec"]

    assert spec["backoffLimit"] == 3
    evicted, asked = spec["podFailurePolicy"]["rules"]
    assert evicted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert asked == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [33]}}


def test_the_users_own_pod_settings_are_laid_over_ours() -> None:
    text = "run: x\nconfig: {kubernetes: {pod_config: {spec: {priorityClassName: high, containers: [{workingDir: /a}]}}}}"

    spec = cluster_objects(task(text), Launch(name="c"))[0]["spec"]

    assert spec["priorityClassName"] == "high"
    assert spec["containers"][0]["workingDir"] == "/a"
    assert spec["containers"][0]["name"] == "ray-node"


def test_a_setup_that_fails_is_not_followed_by_the_run() -> None:
    import subprocess

    pod = cluster_objects(task("setup: exit 7\nrun: echo never"), Launch(name="c"))[0]
    done = subprocess.run(
        pod["spec"]["containers"][0]["command"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 7
    assert "never" not in done.stdout
    assert "setup failed with exit code 7" in done.stderr


def env(pod: dict[str, Any]) -> dict[str, str]:
    listed = pod["spec"]["containers"][0]["env"]
    return {one["name"]: one["value"] for one in listed if "value" in one}
