"""What only a real API server can show: our definitions and policies at work, takeover, restarts, and rights.

pytest tests/e2e --backend kube
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tools.control_plane import free_port

from makeway.certificates import make_certificates
from makeway.client import ApiError, Client, from_kubeconfig
from makeway.client.resource import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from makeway.control.clock import SystemClock, micro_timestamp, parse_timestamp
from makeway.control.config import Configuration, FairSharing
from makeway.kinds.serving.kueue import ClusterQueueRules, CohortRules, FlavorRules
from makeway.kube.install import DEFINITIONS, PLACES, install, uninstall
from makeway.kube.manifests import LEASE, NAME, NAMESPACE, WEBHOOK_SECRET, Options
from makeway.kube.neighbours import KUEUE_LEASE, KUEUE_NAMESPACE, kueue_runs
from makeway.kube.policies import policies
from makeway.kube.resources import RESOURCES
from makeway.kube.webhook import PATH, configuration
from tests.e2e.backends import Kube, kube_available, kube_backend
from tests.e2e.harness import Machine, Object, chosen_backend, machine
from tests.e2e.queues import cpu_queue

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        chosen_backend() != "kube" or not kube_available(),
        reason="needs a real API server: pytest --backend kube",
    ),
]

NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-1, annotations: {kwok.x-k8s.io/node: fake}}
status: {capacity: {cpu: "8", memory: 32Gi, pods: "110"}}
"""
QUEUE = cpu_queue("lab", 4)
PRIORITIES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: low}
value: 1
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 100
"""
PREEMPTIONS = RESOURCES["Preemption"]


def job(name: str, cpu: int = 2, queue: str = "lab", **template: Any) -> str:
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": str(cpu)}}}
    return json.dumps(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {},
            },
            "spec": {
                "template": {
                    "metadata": template,
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                }
            },
        }
    )


def pod(name: str, **metadata: Any) -> str:
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", **metadata},
            "spec": {"containers": [container]},
        }
    )


async def as_it_arrives(box: Machine, text: str) -> Object:
    """The object after admission, without making it."""
    said = await box.kubectl("create", "-f", "-", "--dry-run=server", "-o", "json", text=text)
    found: Object = json.loads(said)
    return found


# ---- admission -------------------------------------------------------------------------------------


async def test_queued_jobs_arrive_suspended_and_others_do_not() -> None:
    async with machine() as box:
        assert (await as_it_arrives(box, job("queued")))["spec"]["suspend"] is True
        assert not (await as_it_arrives(box, job("free", queue="")))["spec"].get("suspend")


@pytest.mark.parametrize(
    ("kind", "api", "plural", "path"),
    [
        ("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets", ("suspend",)),
        ("RayCluster", "ray.io/v1", "rayclusters", ("suspend",)),
        ("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs", ("suspend",)),
        ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs", ("runPolicy", "suspend")),
    ],
)
async def test_other_kinds_of_queued_jobs_arrive_suspended_too(
    kind: str, api: str, plural: str, path: tuple[str, ...]
) -> None:
    group = api.partition("/")[0]
    labels = {"kueue.x-k8s.io/queue-name": "lab"}
    async with machine() as box, served(box, definition(kind, api, plural)):

        async def arrives(**metadata: Any) -> Object:
            one = {"apiVersion": api, "kind": kind, "metadata": {"name": "one", **metadata}}
            return await as_it_arrives(box, json.dumps({**one, "spec": {"other": 1}}))

        async def suspended() -> bool:
            try:
                found: Any = (await arrives(labels=labels))["spec"]
            except AssertionError as said:
                if "There can be a delay" not in str(said):
                    raise
                # The admission's own copy of the definition follows a moment later.
                return False
            assert found["other"] == 1
            for field in path:
                found = found.get(field, {})
            return found is True

        await box.until(suspended, what=f"a queued {plural}.{group} arrives suspended")
        assert path[0] not in (await arrives())["spec"]


@contextlib.asynccontextmanager
async def served(box: Machine, made: Object) -> AsyncIterator[None]:
    """While the block runs, the cluster has this definition."""
    name = made["metadata"]["name"]
    await box.apply(json.dumps(made))
    await box.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    try:
        yield
    finally:
        await box.kubectl("delete", "crd", name)


def definition(kind: str, api: str, plural: str) -> Object:
    group, _, version = api.partition("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of Kubernetes itself ask for it.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_who_cannot_be_suspended_hands_its_queue_down_to_its_pods(kind: str) -> None:
    queued = {"kueue.x-k8s.io/queue-name": "lab", "kueue.x-k8s.io/priority-class": "high"}
    container = {"name": "c", "image": "busybox"}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    made = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "served", "labels": queued},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template},
    }
    async with machine() as box:
        handed = (await as_it_arrives(box, json.dumps(made)))["spec"]["template"]["metadata"]
        assert handed["labels"] == {"app": "x", **queued}
        parent = {"kueue.x-k8s.io/pod-suspending-parent": kind.lower()}
        assert handed["annotations"] == parent

        child = await as_it_arrives(box, pod("child", labels=queued, annotations=parent))

        # Its controller makes pods anew: nothing may hold the old ones.
        assert "finalizers" not in child["metadata"]
        assert len(child["spec"]["schedulingGates"]) == 2


async def test_queued_pods_arrive_gated_and_with_our_scheduler() -> None:
    async with machine() as box:
        queued = pod("queued", labels={"kueue.x-k8s.io/queue-name": "lab"})
        found = await as_it_arrives(box, queued)
        assert [gate["name"] for gate in found["spec"]["schedulingGates"]] == [
            "kueue.x-k8s.io/admission",
            "kueue.x-k8s.io/topology",
        ]
        assert found["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
        assert found["metadata"]["labels"]["kueue.x-k8s.io/managed"] == "true"
        assert found["spec"]["schedulerName"] == "makeway"
        plain = await as_it_arrives(box, pod("plain"))
        assert "schedulingGates" not in plain["spec"]
        assert plain["spec"]["schedulerName"] == "default-scheduler"


async def test_a_pod_of_a_queued_job_is_not_queued_once_more() -> None:
    async with machine() as box:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "j",
            "uid": "1",
            "controller": True,
        }
        labels = {"kueue.x-k8s.io/queue-name": "lab"}
        found = await as_it_arrives(box, pod("child", labels=labels, ownerReferences=[owner]))
        assert "schedulingGates" not in found["spec"]


async def test_pods_of_admitted_workloads_are_placed_by_makeway_unless_others_are_to() -> None:
    async with machine() as box:
        admitted = {"annotations": {"kueue.x-k8s.io/workload": "w"}}
        found = await as_it_arrives(box, pod("admitted", **admitted))
        assert found["spec"]["schedulerName"] == "makeway"
        external = admitted | {"labels": {"makeway.dev/placement": "external"}}
        found = await as_it_arrives(box, pod("external", **external))
        assert found["spec"]["schedulerName"] == "default-scheduler"


async def test_where_a_default_queue_exists_who_names_none_gets_it() -> None:
    async with machine() as box:
        await box.apply(QUEUE.replace("name: lab, namespace", "name: default, namespace"))

        async def known() -> bool:
            # The server's own copy of parameters follows a moment later.
            found = await as_it_arrives(box, job("j", queue=""))
            labels = found["metadata"].get("labels", {})
            return bool(labels.get("kueue.x-k8s.io/queue-name") == "default")

        await box.until(known, what="a job without a queue gets the default one")
        assert (await as_it_arrives(box, job("j", queue="")))["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("saves", "grace"), [("45s", 50), ("2m", 125), ("1h", 600), ("10s", 30), ("soon", 30)]
)
async def test_who_saves_on_sigterm_gets_the_time_for_it(saves: str, grace: int) -> None:
    async with machine() as box:
        annotated = pod("saver", annotations={"makeway.dev/checkpoint-on-term": saves})
        found = await as_it_arrives(box, annotated)
        assert found["spec"]["terminationGracePeriodSeconds"] == grace


async def test_where_the_server_has_no_policies_a_webhook_does_the_same(tmp_path: Path) -> None:
    pems = make_certificates("webhook", time.time(), ["localhost"], ["127.0.0.1"])
    (tmp_path / "tls.crt").write_bytes(pems.certificate)
    (tmp_path / "tls.key").write_bytes(pems.key)
    address = f"127.0.0.1:{free_port()}"
    hook = configuration(pems.authority, {"url": f"https://{address}{PATH}"}, NAMESPACE)
    arguments = (f"--webhook={address}", f"--webhook-certificates={tmp_path}")
    queue = {"kueue.x-k8s.io/queue-name": "lab"}
    async with machine() as box, Client(from_kubeconfig(box.backend.kubeconfig)) as admin:
        assert isinstance(box.backend, Kube)
        try:
            for policy in policies(NAMESPACE):
                await box.kubectl("delete", policy["kind"].lower(), policy["metadata"]["name"])
            async with replica(box.backend, "hooked", *arguments) as one:
                await eventually(lambda: ready(one), 20, "it is ready")
                await box.apply(json.dumps(hook))

                async def suspended() -> bool:
                    return bool((await as_it_arrives(box, job("queued")))["spec"].get("suspend"))

                await box.until(suspended, what="a queued job arrives suspended")
                assert not (await as_it_arrives(box, job("free", queue="")))["spec"].get("suspend")
                found = await as_it_arrives(box, pod("queued", labels=queue))
                assert len(found["spec"]["schedulingGates"]) == 2
                assert found["spec"]["schedulerName"] == "makeway"
                saves = {"makeway.dev/checkpoint-on-term": "45s"}
                found = await as_it_arrives(box, pod("saves", annotations=saves))
                assert found["spec"]["terminationGracePeriodSeconds"] == 50
            # Nobody answers: what names a queue waits for better times, everything else goes on.
            said = await box.kubectl(
                "create", "-f", "-", "--dry-run=server", text=job("queued"), fails=True
            )
            assert "queued.makeway.dev" in said
            assert (await as_it_arrives(box, pod("plain")))["metadata"]["name"] == "plain"
        finally:
            await box.kubectl(
                "delete", "mutatingwebhookconfiguration", "makeway", "--ignore-not-found"
            )
            await back_again(admin)


async def test_queues_and_flavors_stay_while_they_are_in_use() -> None:
    async with machine() as box:
        await box.apply(NODE)
        await box.apply(QUEUE)
        await box.apply(job("works"))
        await box.settled()
        await box.kubectl("delete", "clusterqueue", "lab", "--wait=false")
        await box.kubectl("delete", "resourceflavor", "any", "--wait=false")
        await box.settled()
        assert "deletionTimestamp" in (await box.get("clusterqueue", "lab"))["metadata"]
        await box.kubectl("delete", "job", "works")

        async def all_gone() -> bool:
            left = await box.list("clusterqueues"), await box.list("resourceflavors")
            return left == ([], [])

        await box.until(all_gone, timeout_s=30, what="the queue and its flavor go")


async def test_checks_and_topologies_are_guarded_and_go_when_nobody_names_them() -> None:
    async with machine() as box:
        await box.apply(
            "apiVersion: kueue.x-k8s.io/v1beta2\nkind: AdmissionCheck\nmetadata: {name: asks}\n"
            "spec: {controllerName: example.com/asks}\n---\n"
            "apiVersion: kueue.x-k8s.io/v1beta2\nkind: Topology\nmetadata: {name: racks}\n"
            "spec: {levels: [{nodeLabel: kubernetes.io/hostname}]}\n"
        )
        await box.settled()
        for kind, name in (("admissioncheck", "asks"), ("topology", "racks")):
            found = await box.get(f"{kind}.kueue.x-k8s.io", name)
            assert found["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
            await box.kubectl("delete", f"{kind}.kueue.x-k8s.io", name, "--timeout=20s")


# ---- definitions -----------------------------------------------------------------------------------


async def test_both_versions_of_a_queue_mean_the_same() -> None:
    async with machine() as box:
        old = QUEUE.replace("v1beta2", "v1beta1").replace(
            "  preemption:", "  cohort: all\n  preemption:"
        )
        await box.apply(NODE)
        await box.apply(old)
        await box.settled()
        (queue,) = box.loop.state.queues.values()
        assert queue.cohort == "all"
        for version in ("v1beta1", "v1beta2"):
            table = await box.kubectl("get", f"clusterqueues.{version}.kueue.x-k8s.io")
            assert table.splitlines()[1].split()[:2] == ["lab", "all"]
        await box.apply(job("one"))
        await box.settled()
        assert "True" in await box.kubectl("get", "workloads.v1beta1.kueue.x-k8s.io")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("nominalQuota: 4", "nominalQuota: 4, borrowingLimit: 1"),
            "borrowingLimit must be nil when cohort is empty",
        ),
        (
            ("withinClusterQueue: LowerPriority", "borrowWithinCohort: {policy: LowerPriority}"),
            "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        ),
        (
            ("coveredResources: [cpu]", "coveredResources: [cpu, memory]"),
            "same number of resources",
        ),
        (("nominalQuota: 4", "nominalQuota: four"), "should match"),
        (("LowerPriority}", "Sometimes}"), 'Unsupported value: "Sometimes"'),
    ],
)
async def test_mistakes_are_refused_by_the_server_itself(
    change: tuple[str, str], said: str
) -> None:
    async with machine() as box:
        wrong = QUEUE.replace(*change)
        assert said in await box.kubectl("apply", "-f", "-", text=wrong, fails=True)


def changed(text: str, *path_and_value: Any) -> str:
    """The same object with one field set."""
    *path, last, value = path_and_value
    obj = json.loads(text)
    inner = obj
    for field in path:
        inner = inner.setdefault(field, {})
    inner[last] = value
    return json.dumps(obj)


QUEUED_POD = {"labels": {"kueue.x-k8s.io/queue-name": "lab"}}
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
GROUP_TOTAL = "kueue.x-k8s.io/pod-group-total-count"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (job("j", queue="Not_A_Name"), "a lowercase RFC 1123 subdomain must consist of"),
        (
            changed(job("j"), "metadata", "labels", "kueue.x-k8s.io/max-exec-time-seconds", "0"),
            "max-exec-time-seconds]: Invalid value: 0: should be greater than 0",
        ),
        (
            changed(job("j"), "metadata", "annotations", MIN_PARALLELISM, "3"),
            "job-min-parallelism]: Invalid value: 3: should be between 0 and 0",
        ),
        (
            changed(pod("p", **QUEUED_POD), "metadata", "labels", GROUP_NAME, "g"),
            "Required value: both the 'kueue.x-k8s.io/pod-group-total-count' annotation and",
        ),
        (
            changed(pod("p", **QUEUED_POD), "metadata", "annotations", GROUP_TOTAL, "2"),
            "pod-group-name]: Required value: both",
        ),
    ],
)
async def test_mistakes_in_queued_work_are_refused_on_arrival(wrong: str, said: str) -> None:
    async with machine() as box:
        assert said in await box.kubectl("create", "-f", "-", text=wrong, fails=True)


def quota(name: str = "cpu", nominal: str | int = 4, **limits: str | int) -> Object:
    return {"name": name, "nominalQuota": nominal, **limits}


def groups(*groups: dict[str, list[Object]]) -> Object:
    """Each given as its flavors by name; what is covered is what the first one has."""
    found = [
        {
            "coveredResources": [r["name"] for r in next(iter(flavors.values()))],
            "flavors": [{"name": n, "resources": r} for n, r in flavors.items()],
        }
        for flavors in groups
    ]
    return {"namespaceSelector": {}, "resourceGroups": found}


IN_COHORT = {"cohortName": "all"}
WRONG_QUEUES: list[Object] = [
    groups({"a": [quota(nominal=-1)]}),
    groups({"a": [quota(lendingLimit=1)]}),
    groups({"a": [quota(lendingLimit=5)]}) | IN_COHORT,
    groups({"a": [quota(nominal="1500m", lendingLimit="1600m")]}) | IN_COHORT,
    groups({"a": [quota(borrowingLimit="-2", lendingLimit="-3")]}) | IN_COHORT,
    groups({"a": [quota()], "b": [quota(nominal="-1k")]}, {"c": [quota("memory", "-1Gi")]}),
    groups({"a": [quota(), quota("memory")], "b": [quota("memory"), quota()]}),
    groups({"a": [quota()]}, {"b": [quota()]}),
    groups({"a": [quota()]}, {"a": [quota("memory")]}, {"a": [quota("pods")]}),
    groups({"a": [quota("not a name")]}, {"b": [quota("Example.com/gpu")]}),
    groups({"a": [quota("x" * 64), quota("example.com/")]}),
    groups({"a": [quota()]}) | {"fairSharing": {"weight": -1}},
    groups({"a": [quota()]}) | {"fairSharing": {"weight": "1n"}},
    groups({"a": [quota()]})
    | {"namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "Is"}]}},
    groups({"a": [quota()]})
    | {
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "k", "operator": "In"},
                {"key": "k", "operator": "Exists", "values": ["v"]},
            ],
            "matchLabels": {"k": "not a value"},
        }
    },
    groups({"a": [quota()]}, {"b": [quota("memory")]})
    | {
        "admissionChecksStrategy": {"admissionChecks": [{"name": "c", "onFlavors": ["a", "other"]}]}
    },
]
WRONG_COHORTS: list[Object] = [
    {"resourceGroups": groups({"a": [quota(borrowingLimit=1)]})["resourceGroups"]},
    {"resourceGroups": groups({"a": [quota(nominal=-2)]})["resourceGroups"], "parentName": "root"},
    {"fairSharing": {"weight": "-500m"}},
]
WRONG_FLAVORS: list[Object] = [
    {"nodeLabels": {"a b": "c"}},
    {"nodeLabels": {"a": "not a value"}},
]
WRONG = [
    *(("ClusterQueue", ClusterQueueRules(), spec) for spec in WRONG_QUEUES),
    *(("Cohort", CohortRules(), spec) for spec in WRONG_COHORTS),
    *(("ResourceFlavor", FlavorRules(), spec) for spec in WRONG_FLAVORS),
]


async def test_wrong_queues_are_refused_in_the_words_of_one_machine() -> None:
    async with machine() as box:
        for kind, rules, spec in WRONG:
            obj = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "spec": spec}
            obj["metadata"] = {"name": "wrong"}
            said = await box.kubectl("create", "-f", "-", text=json.dumps(obj), fails=True)
            rules.default(obj)
            causes = ", ".join(map(str, rules.webhook_causes(obj)))
            assert said.split("denied request: ")[-1].strip().strip("[]") == causes, spec


async def test_quotas_that_are_right_are_taken() -> None:
    async with machine() as box:
        fine = groups(
            {"a": [quota(nominal="1500m", lendingLimit="1.5"), quota("example.com/gpu", 0)]},
            {"b": [quota("memory", "64Gi", borrowingLimit="0")]},
        )
        obj = {"kind": "ClusterQueue", "metadata": {"name": "fine"}, "spec": fine | IN_COHORT}
        await box.apply(json.dumps({"apiVersion": "kueue.x-k8s.io/v1beta2"} | obj))


@pytest.mark.parametrize(("version", "field"), [("v1beta2", "cohort"), ("v1beta1", "cohortName")])
async def test_a_field_of_another_version_is_named(version: str, field: str) -> None:
    async with machine() as box:
        obj = {
            "apiVersion": f"kueue.x-k8s.io/{version}",
            "kind": "ClusterQueue",
            "metadata": {"name": "wrong"},
            "spec": groups({"a": [quota()]}) | {field: "all"},
        }
        said = await box.kubectl("create", "-f", "-", text=json.dumps(obj), fails=True)
        assert f'strict decoding error: unknown field "spec.{field}"' in said


async def test_what_holds_quota_keeps_its_shape() -> None:
    async with machine() as box:
        await box.apply(NODE + "---" + QUEUE)
        await box.apply(job("works"))
        await box.settled()
        (workload,) = await box.client.list(RESOURCES["Workload"], "default")
        change = '[{"op": "replace", "path": "/spec/podSets/0/count", "value": 3}]'
        name = workload["metadata"]["name"]
        said = await box.kubectl("patch", "workload", name, "--type=json", "-p", change, fails=True)
        assert "spec.podSets.0: Invalid value: field is immutable" in said


async def test_a_job_that_runs_keeps_its_queue_and_its_kind_of_priority() -> None:
    async with machine() as box:
        await box.apply(NODE + "---" + QUEUE + "---" + PRIORITIES)
        await box.apply(prioritized("works", "low"))
        await box.settled()
        label = ("label", "job", "works", "--overwrite")
        refused = await box.kubectl(*label, "kueue.x-k8s.io/queue-name=other", fails=True)
        assert 'queue-name]: Invalid value: "other": field is immutable' in refused
        refused = await box.kubectl(*label, "kueue.x-k8s.io/priority-class-", fails=True)
        assert "WorkloadPriorityClass cannot be removed from a workload" in refused
        await box.kubectl(*label, "kueue.x-k8s.io/priority-class=high")


async def test_the_shares_of_a_cohort_are_told_under_fair_sharing() -> None:
    async with machine(Configuration(fair_sharing=FairSharing())) as box:
        await box.apply(NODE)
        await box.apply(QUEUE.replace("  preemption:", "  cohortName: all\n  preemption:"))
        await box.apply("apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {name: all}\n")
        await box.apply(job("one"))
        await box.settled()
        cohort = await box.get("cohorts.kueue.x-k8s.io", "all")
        assert cohort["status"]["fairSharing"] == {"weightedShare": 0}


async def test_the_gangs_of_scheduler_plugins_start_whole_and_say_so() -> None:
    async with machine() as box:
        await box.apply(NODE)
        await box.apply(
            "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\n"
            "metadata: {name: gang, namespace: default}\nspec: {minMember: 2}\n"
        )
        label = {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}}
        await box.apply(pod("g1", **label))
        await box.settled()
        assert await count_running(box.client, 0)
        await box.apply(pod("g2", **label))
        await box.settled()
        assert await count_running(box.client, 2)
        group = await box.get("podgroups.scheduling.x-k8s.io", "gang")
        assert (group["status"]["phase"], group["status"]["running"]) == ("Running", 2)


# ---- installing ------------------------------------------------------------------------------------


async def test_installing_twice_changes_nothing_and_others_definitions_stay() -> None:
    async with kube_backend() as world:
        foreign = await world.admin.get(DEFINITIONS, "podgroups.scheduling.x-k8s.io")
        labels = {"metadata": {"labels": {"app.kubernetes.io/part-of": "scheduler-plugins"}}}
        await world.admin.patch(DEFINITIONS, foreign["metadata"]["name"], labels)
        try:
            before = await versions(world)
            found = await install(world.admin, Options(replicas=0), SystemClock(), lambda _: None)
            assert found.foreign == ("podgroups.scheduling.x-k8s.io",)
            assert await versions(world) == before
        finally:
            ours = {"metadata": {"labels": {"app.kubernetes.io/part-of": "makeway"}}}
            await world.admin.patch(DEFINITIONS, foreign["metadata"]["name"], ours)


async def test_an_upgrade_keeps_what_it_is_not_told_to_change() -> None:
    async with kube_backend() as world:
        clock, said = SystemClock(), list[str]()
        first = Options(image="registry.example.com/makeway:dev", replicas=0, config=CONFIG)
        await install(world.admin, first, clock, said.append)
        try:
            await install(world.admin, Options(), clock, said.append)
            deployment = await world.admin.get(DEPLOYMENTS, NAME, NAMESPACE)
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            assert container["image"] == "registry.example.com/makeway:dev"
            assert "The image stays registry.example.com/makeway:dev; another one: --image" in said
            assert deployment["spec"]["replicas"] == 0
            config = await world.admin.get(CONFIG_MAPS, NAME, NAMESPACE)
            assert config["data"]["config.yaml"] == CONFIG
        finally:
            await uninstall(world.admin, Options(), said.append)
            await back_again(world.admin)


async def test_an_upgrade_keeps_the_webhook_until_it_is_told_otherwise() -> None:
    async with kube_backend() as world:
        clock, options, said = SystemClock(), Options(replicas=0), list[str]()
        try:
            await install(world.admin, options, clock, said.append, webhook=True)
            first = await ways(world)
            assert first == {"webhook": True, "policies": 0, "certificates": True, "served": True}
            secret = await world.admin.get(SECRETS, WEBHOOK_SECRET, NAMESPACE)

            await install(world.admin, options, clock, said.append)
            assert await ways(world) == first
            assert "The webhook stays; admission policies instead: --no-webhook" in said
            again = await world.admin.get(SECRETS, WEBHOOK_SECRET, NAMESPACE)
            assert again["data"] == secret["data"]

            await install(world.admin, options, clock, said.append, webhook=False)
            now = await ways(world)
            assert now.pop("policies")
            assert now == {"webhook": False, "certificates": False, "served": False}
        finally:
            await uninstall(world.admin, Options(), said.append)
            await back_again(world.admin)


async def ways(world: Kube) -> Object:
    """By which of the two ways queued work is held back on arrival."""

    async def names(kind: str, namespace: str = "") -> list[str]:
        return [one["metadata"]["name"] for one in await world.admin.list(PLACES[kind], namespace)]

    deployment = await world.admin.get(DEPLOYMENTS, NAME, NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {
        "webhook": NAME in await names("MutatingWebhookConfiguration"),
        "policies": len(await names("MutatingAdmissionPolicy")),
        "certificates": WEBHOOK_SECRET in await names("Secret", NAMESPACE),
        "served": any(arg.startswith("--webhook=") for arg in container["args"]),
    }


CONFIG = "makeway: {schedulerNames: [makeway, koord-scheduler]}\n"


async def versions(world: Kube) -> dict[str, str]:
    found = await world.admin.list(DEFINITIONS)
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found}


async def test_uninstalling_leaves_running_work_alone_and_nothing_stuck() -> None:
    said: list[str] = []
    async with machine() as box:
        await box.apply(NODE)
        await box.apply(QUEUE)
        await box.apply(job("goes-on"))
        await box.settled()
        (before,) = await box.list("pods")
        world = box.backend
        assert isinstance(world, Kube)
    try:
        await uninstall_and_look(world, before, said)
    finally:
        async with Client(from_kubeconfig(world.kubeconfig)) as admin:
            await back_again(admin)


async def uninstall_and_look(world: Kube, before: Object, said: list[str]) -> None:
    async with Client(from_kubeconfig(world.kubeconfig)) as admin:
        await uninstall(admin, Options(), said.append)
        (after,) = await admin.list(PODS, "default")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert "deletionTimestamp" not in after["metadata"]
        assert any("Workloads that run go on" in sentence for sentence in said)
        for path in ("clusterqueues", "resourceflavors"):
            listed = await admin.request("GET", f"/apis/kueue.x-k8s.io/v1beta2/{path}")
            assert all(not one["metadata"].get("finalizers") for one in listed["items"])


async def back_again(admin: Client) -> None:
    """Install for the tests that follow; a namespace on its way out has to be gone first."""
    async with asyncio.timeout(60):
        while True:
            try:
                await install(admin, Options(replicas=0), SystemClock(), lambda _: None)
                return
            except Exception:
                await asyncio.sleep(0.5)


# ---- takeover --------------------------------------------------------------------------------------


class Process:
    """`makeway run` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def leads(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            return "\nmakeway_leader 1\n" in (await self.get("/metrics"))[1]
        return False

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()


@contextlib.asynccontextmanager
async def replica(world: Kube, name: str, *more: str) -> AsyncIterator[Process]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "makeway.cli.main",
        "run",
        f"--kubeconfig={world.scheduler_kubeconfig}",
        f"--listen=127.0.0.1:{port}",
        "--log-format=json",
        *more,
        env={**os.environ, "POD_NAME": name, "HOME": str(world.home)},
        stderr=(world.home / f"{name}.log").open("ab"),
    )
    made = Process(process, port)
    try:
        yield made
    finally:
        await made.stop(signal.SIGKILL)


