"""What is refused at the door, in the words that people know from the real server and from Kueue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embedded.api.conftest import MERGE, PODS, Api, pod

JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2/"
NOT_CHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid;"
    " correct the existing errors to complete validation"
)


def queue(quota: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    resource = {"name": "cpu", "nominalQuota": 4} | (quota or {})
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [resource]}]}
    return {
        "metadata": {"name": "bad"},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }


def job(**changes: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    metadata = {"name": "j", **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"template": template, **changes}}


def webhook(name: str, text: str) -> str:
    return f'admission webhook "{name}" denied the request: {text}'


def cron(schedule: str = "* * * * *", *, name: str = "c", **spec: Any) -> dict[str, Any]:
    template = {"spec": job()["spec"]}
    spec = {"schedule": schedule, "jobTemplate": template, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def deployment(most_missing: Any) -> dict[str, Any]:
    labels = {"a": "b"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    strategy = {"rollingUpdate": {"maxUnavailable": most_missing}}
    spec = {"selector": {"matchLabels": labels}, "template": template, "strategy": strategy}
    return {"metadata": {"name": "d"}, "spec": spec}


def bad_cron(field: str, value: str, why: str) -> str:
    return f'CronJob.batch "c" is invalid: {field}: Invalid value: {value}: {why}'


CRONS = "/apis/batch/v1/namespaces/default/cronjobs"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MOST_MISSING = "spec.strategy.rollingUpdate.maxUnavailable: Invalid value"
NO_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is"
    " '[0-9]+%')"
)
FIELD = "spec.resourceGroups[0].flavors[0].resources[0]"
NOT_NEGATIVE = "must be greater than or equal to 0"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def near(annotations: dict[str, str]) -> dict[str, Any]:
    made = job()
    said = {f"kueue.x-k8s.io/{name}": value for name, value in annotations.items()}
    made["spec"]["template"]["metadata"] = {"annotations": said}
    return made


CASES: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("negative quota", QUEUES, queue({"nominalQuota": -1}), 403,
     webhook("vclusterqueue.kb.io", f'{FIELD}.nominalQuota: Invalid value: "-1": {NOT_NEGATIVE}')),
    ("quota that is no number", QUEUES, queue({"nominalQuota": "many"}), 400,
     webhook("mclusterqueue.kb.io", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")),
    ("borrowing without cohort", QUEUES, queue({"borrowingLimit": 1}), 422,
     'ClusterQueue.kueue.x-k8s.io "bad" is invalid: spec: Invalid value: borrowingLimit must be nil when cohort is empty'),
    ("lending without cohort", QUEUES, queue({"lendingLimit": 2}), 403,
     webhook("vclusterqueue.kb.io", f'{FIELD}.lendingLimit: Invalid value: "2": must be nil when cohort is empty')),
    ("lending more than owned", QUEUES, queue({"lendingLimit": 5}, cohortName="c"), 403,
     webhook("vclusterqueue.kb.io", f'{FIELD}.lendingLimit: Invalid value: "5": must be less than or equal to the nominalQuota')),
    ("unknown policy", QUEUES, queue(preemption={"withinClusterQueue": "Always"}), 422,
     'ClusterQueue.kueue.x-k8s.io "bad" is invalid: [spec.preemption.withinClusterQueue: Unsupported value: "Always": supported'
     f' values: "Never", "LowerPriority", "LowerOrNewerEqualPriority", {NOT_CHECKED}]'),
    ("borrowing without reclaiming", QUEUES, queue(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}), 422,
     'ClusterQueue.kueue.x-k8s.io "bad" is invalid: spec.preemption: Invalid value:'
     " reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"),
    ("negative weight", QUEUES, queue(fairSharing={"weight": -1}), 403,
     webhook("vclusterqueue.kb.io", f'spec.fairSharing: Invalid value: "-1": {NOT_NEGATIVE}')),
    ("class without value", KUEUE + "workloadpriorityclasses", {"metadata": {"name": "bad"}}, 422,
     'WorkloadPriorityClass.kueue.x-k8s.io "bad" is invalid: value: Required value'),
    ("class with too large a value", KUEUE + "workloadpriorityclasses", {"metadata": {"name": "bad"}, "value": 3_000_000_000}, 422,
     'WorkloadPriorityClass.kueue.x-k8s.io "bad" is invalid: <nil>: Invalid value: "": Checked value must be of type integer with'
     " format int32 in value"),
    ("limit without parent", KUEUE + "cohorts", queue({"borrowingLimit": 1}) | {"spec": {"resourceGroups": queue({"borrowingLimit": 1})["spec"]["resourceGroups"]}}, 403,
     webhook("vcohort.kb.io", f'{FIELD}.borrowingLimit: Invalid value: "1": must be nil when parent is empty')),
    ("bad execution time", JOBS, job(metadata={"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "0"}}), 403,
     webhook("vjob.kb.io", "metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]: Invalid value: 0: should be greater than 0")),
    ("bad minimum", JOBS, job(metadata={"annotations": {"kueue.x-k8s.io/job-min-parallelism": "x"}}), 403,
     webhook("vjob.kb.io", 'metadata.annotations[kueue.x-k8s.io/job-min-parallelism]: Invalid value: "x": strconv.Atoi: parsing "x":'
             " invalid syntax")),
    ("a rack that is no label", JOBS, near({"podset-required-topology": "a rack"}), 403,
     webhook("vjob.kb.io", 'spec.template.metadata.annotations[kueue.x-k8s.io/podset-required-topology]: Invalid value: "a rack": name part must consist of'
             " alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc',"
             " regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')")),
    ("near in two ways", JOBS, near({"podset-required-topology": "rack", "podset-preferred-topology": "rack"}), 403,
     webhook("vjob.kb.io", "spec.template.metadata.annotations: Invalid value: must not contain more than one topology annotation:"
             ' ["kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology", "kueue.x-k8s.io/podset-unconstrained-topology"]')),
    ("slices without a size", JOBS, near({"podset-slice-required-topology": "rack"}), 403,
     webhook("vjob.kb.io", "spec.template.metadata.annotations[kueue.x-k8s.io/podset-slice-size]: Required value: must be set when"
             " 'kueue.x-k8s.io/podset-slice-required-topology' is specified")),
    ("toleration of everything and something", KUEUE + "resourceflavors", {"metadata": {"name": "bad"}, "spec": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}, 422,
     "ResourceFlavor.kueue.x-k8s.io \"bad\" is invalid: spec.tolerations: Invalid value: a value must be empty when 'operator' is 'Exists'"),
    ("workload without pods", KUEUE + "namespaces/default/workloads", {"metadata": {"name": "bad"}, "spec": {"podSets": []}}, 422,
     'Workload.kueue.x-k8s.io "bad" is invalid: spec.podSets: Invalid value: 0: spec.podSets in body should have at least 1 items'),
    ("pod group without its size", PODS, pod() | {"metadata": {"name": "a", "labels": {QUEUE_LABEL: "q", "kueue.x-k8s.io/pod-group-name": "g"}}}, 403,
     webhook("vpod.kb.io", "metadata.annotations[kueue.x-k8s.io/pod-group-total-count]: Required value: both the"
             " 'kueue.x-k8s.io/pod-group-total-count' annotation and the 'kueue.x-k8s.io/pod-group-name' label should be set")),
    ("policy that does not exist", CLASSES, {"metadata": {"name": "p"}, "value": 1, "preemptionPolicy": "PreemptHigherPriority"}, 422,
     'PriorityClass.scheduling.k8s.io "p" is invalid: preemptionPolicy: Unsupported value: "PreemptHigherPriority": supported values:'
     ' "PreemptLowerPriority", "Never"'),
    ("priority over a billion", CLASSES, {"metadata": {"name": "p"}, "value": 1_000_000_001}, 422,
     'PriorityClass.scheduling.k8s.io "p" is invalid: value: Forbidden: maximum allowed value of a user defined priority is 1000000000'),
    ("class that does not exist", PODS, pod(priorityClassName="nope"), 403,
     'pods "a" is forbidden: no PriorityClass with name nope was found'),
    ("priority beside the class", PODS, pod(priority=5), 403,
     'pods "a" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller'
     " computed 0 from the given PriorityClass name"),
    ("request without limit of a GPU", PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"nvidia.com/gpu": 1}}}]), 422,
     'Pod "a" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources'),
    ("half a GPU", PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 0.5}}}]), 422,
     'Pod "a" is invalid: [spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer,'
     ' spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "500m": must be an integer]'),
    ("more requested than limited", PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}]), 422,
     'Pod "a" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'),
    ("no containers", PODS, {"metadata": {"name": "a"}, "spec": {}}, 422, 'Pod "a" is invalid: spec.containers: Required value'),
    ("amount that is no quantity", PODS, pod(containers=[{"name": "c", "image": "i", "resources": {"limits": {"cpu": "lots"}}}]), 400,
     'Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression'
     " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
    ("job that always restarts", JOBS, {"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}, 422,
     'Job.batch "j" is invalid: spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
    ("model from nowhere", "/apis/kubeai.org/v1/namespaces/default/models", {"metadata": {"name": "m"}, "spec": {"url": "http://x", "engine": "VLLM", "features": []}}, 422,
     'Model.kubeai.org "m" is invalid: spec.url: Invalid value: url must start with "hf://", "pvc://", "ollama://", "s3://", "gs://",'
     ' or "oss://" and not be empty.'),
    ("a zone in a schedule", CRONS, cron("TZ=UTC * * * * *"), 422,
     bad_cron("spec.schedule", '"TZ=UTC * * * * *"', "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")),
    ("no zone", CRONS, cron(timeZone=""), 422,
     bad_cron("spec.timeZone", '""', "timeZone must be nil or non-empty string")),
    ("whatever zone this is", CRONS, cron(timeZone="Local"), 422,
     bad_cron("spec.timeZone", '"Local"', "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")),
    ("a zone that is a path", CRONS, cron(timeZone="../etc/passwd"), 422,
     bad_cron("spec.timeZone", '"../etc/passwd"', "unknown time zone ../etc/passwd")),
    ("a deadline before it is due", CRONS, cron(startingDeadlineSeconds=-1), 422,
     bad_cron("spec.startingDeadlineSeconds", "-1", NOT_NEGATIVE)),
    ("a history of less than nothing", CRONS, cron(successfulJobsHistoryLimit=-1), 422,
     bad_cron("spec.successfulJobsHistoryLimit", "-1", NOT_NEGATIVE)),
    ("no pods to run", CRONS, cron(jobTemplate={"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}), 422,
     'CronJob.batch "c" is invalid: spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
    ("a name that leaves no room for its Jobs'", CRONS, cron(name="x" * 60), 422,
     f'CronJob.batch "{"x" * 60}" is invalid: metadata.name: Invalid value: "{"x" * 60}": must be no more than 52 characters'),
    ("a share that is none", DEPLOYMENTS, deployment("abc"), 422,
     f'Deployment.apps "d" is invalid: {MOST_MISSING}: "abc": {NO_PERCENT}'),
    ("more than all", DEPLOYMENTS, deployment("150%"), 422,
     f'Deployment.apps "d" is invalid: {MOST_MISSING}: "150%": must not be greater than 100%'),
    ("fewer than none", DEPLOYMENTS, deployment(-1), 422,
     f'Deployment.apps "d" is invalid: {MOST_MISSING}: -1: {NOT_NEGATIVE}'),
    ("a budget of a number as text", BUDGETS, {"metadata": {"name": "d"}, "spec": {"minAvailable": "5"}}, 422,
     f'PodDisruptionBudget.policy "d" is invalid: spec.minAvailable: Invalid value: "5": {NO_PERCENT}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
async def test_refused(api: Api, path: str, body: dict[str, Any], code: int, message: str) -> None:
    answered, status = await api.call("POST", path, body)
    assert status["message"] == message
    assert answered == code
    assert (await api.call("GET", f"{path}/{body['metadata']['name']}"))[0] == 404


async def test_a_wrong_policy_comes_with_a_hint(api: Api) -> None:
    body = {"metadata": {"name": "p"}, "value": 1, "preemptionPolicy": "PreemptHigherPriority"}
    await api.call("POST", CLASSES, body)
    assert "Write preemptionPolicy: PreemptLowerPriority" in api.warnings[0]


async def test_one_class_is_the_default(api: Api) -> None:
    await api.create(CLASSES, {"metadata": {"name": "first"}, "value": 7, "globalDefault": True})
    code, status = await api.call(
        "POST", CLASSES, {"metadata": {"name": "second"}, "value": 8, "globalDefault": True}
    )
    assert (code, status["message"]) == (
        403,
        'priorityclasses.scheduling.k8s.io "second" is forbidden: PriorityClass first is already marked as default.'
        " Only one default can exist",
    )
    created = await api.create(PODS, pod())
    assert (created["spec"]["priority"], created["spec"]["priorityClassName"]) == (7, "first")


UPDATES: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("value of a class", CLASSES, {"metadata": {"name": "x"}, "value": 1}, {"value": 2},
     "value: Forbidden: may not be changed in an update."),
    ("policy of a class", CLASSES, {"metadata": {"name": "x"}, "value": 1}, {"preemptionPolicy": "Never"},
     'preemptionPolicy: Invalid value: "Never": field is immutable'),
    ("priority of a pod", PODS, pod("x"), {"spec": {"priority": 9}}, "spec: Forbidden: pod updates may not change fields other than"),
    ("completions of a job", JOBS, job(metadata={"name": "x"}), {"spec": {"completions": 5}},
     "spec.completions: Invalid value: 5: field is immutable"),
    ("queue behind a local queue", KUEUE + "namespaces/default/localqueues", {"metadata": {"name": "x"}, "spec": {"clusterQueue": "a"}},
     {"spec": {"clusterQueue": "b"}}, 'spec.clusterQueue: Invalid value: "b": field is immutable'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "patch", "message"),
    [case[1:] for case in UPDATES],
    ids=[case[0] for case in UPDATES],
)
async def test_what_stays_as_it_was(
    api: Api, path: str, body: dict[str, Any], patch: dict[str, Any], message: str
) -> None:
    created = await api.create(path, body)
    code, status = await api.call("PATCH", f"{path}/x", patch, content_type=MERGE)
    assert code == 422
    assert message in status["message"]
    assert await api.get(f"{path}/x") == created


async def test_a_running_job_keeps_its_queue(api: Api) -> None:
    await api.create(JOBS, job(metadata={"labels": {QUEUE_LABEL: "q"}}))
    await api.patch(f"{JOBS}/j", {"metadata": {"labels": {QUEUE_LABEL: "other"}}})
    await api.patch(f"{JOBS}/j", {"spec": {"suspend": False}})
    for patch, message in (
        ({QUEUE_LABEL: "third"}, f'metadata.labels[{QUEUE_LABEL}]: Invalid value: "third": field is immutable'),
        ({"kueue.x-k8s.io/priority-class": "low"},
         'metadata.labels[kueue.x-k8s.io/priority-class]: Invalid value: "low": WorkloadPriorityClass cannot be added to'
         " a non-suspended workload"),
    ):  # fmt: skip
        code, status = await api.call(
            "PATCH", f"{JOBS}/j", {"metadata": {"labels": patch}}, content_type=MERGE
        )
        assert (code, status["message"]) == (403, webhook("vjob.kb.io", message))


async def test_a_suspended_job_may_be_steered_to_nodes(api: Api) -> None:
    await api.create(JOBS, job(metadata={"labels": {QUEUE_LABEL: "q"}}))
    steered = {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    started = await api.patch(f"{JOBS}/j", steered)
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    code, _ = await api.call(
        "PATCH",
        f"{JOBS}/j",
        {"spec": {"template": {"spec": {"nodeSelector": {"pool": "b"}}}}},
        content_type=MERGE,
    )
    assert code == 422
    await api.patch(f"{JOBS}/j", {"spec": {"suspend": True}})
    restored = await api.patch(
        f"{JOBS}/j", {"spec": {"template": {"spec": {"nodeSelector": None}}}}
    )
    assert "nodeSelector" not in restored["spec"]["template"]["spec"]
