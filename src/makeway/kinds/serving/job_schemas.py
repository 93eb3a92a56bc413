"""Definitions of the jobs that other projects bring: the fields that are read here, and any others their operators know."""

from __future__ import annotations

from makeway.kinds import kubeflow
from makeway.kinds.serving.own_schemas import (
    CONDITIONS,
    TEMPLATE,
    Schema,
    anything,
    choice,
    flag,
    kind_schema,
    listed,
    mapped,
    record,
    ref,
    text,
    time,
    whole,
)


def definition_name(group: str, version: str, kind: str) -> str:
    """`io.x-k8s.jobset.v1alpha2.JobSet`."""
    return ".".join([*reversed(group.split(".")), version, kind])


def definitions() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for each in kubeflow.KINDS:
        group, version = each.api_version.split("/")
        found[definition_name(group, version, each.kind)] = _training(each, version)
    for group, version, kind, description, spec, status in (
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "Jobs that are one.", _jobset(), _JOBSET_STATUS),
        (
            "trainer.kubeflow.org",
            "v1alpha1",
            "TrainJob",
            "A training run on a runtime.",
            _train_job(),
            anything(),
        ),
        ("ray.io", "v1", "RayCluster", "A Ray cluster.", _ray_cluster(), anything()),
        ("ray.io", "v1", "RayJob", "A job on a Ray cluster of its own.", _ray_job(), anything()),
        (
            "leaderworkerset.x-k8s.io",
            "v1",
            "LeaderWorkerSet",
            "Groups of a leader and its workers.",
            _leader_worker_set(),
            anything(),
        ),
    ):
        found[definition_name(group, version, kind)] = kind_schema(
            group, version, kind, description, spec=spec, status=status
        )
    for kind in ("ClusterTrainingRuntime", "TrainingRuntime"):
        group, version = "trainer.kubeflow.org", "v1alpha1"
        found[definition_name(group, version, kind)] = kind_schema(
            group, version, kind, "What TrainJobs are made of.", spec=_runtime()
        )
    return found