async def eventually(question: Any, within_s: float, what: str) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not await question():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


async def test_when_the_leader_is_killed_the_other_takes_over_within_20_s() -> None:
    async with kube_backend() as world, Client(from_kubeconfig(world.kubeconfig)) as admin:
        nodes = asyncio.create_task(world._pretend())
        try:
            async with replica(world, "one") as one:
                await eventually(one.leads, 20, "the first leads")
                assert (await one.get("/healthz"))[0] == 200
                assert (await one.get("/readyz"))[0] == 200
                async with replica(world, "two") as two:
                    await eventually(lambda: ready(two), 20, "the second is ready")
                    assert not await two.leads(), logs(world, "one", "two")
                    await kubectl(world, NODE + "---" + QUEUE)
                    await kubectl(world, job("first"))
                    await eventually(lambda: count_running(admin, 1), 20, "the first job runs")

                    await one.stop(signal.SIGKILL)
                    killed_at = time.monotonic()
                    await kubectl(world, job("second"))

                    await eventually(two.leads, 21, "the second leads")
                    assert time.monotonic() - killed_at <= 20
                    runs = eventually(lambda: count_running(admin, 2), 20, "the second job runs")
                    try:
                        await runs
                    except AssertionError as never:
                        raise AssertionError(logs(world, "one", "two")) from never
                    lease = await admin.get(LEASES, LEASE, NAMESPACE)
                    assert lease["spec"]["holderIdentity"].startswith("two_")
                    assert lease["spec"]["leaseTransitions"] == 1
        finally:
            nodes.cancel()