def _open(description: str, required: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    """A record with fields that we read, and others that we keep."""
    known = record(description, required, **fields)
    return known | {"x-kubernetes-preserve-unknown-fields": True}


def _replicated_jobs() -> Schema:
    job = _open("", template=TEMPLATE, parallelism=whole(), completions=whole())
    each = _open(
        "",
        ("name", "template"),
        name=text("Of its pod set."),
        groupName=text(),
        replicas=whole("How many such Jobs."),
        template=_open("", metadata=anything(), spec=job),
    )
    return listed(each, "The kinds of Jobs, in order.", ("name",))


def _jobset() -> Schema:
    return _open(
        "Which Jobs, and when they are done.",
        suspend=flag("Whether nothing runs."),
        replicatedJobs=_replicated_jobs(),
        managedBy=text(),
        ttlSecondsAfterFinished=whole(),
        successPolicy=_open(
            "When it is done.",
            operator=choice("Whether one such Job is enough.", "All", "Any"),
            targetReplicatedJobs=_names("Of the Jobs that count; without any all do."),
        ),
        failurePolicy=_failure_policy(),
        startupPolicy=_open(
            "", startupPolicyOrder=choice("Which Jobs come first.", "AnyOrder", "InOrder")
        ),
        network=anything(),
    )


def _names(description: str) -> Schema:
    return listed(text(), description)


def _failure_policy() -> Schema:
    """Rules are asked in their order; the first that matches is followed."""
    action = choice(
        "What is done.",
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
    )
    rule = _open(
        "What is done when certain Jobs fail.",
        ("action",),
        name=text(),
        action=action,
        onJobFailureReasons=_names("Of the Job's condition Failed; without any all."),
        onJobFailureMessagePatterns=_names("Regular expressions; without any all."),
        targetReplicatedJobs=_names("Of the Jobs that are meant; without any all are."),
    )
    strategies = ("Recreate", "BlockingRecreate", "InPlaceRestart")
    return _open(
        "What the failure of a Job means.",
        maxRestarts=whole("How often it may start again.", minimum=0),
        restartStrategy=choice("How it starts again.", *strategies),
        rules=listed(rule, "Asked in order; the first that matches is followed.", maxItems=20),
    )


_JOBSET_STATUS = _open(
    "",
    conditions=CONDITIONS,
    restarts=whole(),
    restartsCountTowardsMax=whole(),
    terminalState=text(),
    replicatedJobsStatus=listed(anything(), "", ("name",)),
)


def _training(kind: kubeflow.QueuedTraining, version: str) -> Schema:
    replica = _open("", ("template",), replicas=whole(), restartPolicy=text(), template=TEMPLATE)
    policy = _open(
        "How it runs and ends.",
        suspend=flag("Whether nothing runs."),
        backoffLimit=whole(),
        cleanPodPolicy=text(),
        ttlSecondsAfterFinished=whole(),
        schedulingPolicy=_open("", priorityClass=text()),
    )
    fields = {kind.field: mapped(replica, "By role."), "runPolicy": policy}
    status = _open(
        "",
        conditions=listed(anything(), "", ("type",)),
        replicaStatuses=mapped(anything()),
        startTime=time(),
        completionTime=time(),
    )
    return kind_schema(
        "kubeflow.org",
        version,
        kind.kind,
        "A training job of one program on several pods.",
        spec=_open("Which pods, by role.", (kind.field,), **fields),
        status=status,
    )


def _train_job() -> Schema:
    resources = ref("ResourceRequirements")
    trainer = _open(
        "What to train with.",
        image=text(),
        command=listed(text()),
        args=listed(text()),
        env=listed(ref("EnvVar"), "", ("name",)),
        numNodes=whole(),
        resourcesPerNode=resources,
    )
    return _open(
        "Which runtime, and what to run on it.",
        ("runtimeRef",),
        runtimeRef=_open("", ("name",), apiGroup=text(), kind=text(), name=text()),
        trainer=trainer,
        suspend=flag("Whether nothing runs."),
        runtimePatches=listed(anything(), "", ("manager",)),
    )


def _runtime() -> Schema:
    template = _open("", spec=_open("", replicatedJobs=_replicated_jobs()))
    return _open("", mlPolicy=_open("", numNodes=whole()), template=template)


def _ray_cluster() -> Schema:
    group = _open(
        "",
        ("groupName", "template"),
        groupName=text("Of its pod set."),
        replicas=whole(),
        numOfHosts=whole(),
        template=TEMPLATE,
    )
    return _open(
        "A head and groups of workers.",
        suspend=flag("Whether nothing runs."),
        headGroupSpec=_open("", ("template",), template=TEMPLATE),
        workerGroupSpecs=listed(group),
        enableInTreeAutoscaling=flag(),
    )


def _ray_job() -> Schema:
    return _open(
        "What to run, and on which cluster.",
        suspend=flag("Whether nothing runs."),
        entrypoint=text(),
        submissionMode=text(),
        shutdownAfterJobFinishes=flag(),
        clusterSelector=mapped(text()),
        rayClusterSpec=_ray_cluster(),
        submitterPodTemplate=TEMPLATE,
    )


def _leader_worker_set() -> Schema:
    form = _open(
        "What a group is made of.",
        ("workerTemplate",),
        leaderTemplate=TEMPLATE,
        workerTemplate=TEMPLATE,
        size=whole("Pods of a group, its leader included.", minimum=1),
        restartPolicy=choice(
            "What the loss of a pod means.",
            "Default",
            "RecreateGroupOnPodRestart",
            "RecreateGroupAfterStart",
            "None",
        ),
    )
    return _open(
        "How many groups, of which pods.",
        ("leaderWorkerTemplate",),
        replicas=whole("How many groups.", minimum=0),
        leaderWorkerTemplate=form,
        startupPolicy=choice("When workers are made.", "LeaderCreated", "LeaderReady"),
    )