async def test_a_pod_says_that_it_saved_and_can_speak_for_nobody_else(tmp_path: Path) -> None:
    async with (
        kube_backend() as world,
        Client(from_kubeconfig(world.kubeconfig)) as admin,
        replica(world, "one") as one,
    ):
        await eventually(lambda: ready(one), 20, "it is ready")
        for name in ("made-for-us", "as-every-pod-has"):
            await kubectl(world, pod(name))
        for name, audiences in (("made-for-us", ["makeway"]), ("as-every-pod-has", [])):
            file = tmp_path / name
            file.write_text(await token_of(admin, name, audiences))

            assert await say_saved(one, file) == "True", logs(world, "one")

            found = await admin.get(PODS, name, "default")
            written = found["metadata"]["annotations"]["makeway.dev/last-checkpoint"]
            assert abs(parse_timestamp(written) - time.time()) < 30

        unbound = tmp_path / "unbound"
        unbound.write_text(await token_of(admin, "", ["makeway"]))
        assert await say_saved(one, unbound) == "False"
        garbage = tmp_path / "garbage"
        garbage.write_text("garbage")
        assert await say_saved(one, garbage) == "False"


async def token_of(admin: Client, pod_name: str, audiences: list[str]) -> str:
    """As the kubelet asks for it; without a pod, one of the service account alone."""
    spec: Object = {"expirationSeconds": 3600, "audiences": audiences}
    if pod_name:
        uid = (await admin.get(PODS, pod_name, "default"))["metadata"]["uid"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod_name, "uid": uid}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = SERVICE_ACCOUNTS.path("default", "default", "token")
    answer = await admin.request("POST", path, body=request)
    return str(answer["status"]["token"])


async def say_saved(one: Process, token: Path) -> str:
    """What `makeway.checkpointed()` returns in a program that runs as the pod with this token."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import makeway; print(makeway.checkpointed())",
        env={
            **os.environ,
            "MAKEWAY_URL": f"http://127.0.0.1:{one.port}",
            "MAKEWAY_TOKEN_FILE": str(token),
        },
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return said.decode().strip()


async def test_while_kueue_runs_only_nodes_are_ours_and_when_it_is_gone_all_is() -> None:
    async with kube_backend() as world, Client(from_kubeconfig(world.kubeconfig)) as admin:
        nodes = asyncio.create_task(world._pretend())
        kueue = asyncio.create_task(pretend_kueue(admin))
        try:
            await eventually(lambda: kueue_runs(admin, SystemClock()), 10, "Kueue renews its lease")
            async with replica(world, "one") as one:
                await eventually(one.leads, 20, "it leads")
                assert "\nmakeway_beside_kueue 1\n" in (await one.get("/metrics"))[1]
                assert "Kueue runs on this cluster" in logs(world, "one")
                await kubectl(world, NODE + "---" + QUEUE)
                await kubectl(world, job("queued"))
                await kubectl(world, pod("unqueued").replace('"spec": {', SCHEDULED_BY_US))
                await eventually(lambda: count_running(admin, 1), 20, "what has no queue is placed")
                # Time enough to do what it must not do.
                await asyncio.sleep(2)
                assert await admin.list(RESOURCES["Workload"]) == []
                queue = await admin.get(RESOURCES["ClusterQueue"], "lab")
                assert "status" not in queue
                assert "finalizers" not in queue["metadata"]

                kueue.cancel()

                await eventually(lambda: count_running(admin, 2), 45, "the queued job runs")
                assert "\nmakeway_beside_kueue 0\n" in (await one.get("/metrics"))[1]
        finally:
            kueue.cancel()
            nodes.cancel()
            await kubectl_delete(world, "namespace", KUEUE_NAMESPACE)


SCHEDULED_BY_US = '"spec": {"schedulerName": "makeway", '


async def pretend_kueue(admin: Client) -> None:
    """All that Kueue is to others: a lease that is renewed."""
    with contextlib.suppress(ApiError):
        await admin.create(NAMESPACES, {"metadata": {"name": KUEUE_NAMESPACE}})
    lease: Object = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": KUEUE_LEASE, "namespace": KUEUE_NAMESPACE},
    }
    while True:
        lease["spec"] = {
            "holderIdentity": "kueue",
            "leaseDurationSeconds": 5,
            "renewTime": micro_timestamp(time.time()),
        }
        await admin.patch(
            LEASES, KUEUE_LEASE, lease, KUEUE_NAMESPACE, kind="apply", field_manager="kueue"
        )
        await asyncio.sleep(1)


async def test_a_leader_that_is_told_to_stop_hands_over_at_once() -> None:
    async with (
        kube_backend() as world,
        replica(world, "one") as one,
        replica(world, "two") as two,
    ):
        await eventually(lambda: any_leads(one, two), 20, "one of them leads")
        first, second = (one, two) if await one.leads() else (two, one)
        await eventually(lambda: ready(second), 20, "the other is ready")
        await first.stop(signal.SIGTERM)
        assert first.process.returncode == 0
        await eventually(second.leads, 6, "the other leads")


def logs(world: Kube, *names: str) -> str:
    return "".join((world.home / f"{name}.log").read_text() for name in names)


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 1.0])
async def test_a_leader_killed_in_the_middle_of_a_preemption_is_continued(after_s: float) -> None:
    """The record was written before the first victim was touched: whoever comes next goes on from it."""
    async with kube_backend() as world, Client(from_kubeconfig(world.kubeconfig)) as admin:
        nodes = asyncio.create_task(world._pretend())
        try:
            await kubectl(world, NODE + "---" + QUEUE + "---" + PRIORITIES)
            async with replica(world, "one") as one:
                await eventually(one.leads, 20, "the first leads")
                await kubectl(world, prioritized("low", "low"))
                await eventually(lambda: runs(admin, {"low"}), 20, "the low job runs")
                await kubectl(world, prioritized("high", "high"))
                await asyncio.sleep(after_s)
                await one.stop(signal.SIGKILL)
            # What waiting for 15 s would come to.
            with contextlib.suppress(ApiError):
                await admin.delete(LEASES, LEASE, NAMESPACE)
            async with replica(world, "two"):
                await eventually(lambda: runs(admin, {"high"}), 40, "only the high job runs")
                records = await admin.list(PREEMPTIONS)
                assert len(records) == 1
                await kubectl_delete(world, "job", "high")
                await eventually(lambda: runs(admin, {"low"}), 40, "the low job comes back")
        finally:
            nodes.cancel()


def prioritized(name: str, priority: str) -> str:
    made = json.loads(job(name, cpu=3))
    made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return json.dumps(made)


async def runs(admin: Client, wanted: set[str]) -> bool:
    """Whether exactly these jobs have a running pod that nobody deletes."""
    found = await admin.list(PODS, "default")
    return wanted == {
        one["metadata"]["labels"]["job-name"]
        for one in found
        if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
    }


async def kubectl_delete(world: Kube, *what: str) -> None:
    box = Machine.__new__(Machine)
    box.backend = world
    await box.kubectl("delete", *what)


async def any_leads(*replicas: Process) -> bool:
    return any([await one.leads() for one in replicas])


async def ready(one: Process) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        return (await one.get("/readyz"))[0] == 200
    return False


async def kubectl(world: Kube, text: str) -> None:
    box = Machine.__new__(Machine)
    box.backend = world
    await box.apply(text)


async def count_running(admin: Client, wanted: int) -> bool:
    found = await admin.list(PODS, "default")
    return bool(sum(one["status"]["phase"] == "Running" for one in found) == wanted)
